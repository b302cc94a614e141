"""For how long a process that lives has not answered.

A look that is not answered says little: the machine may be busy, or the asking process may have stood still
itself. What holds: silence lasts from the first look that was not answered, an answer ends it, and it counts
only once two looks in a row went unanswered.
"""

import time
from pathlib import Path


class Unanswered:
    """The looks at one process; ``limit_s`` is how long it may be silent, in seconds."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: float | None = None
        self._clock = 0.0

    def end(self) -> None:
        """It has answered."""
        self._since = None

    def asked_at(self, asked: float) -> float | None:
        """Takes a look that was not answered.

        Args:
            asked: when the look began, in monotonic seconds.

        Returns:
            The seconds of silence, once they are more than the limit; else None.
        """
        if self._since is None or asked < self._since:
            self._since, self._clock = asked, time.time() - (time.monotonic() - asked)
            return None
        silent_s = time.monotonic() - self._since
        return silent_s if silent_s > self._limit_s else None

    def since_clock(self) -> str:
        """When the silence began, as a clock shows it."""
        return time.strftime("%H:%M:%S", time.localtime(self._clock))


def is_halted(pid: int) -> bool:
    """Whether a signal (SIGSTOP, a terminal's Ctrl-Z, a debugger) has stopped the process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] in ("T", "t")
