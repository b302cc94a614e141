"""What is said when a disk is full while an environment is built: which one, and how much is needed."""

import errno
import os
import shutil
from pathlib import Path

from art_serving.errors import NoRoomError

_FULL = {errno.ENOSPC: os.strerror(errno.ENOSPC), errno.EDQUOT: os.strerror(errno.EDQUOT)}


def lacks_room(error: OSError) -> bool:
    """Whether the system call failed since a disk is full, or a quota used up."""
    return error.errno in _FULL


def tells_of_full_disk(text: str) -> bool:
    """Whether a program's output says that a disk is full, or a quota used up."""
    return any(words in text for words in _FULL.values())


def full_folder(cache: Path) -> Path:
    """Which of the folders that a build writes to has no room: the cache, or uv's own.

    It is to be asked before what the build has left is removed.
    """
    uv_cache = uv_cache_folder()
    devices = {_device(uv_cache): uv_cache, _device(cache): cache}
    return min(devices.values(), key=lambda folder: shutil.disk_usage(_existing(folder)).free)


def uv_cache_folder() -> Path:
    """Where uv keeps packages: ``UV_CACHE_DIR``, or ``uv`` in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    named = os.environ.get("UV_CACHE_DIR")
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "uv"


def no_room(name: str, folder: Path, needed: int, variable: str) -> NoRoomError:
    """The error to raise.

    Args:
        name: of the environment.
        folder: what is full.
        needed: bytes that a build writes; 0 when nobody knows.
        variable: the environment variable that names another folder.
    """
    room = shutil.disk_usage(_existing(folder))
    wanted = f", and it needs up to {_gigabytes(needed)}" if needed else ""
    more = f" with {_gigabytes(needed)} free" if needed else " with more room"
    return NoRoomError(
        f"{folder} is full: there was no room left for environment {name!r}. Its file system has "
        f"{_gigabytes(room.total)}, {_gigabytes(room.free)} of it free without what was half built{wanted}. "
        f"Free some, or set {variable} to a folder{more}, and start again"
    )


def _gigabytes(byte_count: int) -> str:
    return f"{byte_count / 1e9:.1f} GB" if byte_count >= 1e9 else f"{byte_count / 1e6:.0f} MB"


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _device(path: Path) -> int:
    return _existing(path).stat().st_dev
