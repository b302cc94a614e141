"""A segment while it is written: what always holds is that nobody can write it once it is committed."""

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Self

import numpy as np

from art_dataplane.errors import ShmError
from art_dataplane.locations import ShmLocation


class Reservation:
    """A segment that is being written. Made by :meth:`art_dataplane.ShmSegmentStore.reserve`.

    Commit it or abort it; a ``with`` statement aborts what is still open.
    """

    def __init__(
        self,
        name: str,
        array: np.ndarray,
        commit: Callable[[str, int], ShmLocation],
        give_up: Callable[[str, bool], None],
    ) -> None:
        # The caller keeps no reference to `array`. `commit` is called with name and byte count, `give_up`
        # with the name and whether nobody can write the bytes any more.
        self._name = name
        self._commit = commit
        self._give_up = give_up
        self._byte_count = len(array)
        self._buffer: memoryview | None = memoryview(array)
        self._bytes = weakref.ref(array)  # every view of any kind refers to the array

    @property
    def name(self) -> str:
        """Of the segment."""
        return self._name

    @property
    def byte_count(self) -> int:
        """How many bytes were asked for."""
        return self._byte_count

    @property
    def buffer(self) -> memoryview:
        """The bytes to write, writable until commit or abort.

        Raises:
            ShmError: after either.
        """
        if self._buffer is None:
            raise ShmError(f"the reservation of {self._name} is over; reserve again")
        return self._buffer

    def commit(self) -> ShmLocation:
        """Ends writing, makes the bytes immutable and says where they are.

        Raises:
            ShmError: it is over already, or arrays over ``buffer`` still exist that could be written to.
        """
        if not self._revoke(self.buffer):
            raise ShmError(
                f"segment {self._name} cannot be committed while views of its buffer exist; delete them first"
            )
        return self._commit(self._name, self._byte_count)

    def abort(self) -> None:
        """Gives the segment up; nothing happens when it is over already."""
        if self._buffer is not None:
            revoked = self._revoke(self._buffer)
            self._buffer = None
            self._give_up(self._name, revoked)

    def _revoke(self, buffer: memoryview) -> bool:
        """Ends :attr:`buffer`; False, and it stays, when other views of it exist."""
        try:
            buffer.release()
        except BufferError:
            return False
        array = self._bytes()
        self._buffer = None if array is None else memoryview(array)
        return array is None

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Aborts unless committed."""
        self.abort()
