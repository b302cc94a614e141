"""Runs a command inside a memory cgroup and reports its peak; works with cgroup v1 and v2, and needs root."""

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryCgroup:
    """One cgroup with a limit on the memory of all that runs in it."""

    folder: Path
    peak_file: str

    def command(self, *arguments: str) -> list[str]:
        """``arguments`` as a command that moves itself into the cgroup before it starts."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *arguments]

    def peak_bytes(self) -> int:
        """The most memory that was in use at one time, page cache and shared memory included."""
        return int((self.folder / self.peak_file).read_text())

    def oom_kills(self) -> int:
        """How many processes the kernel killed for want of memory."""
        name = "memory.events" if self.peak_file == "memory.peak" else "memory.oom_control"
        fields = dict(line.split() for line in (self.folder / name).read_text().splitlines())
        return int(fields["oom_kill"])


def _own_path(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    raise RuntimeError(f"this process is in no {controller or 'v2'} cgroup")


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[MemoryCgroup]:
    """Makes a cgroup below this process's own and removes it afterwards.

    Raises:
        RuntimeError: the kernel offers no memory controller here, or this user may not make a cgroup.
    """
    name = f"art-test-{uuid.uuid4().hex[:12]}"
    version_2 = (ROOT / "cgroup.controllers").exists()
    if version_2:
        parent = ROOT
        (parent / "cgroup.subtree_control").write_text("+memory")
        limit_file, peak_file = "memory.max", "memory.peak"
    else:
        parent = ROOT / "memory" / _own_path("memory")
        parent = parent if parent.exists() else ROOT / "memory"
        limit_file, peak_file = "memory.limit_in_bytes", "memory.max_usage_in_bytes"
    folder = parent / name
    try:
        folder.mkdir()
        (folder / limit_file).write_text(str(limit_bytes))
    except OSError as error:
        raise RuntimeError(
            f"cannot limit memory with a cgroup below {parent}: {error}; run as root"
        ) from error
    try:
        yield MemoryCgroup(folder, peak_file)
    finally:
        deadline = time.monotonic() + 20
        while (folder / "cgroup.procs").read_text().strip() and time.monotonic() < deadline:
            time.sleep(0.1)
        folder.rmdir()
