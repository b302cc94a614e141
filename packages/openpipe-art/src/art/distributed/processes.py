"""Processes of this machine: who they are, how they end with their parent, why they ended.

A process is named by its id together with its start time, so that a reused id is never taken for it. Linux
only.
Invariant: nothing here signals a process whose start time differs from the one asked for.
"""

import asyncio
import ctypes
import fcntl
import os
import queue
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import msgspec

RUN_ID_VARIABLE = "ART_RUN_ID"
PARENT_VARIABLE = "ART_PARENT_PID"
_PR_SET_PDEATHSIG = 1
_PF_EXITING = 4
_PIDFD_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3


class ProcessId(msgspec.Struct, frozen=True):
    """A process: its id and its start time in clock ticks since boot (field 22 of ``/proc/PID/stat``)."""

    pid: int
    start_ticks: int

    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        stat = _stat(self.pid)
        return stat is not None and stat.start_ticks == self.start_ticks and stat.state not in "ZX"


class _Stat(msgspec.Struct, frozen=True):
    state: str
    flags: int
    start_ticks: int
    exit_status: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return _Stat(
        state=fields[0], flags=int(fields[6]), start_ticks=int(fields[19]), exit_status=int(fields[49])
    )


def identify(pid: int) -> ProcessId | None:
    """The process that has this id now, if any."""
    stat = _stat(pid)
    return None if stat is None else ProcessId(pid, stat.start_ticks)


def is_ending(pid: int) -> bool:
    """Whether the process has begun to end, or has ended and not been waited for."""
    stat = _stat(pid)
    return stat is None or stat.state in "ZX" or bool(stat.flags & _PF_EXITING)


async def ended(process: ProcessId) -> None:
    """Waits, without end, until the process has ended."""
    fd = open_process(process)
    if fd is None:
        return
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def this_process() -> ProcessId:
    """The calling process."""
    found = identify(os.getpid())
    assert found is not None
    return found


def boot_id() -> str:
    """Differs after every boot of the machine; process ids mean nothing across boots."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def machine_id() -> str:
    """Equal for processes that can see each other's process ids: same boot, same process-id namespace."""
    return f"{boot_id()}/{os.stat('/proc/self/ns/pid').st_ino}"


def end_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process (SIGKILL) when the thread that spawned it ends, and leaves at once if
    the parent is gone already.

    The child calls it first thing. Spawn from a thread that lives as long as the process (:class:`Spawner`).

    Raises:
        OSError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != parent_pid:
        sys.stderr.write(f"art: parent process {parent_pid} is gone; leaving\n")
        os._exit(1)


class Spawner:
    """Starts processes from one thread that lives until this process ends.

    The parent-death signal is bound to the thread that spawned, so it must not be a passing one.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[
            tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]
        ]
        self._jobs = queue.SimpleQueue()
        threading.Thread(target=self._work, name="art-spawner", daemon=True).start()

    def _work(self) -> None:
        while True:
            job, result = self._jobs.get()
            try:
                result.set_result(job())
            except Exception as error:  # noqa: BLE001 - handed to the caller
                result.set_exception(error)

    def spawn(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: int | None = None,
        stdout: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Starts ``command`` in a session of its own, so that a terminal's Ctrl-C does not reach it.

        Raises:
            OSError: it cannot be started.
        """
        result: Future[subprocess.Popen[bytes]] = Future()

        def job() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=stdin,
                stdout=stdout,
                pass_fds=pass_fds,
                start_new_session=True,
            )

        self._jobs.put((job, result))
        return result.result()


_spawner: Spawner | None = None
_spawner_lock = threading.Lock()


def spawner() -> Spawner:
    """The one spawner of this process."""
    global _spawner
    with _spawner_lock:
        if _spawner is None:
            _spawner = Spawner()
        return _spawner


def exit_cause(status: int) -> str:
    """A wait status (as of ``waitpid``) in words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"killed by {signal.Signals(number).name}"
        except ValueError:
            return f"killed by signal {number}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"


def exit_clause(status: int) -> str:
    """As :func:`exit_cause`, to follow a subject: ``was killed by SIGKILL``, ``ended with exit code 3``."""
    return f"was {exit_cause(status)}" if os.WIFSIGNALED(status) else exit_cause(status)


def zombie_status(process: ProcessId) -> int | None:
    """The wait status of an ended process that its parent has not waited for yet, else ``None``."""
    stat = _stat(process.pid)
    if stat is None or stat.state != "Z" or stat.start_ticks != process.start_ticks:
        return None
    return stat.exit_status


def exit_status(pidfd: int) -> int | None:
    """The wait status of the ended process behind ``pidfd``, which need not be a child.

    ``None`` where the kernel does not tell (before Linux 6.15) or the process has not been reaped yet.
    """
    buffer = bytearray(64)
    struct.pack_into("<Q", buffer, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    fields = struct.unpack("<QQ11Ii", buffer)
    return int(fields[13]) if fields[0] & _PIDFD_INFO_EXIT else None


def open_process(process: ProcessId) -> int | None:
    """A pidfd for the process, or ``None`` if it ended; the caller closes it."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if identify(process.pid) != process:
        os.close(fd)
        return None
    return fd


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
    """Sends a signal; ``False`` if the process ended before."""
    fd = open_process(process)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def wait_ended(processes: Sequence[ProcessId], deadline_s: float) -> list[ProcessId]:
    """Waits until all ended, ``deadline_s`` seconds at most, and returns those that still run."""
    end = time.monotonic() + deadline_s
    poller = select.poll()
    open_fds: dict[int, ProcessId] = {}
    try:
        for process in processes:
            fd = open_process(process)
            if fd is not None:
                open_fds[fd] = process
                poller.register(fd, select.POLLIN)
        while open_fds and (left := end - time.monotonic()) > 0:
            for fd, _ in poller.poll(left * 1000):
                poller.unregister(fd)
                os.close(fd)
                del open_fds[fd]
        return list(open_fds.values())
    finally:
        for fd in open_fds:
            os.close(fd)


def processes_with(variable: str, value: str) -> list[ProcessId]:
    """The living processes of this user that were started with ``variable=value`` in their environment.

    Every descendant inherits it, so this also finds children whose parent is gone. The calling process is
    left out.
    """
    wanted = f"{variable}={value}".encode()
    return [process for process, entries in _environments() if wanted in entries]


def _environments() -> Iterator[tuple[ProcessId, list[bytes]]]:
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        process = identify(int(entry.name))
        try:
            entries = Path(f"/proc/{entry.name}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if process is not None and process.alive():
            yield process, entries


def command_line(process: ProcessId) -> str:
    """The command of a process for a report, shortened; empty if it ended."""
    try:
        text = Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.strip()[:160]
