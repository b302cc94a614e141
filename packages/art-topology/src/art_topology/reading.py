"""Bytes of a file, whatever the path names: every file that somebody else wrote is opened here.

Only regular files of at most :data:`MOST_BYTES` are read; a pipe or a device is refused before it is waited
for.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MOST_BYTES", "FileRefusedError", "TooLargeError", "read_regular"]

MOST_BYTES = 64 * 2**20
"""More than any topology, configuration of a model or table of hardware has."""


class FileRefusedError(OSError):
    """A path that names no regular file; ``strerror`` says what it is instead."""


class TooLargeError(FileRefusedError):
    """A file of more than :data:`MOST_BYTES`."""


def read_regular(path: str | Path) -> bytes:
    """All bytes of a regular file.

    Raises:
        FileRefusedError: it is a folder, a pipe, a device, or larger than :data:`MOST_BYTES`.
        OSError: it cannot be opened or read.
        ValueError: the path is none (a null byte in it).
    """
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(number, "rb") as file:
        mode = os.fstat(number).st_mode
        if stat.S_ISDIR(mode):
            raise FileRefusedError(errno.EISDIR, "it is a folder", str(path))
        if not stat.S_ISREG(mode):
            raise FileRefusedError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise TooLargeError(errno.EFBIG, f"the file has more than {MOST_BYTES // 2**20} MiB", str(path))
    return data
