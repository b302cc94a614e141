"""One benchmark as a process that ends: by itself, by its deadline, or with the program that started it."""

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from benchmarks import table
from benchmarks.environments import ROOT

_GRACE_S = 20.0
_POLL_S = 0.05
_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_LINES = 40


class BenchmarkFailedError(Exception):
    """A benchmark found a wrong result, died, left a process or did not end; the message has its output."""


def run(python: str, arguments: Sequence[str], deadline_s: float) -> list[table.Row]:
    """Runs ``python -m ARGUMENTS --json FILE`` from the root of the clone; the rows that it wrote.

    Its processes are gone afterwards, whatever happens, also those that it detached from itself.

    Raises:
        BenchmarkFailedError: its status is not 0, it wrote no rows, left a process behind, or took
            longer than ``deadline_s``.
    """
    _adopt_orphans()
    before = _children()
    with tempfile.TemporaryDirectory(prefix="art-benchmark-") as folder:
        rows, log = Path(folder) / "rows.json", Path(folder) / "log"
        command = [python, "-m", *arguments, "--json", str(rows)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                left = _end(process, before)
        told = f"\n  {' '.join(command)}\n{_tail(log)}"
        if status is None:
            raise BenchmarkFailedError(f"not done within {deadline_s:.0f} s{told}")
        if status:
            raise BenchmarkFailedError(f"ended with status {status}{told}")
        if left:
            raise BenchmarkFailedError(f"left processes, which were killed: {', '.join(left)}{told}")
        try:
            found = table.read(rows)
        except (OSError, msgspec.MsgspecError) as error:
            raise BenchmarkFailedError(f"wrote no rows: {error}{told}") from error
        if not found:
            raise BenchmarkFailedError(f"wrote a file without rows{told}")
        return found


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(f"  | {line}" for line in lines[-_LINES:])


def _adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent ends, so that none is lost."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _end(process: "subprocess.Popen[bytes]", before: set[int]) -> list[str]:
    """Ends the process if it runs, then what it left; returns the names of what still ran."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)  # it closes what it opened
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    end = time.monotonic() + _GRACE_S / 4
    while (left := _running(before)) and time.monotonic() < end:
        time.sleep(_POLL_S)
    names = list(left.values())
    end = time.monotonic() + _GRACE_S
    while (left := _running(before)) and time.monotonic() < end:
        for pid in left:
            os.kill(pid, signal.SIGKILL)  # its children become ours, and are next
        time.sleep(_POLL_S)
    return names


def _running(before: set[int]) -> dict[int, str]:
    """Children that were adopted since, with their command; reaps those that ended."""
    found = {}
    for pid in _children() - before:
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    return found


def _children() -> set[int]:
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(folder.name))
    return found
