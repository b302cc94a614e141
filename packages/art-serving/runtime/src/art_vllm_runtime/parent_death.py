"""Ties a process to its parent: when the parent dies, so does this process."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(expected_parent: int | None = None) -> None:
    """Asks the kernel for SIGKILL when the thread that started this process ends.

    Args:
        expected_parent: pid of the parent; when it is another one by now, this process ends at once.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if expected_parent is not None and os.getppid() != expected_parent:
        os._exit(1)


def tie_forked_children() -> None:
    """Every process that is forked from this one, or from its children, dies with the one that forked it."""
    forking = [os.getpid()]

    def before() -> None:
        forking[0] = os.getpid()

    os.register_at_fork(before=before, after_in_child=lambda: die_with_parent(forking[0]))
