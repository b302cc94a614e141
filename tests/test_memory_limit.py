"""The memory cgroup limits what runs in it and measures it."""

import subprocess
import sys

from art_testing.memory_limit import memory_cgroup

MIB = 1 << 20


def allocate(size_bytes: int) -> str:
    return f"b = bytearray({size_bytes}); b[::4096] = b'x' * len(b[::4096]); print('done')"


def test_what_fits_runs_and_its_peak_is_seen() -> None:
    with memory_cgroup(256 * MIB) as group:
        result = subprocess.run(
            group.command(sys.executable, "-c", allocate(64 * MIB)),
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout == "done\n"
        assert 64 * MIB < group.peak_bytes() < 256 * MIB
        assert group.oom_kills() == 0


def test_what_does_not_fit_is_killed() -> None:
    with memory_cgroup(64 * MIB) as group:
        result = subprocess.run(group.command(sys.executable, "-c", allocate(128 * MIB)), capture_output=True)
        assert result.returncode == -9
        assert group.oom_kills() == 1
