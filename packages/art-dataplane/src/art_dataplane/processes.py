"""Which process owns something, named so that a reused process id is not mistaken for its owner.

Linux only: identity is the process id, its start time in clock ticks since boot (``/proc/PID/stat``, field
22) and the PID namespace in which the id has its meaning.
"""

import os
import sys
from pathlib import Path

import msgspec

from art_dataplane.errors import DataPlaneError


class ProcessIdentity(msgspec.Struct, frozen=True):
    """One process for as long as the host runs; equal for no other.

    Args:
        pid: its process id.
        start_ticks: its start, in clock ticks since boot (``/proc/PID/stat``, field 22).
        namespace: the PID namespace in which the id has its meaning (inode of ``/proc/self/ns/pid``).
    """

    pid: int
    start_ticks: int
    namespace: int

    @classmethod
    def current(cls) -> "ProcessIdentity":
        """The calling process; not cached, since a fork changes it.

        Raises:
            DataPlaneError: not on Linux.
        """
        if not sys.platform.startswith("linux"):
            raise DataPlaneError(f"process identities need Linux's /proc; this is {sys.platform}")
        pid = os.getpid()
        stat = _read_stat(pid)
        if stat is None:
            raise DataPlaneError(f"/proc/{pid}/stat of the calling process cannot be read; is /proc mounted?")
        return cls(pid, stat[1], _namespace())

    def is_alive(self) -> bool | None:
        """Whether it still runs (a zombie does not); None when it lives in another PID namespace."""
        if self.namespace != _namespace():
            return None
        stat = _read_stat(self.pid)
        return stat is not None and stat[1] == self.start_ticks and stat[0] not in "ZX"


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _read_stat(pid: int) -> tuple[str, int] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the command name before it may hold blanks and brackets
    return fields[0], int(fields[19])
