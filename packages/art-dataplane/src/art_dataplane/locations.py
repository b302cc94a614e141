"""Where bulk bytes are, as data that travels through RPC in their place.

A location never owns anything: the process that is named as its owner does.
"""

import msgspec


class InlineLocation(msgspec.Struct, frozen=True, tag="inline"):
    """The bytes themselves; used below 64 KiB."""

    data: bytes


class ShmLocation(msgspec.Struct, frozen=True, tag="shm"):
    """``byte_count`` bytes at ``offset`` of the POSIX shared-memory segment ``name`` on the owner's host."""

    name: str
    offset: int
    byte_count: int


Location = InlineLocation | ShmLocation


class TensorSpec(msgspec.Struct, frozen=True):
    """One tensor inside a location: ``dtype`` as a string (NumPy has no bfloat16), offsets in bytes from its start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    byte_count: int
