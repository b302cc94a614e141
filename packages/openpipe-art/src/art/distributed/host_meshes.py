"""The hosts of a run as the controller reaches them: one Monarch host mesh for each.

Invariant: one host mesh per host, never one over several, so that the loss of one host leaves the others
    usable.
"""

import asyncio
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from art.distributed import monarch_setup
from art.distributed.actor_process import ACTOR_TMPDIR_VARIABLE
from art.distributed.errors import CloseError, RuntimeFailure, StartupError
from art.distributed.processes import ended, exit_clause, identify, is_ending, spawner
from art.distributed.run import Announce, Run, announce_on_stderr
from art.distributed.worker_process import FAILED

LOOPBACK = "127.0.0.1"
_SHUTDOWN_S = 3.0
_REAP_S = 0.5


class HostConnection:
    """One host's worker, attached.

    Args:
        index: its place among the hosts.
        address: ``tcp://HOST:PORT`` of its worker loop.
        mesh: Monarch's host mesh over this host alone.
        process: the worker's process when this process owns it.
    """

    def __init__(self, index: int, address: str, mesh: Any, process: subprocess.Popen[bytes] | None) -> None:
        self.index = index
        self.address = address
        self.mesh = mesh
        self.process = process

    def ended(self) -> str | None:
        """Which worker process ended, and how; ``None`` while it runs or when another process owns it."""
        if self.process is None or not is_ending(self.process.pid):
            return None
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_REAP_S)
        if self.process.returncode is None:
            return f"(pid {self.process.pid}) is ending"
        return f"(pid {self.process.pid}) {_how_ended(self.process)}"

    async def wait_ended(self) -> str:
        """Waits, without end, until the worker's process has ended, and tells which one and how.

        One that another process owns is watched by that process: then this waits until it is cancelled.
        """
        process = identify(self.process.pid) if self.process is not None else None
        if self.process is None:
            await asyncio.Event().wait()
        elif process is not None:
            await ended(process)
        return f"the worker process of host {self.index} {self.ended()}"

    async def close(self, deadline_s: float) -> None:
        """Shuts the host mesh down and, where owned, ends the worker's process.

        Raises:
            TimeoutError: Monarch did not answer in time; an owned worker is killed all the same.
            RuntimeFailure: an owned worker had ended before.
        """
        how = self.ended()
        if how is not None:
            raise RuntimeFailure(f"the worker at {self.address} {how} before it was closed")
        shutdown = self.mesh.shutdown().as_asyncio()
        try:
            await asyncio.wait_for(shutdown, deadline_s)
        except TimeoutError:
            raise TimeoutError(
                f"worker {self.address} did not shut down within {deadline_s:g} s; it was killed"
            ) from None
        finally:
            if self.process is not None:
                await asyncio.to_thread(_end, self.process, 1.0)


class HostMeshes:
    """All hosts of one run, with the run itself; the object behind ``ArtLaunchContext.host_mesh``.

    Made by :meth:`start_local` or a launcher. ``run`` is the run, ``hosts`` are its hosts in node order,
    ``python_path`` the folders that actors import from.
    """

    def __init__(self, run: Run, hosts: Sequence[HostConnection], python_path: tuple[str, ...] = ()) -> None:
        self.run = run
        self.hosts = tuple(hosts)
        self.python_path = python_path
        self._closed = False

    def __len__(self) -> int:
        return len(self.hosts)

    @property
    def worker_ports(self) -> tuple[int, ...]:
        """The port of each host's worker loop."""
        return tuple(int(host.address.rpartition(":")[2]) for host in self.hosts)

    @classmethod
    async def start_local(
        cls,
        *,
        port: int = 0,
        python_path: Sequence[str | Path] = (),
        startup_timeout_s: float = 90.0,
        announce: Announce = announce_on_stderr,
    ) -> "HostMeshes":
        """Starts a run on this machine: its custodian, then one worker on loopback, and attaches to it.

        Args:
            port: of the worker; 0 selects a fresh one.
            python_path: folders that actors import from, besides what this Python has installed.
            startup_timeout_s: seconds until the worker must be attached.
            announce: told of each earlier run that ended without closing, after cleaning up behind it.

        Raises:
            StartupError: a part did not come up; nothing is left behind.
        """
        limit = _Limit(startup_timeout_s, time.monotonic() + startup_timeout_s)
        run = await _in_thread(lambda: Run.start(announce=announce), undo=Run.close)
        paths = tuple(str(path) for path in python_path)
        try:
            await asyncio.to_thread(monarch_setup.prepare, f"tcp://{LOOPBACK}:0", run.temp_dir)
            process, address = await _in_thread(
                lambda: _start_worker(run, port, paths, limit),
                undo=lambda started: _end(started[0], 0.0),
            )
            try:
                mesh = await _attach(address, run.run_id, 0, process, limit)
            except BaseException:
                _end(process, 0.0)
                raise
        except BaseException:
            await asyncio.to_thread(run.close)
            raise
        return cls(run, [HostConnection(0, address, mesh, process)], paths)

    async def close(self, deadline_s: float = _SHUTDOWN_S) -> None:
        """Shuts all hosts down together, then closes the run. A second call does nothing.

        Args:
            deadline_s: seconds that each host may take; owned workers are killed after that.

        Raises:
            CloseError: parts that failed; the others were closed.
        """
        if self._closed:
            return
        self._closed = True
        results = await asyncio.gather(
            *(host.close(deadline_s) for host in self.hosts), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, Exception)]
        try:
            await asyncio.to_thread(self.run.close)
        except OSError as error:
            failures.append(error)
        if failures:
            raise CloseError(f"run {self.run.run_id} closed with failures", failures)


async def _in_thread[T](start: Callable[[], T], *, undo: Callable[[T], None]) -> T:
    """Runs ``start`` in a thread. A cancellation waits for it and undoes what it started."""
    started = asyncio.ensure_future(asyncio.to_thread(start))
    try:
        return await asyncio.shield(started)
    except asyncio.CancelledError:
        await asyncio.to_thread(undo, await started)
        raise


class _Limit(NamedTuple):
    """How long a start may take: the seconds that were allowed, and when they end, in monotonic seconds."""

    allowed_s: float
    end: float

    def left_s(self) -> float:
        return max(self.end - time.monotonic(), 0.0)

    def exceeded(self, what: str) -> StartupError:
        return StartupError(
            f"{what} within the {self.allowed_s:g} s of startup_timeout_s (art-monarch's --startup-timeout); "
            "give it more time, by default it has 90 s"
        )


async def _attach(
    address: str, run_id: str, index: int, process: subprocess.Popen[bytes], limit: _Limit
) -> Any:
    from monarch.actor import attach_to_workers

    mesh = attach_to_workers(ca="trust_all_connections", workers=[address], name=f"art_{run_id}_{index}")
    attached = mesh.initialized.as_asyncio()
    while True:
        done, _ = await asyncio.wait({attached}, timeout=0.2)
        if done:
            try:
                await attached
            except Exception as error:
                reason = (str(error).strip() or repr(error)).splitlines()[0]
                raise StartupError(
                    f"the worker at {address} could not be attached: {reason}. Start again, when this "
                    "machine is less busy"
                ) from error
            return mesh
        if process.poll() is not None:
            raise StartupError(f"the worker at {address} {_how_ended(process)} before it could be attached")
        if not limit.left_s():
            raise limit.exceeded(f"the worker at {address} could not be attached")


def _start_worker(
    run: Run, port: int, python_path: tuple[str, ...], limit: _Limit
) -> tuple[subprocess.Popen[bytes], str]:
    environment = {
        **run.child_environment(),
        **monarch_setup.WORKER_ENVIRONMENT,
        "TMPDIR": str(run.temp_dir),
        ACTOR_TMPDIR_VARIABLE: os.environ.get("TMPDIR", ""),
    }
    if python_path:
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([*python_path, *([inherited] if inherited else [])])
    command = [sys.executable, "-m", "art.distributed.worker_process", "--parent", str(os.getpid())]
    read, write = os.pipe()
    try:
        process = spawner().spawn(
            [*command, "--host", LOOPBACK, "--port", str(port), "--report", str(write)],
            environment=environment,
            pass_fds=[write],
        )
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    try:
        return process, _read_address(process, read, limit)
    except BaseException:
        _end(process, 0.0)
        raise


def _read_address(process: subprocess.Popen[bytes], report: int, limit: _Limit) -> str:
    with os.fdopen(report, "rb") as lines:
        readable, _, _ = select.select([lines], [], [], limit.left_s())
        line = lines.readline().decode().strip() if readable else ""
    if line.startswith(FAILED):
        raise StartupError(
            f"the worker did not start: {line.removeprefix(FAILED)}. Choose another port, or 0 for any "
            "free one"
        )
    if line:
        return line
    if readable:
        process.wait(5.0)
        raise StartupError(f"the worker process {_how_ended(process)} while starting; its output is above")
    raise limit.exceeded("the worker process did not start")


def _how_ended(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code is None:
        return "still runs"
    return exit_clause(-code if code < 0 else code << 8)


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Waits ``grace_s`` for the process, then kills it and waits for its end."""
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5.0)
