"""One run: its identity, its temporary folder, its entry in the registry and the custodian that outlives it.

Invariant: from the moment :meth:`Run.start` returns until :meth:`Run.close` does, the death of this process
    leads to the removal of everything that carries the run's id, also when its custodian was killed before.
"""

import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from art.distributed.cleanup import end_processes, remove_segments, sweep_dead_runs
from art.distributed.custodian_watch import CustodianWatch
from art.distributed.errors import StartupError
from art.distributed.processes import RUN_ID_VARIABLE, boot_id, identify, this_process
from art.distributed.registry import Registry, RunEntry, RunReport, state_dir

_LONGEST_TEMP_DIR = 83  # and 24 more for Monarch's "/.tmpXXXXXX/XXXXXXXXXXX"

type Announce = Callable[[RunReport], None]


def announce_on_stderr(report: RunReport) -> None:
    """Writes a report as one line to standard error."""
    sys.stderr.write(f"art: {report.line()}\n")


class Run:
    """Owned by the controller; made by :meth:`start`."""

    def __init__(self, entry: RunEntry, registry: Registry, tell: Callable[[str], None]) -> None:
        self._entry = entry
        self._registry = registry
        environment = {name: value for name, value in os.environ.items() if name != RUN_ID_VARIABLE}
        command = [sys.executable, "-m", "art.distributed.custodian", str(registry.folder), entry.run_id]
        self._custodian = CustodianWatch(
            command, environment, f"run {entry.run_id}", self._custodian_started, tell
        )
        self._changing = threading.Lock()
        self._closed = False

    def _custodian_started(self, pid: int) -> None:
        self._change(custodian=identify(pid))

    def keeps_in(self, folder: Path) -> None:
        """Notes where a model of this run is kept, for what is told should the run end without closing."""
        self._change(folders=(*self._entry.folders, str(folder)))

    def _change(self, **fields: Any) -> None:
        with self._changing:
            self._entry = msgspec.structs.replace(self._entry, **fields)
            self._registry.write_run(self._entry)

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
    def start(
        cls,
        *,
        announce: Announce = announce_on_stderr,
        deadline_s: float = 20.0,
        tell: Callable[[str], None] | None = None,
    ) -> "Run":
        """Tells of runs that ended without closing, then starts this run and its custodian.

        Args:
            announce: told of each run that ended without closing.
            deadline_s: seconds for the custodian to come up.
            tell: called, from a thread, with a line when a custodian ended and another took its place; by
                default it is written to standard error.

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
        run = cls(entry, registry, tell or _tell_on_stderr)
        try:
            run._custodian.start(deadline_s)
        except BaseException:
            registry.remove_run(run_id)
            shutil.rmtree(entry.temp_dir)
            raise
        return run

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
                self._custodian.dismiss()
                self._registry.remove_run(self.run_id)
        if living:
            pids = ", ".join(str(process.pid) for process in living)
            raise OSError(f"processes {pids} of run {self.run_id} could not be ended; its custodian stays")


def _tell_on_stderr(line: str) -> None:
    sys.stderr.write(f"art: {line}\n")


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
