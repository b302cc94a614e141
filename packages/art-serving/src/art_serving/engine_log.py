"""What the log of a member says of its end: the one line that names the cause.

Several processes write into one log. vLLM puts the process, and for errors level, time and place, before each
line: ``(EngineCore pid=12) ERROR 11-29 22:00:00 [core.py:9] ...``.
"""

import re

_PROCESS = r"\([\w.\- ]+ pid=\d+\) ?"
_LEVEL = r"(?:CRITICAL|ERROR|WARNING|INFO|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?"
_LINE = re.compile(rf"({_PROCESS})?(?:{_LEVEL})?(.*)")
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$")
_MOST_LINES = 3
_LONGEST = 500


def root_cause(text: str) -> str | None:
    """The exception of the first traceback, as one line; None where there is no traceback.

    Of chained exceptions Python writes the cause first, and of processes the one that failed first writes
    first. A message of several lines is put into one, at most three of them.

    Args:
        text: of the log.
    """
    lines = [(match[1] or "", match[2]) for match in map(_LINE.fullmatch, text.splitlines()) if match]
    for start, (process, line) in enumerate(lines):
        if line.strip() == _TRACEBACK:
            own = [other for who, other in lines[start + 1 :] if who == process]
            margin = line[: len(line) - len(line.lstrip())]
            found = _exception([other.removeprefix(margin) for other in own])
            if found is not None:
                return found
    return None


def _exception(lines: list[str]) -> str | None:
    """Of the lines below the traceback's first one: those of the exception, joined."""
    for start, line in enumerate(lines):
        if line.startswith(" ") or not line:
            continue
        if _EXCEPTION.fullmatch(line) is None:
            return None  # another process wrote in between
        message = [line]
        for other in lines[start + 1 : start + _MOST_LINES]:
            if not other.startswith("  ") or other.strip() == _TRACEBACK:
                break
            message.append(other.strip())
        return _shortened(" ".join(message))
    return None


def last_line(text: str) -> str:
    """The last line that is not empty, or that there is none."""
    for line in reversed(text.splitlines()):
        if line.strip():
            return _shortened(line.strip())
    return "nothing"


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]} ..."
