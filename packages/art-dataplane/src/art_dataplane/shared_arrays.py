"""Named NumPy arrays in one segment, for who has arrays and no records: written once, mapped by many."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from art_dataplane.batch import view_tensors
from art_dataplane.copying import copy_arrays
from art_dataplane.errors import DataPlaneError, ShmError
from art_dataplane.locations import Location, TensorSpec, lay_out
from art_dataplane.revocable import Revocable
from art_dataplane.segments import MappedBytes, MappingCache, map_location
from art_dataplane.shm import ShmSegmentStore


class ArraysRef(msgspec.Struct, frozen=True):
    """Names arrays; travels in their place.

    Args:
        tensors: where each array is inside ``location``.
        location: where the bytes are.
    """

    tensors: tuple[TensorSpec, ...]
    location: Location


class MappedArrays(Revocable[np.ndarray]):
    """Arrays by name, read-only, without a copy. Made by :func:`read_arrays`; close it, or use ``with``.

    After ``close()`` every access raises :class:`ShmError`. An array that was taken out before stays what it
    was: its memory is mapped, and not used again, until it is gone.
    """

    def __init__(self, tensors: tuple[TensorSpec, ...], mapped: MappedBytes) -> None:
        super().__init__(
            view_tensors(tensors, mapped.view),
            lambda: ShmError("these arrays were closed; read their reference again"),
        )
        self._mapped = mapped

    def close(self) -> bool:
        """Revokes the arrays and unmaps; a second call does nothing.

        Returns:
            False when arrays taken out before keep the memory mapped for now.
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


def write_arrays(arrays: Mapping[str, np.ndarray], store: ShmSegmentStore) -> ArraysRef:
    """Copies arrays into one new segment of ``store``, each at a multiple of 64 bytes.

    Args:
        arrays: by name, of any shape ``[...]``; dtypes as in :class:`art_dataplane.TensorSpec`. A dtype that
            NumPy lacks travels as the unsigned integer of its size.
        store: owns the segment; drop ``location`` there when the readers are done.

    Raises:
        DataPlaneError: there are no bytes, or a dtype is not carried.
        ShmFullError: no room.
    """
    for name, array in arrays.items():
        if not array.dtype.isnative:
            raise DataPlaneError(
                f"array {name!r} has the byte order of {array.dtype.str}; write {name}.astype("
                f"{array.dtype.newbyteorder('=').name!r})"
            )
    tensors, byte_count = lay_out((name, array.dtype.name, array.shape) for name, array in arrays.items())
    with store.reserve(byte_count) as reservation:
        targets = view_tensors(tensors, reservation.buffer)
        copy_arrays((target, arrays[name]) for name, target in targets.items())
        targets.clear()
        return ArraysRef(tensors, reservation.commit())


def read_arrays(ref: ArraysRef, cache: MappingCache | None = None) -> MappedArrays:
    """Maps the arrays of ``ref`` read-only.

    Args:
        ref: what :func:`write_arrays` gave, on this host.
        cache: keeps the mappings of segments that are used again.

    Raises:
        ShmError: the segment is gone or too small.
        BatchError: the reference does not describe the bytes.
    """
    mapped = map_location(ref.location) if cache is None else cache.map(ref.location)
    try:
        return MappedArrays(ref.tensors, mapped)
    except BaseException:
        mapped.close()
        raise
