"""What the id of a GPU says: equal ids name the same GPU, and a UUID is complete."""

import re

from art_topology.spec import GpuId

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_GPU = re.compile(f"gpu-{_UUID}")
_SLICE = re.compile(f"mig-{_UUID}")
_OLD_SLICE = re.compile(f"mig-(?P<parent>gpu-{_UUID})/[0-9]+/[0-9]+")
"""Of drivers before R470: the GPU, its GPU instance and the compute instance."""


def gpu_key(gpu: GpuId) -> GpuId:
    """The form in which ids of the same GPU are equal: UUIDs are written in either case."""
    return gpu if isinstance(gpu, int) else gpu.lower()


def is_complete(gpu: GpuId) -> bool:
    """Whether it is an index or a whole UUID, as ``nvidia-smi -L`` prints it.

    CUDA also takes the first digits of a UUID, but which GPU they mean depends on the host.
    """
    if isinstance(gpu, int):
        return True
    key = gpu.lower()
    return any(pattern.fullmatch(key) is not None for pattern in (_GPU, _SLICE, _OLD_SLICE))


def completed(gpu: str) -> str | None:
    """The UUID with its dashes in place, if all of its 32 digits are there; otherwise None."""
    prefix, _, rest = gpu.partition("-")
    digits = rest.replace("-", "").lower()
    if len(digits) != 32 or not all(digit in "0123456789abcdef" for digit in digits):
        return None
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join((prefix.upper(), *parts))


def is_slice(gpu: GpuId) -> bool:
    """Whether it is a MIG slice of a GPU."""
    return isinstance(gpu, str) and gpu[:4].upper() == "MIG-"


def parent_of(gpu: GpuId) -> str | None:
    """The key of the GPU that a slice is a part of, where its id says so."""
    found = _OLD_SLICE.fullmatch(gpu.lower()) if isinstance(gpu, str) else None
    return found["parent"] if found is not None else None
