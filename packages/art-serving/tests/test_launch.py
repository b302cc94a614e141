"""Command line, environment, preflight and the statistics page."""

import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from art_serving import EngineOptions, Environment, MemberLaunch, PreflightError, Secret, ServingError
from art_serving.deployment import EngineStats
from art_serving.launch import member_command, member_environment
from art_serving.metrics import StatsReader, pooled, stall
from art_serving.preflight import available_bytes, check_host


@pytest.fixture
def installed(tmp_path) -> Environment:
    """An environment with nothing but the command's file."""
    command = tmp_path / ".venv" / "bin" / "art-vllm-runtime-server"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    return Environment(tmp_path / ".venv", tmp_path / ".venv" / "bin" / "python", "digest")


def make_launch(tmp_path: Path, **more) -> MemberLaunch:
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"x" * 1000)
    values = {
        "service": "policy",
        "member": 0,
        "incarnation": 2,
        "model_path": str(model),
        "base_model_name": "base/model",
        "adapter_name": "policy",
        "dtype": "bfloat16",
        "max_model_len": None,
        "max_num_seqs": 16,
        "max_lora_rank": 8,
        "kv_cache_bytes": 2**20,
        "seed": 4,
        "log_folder": str(tmp_path / "logs"),
        "admin_token": Secret("admin-secret"),
        "api_key": Secret("key-secret"),
    }
    return MemberLaunch(**(values | more))


def test_the_command_spells_every_option_and_no_secret(tmp_path, installed):
    launch = make_launch(tmp_path, options=EngineOptions(threads=2, stall_timeout_s=7.5))
    command = member_command(launch, installed, tmp_path / "run", tmp_path / "failure.json")
    assert command == [
        str(tmp_path / ".venv/bin/art-vllm-runtime-server"),
        *("--run-folder", str(tmp_path / "run")),
        *("--failure-file", str(tmp_path / "failure.json")),
        *("--host", "127.0.0.1", "--port", "0"),
        *("--model-path", str(tmp_path / "model")),
        *("--base-model-name", "base/model", "--adapter-name", "policy"),
        *("--dtype", "bfloat16", "--max-num-seqs", "16", "--max-lora-rank", "8"),
        *("--kv-cache-bytes", "1048576", "--block-size", "32"),
        *("--tensor-parallel-size", "1", "--pipeline-parallel-size", "1"),
        *("--seed", "4", "--stall-timeout-s", "7.5", "--prefix-caching"),
    ]
    assert "secret" not in " ".join(command)
    assert "secret" not in repr(launch)


def test_the_environment_is_clean_of_this_process(tmp_path):
    inherited = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "PYTHONPATH": "/mine",
        "VIRTUAL_ENV": "/mine",
        "LD_PRELOAD": "x.so",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "OMP_NUM_THREADS": "64",
        "ART_VLLM_RUNTIME_BIN": "/elsewhere",
    }
    environment = member_environment(make_launch(tmp_path), Path("/run/x"), inherited)
    assert environment["PATH"] == "/bin"
    assert environment["HOME"] == "/home/me"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["ART_ADMIN_TOKEN"] == "admin-secret"
    assert environment["ART_API_KEY"] == "key-secret"
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "LD_PRELOAD", "VLLM_LOGGING_LEVEL", "ART_VLLM_RUNTIME_BIN"} & {
        *environment
    }
    assert "ART_API_KEY" not in member_environment(
        make_launch(tmp_path, api_key=None), Path("/run/x"), inherited
    )


def test_preflight_says_everything_at_once(tmp_path, installed):
    check_host(make_launch(tmp_path), installed)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (tmp_path / "file").write_text("")
        launch = make_launch(
            tmp_path,
            port=port,
            model_path=str(tmp_path / "nothing"),
            kv_cache_bytes=2**60,
            log_folder=str(tmp_path / "file" / "logs"),
        )
        with pytest.raises(PreflightError) as caught:
            check_host(launch, Environment(tmp_path / "no", tmp_path / "no", ""))
    text = str(caught.value)
    assert text.startswith("member 0 of service 'policy' cannot start here:")
    for part in (
        "has no command",
        "no model folder",
        f"port {port} of 127.0.0.1 is in use",
        "GiB are free",
        "log folder",
    ):
        assert part in text
    with pytest.raises(PreflightError, match=r"cannot listen on 192\.0\.2\.1"):
        check_host(make_launch(tmp_path, host="192.0.2.1"), installed)


def test_free_memory_is_a_positive_part_of_what_the_machine_has():
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < available_bytes() <= total


def write_page(path: Path, sequence: int, *values, magic: bytes = b"ARTSTAT1") -> None:
    data = struct.pack("<8sQ", magic, sequence) + struct.pack("<ddddQQQQQQQQQ", *values)
    path.write_bytes(data.ljust(4096, b"\0"))


def test_the_page_is_read_whole_or_not_at_all(tmp_path):
    now = time.monotonic()
    page = tmp_path / "stats"
    write_page(page, 8, now - 5, now - 1, now - 3, 0.25, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    stats = StatsReader(page).read()
    assert (stats.unfinished, stats.running, stats.waiting, stats.steps, stats.kv_usage) == (1, 2, 3, 4, 0.25)
    assert (stats.prompt_tokens, stats.generation_tokens) == (5, 6)
    assert (stats.prefix_queries, stats.prefix_hits, stats.preemptions) == (7, 8, 9)
    assert stats.step_age_s == pytest.approx(5, abs=0.5)
    assert stats.stalled_s == pytest.approx(3, abs=0.5)
    assert stats.beat_age_s == pytest.approx(1, abs=0.5)
    write_page(page, 9, *[0] * 13)
    with pytest.raises(ServingError, match="being written"):
        StatsReader(page).read()
    write_page(page, 8, *[0] * 13, magic=b"OTHER---")
    with pytest.raises(ServingError, match="starts with"):
        StatsReader(page).read()
    with pytest.raises(ServingError, match="no statistics page"):
        StatsReader(tmp_path / "none")


def stats_of(**values) -> EngineStats:
    zero = dict.fromkeys(EngineStats.__struct_fields__, 0)
    return EngineStats(**(zero | {"step_age_s": None} | values))


def test_a_stall_needs_requests_that_wait():
    assert stall(stats_of(step_age_s=1000.0), 10) is None
    assert stall(stats_of(stalled_s=9.0, unfinished=3), 10) is None
    assert (
        stall(stats_of(stalled_s=11.0, unfinished=3), 10)
        == "3 requests run, but no engine step ended for 11.0 s"
    )
    assert stall(stats_of(beat_age_s=11.0), 10) == "the API server has not run for 11.0 s"


def test_members_are_pooled():
    one = stats_of(steps=3, running=2, kv_usage=0.5, step_age_s=1.0, beat_age_s=0.1)
    two = stats_of(steps=4, running=1, kv_usage=0.2, step_age_s=2.0, beat_age_s=0.3)
    both = pooled([one, two])
    assert (both.steps, both.running, both.kv_usage, both.step_age_s, both.beat_age_s) == (
        7,
        3,
        0.5,
        2.0,
        0.3,
    )
    assert pooled([stats_of(), stats_of()]).step_age_s is None


def test_importing_the_package_is_cheap_and_brings_neither_torch_nor_vllm():
    code = (
        "import art_serving, sys; print(sorted({'torch', 'vllm', 'transformers', 'uv'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
