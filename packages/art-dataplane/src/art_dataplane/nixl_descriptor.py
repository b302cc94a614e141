"""What a :class:`art_dataplane.NixlLocation` says about the memory, and the slot of its offer.

NIXL's own form of a descriptor is a pickle, which runs code of whoever wrote it; this one is MessagePack.

Beside the bytes, the owner keeps a *slot* of 64 bytes per offer in memory that lives as long as its agent. It
holds the transfer's id while the offer stands and zeros afterwards. A reader reads the slot before and after
the bytes: only if the id was there both times were the bytes those on offer, and not what came after them.
"""

import hashlib

import msgspec

from art_dataplane.errors import TransportError
from art_dataplane.locations import NixlLocation

SLOT_BYTES = 64
"""Bytes of a slot; it starts with the id, the rest is zeros."""

SLOT_COUNT = 1024
"""How many offers one agent can have at a time."""


class NixlDescriptor(msgspec.Struct, frozen=True, array_like=True):
    """Where the bytes of a location are, in its owner's address space.

    Args:
        address: of the first byte.
        slot_address: of the offer's slot.
        region_address: of the registered memory that the bytes are part of.
        region_bytes: how long it is.
        checksum: :func:`art_dataplane.checksum.checksum` of the bytes.
        seal: 16 bytes that fit the rest of the location. They show damage and mistakes; anyone can make them.
    """

    address: int
    slot_address: int
    region_address: int
    region_bytes: int
    checksum: bytes
    seal: bytes


def make_location(
    agent: str,
    metadata: bytes,
    backend: str,
    transfer_id: str,
    byte_count: int,
    descriptor: NixlDescriptor,
) -> NixlLocation:
    """A location whose descriptor is sealed; the seal that was in ``descriptor`` does not matter."""
    location = NixlLocation(agent, metadata, b"", transfer_id, byte_count, backend)
    sealed = msgspec.structs.replace(descriptor, seal=_seal(location, descriptor))
    return msgspec.structs.replace(location, descriptor=msgspec.msgpack.encode(sealed))


def read_descriptor(location: NixlLocation) -> NixlDescriptor:
    """The descriptor of a location.

    Raises:
        TransportError: it is not one, or the location is not as its owner made it.
    """
    try:
        descriptor = msgspec.msgpack.decode(location.descriptor, type=NixlDescriptor)
    except msgspec.DecodeError as error:
        raise TransportError(
            f"the descriptor of transfer {location.transfer_id} cannot be read: {error}"
        ) from error
    if descriptor.seal != _seal(location, descriptor):
        raise TransportError(
            f"the location of transfer {location.transfer_id} is damaged: its seal does not fit; "
            "send it as its owner made it"
        )
    return descriptor


def slot_content(transfer_id: str) -> bytes:
    """What a slot holds while the offer stands."""
    return hashlib.blake2b(transfer_id.encode(), digest_size=32).digest().ljust(SLOT_BYTES, b"\0")


def _seal(location: NixlLocation, descriptor: NixlDescriptor) -> bytes:
    parts = msgspec.msgpack.encode(
        [
            location.agent,
            location.metadata,
            location.transfer_id,
            location.byte_count,
            location.backend,
            descriptor.address,
            descriptor.slot_address,
            descriptor.region_address,
            descriptor.region_bytes,
            descriptor.checksum,
        ]
    )
    return hashlib.blake2b(parts, digest_size=16).digest()
