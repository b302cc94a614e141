"""What any run needs of the host it runs on, whatever the model: processes, sockets, folders, limits."""

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from art.checks import machine
from art.checks.packages import installed_check
from art.checks.results import Check, failed, passed, warned
from art.checks.shadows import shadows_check
from art.checks.sizes import disk_size, memory_size

OPEN_FILES = 1024
"""A process of the demo was seen to have 93 open; every request in flight is one more."""

LEAST_OPEN_FILES = 128
LEAST_THREADS = 120
COMFORTABLE_THREADS = 400
ALL_THREADS = 1 << 20

ADDRESS_SPACE = 8 << 30
"""vLLM's engine core maps 7.3 GiB in the demo, most of it never touched."""
FILE_SIZE = 1_000_000_000
"""The demo's model file has 540 MB."""

TEMPORARY_BYTES = 64_000_000
"""Sockets and logs in TMPDIR take less than 1 MB."""

STATE_VARIABLE = "ART_STATE_DIR"


def host_checks() -> list[Check]:
    """What every run on this machine needs, before any process starts."""
    return [
        system_check(),
        process_check(),
        loopback_check(),
        temporary_folder_check(),
        state_folder_check(),
        open_files_check(),
        threads_check(),
    ]


def runtime_checks(port: int = 0) -> list[Check]:
    """What a runtime on this machine needs, before its worker starts.

    Args:
        port: of the worker on 127.0.0.1; 0 for any free one.
    """
    endpoint = ("127.0.0.1", port, "the worker")
    return [installed_check("distributed"), shadows_check(), *host_checks(), *ports_check([endpoint])]


def system_check() -> Check:
    """Linux, on a processor that there are packages for."""
    system, architecture = os.uname().sysname, os.uname().machine
    found = f"{system} on {architecture}"
    if system != "Linux":
        return failed("system", found, "Linux", "run ART in a Linux container or virtual machine")
    if architecture != "x86_64":
        return warned("system", found, "x86_64 (the only one it has been tried on)")
    return passed("system", found, "Linux")


def process_check() -> Check:
    """Whether children can be tied to their parent."""
    problem = machine.process_control_problem()
    if problem is None:
        return passed("process control", "prctl and pidfd_open work")
    return failed(
        "process control",
        problem,
        "Linux 5.3 or newer",
        "run on a newer kernel, or allow these calls in the sandbox",
    )


def loopback_check() -> Check:
    """Whether processes can listen on 127.0.0.1 and reach each other there."""
    problem = machine.port_problem("127.0.0.1", 0) or machine.connection_problem()
    if problem is None:
        return passed("loopback", "127.0.0.1 can be listened on and connected to")
    return failed(
        "loopback",
        f"127.0.0.1 {problem}",
        remedy="bring the interface up: ip link set lo up (as root, in this container or network namespace)",
    )


def ports_check(endpoints: Iterable[tuple[str, int, str]]) -> list[Check]:
    """Whether fixed ports are free; port 0 is chosen by who listens and is not looked at.

    Args:
        endpoints: address, port and what for.
    """
    checks = []
    for host, port, purpose in endpoints:
        if port == 0:
            continue
        name = "port"
        problem = machine.port_problem(host, port)
        if problem is None:
            checks.append(passed(name, f"port {port} of {host} is free", f"for {purpose}"))
        else:
            checks.append(
                failed(
                    name,
                    f"port {port} of {host} {problem}",
                    f"for {purpose}",
                    f"choose another, or 0 for any free one; `ss -ltnp 'sport = :{port}'` says who holds it",
                )
            )
    return checks


def temporary_folder_check() -> Check:
    """Whether the folder for temporary files is there, short enough for sockets, and has some room."""
    limit = machine.LONGEST_TEMPORARY_FOLDER
    named = os.environ.get("TMPDIR")
    if named and not (os.path.isabs(named) and os.path.isdir(named)):
        what = "is no folder" if os.path.isabs(named) else "is not an absolute path"
        return failed(
            "TMPDIR",
            f"TMPDIR={named} {what}",
            remedy=f"make it: mkdir -p {shlex.quote(os.path.abspath(named))}"
            if os.path.isabs(named) and not os.path.lexists(named)
            else "set TMPDIR to a folder's whole path: export TMPDIR=/tmp",
        )
    try:
        folder = machine.temporary_folder()
    except OSError as error:
        return failed(
            "TMPDIR", str(error), remedy="set TMPDIR to a folder that can be written, for example /tmp"
        )
    length = len(str(folder))
    if length > limit:
        return failed(
            "TMPDIR",
            f"{folder} has {length} characters",
            f"at most {limit}, since Unix sockets lie in it",
            "set TMPDIR to a shorter folder: export TMPDIR=/tmp",
        )
    if not folder.is_dir() or not machine.writable(folder):
        return failed(
            "TMPDIR", f"{folder} cannot be written", remedy="set TMPDIR to a folder that can be written"
        )
    free = machine.space(folder).free
    if free < TEMPORARY_BYTES:
        return failed(
            "TMPDIR",
            f"{folder} has {disk_size(free)} free",
            disk_size(TEMPORARY_BYTES),
            "free some, or set TMPDIR elsewhere",
        )
    return passed("TMPDIR", f"{folder}, {disk_size(free)} free")


def state_folder_check() -> Check:
    """Whether runs can be recorded."""
    named = os.environ.get(STATE_VARIABLE)
    folder = Path(named).expanduser() if named else Path.home() / ".local" / "state" / "art"
    return folder_check("state folder", folder, f"set {STATE_VARIABLE} to one that can be written")


def folder_check(name: str, folder: Path, remedy: str) -> Check:
    """Whether ``folder`` is a folder that can be written, or can be made; nothing is made."""
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # it is to be made
    except OSError as error:  # a name that is too long, a loop of links, a parent that may not be searched
        return failed(name, f"{folder} cannot be made: {error.strerror}", remedy=remedy)
    existing = machine.nearest_existing(folder)
    if not existing.is_dir():
        found = f"{folder} is a file" if folder.exists() else f"{folder} cannot be made: {existing} is a file"
        return failed(name, found, remedy=remedy)
    if machine.of_the_kernel(existing):
        return failed(name, f"{folder} cannot be made: {existing} holds no files of users'", remedy=remedy)
    if not machine.writable(existing):
        why = (
            "the file system is read-only" if machine.read_only(existing) else f"no permission in {existing}"
        )
        return failed(name, f"{folder} cannot be written: {why}", remedy=remedy)
    return passed(name, str(folder))


def disk_check(name: str, folder: Path, needed_bytes: int, remedy: str) -> Check:
    """Whether the file system of ``folder`` has room."""
    there = machine.space(folder)
    found = f"{disk_size(there.free)} free on the file system of {there.existing}"
    if there.free < needed_bytes:
        return failed(
            name,
            found,
            f"about {disk_size(needed_bytes)}",
            f"free {disk_size(needed_bytes - there.free)}, or {remedy}",
        )
    return passed(name, found, f"about {disk_size(needed_bytes)}")


def shared_memory_check(needed_bytes: int, what: str, folder: Path = Path("/dev/shm")) -> Check:
    """Whether /dev/shm can be written and has room for ``needed_bytes``; it warns below twice as much."""
    remedy = "mount more: mount -o remount,size=2G /dev/shm; of a container: --shm-size=2g"
    if not folder.is_dir() or not machine.writable(folder):
        return failed(
            "shared memory", f"{folder} is not there or cannot be written", memory_size(needed_bytes), remedy
        )
    there = machine.space(folder)
    found = f"{memory_size(there.free)} of {memory_size(there.total)} free in {folder}"
    needed = f"about {memory_size(needed_bytes)} ({what})"
    if there.free < needed_bytes:
        return failed("shared memory", found, needed, remedy)
    if there.free < 2 * needed_bytes:
        return warned("shared memory", found, needed, remedy)
    return passed("shared memory", found, needed)


def open_files_check() -> Check:
    """Whether a process may have enough files open."""
    limit = machine.process_limit("NOFILE")
    if limit >= OPEN_FILES:
        return passed("open files", f"{limit} for each process", f"{OPEN_FILES}")
    found, remedy = f"{limit} for each process", f"raise it: ulimit -n {OPEN_FILES}"
    if limit < LEAST_OPEN_FILES:
        return failed("open files", found, f"at least {LEAST_OPEN_FILES}, better {OPEN_FILES}", remedy)
    return warned("open files", found, f"{OPEN_FILES}", remedy)


def threads_check() -> Check:
    """Whether this user may start as many threads as a run takes (``ulimit -u``)."""
    limit = machine.process_limit("NPROC")
    if limit >= ALL_THREADS or not machine.bound_by_process_limit():
        return passed("threads", "not bound" if limit >= ALL_THREADS else f"{limit}, which do not bind here")
    used = machine.threads_of_user()
    found = f"{max(limit - used, 0)} left of {limit} for this user's processes"
    remedy = f"raise it: ulimit -u {used + COMFORTABLE_THREADS}, or end other programs"
    if limit - used < LEAST_THREADS:
        return failed("threads", found, f"at least {LEAST_THREADS}, better {COMFORTABLE_THREADS}", remedy)
    if limit - used < COMFORTABLE_THREADS:
        return warned("threads", found, f"{COMFORTABLE_THREADS}", remedy)
    return passed("threads", found, f"{COMFORTABLE_THREADS}")


def process_limits_check() -> Check:
    """Whether a process may map enough addresses and write large enough files (``ulimit -v`` and ``-f``)."""
    wanted = {
        "ulimit -v": (machine.process_limit("AS"), ADDRESS_SPACE, memory_size),
        "ulimit -f": (machine.process_limit("FSIZE"), FILE_SIZE, disk_size),
    }
    low = {name: limits for name, limits in wanted.items() if limits[0] < limits[1]}
    if not low:
        return passed("process limits", "of addresses and file sizes: none that matters")
    return failed(
        "process limits",
        ", ".join(f"{name}: {size(limit)}" for name, (limit, _, size) in low.items()),
        ", ".join(f"{name}: {size(needed)}" for name, (_, needed, size) in low.items()),
        " and ".join(f"{name} unlimited" for name in low),
    )


def cpu_check() -> Check:
    """Whether the processor has what vLLM's build for CPUs uses, and how many cores there are."""
    flags, cpus = machine.cpu_flags(), machine.usable_cpus()
    found = f"{cpus:g} usable by this process"
    if os.uname().machine == "x86_64" and flags and "avx2" not in flags:
        return failed("CPU", f"{found}, without AVX2", "AVX2", "run on a processor with AVX2 (2013 or newer)")
    widest = next((name for name in ("avx512f", "avx2") if name in flags), "no AVX")
    if cpus < 2:
        return warned(
            "CPU",
            f"{found}, {widest}",
            "2",
            "give this process 2 CPUs, or expect steps to take twice as long",
        )
    return passed("CPU", f"{found}, {widest}", "2")
