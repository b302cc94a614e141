"""What a store makes for fetches: the records that were asked for, one after another, as one MessagePack.

What always holds: there is at most one segment for the same records, and it lives until all of them are gone
or one of them is fetched under a higher fence.
"""

from collections.abc import Container, Iterable, Sequence

from art_dataplane.errors import StoreError
from art_dataplane.locations import INLINE_LIMIT, InlineLocation, Location, ShmLocation
from art_dataplane.shm import ShmSegmentStore


class Fetched:
    """The fetches of one store.

    Args:
        owner: the store's name, as messages give it.
        segments: where :data:`INLINE_LIMIT` bytes and more are put; without it they are an error.
    """

    def __init__(self, owner: str, segments: ShmSegmentStore | None) -> None:
        self._owner = owner
        self._segments = segments
        self._made: dict[tuple[str, ...], tuple[int, ShmLocation]] = {}

    def location(self, ids: tuple[str, ...], encoded: Sequence[bytes], fence: int) -> Location:
        """Where the records ``ids``, each as its MessagePack in ``encoded``, are for whoever has ``fence``.

        Raises:
            StoreError: there are no segments for so many bytes.
            ShmFullError: no room for the segment.
        """
        self._drop_below(ids, fence)
        parts = [_array_header(len(encoded)), *encoded]
        byte_count = sum(map(len, parts))
        if byte_count < INLINE_LIMIT:
            return InlineLocation(b"".join(parts))
        if self._segments is None:
            raise StoreError(
                f"store {self._owner}: {byte_count} bytes exceed the {INLINE_LIMIT} that travel inline, and "
                "this store was made without segments; pass a ShmSegmentStore"
            )
        if ids not in self._made:
            self._made[ids] = (fence, _write_parts(parts, self._segments))
        return self._made[ids][1]

    def keep_only(self, held: Container[str]) -> None:
        """Drops what was made of records none of which is in ``held``."""
        for ids in [ids for ids in self._made if not any(name in held for name in ids)]:
            self._drop(ids)

    def _drop_below(self, ids: Iterable[str], fence: int) -> None:
        asked = set(ids)
        for key in [
            key for key, (seen, _) in self._made.items() if seen < fence and not asked.isdisjoint(key)
        ]:
            self._drop(key)

    def _drop(self, ids: tuple[str, ...]) -> None:
        _, location = self._made.pop(ids)
        if self._segments is not None:
            self._segments.drop(location)


def _array_header(count: int) -> bytes:
    """The MessagePack header of an array of ``count`` elements, always in its five-byte form."""
    return b"\xdd" + count.to_bytes(4, "big")


def _write_parts(parts: list[bytes], segments: ShmSegmentStore) -> ShmLocation:
    with segments.reserve(sum(map(len, parts))) as reservation:
        end = 0
        for part in parts:
            reservation.buffer[end : end + len(part)] = part
            end += len(part)
        return reservation.commit()
