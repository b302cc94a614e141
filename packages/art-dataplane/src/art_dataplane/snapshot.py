"""An immutable adapter in memory, described by a manifest that no transport is part of.

Tensor names are PEFT's (``base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight``); bytes are row-major and
little-endian; ``digest`` is BLAKE2b-256 (hex) over the tensors' bytes in manifest order.
"""

from typing import Protocol

import msgspec

from art_dataplane.locations import Location, TensorSpec


class SnapshotManifest(msgspec.Struct, frozen=True):
    """One adapter of one policy version; ``peft_config`` is the JSON text of ``adapter_config.json``."""

    version: int
    peft_config: str
    tensors: tuple[TensorSpec, ...]
    byte_count: int
    digest: str
    location: Location
    generation: str | None = None


class Receipt(msgspec.Struct, frozen=True):
    """A sink is done with a snapshot: where it is now (a path, a service) and how long it took."""

    sink: str
    version: int
    detail: str
    duration_s: float


class SnapshotLease(Protocol):
    """A held slot of the snapshot pool; the bytes are immutable until every holder released it."""

    @property
    def manifest(self) -> SnapshotManifest:
        """What is held."""
        ...

    def release(self) -> None:
        """Gives the slot back; a second call does nothing."""
        ...


class SnapshotSink(Protocol):
    """A consumer of snapshots: publication is one, durability another."""

    async def submit(self, lease: SnapshotLease) -> Receipt:
        """Takes the lease over and releases it, whatever happens.

        Raises:
            Exception: the sink's own error, with its cause.
        """
        ...
