"""The leftover checker finds what is planted and is silent about what is not ours."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from art_testing.leftovers import LeftoverChecker

SLEEPER = "import sys, time; print('up', flush=True); time.sleep(60)"
LISTENER = (
    "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen();"
    "print(s.getsockname()[1], flush=True); time.sleep(60)"
)


@pytest.fixture
def checker(tmp_path: Path):
    checker = LeftoverChecker(tmp_path)
    yield checker
    checker.kill_all()


def start(program: str, environment: dict[str, str] | None) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_clean_run_is_clean(checker: LeftoverChecker) -> None:
    subprocess.run([sys.executable, "-c", "pass"], env=checker.environment(), check=True)
    assert checker.find() == []
    checker.assert_clean(within_s=0)


def test_a_process_in_another_session_is_found(checker: LeftoverChecker) -> None:
    process, _ = start(SLEEPER, checker.environment())
    assert any(line.startswith(f"process {process.pid}:") for line in checker.find())
    with pytest.raises(AssertionError, match=f"process {process.pid}"):
        checker.assert_clean(within_s=0.2)
    checker.kill_all()
    process.wait(10)
    checker.assert_clean(within_s=5)


def test_an_orphan_is_found_after_its_parent_died(checker: LeftoverChecker) -> None:
    parent = (
        "import subprocess, sys;"
        f"p = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], stdout=subprocess.DEVNULL);"
        "print(p.pid, flush=True)"
    )
    process, child = start(parent, checker.environment())
    process.wait(10)
    assert any(line.startswith(f"process {child}:") for line in checker.find())


def test_a_process_of_another_run_is_not_ours(checker: LeftoverChecker) -> None:
    process, _ = start(SLEEPER, None)
    try:
        assert checker.find() == []
    finally:
        process.kill()
        process.wait(10)


def test_a_segment_is_found(checker: LeftoverChecker) -> None:
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait(10)
    segment = Path("/dev/shm") / f"art-planted-{dead.pid}-1.1-1"
    segment.write_bytes(b"x")
    try:
        assert checker.find() == [f"shared-memory segment {segment.name}"]
    finally:
        segment.unlink()
    assert checker.find() == []


def test_a_port_and_a_segment_of_a_living_process_of_others_are_not_ours(checker: LeftoverChecker) -> None:
    process, _ = start(LISTENER, None)
    segment = Path("/dev/shm") / f"art-planted-{process.pid}-1.1-1"
    segment.write_bytes(b"x")
    try:
        assert checker.find() == []
    finally:
        segment.unlink()
        process.kill()
        process.wait(10)


def test_a_port_is_found(checker: LeftoverChecker) -> None:
    process, port = start(LISTENER, checker.environment())
    try:
        assert f"listening port 127.0.0.1:{port}" in checker.find()
    finally:
        process.kill()
        process.wait(10)
    checker.assert_clean(within_s=5)


def test_a_temporary_file_is_found(checker: LeftoverChecker) -> None:
    (checker.temporary / "socket").write_text("")
    assert checker.find() == [f"temporary file {checker.temporary / 'socket'}"]


def test_the_wait_ends_when_the_last_leftover_goes(checker: LeftoverChecker) -> None:
    process, _ = start("import time; print('up', flush=True); time.sleep(1)", checker.environment())
    begun = time.monotonic()
    checker.assert_clean(within_s=20)
    assert time.monotonic() - begun < 20
    process.wait(10)
