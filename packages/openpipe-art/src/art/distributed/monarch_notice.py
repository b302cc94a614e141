"""Keeps one line of Monarch's off a user's terminal: where it writes its internal log.

Monarch writes it to the error descriptor itself, below Python. While it comes up, descriptor 2 leads through
a pipe; every other line is passed on as it is, and afterwards the descriptor is what it was.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress

_NOTICE = b"Monarch internal logs are being written to "
_LIMIT_S = 10.0


def drop_notice() -> Callable[[], None]:
    """Drops the line once; gives descriptor 2 back when it came, after ten seconds at the latest.

    Processes that are started meanwhile inherit the pipe, so it is read until the last of them has ended.
    Returns a function to call when the line must have been written; it gives the descriptor back within a
    second.
    """
    original = os.dup(2)
    read, write = os.pipe()
    os.dup2(write, 2)
    os.close(write)
    restored = threading.Event()

    def restore() -> None:
        if not restored.is_set():
            restored.set()
            os.dup2(original, 2)

    timer = threading.Timer(_LIMIT_S, restore)
    timer.daemon = True
    timer.start()

    def forward() -> None:
        with os.fdopen(read, "rb") as lines, suppress(BrokenPipeError):
            for line in lines:
                if line.startswith(_NOTICE) and not restored.is_set():
                    timer.cancel()
                    restore()
                else:
                    os.write(original, line)

    threading.Thread(target=forward, name="art-notice", daemon=True).start()

    def finish() -> None:
        restored.wait(1.0)
        restore()

    return finish
