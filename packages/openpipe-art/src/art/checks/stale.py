"""What earlier versions of ART left in the cache: environments and models that this one does not use.

An entry's name ends with the digest of what it was made from, so every change of that leaves the last entry
behind. What always holds: neither an entry of this version nor one that is in use is removed, where in use
means that its lock is held or that a process runs from it; an entry disappears by one rename, so nothing can
find half of it.
"""

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from art.checks.cache import RUNTIME_VARIABLE, cache_folder, demo_entries

PRUNE_COMMAND = "art doctor --prune-cache"
_KINDS = ("environments", "models")
_ENTRY = re.compile(r"[A-Za-z0-9._-]+-[0-9a-f]{32}(\.staging)?|\.removed-.+")
_BLOCK = 512
_PROC = Path("/proc")


class StaleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A folder in the cache that this version of ART does not use.

    Args:
        folder: it.
        disk_bytes: that its removal frees, counted with the other entries that are looked at; packages that
            it shares with uv's cache are not among them.
        whole: it was counted to its end.
        user: what uses it now, for example ``process 123``; empty when it can be removed.
    """

    folder: Path
    disk_bytes: int
    whole: bool
    user: str


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """What came of removing an entry; ``problem`` is empty when it is gone."""

    entry: StaleEntry
    problem: str


def stale_entries(count_s: float = 3.0) -> tuple[StaleEntry, ...]:
    """What can be removed from the cache, and what could be if nobody used it.

    Nothing where it cannot be known what this version uses, since its extras are not installed.

    Args:
        count_s: seconds that counting bytes may take.
    """
    used = demo_entries()
    if used is None:
        return ()
    named = os.environ.get(RUNTIME_VARIABLE)
    found = [
        folder
        for folder in _entries()
        if folder not in used and not (named and Path(named).is_relative_to(folder))
    ]
    users = _users(found)
    sizes = _sizes(found, time.monotonic() + count_s)
    return tuple(
        StaleEntry(folder=folder, disk_bytes=taken, whole=whole, user=users.get(folder, ""))
        for folder, (taken, whole) in zip(found, sizes, strict=True)
    )


def prune() -> tuple[Removal, ...]:
    """Removes every stale entry that is not in use."""
    return tuple(Removal(entry=entry, problem=_remove(entry)) for entry in stale_entries())


def _remove(entry: StaleEntry) -> str:
    """Removes one; returns why it was not removed."""
    folder = entry.folder
    if entry.user:
        return f"in use by {entry.user}"
    aside = folder if folder.name.startswith(".removed-") else folder.with_name(f".removed-{folder.name}")
    try:
        with _lock(folder) as held:
            if not held:
                return "in use: a process builds it"
            if aside != folder:
                if aside.exists():
                    shutil.rmtree(aside)
                folder.rename(aside)
            shutil.rmtree(aside)
            _lock_file(folder).unlink(missing_ok=True)
    except OSError as error:
        return f"cannot be removed: {error.strerror or error}"
    return ""


def _entries() -> Iterator[Path]:
    for kind in _KINDS:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            for path in sorted((cache_folder() / kind).iterdir()):
                if _ENTRY.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                    yield path


def _users(folders: list[Path]) -> dict[Path, str]:
    """Which of the folders are in use, and by what."""
    users = {}
    for folder in folders:
        with contextlib.suppress(OSError), _lock(folder) as held:
            if not held:
                users[folder] = "the process that builds it"
    prefixes = {f"{folder.resolve()}/".encode(): folder for folder in folders}
    for process in _PROC.iterdir() if prefixes else ():
        if not process.name.isdigit():
            continue
        for name in ("cmdline", "maps"):
            try:
                content = (process / name).read_bytes()
            except OSError:  # it has ended, or is another user's
                continue
            for prefix, folder in prefixes.items():
                if prefix in content:
                    users.setdefault(folder, f"process {process.name}")
    return users


def _lock_file(folder: Path) -> Path:
    name = folder.name.removeprefix(".removed-").removesuffix(".staging")
    return folder.with_name(f"{name}.lock")


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Holds the lock that builders of the entry take; gives False when one has it. Makes no file."""
    try:
        descriptor = os.open(_lock_file(folder), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _sizes(folders: list[Path], deadline: float) -> list[tuple[int, bool]]:
    """Bytes that each frees when all are removed, and whether they were counted to the end.

    A file with links elsewhere, in uv's cache above all, frees nothing; one whose links all lie in these
    folders counts for the one that holds the last of them.
    """
    links: dict[tuple[int, int], int] = {}
    sizes = []
    for folder in folders:
        taken, whole = 0, True
        for status in _files(folder):
            if time.monotonic() > deadline:
                whole = False
                break
            if status.st_nlink > 1:
                key = (status.st_dev, status.st_ino)
                links[key] = links.get(key, 0) + 1
                if links[key] < status.st_nlink:
                    continue
            taken += status.st_blocks * _BLOCK
        sizes.append((taken, whole))
    return sizes


def _files(folder: Path) -> Iterator[os.stat_result]:
    waiting = [str(folder)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry.stat(follow_symlinks=False)
