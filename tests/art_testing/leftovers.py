"""Finds what a run left behind: processes, shared-memory segments, listening ports, temporary files.

A run is marked by an environment variable that every descendant inherits, so a process is recognised even
after its parent died and it was adopted by init. The run gets a temporary folder of its own; whatever stands
there afterwards is a leftover. Segments and listening ports are compared with those that were there before;
one that belongs to a living process of somebody else is not ours.
"""

import os
import re
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MARK = "ART_TEST_MARK"
SEGMENTS = Path("/dev/shm")


def marked_processes(mark: str) -> list[psutil.Process]:
    """Live processes whose environment carries ``mark``; zombies hold nothing and do not count."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def listening_ports() -> dict[tuple[str, int], int | None]:
    """Every TCP address that something on this machine listens on, with the process where it is known."""
    connections = psutil.net_connections(kind="tcp")
    return {(c.laddr.ip, c.laddr.port): c.pid for c in connections if c.status == psutil.CONN_LISTEN}


def _is_foreign(pid: int | None, mark: str) -> bool:
    """Whether a process lives that does not carry ``mark``."""
    if pid is None:
        return False
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) != mark
    except psutil.NoSuchProcess:
        return False


def _segment_owner(name: str) -> int | None:
    """The process that a segment's name says it belongs to (``art-RUN-PID-START.NAMESPACE-SEQUENCE``)."""
    found = re.fullmatch(r"art-.+-(\d+)-\d+\.\d+-\d+", name)
    return int(found.group(1)) if found else None


def segments() -> set[str]:
    """Names in the shared-memory file system."""
    return {entry.name for entry in SEGMENTS.iterdir()}


@dataclass
class LeftoverChecker:
    """Marks one run and afterwards says what it left.

    Args:
        temporary: an empty folder that becomes the run's ``TMPDIR``.
    """

    temporary: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    segments_before: set[str] = field(default_factory=segments)
    ports_before: set[tuple[str, int]] = field(default_factory=lambda: set(listening_ports()))

    def environment(self, base: dict[str, str] | None = None) -> dict[str, str]:
        """The environment in which the run must be started."""
        return {**(os.environ if base is None else base), MARK: self.mark, "TMPDIR": str(self.temporary)}

    def find(self) -> list[str]:
        """One line for each leftover."""
        lines = []
        for process in marked_processes(self.mark):
            try:
                lines.append(f"process {process.pid}: {' '.join(process.cmdline())[:200]}")
            except psutil.NoSuchProcess:
                continue
        lines += [
            f"shared-memory segment {name}"
            for name in sorted(segments() - self.segments_before)
            if not _is_foreign(_segment_owner(name), self.mark)
        ]
        lines += [
            f"listening port {ip}:{port}"
            for (ip, port), pid in sorted(listening_ports().items())
            if (ip, port) not in self.ports_before and not _is_foreign(pid, self.mark)
        ]
        lines += [f"temporary file {path}" for path in sorted(self.temporary.rglob("*")) if path.exists()]
        return lines

    def assert_clean(self, within_s: float) -> None:
        """Waits until nothing is left.

        Raises:
            AssertionError: something was still there after ``within_s`` seconds; every leftover is named.
        """
        deadline = time.monotonic() + within_s
        while leftovers := self.find():
            if time.monotonic() > deadline:
                raise AssertionError(f"left after {within_s:.0f} s:\n  " + "\n  ".join(leftovers))
            time.sleep(0.1)

    def kill_all(self) -> None:
        """Ends the run's processes, so that a failed test does not disturb the next one."""
        for process in marked_processes(self.mark):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        for name in segments() - self.segments_before:
            if name.startswith("art-") and not _is_foreign(_segment_owner(name), self.mark):
                (SEGMENTS / name).unlink(missing_ok=True)
