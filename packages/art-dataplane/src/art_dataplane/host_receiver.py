"""One copy per host of what is on another one, however many processes of this host use it.

What always holds:

- Bytes of another host are read once while anybody here waits for them or uses them. All who wait are told
  the same result; one that is cancelled or out of time ends the read only when nobody else waits.
- A copy is dropped when its last user has released it, or was found to be dead. A failed read leaves nothing.
- The transport is the one that the location names; there is never another one in its place.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping

import msgspec

from art_dataplane.batch import PackedBatchRef
from art_dataplane.bounds import are_counts
from art_dataplane.errors import DeadlineError, TransportError
from art_dataplane.locations import InlineLocation, Location, NixlLocation, ShmLocation, StreamLocation
from art_dataplane.processes import ProcessIdentity
from art_dataplane.shm import ShmSegmentStore
from art_dataplane.snapshot import SnapshotManifest
from art_dataplane.threads import settled
from art_dataplane.transport import RemoteLocation, Transport

LocalLocation = InlineLocation | ShmLocation
"""Bytes that any process of this host can map."""


class HostReceiverStats(msgspec.Struct, frozen=True):
    """What a receiver did and holds.

    Args:
        copies: that are held.
        held_bytes: of them, in bytes.
        users: shares of these copies that were not released.
        reading: reads under way.
        completed_reads: reads that ended with a copy.
        failed_reads: reads that did not.
    """

    copies: int
    held_bytes: int
    users: int
    reading: int
    completed_reads: int
    failed_reads: int


class _Copy:
    """A read of one location and what came of it."""

    def __init__(self, location: RemoteLocation, read: asyncio.Task[ShmLocation]) -> None:
        self.location = location
        self.read = read
        self.waiting = 0
        self.users = Counter[ProcessIdentity]()
        self.expected = 0
        self.released = 0

    @property
    def unused(self) -> bool:
        return not self.waiting and not self.users and self.released >= self.expected


class HostReceiver:
    """Receives for all processes of one host; one process has it and answers the others. On one event loop.

    Args:
        segments: owns the copies.
        transports: by name, ``stream`` and ``nixl``; owned and closed by the caller, after this receiver.

    Raises:
        TransportError: a transport stands under another name than its own.
    """

    def __init__(self, segments: ShmSegmentStore, transports: Mapping[str, Transport]) -> None:
        for name, transport in transports.items():
            if transport.name != name:
                raise TransportError(f"the transport {transport.name!r} stands under the name {name!r}")
        self._segments = segments
        self._transports = dict(transports)
        self._copies: dict[tuple[str, ...], _Copy] = {}
        self._reads: set[asyncio.Task[ShmLocation]] = set()
        self._completed = 0
        self._failed = 0
        self._closed = False

    async def local(
        self,
        location: Location,
        deadline_s: float,
        *,
        holder: ProcessIdentity | None = None,
        users: int = 1,
    ) -> LocalLocation:
        """Where the bytes of ``location`` are on this host; reads them when they are on another one.

        Every successful call is one share of the copy, to be given back by :meth:`release`. Bytes that are on
        this host already are returned as they are, and belong to their owner.

        Args:
            location: of the bytes.
            deadline_s: seconds that this call may wait.
            holder: the process that will use the copy, when it is not this one; see :meth:`release_dead`.
            users: how many shares will be taken in all, for example the ranks of this host; the copy is kept
                until as many were released, so that a late user does not cause another read.

        Raises:
            TransportError: the transport of the location is not here, or the read failed.
            DeadlineError: not within ``deadline_s`` seconds.
            ShmFullError: no room for a copy.
        """
        if isinstance(location, InlineLocation | ShmLocation):
            return location
        if self._closed:
            raise TransportError("the receiver is closed")
        if not 0 < deadline_s < math.inf or not are_counts(users):
            raise DeadlineError(
                f"a deadline of {deadline_s} s for {users} users; give a finite number of seconds above 0 "
                "and at least one user"
            )
        holder = ProcessIdentity.current() if holder is None else holder
        self.release_dead()
        deadline = asyncio.get_running_loop().time() + deadline_s
        while True:
            received = await self._share(location, deadline, deadline_s, holder, users)
            if received is not None:
                return received

    def release(self, location: Location, *, holder: ProcessIdentity | None = None) -> bool:
        """Gives one share back, which is unmapped by now; the last one drops the copy.

        Args:
            location: what :meth:`local` returned, or was given.
            holder: whose share it is, as given to :meth:`local`.

        Returns:
            False when the bytes are not a copy that this holder has a share of.
        """
        holder = ProcessIdentity.current() if holder is None else holder
        copy = self._find(location)
        if copy is None or not copy.users[holder]:
            return False
        self._give_back(copy, holder, 1)
        return True

    def release_dead(self) -> int:
        """Gives back the shares of processes that have ended; also done by each :meth:`local`.

        Returns:
            How many shares that were. Processes of other PID namespaces are not looked at.
        """
        count = 0
        for copy in [*self._copies.values()]:
            for holder, shares in [*copy.users.items()]:
                if holder.is_alive() is False:
                    self._give_back(copy, holder, shares)
                    count += shares
        return count

    def drop(self, location: Location) -> bool:
        """Drops a copy whoever has shares of it or was expected to; who has it mapped keeps the bytes.

        Args:
            location: that was asked for.

        Returns:
            False when there is no copy.
        """
        copy = self._find(location)
        if copy is None or not copy.read.done():
            return False
        self._drop(copy, reusable=False)
        return True

    def stats(self) -> HostReceiverStats:
        """What it did and holds now."""
        copies = [copy for copy in self._copies.values() if copy.read.done()]
        return HostReceiverStats(
            copies=len(copies),
            held_bytes=sum(copy.location.byte_count for copy in copies),
            users=sum(copy.users.total() for copy in copies),
            reading=len(self._copies) - len(copies),
            completed_reads=self._completed,
            failed_reads=self._failed,
        )

    async def close(self, deadline_s: float) -> None:
        """Ends all reads, whose waiters are told, and drops all copies. Close the transports after it.

        Raises:
            DeadlineError: a read has not ended within ``deadline_s`` seconds.
        """
        self._closed = True
        for read in self._reads:
            read.cancel()
        if self._reads:
            _, left = await asyncio.wait(self._reads, timeout=deadline_s)
            if left:
                raise DeadlineError(f"{len(left)} reads have not ended within {deadline_s} s")
        for copy in [*self._copies.values()]:
            self._drop(copy, reusable=False)

    async def _share(
        self,
        location: RemoteLocation,
        deadline: float,
        deadline_s: float,
        holder: ProcessIdentity,
        users: int,
    ) -> ShmLocation | None:
        """Joins the read of ``location`` or begins it; None when another waiter's deadline ended it."""
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise DeadlineError(f"{location} was not received within {deadline_s} s")
        key = _key(location)
        copy = self._copies.get(key)
        began = copy is None
        if copy is None:
            copy = self._copies[key] = _Copy(location, self._begin(location, left))
        copy.waiting += 1
        try:
            done, _ = await asyncio.wait([copy.read], timeout=left)
            if not done:
                raise DeadlineError(f"{location} was not received within {deadline_s} s")
            received = _result(copy.read)
            copy.users[holder] += 1
            copy.expected = max(copy.expected, users)
            return received
        except DeadlineError:
            if began or not copy.read.done() or asyncio.get_running_loop().time() >= deadline:
                raise
            return None
        finally:
            copy.waiting -= 1
            await self._tidy(key, copy)

    def _begin(self, location: RemoteLocation, deadline_s: float) -> asyncio.Task[ShmLocation]:
        name = "stream" if isinstance(location, StreamLocation) else "nixl"
        transport = self._transports.get(name)
        if transport is None:
            raise TransportError(
                f"{location} needs the transport {name}, which this host does not have; it has "
                f"{', '.join(self._transports) or 'none'}"
            )
        read = asyncio.create_task(self._read(transport, location, deadline_s))
        self._reads.add(read)
        read.add_done_callback(self._reads.discard)
        return read

    async def _read(self, transport: Transport, location: RemoteLocation, deadline_s: float) -> ShmLocation:
        try:
            received = await transport.receive(location, self._segments, deadline_s)
        except BaseException:
            self._failed += 1
            raise
        self._completed += 1
        return received

    async def _tidy(self, key: tuple[str, ...], copy: _Copy) -> None:
        """Removes a copy that failed or that nobody waits for or uses; waits for the end of its read."""
        if self._copies.get(key) is not copy:
            return
        if not copy.read.done():
            if copy.waiting:
                return
            del self._copies[key]
            copy.read.cancel()
            await settled(copy.read)
            if _succeeded(copy.read):  # it ended before it heard of the cancellation
                self._segments.drop(copy.read.result())
        elif not _succeeded(copy.read):
            del self._copies[key]
        elif copy.unused:
            self._drop(copy, reusable=True)

    def _find(self, location: Location) -> _Copy | None:
        if isinstance(location, StreamLocation | NixlLocation):
            return self._copies.get(_key(location))
        for copy in self._copies.values():
            if copy.read.done() and _succeeded(copy.read) and copy.read.result() == location:
                return copy
        return None

    def _give_back(self, copy: _Copy, holder: ProcessIdentity, shares: int) -> None:
        copy.users[holder] -= shares
        if not copy.users[holder]:
            del copy.users[holder]
        copy.released += shares
        if copy.unused:
            self._drop(copy, reusable=True)

    def _drop(self, copy: _Copy, *, reusable: bool) -> None:
        del self._copies[_key(copy.location)]
        self._segments.drop(copy.read.result(), reusable=reusable)


async def receive_batch(
    ref: PackedBatchRef,
    receiver: HostReceiver,
    deadline_s: float,
    *,
    holder: ProcessIdentity | None = None,
    users: int = 1,
) -> PackedBatchRef:
    """The reference of the same batch with a location of this host; give it back with ``receiver.release``.

    Args:
        ref: of a batch of any host.
        receiver: of this host.
        deadline_s: seconds, as for :meth:`HostReceiver.local`.
        holder: as for :meth:`HostReceiver.local`.
        users: as for :meth:`HostReceiver.local`.

    Raises:
        TransportError, DeadlineError, ShmFullError: as :meth:`HostReceiver.local`.
    """
    location = await receiver.local(ref.location, deadline_s, holder=holder, users=users)
    return msgspec.structs.replace(ref, location=location)


async def receive_snapshot(
    manifest: SnapshotManifest,
    receiver: HostReceiver,
    deadline_s: float,
    *,
    holder: ProcessIdentity | None = None,
    users: int = 1,
) -> SnapshotManifest:
    """The manifest of the same snapshot with a location of this host, as :func:`receive_batch` for a batch.

    Args:
        manifest: of a snapshot of any host.
        receiver: of this host.
        deadline_s: seconds, as for :meth:`HostReceiver.local`.
        holder: as for :meth:`HostReceiver.local`.
        users: as for :meth:`HostReceiver.local`.

    Raises:
        TransportError, DeadlineError, ShmFullError: as :meth:`HostReceiver.local`.
    """
    location = await receiver.local(manifest.location, deadline_s, holder=holder, users=users)
    return msgspec.structs.replace(manifest, location=location)


def _key(location: RemoteLocation) -> tuple[str, ...]:
    if isinstance(location, StreamLocation):
        return ("stream", location.host, str(location.port), location.transfer_id)
    return ("nixl", location.agent, location.transfer_id)


def _succeeded(read: asyncio.Task[ShmLocation]) -> bool:
    return not read.cancelled() and read.exception() is None


def _result(read: asyncio.Task[ShmLocation]) -> ShmLocation:
    if read.cancelled():
        raise TransportError("the read was ended: its receiver was closed")
    return read.result()
