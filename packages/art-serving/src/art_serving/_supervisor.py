"""Runs one command so that it never outlives the process that asked for it.

Executed as a script by a bare interpreter (standard library only). Always holds:

- the command and everything it starts dies when the asking process dies, however that dies (pidfd, so that it
  does not matter which thread asked), when this process is told to stop (SIGTERM, SIGINT, SIGHUP), and when
  this process is killed (PR_SET_PDEATHSIG);
- orphans of the command are adopted (PR_SET_CHILD_SUBREAPER) and ended with it;
- the scratch folder is removed last;
- this process ends as the command did: same exit status, or 128 + signal.

Arguments: parent pid, grace period in seconds between SIGTERM and SIGKILL, scratch folder or "-", file for
the command's end as JSON or "-", then the command.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PARENT_DIED = 97


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _descendants(root: int) -> list[int]:
    """Every living process below ``root``, from one pass over /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            if fields[0] != b"Z":
                children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found.extend(below)
        pending.extend(below)
    return found


def _signal_all(pids: list[int], signum: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


class _Reaper:
    """Collects exit statuses; ``status`` is the wait status of the command once it ended."""

    def __init__(self, command_pid: int) -> None:
        self.command_pid = command_pid
        self.status: int | None = None

    def collect(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.command_pid:
                self.status = status


def _end_everything(reaper: _Reaper, wake: int, grace_s: float) -> None:
    """SIGTERM to the command, SIGKILL to what is left after the grace period; returns when all is gone."""
    me = os.getpid()
    if reaper.status is None:
        _signal_all([reaper.command_pid], signal.SIGTERM)
        _signal_all([reaper.command_pid], signal.SIGCONT)
    until = time.monotonic() + grace_s
    while reaper.status is None and time.monotonic() < until:
        select.select([wake], [], [], max(0.0, min(0.5, until - time.monotonic())))
        _drain(wake)
        reaper.collect()
    while True:
        reaper.collect()
        left = _descendants(me)
        if not left:
            return
        _signal_all(left, signal.SIGKILL)
        select.select([wake], [], [], 0.05)
        _drain(wake)


def _drain(wake: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(wake, 4096):
            pass


def _start(command: list[str], lock_signals: set[int]) -> int:
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(PARENT_DIED)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, lock_signals)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(127)


def _write_end(path: str, end: dict[str, object]) -> None:
    if path == "-":
        return
    with open(path + ".part", "w") as file:
        json.dump(end, file)
    os.replace(path + ".part", path)


def main(argv: list[str]) -> int:
    """Runs the command to its end; see the module's text."""
    parent, grace_s, scratch, end_path, command = int(argv[1]), float(argv[2]), argv[3], argv[4], argv[5:]
    parent_fd = os.pidfd_open(parent) if os.getppid() == parent else -1
    if parent_fd < 0 or os.getppid() != parent:
        return PARENT_DIED
    if os.getpgrp() != os.getpid():
        os.setsid()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    stop_signals: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda number, _frame: stop_signals.append(number))
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for fd in (parent_fd, wake, wake_write):
        os.set_inheritable(fd, False)

    reaper = _Reaper(_start(command, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}))
    reason = "ended"
    while reaper.status is None:
        ready, _, _ = select.select([parent_fd, wake], [], [])
        _drain(wake)
        reaper.collect()
        if reaper.status is not None:
            break
        if parent_fd in ready:
            reason = "parent died"
            break
        if stop_signals:
            reason = "told to stop"
            break
    _end_everything(reaper, wake, grace_s if reason != "ended" else 0.0)
    status = reaper.status if reaper.status is not None else signal.SIGKILL
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        _write_end(end_path, {"pid": reaper.command_pid, "code": code, "reason": reason})
    if scratch != "-":
        shutil.rmtree(scratch, ignore_errors=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv))
