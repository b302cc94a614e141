"""Where bulk bytes are, as data that travels through RPC in their place.

A location never owns anything: the process that is named as its owner does.
"""

import math
from collections.abc import Iterable

import msgspec

from art_dataplane.errors import DataPlaneError

ALIGNMENT = 64
"""Tensors start at multiples of this many bytes: a cache line, and what vector loads want."""

INLINE_LIMIT = 64 * 1024
"""Below this many bytes, they travel inside the message."""

ITEM_SIZES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}
"""Bytes per element of each dtype name; the names are NumPy's, and PyTorch's where NumPy has none."""


class InlineLocation(msgspec.Struct, frozen=True, tag="inline"):
    """The bytes themselves; used below 64 KiB.

    Args:
        data: the bytes.
    """

    data: bytes


class ShmLocation(msgspec.Struct, frozen=True, tag="shm"):
    """Bytes of a POSIX shared-memory segment on the owner's host.

    Args:
        name: of the segment, a file in ``/dev/shm``.
        offset: of the first byte in the segment, in bytes.
        byte_count: how many bytes.
    """

    name: str
    offset: int
    byte_count: int


class StreamLocation(msgspec.Struct, frozen=True, tag="stream"):
    """Bytes that a process on another host sends over TCP to whoever knows the secret.

    Args:
        host: address of the sender, an IPv4 or IPv6 literal without brackets, or a name.
        port: that it listens on.
        transfer_id: names the bytes to the sender.
        byte_count: how many bytes.
        secret: 32 random bytes of this transfer alone. It proves both ends to each other and keys the MAC; it
            never crosses the stream, and is not part of the text of this struct.
        mac: what authenticates the bytes, one of :data:`art_dataplane.stream_mac.MAC_NAMES`.
    """

    host: str
    port: int
    transfer_id: str
    byte_count: int
    secret: bytes
    mac: str = "hmac-sha256"

    def __repr__(self) -> str:
        """Everything but the secret."""
        return (
            f"StreamLocation(host={self.host!r}, port={self.port}, transfer_id={self.transfer_id!r}, "
            f"byte_count={self.byte_count}, mac={self.mac!r})"
        )


class NixlLocation(msgspec.Struct, frozen=True, tag="nixl"):
    """Registered memory of a NIXL agent on another host.

    Args:
        agent: name of the agent that registered the memory.
        metadata: what this agent tells others about itself and the registration, as NIXL encodes it.
        descriptor: address, region and checksum of the memory, sealed, as MessagePack.
        transfer_id: names the bytes to the agent's process.
        byte_count: how many bytes.
        backend: NIXL's backend that moves them, for example ``UCX``.
    """

    agent: str
    metadata: bytes
    descriptor: bytes
    transfer_id: str
    byte_count: int
    backend: str = "UCX"

    def __repr__(self) -> str:
        """Everything but the metadata and the descriptor, which hold addresses and keys."""
        return (
            f"NixlLocation(agent={self.agent!r}, transfer_id={self.transfer_id!r}, "
            f"byte_count={self.byte_count}, backend={self.backend!r})"
        )


Location = InlineLocation | ShmLocation | StreamLocation | NixlLocation
"""Where bytes are. Inline bytes and segments of this host are mapped with
:func:`art_dataplane.map_location`; the others are received first, see :mod:`art_dataplane.transport`."""


class TensorSpec(msgspec.Struct, frozen=True):
    """One tensor inside a location, row-major.

    Args:
        name: unique in its location.
        dtype: one of :data:`ITEM_SIZES`, as a string: NumPy has no bfloat16.
        shape: extents, slowest first; ``()`` for a scalar.
        offset: of its first byte from the location's start, in bytes.
        byte_count: bytes of the tensor, as dtype and shape imply.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    byte_count: int


def tensor_byte_count(dtype: str, shape: tuple[int, ...]) -> int:
    """The bytes of a dense tensor.

    Raises:
        DataPlaneError: the dtype has no entry in :data:`ITEM_SIZES`, or an extent is negative.
    """
    if dtype not in ITEM_SIZES:
        raise DataPlaneError(f"dtype {dtype!r} is unknown; one of {', '.join(ITEM_SIZES)}")
    if any(extent < 0 for extent in shape):
        raise DataPlaneError(f"shape {shape} has a negative extent")
    return math.prod(shape) * ITEM_SIZES[dtype]


def lay_out(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[tuple[TensorSpec, ...], int]:
    """Places tensors ``(name, dtype, shape)`` one after the other, each at a multiple of :data:`ALIGNMENT`.

    Returns:
        The specs and the bytes that they need together.

    Raises:
        DataPlaneError: as :func:`tensor_byte_count`.
    """
    specs: list[TensorSpec] = []
    end = 0
    for name, dtype, shape in tensors:
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        byte_count = tensor_byte_count(dtype, shape)
        specs.append(TensorSpec(name, dtype, tuple(shape), offset, byte_count))
        end = offset + byte_count
    return tuple(specs), end


def check_layout(specs: Iterable[TensorSpec], byte_count: int) -> None:
    """Checks specs that came from elsewhere against the bytes that they describe.

    Raises:
        DataPlaneError: a tensor's size does not follow from its dtype and shape, or it reaches beyond the
            bytes.
    """
    for spec in specs:
        expected = tensor_byte_count(spec.dtype, spec.shape)
        if spec.byte_count != expected or spec.offset < 0 or spec.offset + spec.byte_count > byte_count:
            raise DataPlaneError(
                f"tensor {spec.name!r} ({spec.dtype} {spec.shape}, {spec.byte_count} bytes at "
                f"{spec.offset}) needs {expected} bytes inside the {byte_count} there are"
            )
