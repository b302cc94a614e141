"""What this machine is and offers to this process. Linux; each function reads and changes nothing.

A limit of a control group (cgroup version 1 or 2) binds like the machine's own: the smallest on the way from
this process's group to the root counts.
"""

import contextlib
import ctypes
import errno
import math
import os
import platform
import resource
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

LONGEST_TEMPORARY_FOLDER = 66
"""Characters of ``TMPDIR``: Unix sockets lie in ``TMPDIR/art-RUN/.tmpXXXXXX/``, and their paths have at most
107 characters."""

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # version 1 says "no limit" with a number near 2**63
_PR_GET_PDEATHSIG = 2
_CAP_SYS_ADMIN, _CAP_SYS_RESOURCE = 21, 24


class Memory(msgspec.Struct, frozen=True):
    """Bytes of memory.

    Args:
        available: that can still be had without pushing anything out but caches.
        limit: that this process and its children can have at most.
        bound_by: ``"machine"``, or the control group whose limit is smaller.
    """

    available: int
    limit: int
    bound_by: str


class Space(msgspec.Struct, frozen=True):
    """Room of the file system that a folder is on, or will be on when it is made.

    Args:
        existing: the nearest folder that exists.
        free, total: bytes; ``free`` for this user.
        device: the file system's number; equal for folders on the same one.
    """

    existing: Path
    free: int
    total: int
    device: int


class Gpu(msgspec.Struct, frozen=True):
    """One NVIDIA device that the driver names."""

    name: str


class Machine(msgspec.Struct, frozen=True):
    """A summary for people and for ``art doctor --json``."""

    system: str
    architecture: str
    python: str
    cpu_model: str
    cpus: float
    memory: Memory
    gpus: tuple[Gpu, ...]


def machine() -> Machine:
    """This machine."""
    info = cpu_info()
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        python=python_version(),
        cpu_model=info.get("model name", "unknown"),
        cpus=usable_cpus(),
        memory=memory(),
        gpus=gpus(),
    )


def python_version() -> str:
    """``3.12.11``."""
    return ".".join(str(part) for part in sys.version_info[:3])


def cpu_info() -> dict[str, str]:
    """The first processor's fields in ``/proc/cpuinfo``."""
    fields: dict[str, str] = {}
    try:
        lines = (_PROC / "cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return fields
    for line in lines:
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    return fields


def cpu_flags() -> frozenset[str]:
    """Instruction sets of the processor by the kernel's names, for example ``avx2`` and ``avx512f``."""
    info = cpu_info()
    return frozenset((info.get("flags") or info.get("Features") or "").split())


def usable_cpus() -> float:
    """CPUs that this process may use: its affinity, or less where a control group's quota says so."""
    cpus = float(len(os.sched_getaffinity(0)))
    for group in _groups("cpu"):
        cpus = min(cpus, _quota(group))
    return cpus


def _quota(group: Path) -> float:
    with contextlib.suppress(OSError, ValueError):
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
            return math.inf if quota == "max" else int(quota) / int(period)
        quota_us = int((group / "cpu.cfs_quota_us").read_text())
        period_us = int((group / "cpu.cfs_period_us").read_text())
        if quota_us > 0 and period_us > 0:
            return quota_us / period_us
    return math.inf


def memory() -> Memory:
    """What the machine has, or less where a control group bounds it."""
    total, available, bound_by = _meminfo("MemTotal"), _meminfo("MemAvailable"), "machine"
    limit = total
    for group in _groups("memory"):
        bound = _memory_bound(group)
        if bound is None:
            continue
        group_limit, used = bound
        limit = min(limit, group_limit)
        if group_limit - used < available:
            available, bound_by = max(group_limit - used, 0), f"control group {group}"
    return Memory(available, limit, bound_by)


def _meminfo(field: str) -> int:
    for line in (_PROC / "meminfo").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/meminfo has no {field}")


def _memory_bound(group: Path) -> tuple[int, int] | None:
    """Limit of a group and bytes in use that the kernel cannot just drop; None without a limit."""
    try:
        if (group / "memory.max").exists():
            text, used_file, cache_field = (
                (group / "memory.max").read_text().strip(),
                "memory.current",
                "inactive_file",
            )
        else:
            text, used_file, cache_field = (
                (group / "memory.limit_in_bytes").read_text().strip(),
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        if text == "max" or int(text) >= _NO_LIMIT:
            return None
        used = int((group / used_file).read_text())
        for line in (group / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == cache_field:
                used -= int(value)
    except (OSError, ValueError):
        return None
    return int(text), max(used, 0)


def _groups(controller: str) -> Iterator[Path]:
    """The folders of this process's control group and of those above it that exist here, nearest first."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            root = _CGROUPS / controllers
            root = root if root.exists() else _CGROUPS / controller
        elif number == "0" and not controllers:
            root = _CGROUPS
            if not (root / "cgroup.controllers").exists():
                continue
        else:
            continue
        folder = root / path.lstrip("/")
        while True:
            # In a container the path is the host's, and the root is the container's own group.
            if folder.exists():
                yield folder
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent


def space(folder: Path) -> Space:
    """The file system of ``folder``, or of its nearest parent that exists."""
    existing = nearest_existing(folder)
    found = os.statvfs(existing)
    return Space(
        existing=existing,
        free=found.f_bavail * found.f_frsize,
        total=found.f_blocks * found.f_frsize,
        device=os.stat(existing).st_dev,
    )


def nearest_existing(path: Path) -> Path:
    """``path``, or its nearest parent that exists; absolute, links followed."""
    path = Path(os.path.realpath(path.expanduser()))
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def writable(folder: Path) -> bool:
    """Whether this process may read ``folder``, which exists, and make files in it. Modes do not stop root, a
    read-only file system does."""
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def read_only(folder: Path) -> bool:
    """Whether the file system of ``folder``, which exists, is mounted read-only."""
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def of_the_kernel(folder: Path) -> bool:
    """Whether ``folder``, which exists, is below ``/proc`` or ``/sys``, where nobody can make files."""
    kernels = {os.stat(path).st_dev for path in ("/proc", "/sys") if os.path.ismount(path)}
    return os.stat(folder).st_dev in kernels


def temporary_folder() -> Path:
    """Where temporary files go, by ``TMPDIR`` and Python's rules; links followed.

    Python passes over a ``TMPDIR`` that it cannot use and takes /tmp; other programs do not.

    Raises:
        OSError: there is no usable one.
    """
    return Path(tempfile.gettempdir()).resolve()


def process_limit(name: Literal["NOFILE", "NPROC", "AS", "FSIZE"]) -> int:
    """The soft limit of one process: of open files, its user's threads, bytes of addresses, or of a file."""
    soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def port_problem(host: str, port: int) -> str | None:
    """What is wrong with listening on ``host`` and ``port`` (0: any), or None. Binds and lets go at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "is in use"
        return f"cannot be listened on ({error.strerror or error})"
    return None


def connection_problem(deadline_s: float = 2.0) -> str | None:
    """What is wrong with connecting to 127.0.0.1, or None; a socket of this process's own is connected to.

    Without an interface that is up, listening works all the same, and connecting does not.

    Args:
        deadline_s: for the connection, in seconds.
    """
    try:
        with socket.socket() as listener, socket.socket() as client:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            client.settimeout(deadline_s)
            client.connect(listener.getsockname())
    except TimeoutError:
        return f"does not answer within {deadline_s:g} s"
    except OSError as error:
        return f"cannot be connected to ({error.strerror or error})"
    return None


def threads_of_user() -> int:
    """Threads of this user's processes, which ``ulimit -u`` bounds; of processes that can be seen here."""
    user, count = str(os.getuid()), 0
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = dict(
                line.split(":", 1) for line in (entry / "status").read_text().splitlines() if ":" in line
            )
            if fields["Uid"].split()[0] == user:
                count += int(fields["Threads"])
    return count


def bound_by_process_limit() -> bool:
    """Whether ``ulimit -u`` binds this process: the kernel lets root and some capabilities pass."""
    held = 0
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = (_PROC / "self" / "status").read_text().splitlines()
        held = int(next(line for line in lines if line.startswith("CapEff:")).split()[1], 16)
    return os.getuid() != 0 and not held & (1 << _CAP_SYS_ADMIN | 1 << _CAP_SYS_RESOURCE)


def process_control_problem() -> str | None:
    """Why processes could not be tied to their parent here, or None.

    ART ends children with their parent (``PR_SET_PDEATHSIG``) and names processes without races
    (``pidfd_open``, Linux 5.3).
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return f"pidfd_open does not work here ({error})"
    signal_number = ctypes.c_int(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(signal_number), 0, 0, 0) != 0:
        return f"prctl does not work here ({os.strerror(ctypes.get_errno())})"
    return None


def gpus() -> tuple[Gpu, ...]:
    """NVIDIA devices by the driver's own files, without loading any library."""
    found = []
    for folder in sorted((_PROC / "driver" / "nvidia" / "gpus").glob("*")):
        name = "NVIDIA device"
        with contextlib.suppress(OSError):
            for line in (folder / "information").read_text().splitlines():
                if line.startswith("Model:"):
                    name = line.partition(":")[2].strip()
        found.append(Gpu(name))
    if not found and Path("/dev/nvidiactl").exists():
        found.append(Gpu("NVIDIA device"))
    return tuple(found)
