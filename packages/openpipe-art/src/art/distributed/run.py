"""One run: its identity, its temporary folder, its entry in the registry and the custodian that outlives it.

Invariant: from the moment :meth:`Run.start` returns until :meth:`Run.close` does, the death of this process
    leads to
the removal of everything that carries the run's id.
"""

import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from art.distributed import custodian
from art.distributed.cleanup import end_processes, remove_segments, sweep_dead_runs
from art.distributed.errors import StartupError
from art.distributed.processes import RUN_ID_VARIABLE, boot_id, identify, spawner, this_process
from art.distributed.registry import Registry, RunEntry, RunReport, state_dir

_LONGEST_TEMP_DIR = 83  # and 24 more for Monarch's "/.tmpXXXXXX/XXXXXXXXXXX"

type Announce = Callable[[RunReport], None]


def announce_on_stderr(report: RunReport) -> None:
    """Writes a report as one line to standard error."""
    sys.stderr.write(f"art: {report.line()}\n")


class Run:
    """Owned by the controller; made by :meth:`start`."""

    def __init__(self, entry: RunEntry, registry: Registry, process: subprocess.Popen[bytes]) -> None:
        self._entry = entry
        self._registry = registry
        self._custodian = process
        self._closed = False

    @property
    def run_id(self) -> str:
        """Twelve hexadecimal digits; part of the name of every segment and the environment of every
        process."""
        return self._entry.run_id

    @property
    def temp_dir(self) -> Path:
        """A folder that is removed when the run ends, however it ends."""
        return Path(self._entry.temp_dir)

    def child_environment(self) -> dict[str, str]:
        """The environment for a process that this process starts on its own and that must end with the
        run."""
        return {**os.environ, RUN_ID_VARIABLE: self.run_id}

    @classmethod
    def start(cls, *, announce: Announce = announce_on_stderr, deadline_s: float = 20.0) -> "Run":
        """Tells of runs that ended without closing, then starts this run and its custodian.

        Raises:
            StartupError: the state folder cannot be written, or the custodian did not come up.
        """
        folder = state_dir()
        try:
            registry = Registry(folder)
        except OSError as error:
            raise StartupError(
                f"the state folder {folder} cannot be used: {error}. Set ART_STATE_DIR to one that can "
                "be written"
            ) from error
        for report in sweep_dead_runs(registry):
            announce(report)
        run_id = secrets.token_hex(6)
        entry = RunEntry(
            run_id=run_id,
            controller=this_process(),
            boot_id=boot_id(),
            temp_dir=str(_make_temp_dir(run_id)),
            started_unix_s=time.time(),
            command=" ".join(sys.argv)[:200],
        )
        registry.write_run(entry)
        try:
            process = _start_custodian(registry, run_id, deadline_s)
        except BaseException:
            registry.remove_run(run_id)
            shutil.rmtree(entry.temp_dir)
            raise
        entry = msgspec.structs.replace(entry, custodian=identify(process.pid))
        registry.write_run(entry)
        return cls(entry, registry, process)

    def close(self) -> None:
        """Ends what is left of the run's processes, removes its segments and folder, and dismisses the
        custodian.

        Blocks for about ten seconds at worst. A second call does nothing.

        Raises:
            OSError: the folder cannot be removed; the custodian is dismissed all the same.
        """
        if self._closed:
            return
        self._closed = True
        _, living = end_processes(self.run_id, grace_s=0.0, deadline_s=5.0)
        remove_segments(self.run_id)
        try:
            if self.temp_dir.exists():
                shutil.rmtree(self.temp_dir)
        finally:
            if not living:
                self._dismiss()
                self._registry.remove_run(self.run_id)
        if living:
            pids = ", ".join(str(process.pid) for process in living)
            raise OSError(f"processes {pids} of run {self.run_id} could not be ended; its custodian stays")

    def _dismiss(self) -> None:
        assert self._custodian.stdin is not None
        try:
            self._custodian.stdin.write(custodian.CLOSED)
            self._custodian.stdin.close()
            self._custodian.wait(5.0)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._custodian.kill()
            self._custodian.wait(5.0)


def _make_temp_dir(run_id: str) -> Path:
    """The run's folder. Unix sockets are put into it, whose paths the kernel limits to 107 characters."""
    path = Path(tempfile.gettempdir()).resolve() / f"art-{run_id}"
    if len(str(path)) > _LONGEST_TEMP_DIR:
        raise StartupError(
            f"the folder for temporary files, {path.parent}, has {len(str(path.parent))} characters; sockets "
            f"in it need at most {_LONGEST_TEMP_DIR - len(path.name) - 1}. Set TMPDIR to a shorter one"
        )
    path.mkdir(mode=0o700)
    return path


def _start_custodian(registry: Registry, run_id: str, deadline_s: float) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != RUN_ID_VARIABLE}
    ready, ready_write = os.pipe()
    try:
        process = spawner().spawn(
            [sys.executable, "-m", "art.distributed.custodian", str(registry.folder), run_id],
            environment=environment,
            stdin=subprocess.PIPE,
            stdout=ready_write,
        )
    finally:
        os.close(ready_write)
    try:
        readable, _, _ = select.select([ready], [], [], deadline_s)
        if not readable or os.read(ready, 1) != custodian.READY:
            process.kill()
            code = process.wait(5.0)
            raise StartupError(
                f"the custodian of run {run_id} did not come up within {deadline_s} s (exit code {code}); "
                f"its output is above. Run `{sys.executable} -m art.distributed.custodian` to see why"
            )
    finally:
        os.close(ready)
    return process
