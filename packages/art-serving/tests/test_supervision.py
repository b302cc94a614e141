"""The supervisor alone, with small commands."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from art_serving.supervision import CommandEnd, read_end, supervised


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def wait_for(condition, deadline_s: float = 10.0) -> None:
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, "the condition did not come true"
        time.sleep(0.02)


SLEEPERS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)
open(sys.argv[1], 'w').write(str(child.pid))
time.sleep(float(sys.argv[2]))
sys.exit(5)
"""


def start(tmp_path: Path, *command: str, grace_s: float = 2.0) -> subprocess.Popen[bytes]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "something").write_text("x")
    return subprocess.Popen(
        supervised(list(command), grace_s=grace_s, scratch=scratch, end_file=tmp_path / "end.json")
    )


def read_pid(path: Path) -> int:
    wait_for(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def test_what_a_command_leaves_behind_ends_with_it(tmp_path):
    process = start(tmp_path, sys.executable, "-c", SLEEPERS, str(tmp_path / "pid"), "0.2")
    orphan = read_pid(tmp_path / "pid")
    assert process.wait(10) == 5
    assert gone(orphan)
    end = read_end(tmp_path / "end.json")
    assert end is not None
    assert (end.code, end.reason, end.describe()) == (5, "ended", "exit status 5")
    assert not (tmp_path / "scratch").exists()


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace_period(tmp_path):
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "open({!r}, 'w').write('1'); time.sleep(600)"
    )
    process = start(tmp_path, sys.executable, "-c", deaf.format(str(tmp_path / "up")), grace_s=0.5)
    wait_for((tmp_path / "up").exists)
    began = time.monotonic()
    process.terminate()
    assert process.wait(10) == 128 + signal.SIGKILL
    assert 0.4 < time.monotonic() - began < 5
    assert read_end(tmp_path / "end.json") == CommandEnd(
        json.loads((tmp_path / "end.json").read_text())["pid"], -signal.SIGKILL, "told to stop"
    )


def test_a_killed_command_is_reported_as_such(tmp_path):
    process = start(tmp_path, sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert process.wait(10) == 128 + signal.SIGKILL
    end = read_end(tmp_path / "end.json")
    assert end is not None
    assert end.describe() == "killed by SIGKILL"


def test_a_command_that_does_not_exist_is_exit_status_127(tmp_path):
    assert start(tmp_path, "/no/such/command").wait(10) == 127


@pytest.mark.parametrize("stopped", [False, True])
def test_everything_ends_when_the_parent_is_killed_also_what_was_stopped(tmp_path, stopped):
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time, threading, pathlib\n"
            "from art_serving.supervision import supervised\n"
            "def spawn():\n"  # a thread that ends at once: its end must not be taken for the process's
            "    command = [sys.executable, '-c', sys.argv[1], sys.argv[2], '600']\n"
            "    subprocess.Popen(supervised(command, grace_s=1.0, scratch=pathlib.Path(sys.argv[3])))\n"
            "thread = threading.Thread(target=spawn); thread.start(); thread.join(); time.sleep(600)",
            SLEEPERS,
            str(tmp_path / "pid"),
            str(tmp_path),
        ]
    )
    sleeper = read_pid(tmp_path / "pid")
    family = [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
    assert sleeper in family
    assert len(family) == 3
    time.sleep(0.3)
    assert not any(gone(pid) for pid in family)
    if stopped:
        os.kill(sleeper, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    wait_for(lambda: all(gone(pid) for pid in family))
    wait_for(lambda: not tmp_path.exists())


def test_a_killed_supervisor_takes_its_command_with_it(tmp_path):
    process = start(tmp_path, sys.executable, "-c", "import time; time.sleep(600)")
    wait_for(lambda: psutil.Process(process.pid).children())
    (command,) = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    wait_for(lambda: gone(command.pid))


def test_it_refuses_to_start_for_a_parent_that_is_gone(tmp_path):
    argv = supervised(["/bin/true"], grace_s=1.0)
    argv[4] = "1"
    assert subprocess.run(argv, timeout=10).returncode == 97
