"""Numbers of bytes for people: memory in GiB (powers of two), disk and downloads in GB (powers of ten).

One convention everywhere: as kernels and containers count memory, and as disks and package indexes count
files.
"""

_MEMORY = ("B", "KiB", "MiB", "GiB", "TiB")
_DISK = ("B", "KB", "MB", "GB", "TB")


def memory_size(byte_count: float) -> str:
    """Bytes of memory, shared memory included: ``5.7 GiB``, ``83 MiB``, ``512 B``."""
    return _shown(byte_count, 1024, _MEMORY)


def disk_size(byte_count: float) -> str:
    """Bytes on a disk or to fetch: ``6.3 GB``, ``540 MB``, ``512 B``."""
    return _shown(byte_count, 1000, _DISK)


def _shown(byte_count: float, base: int, units: tuple[str, ...]) -> str:
    """In the largest unit that leaves 1 or more; a decimal from the fourth unit (GB, GiB) on."""
    step = 0
    while step < len(units) - 1 and byte_count >= base ** (step + 1):
        step += 1
    value = byte_count / base**step
    return f"{value:.1f} {units[step]}" if step >= 3 else f"{value:.0f} {units[step]}"
