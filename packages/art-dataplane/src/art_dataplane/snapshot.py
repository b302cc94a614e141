"""An immutable adapter in memory, described by a manifest that no transport is part of.

Tensor names are PEFT's (``base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight``); bytes are
row-major and little-endian; ``digest`` is BLAKE2b-256 (hex) over the tensors' bytes in manifest order.
"""

import hashlib
import json
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import msgspec

from art_dataplane.errors import DataPlaneError, SnapshotError
from art_dataplane.locations import Location, TensorSpec, check_layout, lay_out
from art_dataplane.revocable import Revocable
from art_dataplane.segments import MappedBytes, map_location
from art_dataplane.shm import ShmSegmentStore


class SnapshotManifest(msgspec.Struct, frozen=True):
    """One adapter of one policy version, described.

    Args:
        version: the policy version.
        peft_config: JSON text of PEFT's ``adapter_config.json``.
        tensors: where each tensor is inside ``location``, sorted by name. Names are PEFT's
            (``base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight``); bytes are row-major and
            little-endian.
        byte_count: bytes of all tensors, alignment included.
        digest: BLAKE2b-256, in hex, over the tensors' bytes in the order of ``tensors``.
        location: where the bytes are.
        generation: name of the durable generation, when there is one.
    """

    version: int
    peft_config: str
    tensors: tuple[TensorSpec, ...]
    byte_count: int
    digest: str
    location: Location
    generation: str | None = None


class Receipt(msgspec.Struct, frozen=True):
    """A sink is done with a snapshot.

    Args:
        sink: name of the sink.
        version: the policy version of the snapshot.
        detail: where it is now (a path, a service), or more that the sink has to say.
        duration_s: seconds it took.
    """

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
        """Takes ``lease`` over and releases it, whatever happens.

        Raises:
            Exception: the sink's own error, with its cause.
        """
        ...


class NamedTensor(NamedTuple):
    """A tensor to write.

    Args:
        name: PEFT's name of it.
        dtype: as in :class:`art_dataplane.TensorSpec`.
        shape: extents, slowest first.
        buffer: its bytes: anything with the buffer protocol, contiguous, row-major.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: "memoryview | bytes | bytearray | object"


class SnapshotTensor(NamedTuple):
    """A tensor of a mapped snapshot.

    Args:
        dtype: as in :class:`art_dataplane.TensorSpec`.
        shape: extents, slowest first.
        data: its bytes, read-only, row-major, little-endian.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class MappedSnapshot(Revocable[SnapshotTensor]):
    """The tensors of a snapshot by name. Made by :func:`read_tensors`; close it, or use ``with``.

    After ``close()`` every access raises :class:`SnapshotError`; memory that arrays made from ``data`` still
    see stays mapped until they are gone.
    """

    def __init__(self, manifest: SnapshotManifest, mapped: MappedBytes) -> None:
        view = mapped.view
        super().__init__(
            {
                spec.name: SnapshotTensor(
                    spec.dtype, spec.shape, view[spec.offset : spec.offset + spec.byte_count]
                )
                for spec in manifest.tensors
            },
            lambda: SnapshotError(f"the snapshot of version {manifest.version} was closed; read it again"),
        )
        self._manifest = manifest
        self._mapped = mapped

    @property
    def manifest(self) -> SnapshotManifest:
        """What is mapped; usable after the close."""
        return self._manifest

    def close(self) -> bool:
        """Revokes the tensors and unmaps; a second call does nothing.

        Returns:
            False when views taken before keep the memory mapped for now.
        """
        self.revoke()
        return self._mapped.close()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        self.close()


def write_manifest(
    version: int,
    peft_config: str,
    tensors: Iterable[NamedTensor],
    store: ShmSegmentStore,
    *,
    generation: str | None = None,
) -> SnapshotManifest:
    """Copies tensors into one new segment of ``store``, 64-byte aligned, and describes them.

    Args:
        version: the policy version whose adapter this is.
        peft_config: the JSON text of ``adapter_config.json``.
        tensors: ``(name, dtype, shape, buffer)``; for a CPU tensor of PyTorch in bfloat16, ``buffer`` is
            ``tensor.contiguous().view(torch.uint8).numpy()``. Manifest order is sorted by name.
        store: owns the segment; drop ``manifest.location`` there when the last holder is done.
        generation: name of the durable generation, when there is one.

    Raises:
        SnapshotError: no tensors, a name twice, a size that is not dtype times shape, or a ``peft_config``
            that is no JSON object.
        ShmFullError: no room.
    """
    if version < 0:
        raise SnapshotError(f"policy version {version} is negative; 0 is the untrained adapter's")
    ordered = sorted((NamedTensor(*tensor) for tensor in tensors), key=lambda tensor: tensor.name)
    if not ordered:
        raise SnapshotError(f"the snapshot of version {version} has no tensors")
    _check_peft_config(peft_config)
    names = [tensor.name for tensor in ordered]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SnapshotError(f"the snapshot of version {version} names {', '.join(twice)} more than once")
    try:
        specs, byte_count = lay_out((tensor.name, tensor.dtype, tensor.shape) for tensor in ordered)
    except DataPlaneError as error:
        raise SnapshotError(f"the snapshot of version {version} cannot be laid out: {error}") from error
    digest = hashlib.blake2b(digest_size=32)
    with store.reserve(max(byte_count, 1)) as reservation:
        for spec, tensor in zip(specs, ordered, strict=True):
            data = _bytes_of(tensor)
            if data.nbytes != spec.byte_count:
                raise SnapshotError(
                    f"tensor {spec.name} has {data.nbytes} bytes; {spec.dtype} {spec.shape} needs "
                    f"{spec.byte_count}"
                )
            reservation.buffer[spec.offset : spec.offset + spec.byte_count] = data
            digest.update(data)
        location = reservation.commit()
    return SnapshotManifest(version, peft_config, specs, byte_count, digest.hexdigest(), location, generation)


def read_tensors(manifest: SnapshotManifest, *, verify: bool = True) -> MappedSnapshot:
    """Maps a snapshot of this host read-only and, with ``verify``, checks its digest.

    Raises:
        ShmError: the segment is gone or too small.
        SnapshotError: the manifest does not describe the bytes, or their digest is another one.
    """
    mapped = map_location(manifest.location)
    try:
        check_layout(manifest.tensors, mapped.view.nbytes)
        _, expected = lay_out((spec.name, spec.dtype, spec.shape) for spec in manifest.tensors)
        if manifest.byte_count != expected:
            raise SnapshotError(
                f"the manifest of version {manifest.version} says {manifest.byte_count} bytes; its tensors "
                f"have {expected}"
            )
        if verify:
            found = digest_tensors(manifest.tensors, mapped.view)
            if found != manifest.digest:
                raise SnapshotError(
                    f"the bytes of version {manifest.version} have digest {found}, the manifest says "
                    f"{manifest.digest}; they were changed or belong to another snapshot"
                )
        return MappedSnapshot(manifest, mapped)
    except DataPlaneError as error:
        mapped.close()
        raise error if isinstance(error, SnapshotError) else SnapshotError(str(error)) from error


def digest_tensors(specs: Iterable[TensorSpec], buffer: memoryview) -> str:
    """BLAKE2b-256 in hex over the tensors' bytes in the order of ``specs``."""
    digest = hashlib.blake2b(digest_size=32)
    for spec in specs:
        digest.update(buffer[spec.offset : spec.offset + spec.byte_count])
    return digest.hexdigest()


def _check_peft_config(text: str) -> None:
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise SnapshotError(f"peft_config is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise SnapshotError(f"peft_config must be a JSON object, not {type(config).__name__}")


def _bytes_of(tensor: NamedTensor) -> memoryview:
    try:
        view = memoryview(tensor.buffer)  # type: ignore[arg-type]  # TypeError is handled below
        return view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError) as error:
        raise SnapshotError(f"tensor {tensor.name} does not offer contiguous bytes: {error}") from error
