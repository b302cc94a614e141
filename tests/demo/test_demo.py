"""``art demo`` itself: the reward it reaches, in which time and memory, and what it leaves."""

import asyncio
import fcntl
import itertools
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from art_testing.leftovers import LeftoverChecker
from art_testing.memory_limit import memory_cgroup
from art_testing.tiny_model import make_tiny_llama

from art.demo import task
from art.demo.model import ensure_smollm2, ensure_vllm

GIB = 1 << 30
LIMIT_S = 480.0


@pytest.fixture(scope="module", autouse=True)
def fetched() -> None:
    """What is built once per machine is there before the clock starts."""
    asyncio.run(ensure_smollm2(deadline_s=900))
    asyncio.run(ensure_vllm(deadline_s=900))


@pytest.fixture
def checker() -> Iterator[LeftoverChecker]:
    with tempfile.TemporaryDirectory(prefix="art-") as temporary:  # short: sockets have to fit into it
        checker = LeftoverChecker(Path(temporary))
        yield checker
        checker.kill_all()


def test_it_learns_within_12_gib_and_eight_minutes(tmp_path: Path, checker: LeftoverChecker) -> None:
    run = tmp_path / "run"
    command = [Path(sys.executable).with_name("art"), "demo", "--run-dir", run]
    environment = checker.environment({**os.environ, "ART_STATE_DIR": str(tmp_path / "state")})
    with memory_cgroup(12 * GIB) as group:
        begun = time.monotonic()
        result = subprocess.run(
            group.command(*map(str, command)),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
        duration_s, peak_bytes = time.monotonic() - begun, group.peak_bytes()
        print(result.stdout)
        print(f"ended after {duration_s:.0f} s, memory peak {peak_bytes / GIB:.1f} GiB")
        assert result.returncode == 0, result.stdout
        assert group.oom_kills() == 0
        checker.assert_clean(within_s=5)

    steps = lines(run / "metrics.jsonl")
    assert 5 <= len(steps) <= 25
    assert steps[0]["reward"] < 0.1
    assert sum(step["reward"] for step in steps[-5:]) / 5 > 0.95
    for step in steps:
        assert step["trajectories"] == 64
        if not step["skipped"]:
            assert step["sampler_difference_mean"] < 1e-4
            assert step["sampler_difference_p99"] < 1e-3
    assert len(list((run / "trajectories").glob("step-*.jsonl"))) == len(steps)
    before, after = lines(run / "evaluations.jsonl")
    assert (before["policy_version"], after["policy_version"]) == (0, steps[-1]["policy_version"])
    assert before["reward"] < 0.2 < 0.8 < after["reward"]
    assert_tokens_are_the_answers(run)
    assert f"report: {run / 'report.html'}" in result.stdout
    newest = max(int(path.name.split("-")[1]) for path in (run / "generations").glob("step-*"))
    assert newest == steps[-1]["policy_version"]
    assert f"run folder: {run}" in result.stdout


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_tokens_are_the_answers(run: Path) -> None:
    """What the tokens say together is what the server answered, and a policy sampled each."""
    shown = 0
    for path in sorted((run / "trajectories").glob("*.jsonl")):
        for line in lines(path):
            for exchange in line["exchanges"]:
                said = "".join(exchange["tokens"]).removesuffix("<|im_end|>")
                assert said == line["metadata"]["answer"]
                assert line["metadata"]["prompt"] in exchange["prompt"]
                assert len(exchange["tokens"]) == len(exchange["logprobs"]) == len(exchange["versions"])
                assert max(exchange["logprobs"]) <= 1e-3
                shown += 1
    assert shown >= 16


def in_a_terminal(command: list[str], environment: dict[str, str], columns: int) -> tuple[int, str]:
    """Runs a command in a terminal of that width; its exit status and what it wrote there."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        command, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    written = b""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if not select.select([master], [], [], 1.0)[0]:
            continue
        try:
            data = os.read(master, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not data:
            break
        written += data
    os.close(master)
    return process.wait(10), written.decode()


def test_a_killed_run_goes_on_in_a_terminal(tmp_path: Path, checker: LeftoverChecker) -> None:
    run = tmp_path / "run"
    environment = checker.environment(
        {**os.environ, "ART_STATE_DIR": str(tmp_path / "state"), "TERM": "xterm-256color"}
    )
    demo = [str(Path(sys.executable).with_name("art")), "demo"]
    command = [*demo, "--json", "--steps", "3", "--seed", "5", "--run-dir", str(run)]
    told = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told.append(json.loads(line))
            if told[-1]["event"] == "step_sampled" and told[-1]["step"] == 2:
                process.kill()
    assert process.returncode == -signal.SIGKILL
    assert [event["event"] for event in told if event["event"] in ("start", "step", "end")] == [
        "start",
        "step",
    ]

    code, written = in_a_terminal([*demo, "--resume", str(run)], environment, columns=80)
    assert code == 0, written
    steps = lines(run / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert [step["policy_version"] for step in steps] == sorted(step["policy_version"] for step in steps)
    groups = task.scenario_groups(task.TRAINING_WORDINGS, samples=16, seed=5)
    asked = [scenario.prompt for (scenario, *_) in itertools.islice(groups, 12)]
    files = [lines(run / "trajectories" / f"step-{step:04d}.jsonl") for step in (1, 2, 3)]
    kept = [line for file in files for line in file if line is file[16 * line["group"]]]  # one of each group
    assert [line["metadata"]["prompt"] for line in kept] == asked
    assert len(lines(run / "evaluations.jsonl")) == 2
    # The display: it drew over itself, a row stays for each step, and the cursor is there at the end.
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    assert "sampling" in plain
    assert "training" in plain
    assert written.count("\x1b[1A") > 10
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")
    assert set(re.findall(r"[\r\n] +([23]) +[0-9.]{5} ", plain)) == {"2", "3"}
    assert f"run folder: {run}" in plain
    checker.assert_clean(within_s=20)


def test_a_model_of_the_user_s_own_that_learns_nothing_says_why(
    tmp_path: Path, checker: LeftoverChecker
) -> None:
    model, run = make_tiny_llama(tmp_path / "model"), tmp_path / "run"
    result = subprocess.run(
        [Path(sys.executable).with_name("art"), "demo", "--model", model, "--steps", "2", "--run-dir", run],
        env=checker.environment({**os.environ, "ART_STATE_DIR": str(tmp_path / "state")}),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert 'art demo: model learns to answer "maybe"' in result.stdout  # by the folder's name
    assert result.stdout.count("v0 kept  no step: equal rewards") == 2  # it never says one of the words
    assert [step["policy_version"] for step in lines(run / "metrics.jsonl")] == [0, 0]
    assert json.loads((run / "run.json").read_text())["model_folder"] == str(model)
    checker.assert_clean(within_s=5)
