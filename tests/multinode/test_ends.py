"""However a program ends, it leaves nothing: processes, segments, ports, temporary files."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from art_testing.leftovers import LeftoverChecker

PROGRAM = """
import asyncio, os, socket, subprocess, sys, time
from pathlib import Path

import art
from art.distributed import ArtLaunchContext, ArtRuntime, InstalledAsyncCallable, compile_topology


async def rollout(model: art.TrainableModel, scenario: str, config: None) -> art.Trajectory:
    if scenario == "fail":
        raise ValueError("no such answer")
    # An orphan-to-be without any death signal, and a listening port.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
    with socket.create_server(("127.0.0.1", 0)):
        print("ROLLOUT", os.getpid(), child.pid, flush=True)
        await asyncio.sleep(300)
    raise AssertionError


async def main(launch: ArtLaunchContext) -> None:
    cluster = launch.homogeneous_cluster(cpu_slots=2)
    runtime = await ArtRuntime.start(launch.host_mesh, compile_topology(cluster=cluster))
    try:
        executor = runtime.rollout_executor(InstalledAsyncCallable.from_callable(rollout), target_workers=1)
        await executor.start()
        Path(f"/dev/shm/art-{runtime.run_id}-planted").write_bytes(bytes(4096))
        (runtime.temp_dir / "file").write_text("x")
        model = art.TrainableModel(name="m", project="p", base_model="b")
        MODE
    finally:
        await runtime.close()
"""
SLEEPING = 'await executor.run(0, rollout, model, "sleep", None)'


def program(mode: str) -> str:
    return PROGRAM.replace("MODE", mode)


def ready(launched: Any) -> None:
    """Waits until the rollout runs."""
    launched.wait_for("ROLLOUT")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_it_within_ten_seconds(
    launch: Callable[..., Any], checker: LeftoverChecker, number: signal.Signals, code: int
) -> None:
    launched = launch(program(SLEEPING))
    ready(launched)
    started = time.monotonic()
    launched.process.send_signal(number)
    assert launched.wait(10) == code
    checker.assert_clean(max(10 - (time.monotonic() - started), 0))
    assert "Traceback" not in launched.errors


def test_a_signal_also_ends_a_program_that_blocks_its_event_loop(
    launch: Callable[..., Any], checker: LeftoverChecker
) -> None:
    launched = launch(
        program(
            """running = asyncio.ensure_future(executor.run(0, rollout, model, "sleep", None))
        await asyncio.wait([running], timeout=1.0)
        print("BLOCKED", flush=True)
        time.sleep(300)"""
        )
    )
    ready(launched)
    launched.wait_for("BLOCKED")
    started = time.monotonic()
    launched.process.send_signal(signal.SIGINT)
    assert launched.wait(10) == 130
    checker.assert_clean(max(10 - (time.monotonic() - started), 0))


def test_ctrl_c_during_the_start_leaves_nothing(launch: Callable[..., Any], checker: LeftoverChecker) -> None:
    launched = launch("async def main(launch):\n    print('STARTED', flush=True)\n")
    deadline = time.monotonic() + 30
    while not any("worker_process" in " ".join(child.cmdline()) for child in children(launched)):
        assert time.monotonic() < deadline
        assert launched.process.poll() is None, launched.errors
        time.sleep(0.005)
    launched.process.send_signal(signal.SIGINT)
    assert launched.wait(10) == 130
    checker.assert_clean(10)


def children(launched: Any) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(launched.process.pid).children():
        try:
            child.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        found.append(child)
    return found


def test_a_killed_controller_leaves_nothing_and_the_next_start_says_what_it_found(
    launch: Callable[..., Any], checker: LeftoverChecker
) -> None:
    launched = launch(program(SLEEPING))
    ready(launched)
    launched.process.kill()
    launched.wait(5)
    checker.assert_clean(20)
    following = launch("async def main(launch):\n    print('NEXT')\n")
    assert following.wait(60) == 0
    assert following.output == "NEXT\n"
    (line,) = following.errors.splitlines()
    assert re.fullmatch(
        rf"art: an earlier run, [0-9a-f]{{12}} .*\(pid {launched.process.pid}, started .*\), ended without "
        r"closing: its controller (was killed by SIGKILL|is gone); cleaned up by its custodian: "
        r"\d+ processes ended, 1 shared-memory segments .*",
        line,
    )
    checker.assert_clean(5)


def test_controller_and_custodian_killed_the_next_start_cleans_up(
    launch: Callable[..., Any], checker: LeftoverChecker, tmp_path: Path
) -> None:
    launched = launch(program(SLEEPING))
    ready(launched)
    (custodian,) = [child for child in children(launched) if "custodian" in " ".join(child.cmdline())]
    custodian.kill()
    launched.process.kill()
    launched.wait(5)
    orphans = [int(line.split()[2]) for line in launched.output.splitlines() if line.startswith("ROLLOUT")]
    assert all(psutil.pid_exists(pid) for pid in orphans)
    following = launch("async def main(launch):\n    print('NEXT')\n")
    assert following.wait(60) == 0
    (line,) = following.errors.splitlines()
    assert "its controller and its custodian are gone; cleaned up now: " in line
    assert "1 shared-memory segments" in line
    checker.assert_clean(5)
    assert not list((tmp_path / "state" / "runs").iterdir())


def test_a_killed_worker_loop_is_an_error_and_leaves_nothing(
    launch: Callable[..., Any], checker: LeftoverChecker
) -> None:
    launched = launch(program(SLEEPING))
    ready(launched)
    (worker,) = [child for child in children(launched) if "worker_process" in " ".join(child.cmdline())]
    worker.kill()
    assert launched.wait(30) == 1
    told = re.findall(r"worker process of (?:its host|host 0) (.*? killed by SIGKILL)", launched.errors)
    assert told
    assert set(told) == {f"(pid {worker.pid}) was killed by SIGKILL"}
    assert "died: killed by SIGKILL" not in launched.errors
    checker.assert_clean(20)


def test_a_killed_rollout_worker_is_named(launch: Callable[..., Any], checker: LeftoverChecker) -> None:
    launched = launch(program(SLEEPING))
    ready(launched)
    pid = int(re.findall(r"^ROLLOUT (\d+)", launched.output, re.M)[0])
    os.kill(pid, signal.SIGKILL)
    assert launched.wait(15) == 1
    assert re.search(
        rf"art-monarch: rollout worker \d \(pid {pid}\) died: killed by SIGKILL", launched.errors
    )
    checker.assert_clean(10)


def test_a_failing_user_function_shows_its_traceback(
    launch: Callable[..., Any], checker: LeftoverChecker
) -> None:
    launched = launch(program('await executor.run(0, rollout, model, "fail", None)'))
    assert launched.wait(60) == 1
    assert "rollout failed in rollout worker 0 (pid " in launched.errors
    assert "ValueError: no such answer" in launched.errors
    assert 'raise ValueError("no such answer")' in launched.errors
    checker.assert_clean(10)


def test_a_failing_program_shows_its_own_traceback(
    launch: Callable[..., Any], checker: LeftoverChecker
) -> None:
    launched = launch('async def main(launch):\n    raise RuntimeError("mine")\n')
    assert launched.wait(60) == 1
    assert 'program.py", line 2, in main' in launched.errors
    assert "RuntimeError: mine" in launched.errors
    checker.assert_clean(10)


def test_a_port_that_is_taken_is_said(launch: Callable[..., Any], checker: LeftoverChecker) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        launched = launch("async def main(launch):\n    pass\n", "--port", str(port))
        assert launched.wait(60) == 1
        assert f"port {port} of 127.0.0.1 is in use" in launched.errors
        assert "Traceback" not in launched.errors
    checker.assert_clean(10)


def test_a_killed_worker_loop_is_told_where_no_actor_dies_with_it(
    launch: Callable[..., Any], checker: LeftoverChecker
) -> None:
    alone = """for handle in executor.handles.values():
            await runtime.stop_actor(handle)
        print("ALONE", flush=True)
        await runtime.failures.guard(asyncio.sleep(300))"""
    launched = launch(program(alone))
    launched.wait_for("ALONE")
    (worker,) = [child for child in children(launched) if "worker_process" in " ".join(child.cmdline())]
    worker.kill()
    assert launched.wait(30) == 1
    assert f"the worker process of host 0 (pid {worker.pid}) was killed by SIGKILL" in launched.errors
    checker.assert_clean(20)


def test_a_controller_that_stands_still_for_longer_than_half_a_minute_goes_on(
    launch: Callable[..., Any], checker: LeftoverChecker, tmp_path: Path
) -> None:
    """As with Ctrl-Z and `fg`: Monarch's own limits, of 30 s and less, are not what decides."""
    resumed = tmp_path / "resumed"
    answers = f"""await executor.start()
        count = 0
        while True:
            count += Path({str(resumed)!r}).exists()
            for handle in executor.handles.values():
                await handle.call("stats", deadline_s=10)
            print("ANSWERED", count, flush=True)
            await asyncio.sleep(0.2)"""
    launched = launch(program(answers))
    launched.wait_for("ANSWERED 0")
    launched.process.send_signal(signal.SIGSTOP)
    time.sleep(40)  # standing still for longer than Monarch's 30 s is what is tested
    launched.process.send_signal(signal.SIGCONT)
    resumed.touch()
    launched.wait_for("ANSWERED 8", within_s=20)
    launched.process.send_signal(signal.SIGINT)
    assert launched.wait(10) == 130
    checker.assert_clean(10)
