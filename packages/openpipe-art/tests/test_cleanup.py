"""What a run leaves is found by its id and removed; what is not its own stays."""

import os
import queue
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from art.distributed import StartupError, custodian_watch, processes
from art.distributed.cleanup import processes_of, segments_of, sweep_dead_runs
from art.distributed.processes import ProcessId, boot_id, exit_cause, identify, send_signal, wait_ended
from art.distributed.registry import Registry, RunEntry
from art.distributed.run import Run

SLEEP = [sys.executable, "-c", "import time; time.sleep(120)"]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def of_run(run_id: str, started: list[subprocess.Popen[bytes]]) -> ProcessId:
    process = subprocess.Popen(SLEEP, env={**os.environ, "ART_RUN_ID": run_id})
    started.append(process)
    deadline = time.monotonic() + 10
    while (found := identify(process.pid)) is None or found not in processes_of(run_id):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def plant_segment(run_id: str) -> Path:
    path = Path(f"/dev/shm/art-{run_id}-{uuid.uuid4().hex}")
    path.write_bytes(b"x" * 4096)
    return path


def dead_process() -> ProcessId:
    process = subprocess.Popen(["true"])
    found = identify(process.pid)
    assert found is not None
    process.wait()
    return found


def entry(run_id: str, tmp_path: Path, **changes: object) -> RunEntry:
    temp_dir = tmp_path / f"art-{run_id}-temp"
    temp_dir.mkdir()
    (temp_dir / "file").write_text("x")
    fields = {
        "run_id": run_id,
        "controller": dead_process(),
        "boot_id": boot_id(),
        "temp_dir": str(temp_dir),
        "started_unix_s": 0.0,
        "command": "train.py",
        **changes,
    }
    return RunEntry(**fields)  # type: ignore[arg-type]


def test_a_dead_runs_leftovers_are_removed_and_told_once(
    state: Path, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    registry, run_id = Registry(state), uuid.uuid4().hex[:12]
    dead = entry(run_id, tmp_path)
    registry.write_run(dead)
    process, segment = of_run(run_id, started), plant_segment(run_id)
    (report,) = sweep_dead_runs(registry)
    assert [found.pid for found in report.processes] == [process.pid]
    assert "time.sleep(120)" in report.processes[0].command
    assert [found.name for found in report.segments] == [segment.name]
    assert report.segments[0].byte_count == 4096
    assert report.temp_dir_removed
    assert report.remaining == ()
    assert run_id in report.line()
    assert "1 processes ended" in report.line()
    assert started[0].wait(5) == -signal.SIGKILL
    assert not segment.exists()
    assert not Path(dead.temp_dir).exists()
    assert registry.runs() == []
    assert sweep_dead_runs(registry) == []


def test_another_runs_things_are_not_touched(
    state: Path, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    registry = Registry(state)
    other = uuid.uuid4().hex[:12]
    process, segment = of_run(other, started), plant_segment(other)
    try:
        registry.write_run(entry(uuid.uuid4().hex[:12], tmp_path))
        registry.write_run(entry(other, tmp_path, controller=processes.this_process()))
        (report,) = sweep_dead_runs(registry)
        assert report.processes == ()
        assert report.segments == ()
        assert process.alive()
        assert segment.exists()
        assert [run.run_id for run in registry.runs()] == [other]
    finally:
        segment.unlink()


def test_a_run_of_an_earlier_boot_is_dead_whatever_its_process_id(state: Path, tmp_path: Path) -> None:
    registry = Registry(state)
    run_id = uuid.uuid4().hex[:12]
    registry.write_run(entry(run_id, tmp_path, controller=processes.this_process(), boot_id="another"))
    assert [report.run_id for report in sweep_dead_runs(registry)] == [run_id]


def test_a_reused_process_id_is_not_signalled(started: list[subprocess.Popen[bytes]]) -> None:
    process = of_run(uuid.uuid4().hex[:12], started)
    reused = ProcessId(process.pid, process.start_ticks - 1)
    assert not reused.alive()
    assert send_signal(reused, signal.SIGKILL) is False
    assert process.alive()
    assert wait_ended([reused], 0.0) == []
    assert wait_ended([process], 0.05) == [process]


def test_closing_a_run_removes_what_is_left_and_reports_nothing(
    state: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    run = Run.start(announce=lambda report: pytest.fail(report.line()))
    custodian = Registry(state).runs()[0].custodian
    assert custodian is not None
    assert custodian.alive()
    of_run(run.run_id, started)
    segment = plant_segment(run.run_id)
    assert run.child_environment()["ART_RUN_ID"] == run.run_id
    run.close()
    run.close()
    assert started[0].wait(5) == -signal.SIGKILL
    assert not segment.exists()
    assert not run.temp_dir.exists()
    assert not custodian.alive()
    assert sweep_dead_runs(Registry(state)) == []


CONTROLLER = """
import os, subprocess, sys, time
from pathlib import Path
from art.distributed.run import Run
run = Run.start()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], env=run.child_environment(),
                 start_new_session=True)
Path(f"/dev/shm/art-{run.run_id}-left").write_bytes(b"x" * 10)
run.keeps_in(Path("/somewhere/runs/f3"))
print(run.run_id, run.temp_dir, flush=True)
time.sleep(120)
"""


def start_controller() -> tuple[subprocess.Popen[str], str, Path]:
    controller = subprocess.Popen([sys.executable, "-c", CONTROLLER], stdout=subprocess.PIPE, text=True)
    assert controller.stdout is not None
    run_id, temp_dir = controller.stdout.readline().split()
    return controller, run_id, Path(temp_dir)


def wait_until_gone(run_id: str, temp_dir: Path, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while left := [*processes_of(run_id), *segments_of(run_id), *([temp_dir] if temp_dir.exists() else [])]:
        assert time.monotonic() < deadline, f"left: {left}"
        time.sleep(0.05)


def test_a_killed_controllers_things_are_removed_by_its_custodian(state: Path) -> None:
    controller, run_id, temp_dir = start_controller()
    assert segments_of(run_id)
    assert temp_dir.exists()
    controller.kill()
    controller.wait()
    wait_until_gone(run_id, temp_dir, 20)
    reports: list[str] = []
    run = Run.start(announce=lambda report: reports.append(report.line()))
    run.close()
    (line,) = reports
    assert line.startswith(
        f"an earlier run, {run_id} in /somewhere/runs/f3 (pid {controller.pid}, started 20"
    )
    assert re.search(r"ended without closing: its controller (was killed by SIGKILL|is gone); ", line)
    assert "cleaned up by its custodian: 1 processes ended, 1 shared-memory segments" in line


def test_without_its_custodian_the_next_start_cleans_up(state: Path) -> None:
    controller, run_id, temp_dir = start_controller()
    custodian = Registry(state).runs()[0].custodian
    assert custodian is not None
    send_signal(custodian, signal.SIGKILL)
    controller.kill()
    controller.wait()
    assert processes_of(run_id)
    lines: list[str] = []
    run = Run.start(announce=lambda report: lines.append(report.line()))
    try:
        wait_until_gone(run_id, temp_dir, 0)
        assert "its controller and its custodian are gone; cleaned up now: 1 processes ended" in lines[0]
    finally:
        run.close()


def custodian_after(state: Path, before: ProcessId | None) -> ProcessId:
    """The run's custodian, once it is another one than ``before``."""
    deadline = time.monotonic() + 10
    while (found := Registry(state).runs()[0].custodian) in (None, before):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert found is not None
    return found


def test_a_killed_custodian_is_replaced_and_cleans_up_as_the_first_would(state: Path) -> None:
    controller, run_id, temp_dir = start_controller()
    first = custodian_after(state, None)
    killed = time.monotonic()
    send_signal(first, signal.SIGKILL)
    second = custodian_after(state, first)
    assert time.monotonic() - killed < 5
    assert second.alive()
    controller.kill()
    controller.wait()
    wait_until_gone(run_id, temp_dir, 20)
    (report,) = sweep_dead_runs(Registry(state))
    assert report.swept_by == "custodian"
    assert [found.command for found in report.processes]


def test_a_killed_custodian_is_told_and_the_run_closes_as_ever(state: Path) -> None:
    told: queue.Queue[str] = queue.Queue()
    run = Run.start(announce=lambda report: pytest.fail(report.line()), tell=told.put)
    first = custodian_after(state, None)
    send_signal(first, signal.SIGKILL)
    line = told.get(timeout=10)
    second = custodian_after(state, first)
    assert f"(pid {first.pid}), which cleans up after a kill, was killed by SIGKILL" in line
    assert line.endswith(f"another took its place (pid {second.pid})")
    segment = plant_segment(run.run_id)
    run.close()
    assert not second.alive()
    assert not segment.exists()
    assert sweep_dead_runs(Registry(state)) == []
    assert told.empty()


def test_a_custodian_that_cannot_be_replaced_is_told_once_and_tried_again(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(custodian_watch, "_TRY_AGAIN_S", 0.2)
    run = Run.start(tell=told.put)
    first = custodian_after(state, None)
    real, calls = custodian_watch.spawner().spawn, iter([OSError("no more processes")] * 3)

    def spawn(*arguments: Any, **options: Any) -> Any:
        error = next(calls, None)
        if error is not None:
            raise error
        return real(*arguments, **options)

    monkeypatch.setattr(custodian_watch.spawner(), "spawn", spawn)
    send_signal(first, signal.SIGKILL)
    assert "another does not start: no more processes" in told.get(timeout=10)
    assert "another took its place" in told.get(timeout=10)
    assert custodian_after(state, first).alive()
    run.close()


def test_told_reports_are_kept_for_a_month_and_not_more_than_fifty(state: Path) -> None:
    registry = Registry(state)
    told = state / "reports" / "told"
    for number in range(60):
        path = told / f"{number:03}.json"
        path.write_text("{}")
        os.utime(path, (time.time() - number * 3600,) * 2)
    old = [told / "old.json", told / "old.unreadable", state / "runs" / "old.unreadable"]
    old += [state / "runs" / ".x.json.123", state / "reports" / ".x.json.123"]
    fresh = [state / "runs" / "new.unreadable", state / "runs" / ".y.json.123"]
    for path in [*old, *fresh]:
        path.write_text("{")
    for path in old:
        os.utime(path, (time.time() - 31 * 24 * 3600,) * 2)
    run = Run.start()
    run.close()
    assert sorted(path.name for path in told.iterdir()) == [f"{number:03}.json" for number in range(50)]
    assert not [path for path in old if path.exists()]
    assert all(path.exists() for path in fresh)
    for path in told.iterdir():
        os.utime(path, (time.time() - 31 * 24 * 3600,) * 2)
    assert registry.take_reports() == []
    assert list(told.iterdir()) == []


def test_a_custodian_is_not_stopped_by_a_terminals_signals(state: Path) -> None:
    controller, run_id, temp_dir = start_controller()
    custodian = Registry(state).runs()[0].custodian
    assert custodian is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        send_signal(custodian, number)
    assert wait_ended([custodian], 0.3) == [custodian]
    controller.kill()
    controller.wait()
    wait_until_gone(run_id, temp_dir, 20)


def test_a_state_folder_that_cannot_be_used_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "file" / "state"))
    with pytest.raises(StartupError, match=r"state folder .* cannot be used.*Set ART_STATE_DIR"):
        Run.start()


def test_an_entry_that_cannot_be_read_stops_nobody(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = Registry(state)
    (state / "runs" / "broken.json").write_text("{")
    assert sweep_dead_runs(registry) == []
    assert "broken.json cannot be read" in capsys.readouterr().err
    assert [path.name for path in (state / "runs").iterdir()] == ["broken.unreadable"]


def test_a_temporary_folder_too_long_for_sockets_is_said(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("x" * 80)))
    with pytest.raises(StartupError, match=r"need.* at most 66\. Set TMPDIR to a shorter one"):
        Run.start()
    assert Registry(state).runs() == []


@pytest.mark.parametrize(
    ("status", "words"),
    [(9, "killed by SIGKILL"), (15, "killed by SIGTERM"), (3 << 8, "ended with exit code 3")],
)
def test_a_wait_status_is_put_into_words(status: int, words: str) -> None:
    assert exit_cause(status) == words


def test_a_child_ends_with_its_parent(started: list[subprocess.Popen[bytes]]) -> None:
    child = (
        "import os, sys, time\nfrom art.distributed.processes import end_with_parent\n"
        "end_with_parent(int(sys.argv[1]))\nprint(os.getpid(), flush=True)\ntime.sleep(120)"
    )
    parent = (
        "import os, subprocess, sys, time\nfrom art.distributed.processes import spawner\n"
        f"spawner().spawn([sys.executable, '-c', {child!r}, str(os.getpid())], environment=os.environ)\n"
        "time.sleep(120)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None
    found = identify(int(process.stdout.readline()))
    assert found is not None
    assert wait_ended([found], 0.3) == [found]
    process.kill()
    assert wait_ended([found], 10) == []


def test_a_child_whose_parent_is_gone_already_leaves() -> None:
    code = "from art.distributed.processes import end_with_parent; end_with_parent(1 << 21)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "parent process 2097152 is gone" in result.stderr
