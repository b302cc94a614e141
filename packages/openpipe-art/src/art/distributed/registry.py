"""The state folder: which runs live on this machine, and what was left by those that ended without closing.

``ART_STATE_DIR`` (default ``~/.local/state/art``) holds ``runs/RUN_ID.json`` for each run between its start
and its end, and ``reports/RUN_ID.json`` for each run that was cleaned up after, until the next start has
told of it. Then the report moves to ``reports/told/``, where the last 50 stay for 30 days.
"""

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from art.distributed.processes import ProcessId, boot_id

_KEPT_REPORTS = 50
_KEPT_S = 30 * 24 * 3600.0


class RunEntry(msgspec.Struct, frozen=True):
    """A run that was started and has not closed. ``folders`` are those that its models are kept in."""

    run_id: str
    controller: ProcessId
    boot_id: str
    temp_dir: str
    started_unix_s: float
    command: str
    custodian: ProcessId | None = None
    folders: tuple[str, ...] = ()

    def controller_alive(self) -> bool:
        """Whether the process that owns the run still runs."""
        return self.boot_id == boot_id() and self.controller.alive()

    def custodian_alive(self) -> bool:
        """Whether the process that cleans up after the run still runs."""
        return self.boot_id == boot_id() and self.custodian is not None and self.custodian.alive()


class FoundProcess(msgspec.Struct, frozen=True):
    """A process of the run that outlived its controller."""

    pid: int
    command: str


class FoundSegment(msgspec.Struct, frozen=True):
    """A shared-memory segment of the run."""

    name: str
    byte_count: int


class RunReport(msgspec.Struct, frozen=True):
    """What was found and removed after a run that ended without closing.

    ``cause`` says how its controller ended, when that could be observed; ``swept_by`` is ``custodian`` or
    ``next start``; ``remaining`` are lines about what could not be removed; ``folders`` are those that the
    run is kept in, and ``command`` is how it was started.
    """

    run_id: str
    controller_pid: int
    started_unix_s: float
    cause: str
    swept_by: str
    processes: tuple[FoundProcess, ...] = ()
    segments: tuple[FoundSegment, ...] = ()
    temp_dir_removed: bool = False
    duration_s: float = 0.0
    remaining: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    command: str = ""

    def line(self) -> str:
        """The report in one line."""
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.started_unix_s))
        mebibytes = sum(segment.byte_count for segment in self.segments) / 2**20
        parts = [
            f"{len(self.processes)} processes ended",
            f"{len(self.segments)} shared-memory segments ({mebibytes:.1f} MiB) removed",
        ]
        if self.temp_dir_removed:
            parts.append("temporary folder removed")
        if self.remaining:
            parts.append(f"NOT removed: {'; '.join(self.remaining)}")
        by = "by its custodian" if self.swept_by == "custodian" else "now"
        return (
            f"an earlier run, {self.run_id}{self._place()} (pid {self.controller_pid}, started {started}), "
            f"ended without closing: {self.cause}; cleaned up {by}: {', '.join(parts)}"
        )

    def _place(self) -> str:
        if self.folders:
            return f" in {', '.join(self.folders)}"
        return f" of `{self.command}`" if self.command else ""


def state_dir() -> Path:
    """The state folder; it need not exist yet."""
    configured = os.environ.get("ART_STATE_DIR")
    return Path(configured) if configured else Path.home() / ".local" / "state" / "art"


class Registry:
    """Reads and writes the state folder. Every file is written aside and renamed, so a reader never sees
    half."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = folder / "runs"
        self._reports = folder / "reports"
        self._told = self._reports / "told"
        for path in (self._runs, self._told):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextmanager
    def locked(self, deadline_s: float = 30.0) -> Iterator[None]:
        """Holds the folder's lock, so that two starts do not sweep the same run.

        Raises:
            TimeoutError: another process held it for ``deadline_s`` seconds.
        """
        end = time.monotonic() + deadline_s
        with (self.folder / "lock").open("a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise TimeoutError(
                            f"another process holds {self.folder / 'lock'} for more than {deadline_s} s"
                        ) from None
                    time.sleep(0.02)
            yield

    def write_run(self, entry: RunEntry) -> None:
        """Records a living run."""
        _write(self._runs / f"{entry.run_id}.json", entry)

    def remove_run(self, run_id: str) -> None:
        """Forgets a run; nothing happens if it is not there."""
        (self._runs / f"{run_id}.json").unlink(missing_ok=True)

    def has_run(self, run_id: str) -> bool:
        """Whether a run is recorded."""
        return (self._runs / f"{run_id}.json").exists()

    def runs(self) -> list[RunEntry]:
        """All recorded runs."""
        return [entry for path in sorted(self._runs.glob("*.json")) if (entry := _read(path, RunEntry))]

    def write_report(self, report: RunReport) -> None:
        """Leaves a report for the next start."""
        _write(self._reports / f"{report.run_id}.json", report)

    def take_reports(self) -> list[RunReport]:
        """The reports that nobody was told of; they count as told from now on."""
        taken = []
        for path in sorted(self._reports.glob("*.json")):
            report = _read(path, RunReport)
            if report is not None:
                taken.append(report)
                path.rename(self._told / path.name)
        self._prune()
        return taken

    def _prune(self) -> None:
        """Removes told reports beyond the last 50 or older than 30 days, and as old files that were left.

        What was left: files that could not be read, and halves of files whose writer was killed.
        """
        now = time.time()
        told = sorted(_modified(self._told.glob("*.json")), reverse=True)
        left = [
            entry
            for folder in (self._runs, self._reports, self._told)
            for pattern in ("*.unreadable", ".*.json.*")
            for entry in _modified(folder.glob(pattern))
        ]
        for position, (modified, path) in enumerate([*told, *left]):
            beyond = _KEPT_REPORTS <= position < len(told)
            if beyond or now - modified > _KEPT_S:
                path.unlink(missing_ok=True)


def _modified(paths: Iterable[Path]) -> list[tuple[float, Path]]:
    """The paths that are there, each with the Unix time of its last change."""
    found = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, path))
    return found


def _write(path: Path, value: msgspec.Struct) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(msgspec.json.encode(value))
    aside.rename(path)


def _read[T](path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        aside = path.with_suffix(".unreadable")
        path.rename(aside)
        sys.stderr.write(f"art: {path} cannot be read ({error}) and was moved to {aside.name}\n")
        return None
