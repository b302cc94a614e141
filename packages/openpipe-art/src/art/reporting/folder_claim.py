"""Who may write into a run's folder.

What always holds: one process at a time has the folder, by a lock that the kernel drops when the process
dies; a folder that holds anything but an unused run is never written to by a new one.
"""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from art.errors import ConfigError
from art.reporting.generations import newest_version
from art.reporting.run_folder import (
    EVALUATIONS,
    GENERATIONS,
    LOCK,
    LOGS,
    METRICS,
    PHASES,
    REPORT,
    RUN,
    TRAJECTORIES,
    read_run,
    read_steps,
)

_OURS = frozenset({RUN, METRICS, EVALUATIONS, PHASES, TRAJECTORIES, GENERATIONS, LOGS, LOCK, REPORT})
_FREE_POLL_S = 0.1
_LOCK_POLL_S = 0.02
_LOCK_WITHIN_S = 0.2  # whoever only looks holds it for some microseconds


def check_new_folder(folder: Path) -> None:
    """Says now what a new :class:`art.reporting.RunReport` would say of ``folder``; changes nothing.

    Raises:
        ConfigError: a new run cannot have it.
    """
    folder = folder.resolve()
    if folder.exists() and not is_empty(folder) and (problem := why_kept(folder)) is not None:
        raise ConfigError(problem)


def is_empty(folder: Path) -> bool:
    """Whether it is a folder with nothing in it."""
    return folder.is_dir() and not any(folder.iterdir())


def why_kept(folder: Path) -> str | None:
    """Why a new run may not use what is there, or None."""
    general = f"the run folder {folder} is not an empty folder; choose another"
    if not folder.is_dir():
        return general
    if _was_never_begun(folder):
        return None
    try:
        read_run(folder)
        steps = len(read_steps(folder))
    except (OSError, msgspec.MsgspecError):
        return general
    if steps or newest_version(folder):
        return f"the run folder {folder} holds a run of {steps} steps; choose another, or resume it"
    foreign = sorted(path.name for path in folder.iterdir() if not _is_ours(path.name))
    return f"{general}: it holds {', '.join(foreign[:5])}" if foreign else None


def _is_ours(name: str) -> bool:
    """Whether a run makes a file or folder of this name; unfinished ones of a killed process count."""
    return (
        name in _OURS or (name.startswith(".") and name.endswith(".part")) or name.startswith(f".{REPORT}.")
    )


def _was_never_begun(folder: Path) -> bool:
    """Whether a process was killed while it made the folder, before it said what the run is."""
    names = {path.name for path in folder.iterdir()}
    if RUN in names or LOCK not in names or any((folder / TRAJECTORIES).glob("*")):
        return False
    return all(name in (LOCK, TRAJECTORIES) or name.endswith(".part") for name in names)


def locked(folder: Path) -> int:
    """The descriptor of the folder's lock, which is taken.

    Raises:
        ConfigError: another process has it.
        OSError: it cannot be made.
    """
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    end = time.monotonic() + _LOCK_WITHIN_S
    while not _taken(lock, fcntl.LOCK_EX):
        if time.monotonic() > end:
            holder = _holder(lock)
            os.close(lock)
            raise ConfigError(
                f"the run folder {folder} is in use by process {holder or '?'}; wait for it or end it, or "
                "choose another folder"
            )
        time.sleep(_LOCK_POLL_S)
    os.truncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def holder_of(folder: Path) -> str | None:
    """The number of the process that writes into the folder, ``?`` if it does not say; None without one."""
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return None if _taken(lock, fcntl.LOCK_SH) else _holder(lock) or "?"
    finally:
        os.close(lock)


async def wait_until_free(path: Path, deadline_s: float, waits: Callable[[], None] | None = None) -> None:
    """Waits until nobody holds the lock at ``path``: a killed run's trainer may still write for a moment.

    Args:
        path: the lock's file; free if there is none.
        deadline_s: from now, in seconds.
        waits: called once if it is not free at once.

    Raises:
        ConfigError: it is held too long.
    """
    end = time.monotonic() + deadline_s
    with contextlib.ExitStack() as stack:
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        stack.callback(os.close, lock)
        while not _taken(lock, fcntl.LOCK_SH):
            if time.monotonic() > end:
                raise ConfigError(
                    f"{path.parent} is still being written to after {deadline_s:.0f} s, by what an "
                    "earlier process of this run left; end it, then resume"
                )
            if waits is not None:
                waits()
                waits = None
            await asyncio.sleep(_FREE_POLL_S)


def _taken(lock: int, kind: int) -> bool:
    with contextlib.suppress(BlockingIOError):  # somebody else has it
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
        return True
    return False


def _holder(lock: int) -> str:
    return os.pread(lock, 32, 0).decode(errors="replace").strip()
