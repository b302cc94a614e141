"""Commands that never outlive the process that asked for them; ``_supervisor.py`` says what holds."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

_SUPERVISOR = Path(__file__).with_name("_supervisor.py")


class CommandEnd(msgspec.Struct, frozen=True):
    """How a supervised command ended: ``code`` is its exit status, or minus the signal that killed it.

    ``reason`` is ``ended`` (on its own), ``told to stop`` or ``parent died``.
    """

    pid: int
    code: int
    reason: str

    def describe(self) -> str:
        """The end in words: ``exit status 3`` or ``killed by SIGKILL``."""
        return describe_exit(self.code)


def describe_exit(code: int) -> str:
    """Puts an exit status, or a negated signal number, into words."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def supervised(
    command: Sequence[str],
    *,
    grace_s: float,
    scratch: Path | None = None,
    end_file: Path | None = None,
) -> list[str]:
    """The argument vector that runs ``command`` under a supervisor whose parent is the calling process.

    Args:
        command: the program and its arguments.
        grace_s: seconds between SIGTERM and SIGKILL when the command has to end before its time.
        scratch: a folder that is removed after the last process is gone.
        end_file: where a :class:`CommandEnd` is written as JSON when the command ended.

    The supervisor must be started by this process itself; descriptors that it inherits are inherited by the
    command.
    """
    return [
        sys.executable,
        "-I",
        "-S",
        str(_SUPERVISOR),
        str(os.getpid()),
        str(grace_s),
        str(scratch) if scratch is not None else "-",
        str(end_file) if end_file is not None else "-",
        *command,
    ]


def read_end(end_file: Path) -> CommandEnd | None:
    """What the supervisor wrote, or None while the command has not ended or when nothing could be written."""
    try:
        return msgspec.json.decode(end_file.read_bytes(), type=CommandEnd)
    except FileNotFoundError:
        return None
