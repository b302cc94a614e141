"""The stream that a display writes to.

What always holds: the first write that fails is the last one; it is kept, and :meth:`Output.check` raises it
as the one error of its kind, :class:`DisplayError`. What writes beside the events, such as the thread that
redraws a live display, never raises.
"""

import contextlib
import errno
import os
import shutil
import textwrap
from typing import TextIO

from art.errors import ArtError

_LOST = "the output cannot be written any more"


class DisplayError(ArtError):
    """What a run shows cannot be written, so it was stopped; its folder holds all that is finished.

    Args:
        text: what happened.
        closed: nobody reads the output any more (a pipe without a reader, a terminal that went away).
    """

    def __init__(self, text: str, *, closed: bool = False) -> None:
        super().__init__(text)
        self.closed = closed


def wrapped(text: str, width: int) -> str:
    """Lines of at most ``width`` characters, wrapped at words; a path stays whole."""
    return "\n".join(
        textwrap.fill(
            line, max(width, 10), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        for line in text.splitlines()
    )


class Output:
    """Stands for a text stream; see the module.

    Args:
        stream: stays open. Once a write has failed, its descriptor leads nowhere, so that what stays in its
            buffer does not fail again when the process ends.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._error: OSError | ValueError | None = None

    @property
    def encoding(self) -> str:
        """Of the stream."""
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Of the stream."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Writes, unless it has failed before."""
        if self._error is None:
            try:
                return self._stream.write(text)
            except (OSError, ValueError) as error:  # ValueError: the stream is closed
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Hands everything on, unless it has failed before."""
        if self._error is None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._give_up(error)

    def say(self, text: str) -> None:
        """Writes lines for people; on a terminal they are wrapped at words.

        Raises:
            DisplayError: they cannot be written.
        """
        self.line(wrapped(text, shutil.get_terminal_size().columns) if self.isatty() else text)

    def line(self, text: str) -> None:
        """Writes a line and hands it on.

        Raises:
            DisplayError: it cannot be written.
        """
        self.write(f"{text}\n")
        self.flush()
        self.check()

    def check(self) -> None:
        """Looks whether everything was written.

        Raises:
            DisplayError: something was not.
        """
        error = self._error
        if error is None:
            return
        closed = isinstance(error, BrokenPipeError | ValueError) or error.errno == errno.EIO
        what = f"{_LOST}: nobody reads it" if closed else f"{_LOST}: {error}"
        raise DisplayError(what, closed=closed) from error

    def _give_up(self, error: OSError | ValueError) -> None:
        self._error = error
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor has nothing to be kept
            number = self._stream.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.dup2(nowhere, number)
            finally:
                os.close(nowhere)
            self._stream.flush()
