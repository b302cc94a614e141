"""`art doctor` says what runs, what is missing and how it is mended, to people and as JSON."""

import argparse
import io
import json
import stat
import time
from pathlib import Path

import pytest

from art import cli
from art.checks import State, cache, doctor, machine, network
from art.checks.cache import Fetched
from art.checks.stale import Removal, StaleEntry


@pytest.fixture(autouse=True)
def a_good_machine(tmp_path, monkeypatch, everything_installed, memory, room) -> None:
    memory(12)
    monkeypatch.setenv("ART_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "state"))
    there = Fetched(name="vLLM for CPUs", folder=tmp_path / "vllm", cached=True, disk_bytes=0)
    monkeypatch.setattr("art.checks.capabilities.vllm_runtime", lambda: there)


def ask(*arguments: str, terminal: bool = False) -> tuple[int, str]:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    out = io.StringIO()
    out.isatty = lambda: terminal  # type: ignore[method-assign]  # stands for a terminal
    return doctor.run(parser.parse_args(arguments), out), out.getvalue()


def test_where_the_demo_runs_the_exit_status_is_0():
    code, text = ask()
    assert code == 0
    assert "yes  cpu" in text
    assert "To mend" not in text
    assert "Worth a look" not in text
    assert text.endswith("\nart demo can run here.\n")


def test_what_is_missing_is_told_with_the_remedy_and_exit_status_1(memory):
    memory(2)
    code, text = ask()
    assert code == 1
    assert "no   cpu" in text
    assert "FAILED   memory" in text
    assert "memory                  2.0 GiB available of 16.0 GiB  (needed: 5.7 GiB" in text
    mend = text.partition("To mend it:\n")[2]
    assert "  memory: end other programs" in mend
    assert text.count("2.0 GiB available of 16.0 GiB") == 1
    assert "Traceback" not in text


def test_a_run_folder_is_checked_on_request(tmp_path):
    (tmp_path / "file").write_text("")
    code, text = ask("--run-dir", str(tmp_path / "file"))
    assert code == 1
    assert "is a file" in text


def test_a_gpu_is_told_honestly(monkeypatch):
    monkeypatch.setattr(machine, "gpus", lambda: (machine.Gpu("NVIDIA H200"),))
    code, text = ask()
    assert code == 0
    assert "no   GPU" in text
    assert "found: NVIDIA H200, but this version trains and serves on CPUs only" in text


def test_what_is_still_to_be_fetched_is_told(tmp_path):
    _, text = ask()
    assert f"vLLM for CPUs: there, {tmp_path / 'vllm'}" in text
    assert "model SmolLM2-135M-Instruct: not there yet; the first run fetches 110 MB, "
    assert "writes about 800 MB" in text


def test_json_holds_everything():
    code, text = ask("--json")
    told = json.loads(text)
    assert (code, told["demo_runs"]) == (0, True)
    assert {check["state"] for check in told["checks"]} <= {state.value for state in State}
    assert all(check["name"] and check["found"] for check in told["checks"])
    assert told["machine"]["memory"]["available"] == 12 * 2**30
    assert [item["name"] for item in told["fetched"]] == ["vLLM for CPUs", "model SmolLM2-135M-Instruct"]


def test_looking_makes_nothing(tmp_path):
    before = sorted(tmp_path.rglob("*"))
    ask()
    ask("--json", "--run-dir", str(tmp_path / "run"))
    assert sorted(tmp_path.rglob("*")) == before


def test_the_network_is_asked_only_on_request(monkeypatch):
    def must_not_be_called() -> str:
        raise AssertionError("uv was looked for")

    monkeypatch.setattr(network, "_uv", must_not_be_called)
    assert ask()[0] == 0


def fake_uv(folder: Path, script: str) -> str:
    path = folder / "uv"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("script", "state", "found"),
    [
        ("cat > /dev/null", State.OK, "answered in"),
        ("echo 'error: tunnel is closed' >&2; exit 2", State.FAILURE, "tunnel is closed"),
        ("exit 3", State.FAILURE, "exit status 3"),
        (
            "printf 'error: Request failed\\n  cause: Failed to fetch: x\\n  cause: more\\n"
            "  cause: Connection refused\\n' >&2; exit 2",
            State.FAILURE,
            "Request failed: Failed to fetch: x: Connection refused",
        ),
        (
            "printf '\\303\\227 No solution found\\n \\342\\224\\200 Because of it\\n' >&2; exit 1",
            State.FAILURE,
            "No solution found: Because of it",
        ),
        ("exec sleep 60", State.FAILURE, "did not answer within 0.5 s"),
    ],
)
def test_the_index_answers_or_it_is_told_why_not(tmp_path, monkeypatch, script, state, found):
    uv = fake_uv(tmp_path, script)
    monkeypatch.setattr(network, "_uv", lambda: uv)
    started = time.monotonic()
    check = network.package_index_check(deadline_s=0.5)
    assert time.monotonic() - started < 5
    assert check.state is state
    assert found in check.found
    assert ("UV_DEFAULT_INDEX" in check.remedy) == (state is State.FAILURE)


def test_what_uv_says_is_told_once_from_its_beginning(tmp_path, monkeypatch):
    line = "error: it begins here " + "and goes on " * 40
    uv = fake_uv(tmp_path, f"echo '{line}' >&2; exit 2")
    monkeypatch.setattr(network, "_uv", lambda: uv)
    code, text = ask("--network")
    assert code == 1
    assert text.count("it begins here") == 1
    assert max(len(line) for line in text.splitlines()) < 300


def stale(folder: Path, **more) -> StaleEntry:
    return StaleEntry(**{"folder": folder, "disk_bytes": 1_500_000_000, "whole": True, "user": ""} | more)


def test_what_is_stale_in_the_cache_is_listed_with_the_command_that_removes_it(monkeypatch, tmp_path):
    assert "not used by this version" not in ask()[1]
    entries = (stale(tmp_path / "old"), stale(tmp_path / "busy", user="process 7"))
    monkeypatch.setattr("art.checks.capabilities.stale_entries", lambda: entries)
    code, text = ask()
    assert code == 0
    assert f"  {tmp_path / 'old'}: 1.5 GB\n" in text
    assert f"  {tmp_path / 'busy'}: 1.5 GB, in use by process 7\n" in text
    assert "`art doctor --prune-cache` removes what is not in use (1.5 GB)" in text
    assert [entry["disk_bytes"] for entry in json.loads(ask("--json")[1])["stale"]] == [1_500_000_000] * 2


@pytest.mark.parametrize(
    ("problem", "user", "code", "said"),
    [
        ("", "", 0, "removed {}\n1.5 GB freed\n"),
        ("in use by process 7", "process 7", 0, "kept {}: in use by process 7\n"),
        ("cannot be removed: Permission denied", "", 1, "kept {}: cannot be removed: Permission denied\n"),
    ],
)
def test_pruning_says_what_it_did(monkeypatch, tmp_path, problem, user, code, said):
    removals = (Removal(entry=stale(tmp_path / "old", user=user), problem=problem),)
    monkeypatch.setattr(doctor, "prune", lambda: removals)
    assert ask("--prune-cache") == (code, said.format(tmp_path / "old"))
    assert json.loads(ask("--prune-cache", "--json")[1])["removals"][0]["problem"] == problem


def test_where_nothing_is_stale_pruning_says_so(monkeypatch):
    monkeypatch.setattr(doctor, "prune", lambda: ())
    assert ask("--prune-cache") == (0, "nothing to remove\n")


def test_without_uv_the_network_cannot_be_asked(monkeypatch):
    monkeypatch.setattr(network, "_uv", lambda: None)
    code, text = ask("--network")
    assert code == 1
    assert "uv is not installed" in text
    assert "  package index: pip install uv" in text


def test_no_host_is_named_in_the_code():
    sources = [path.read_text() for path in Path(cache.__file__).parent.glob("*.py")]
    assert not any("://" in source for source in sources)


@pytest.mark.parametrize("beside", [["--network"], ["--run-dir", "x"]])
def test_removing_from_the_cache_goes_with_no_other_question(beside, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "prune", lambda: pytest.fail("removed"))
    with pytest.raises(SystemExit) as leave:
        cli.run(["doctor", "--prune-cache", *beside])
    assert leave.value.code == 2
    assert f"--prune-cache only removes; not with {beside[0]}: run" in capsys.readouterr().err
