"""The reads of one process from other hosts' memory, over one NIXL agent.

NIXL cannot cancel a read. Forgetting the peer, releasing the handle and deregistering the memory leave the
bytes on their way, and a peer that was stopped for minutes still sends them: they are written to an address
that has another use by then. Only two things prove that a read is over: that NIXL calls it done, or that the
whole agent has ended. So what always holds:

- The memory of a read is neither reused nor unmapped before one of the two.
- A read that failed, or was given up and is not done :data:`GRACE_S` seconds later, keeps its segment until
  the agent ends, and makes the agent *spoiled*: it takes no more reads, and ends with the last one that goes
  well.

One thread owns it.
"""

import ctypes
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import numpy as np

from art_dataplane.checksum import BLOCK_BYTES, block_values, combine
from art_dataplane.errors import ShmError, TransportError
from art_dataplane.locations import NixlLocation, ShmLocation
from art_dataplane.nixl_agent import NixlAgent, TransferState
from art_dataplane.nixl_descriptor import SLOT_BYTES, read_descriptor, slot_content
from art_dataplane.nixl_offers import READ_MESSAGE, claim
from art_dataplane.shm import Reservation, ShmSegmentStore
from art_dataplane.windows import AddressRanges, RegisteredPool, Window, allocate

CHUNK_BYTES = 512 * BLOCK_BYTES
"""Bytes of one read of NIXL: one chunk is summed while the next ones move."""

CHUNKS_IN_FLIGHT = 3
"""How many chunks of one segment move at a time."""

GRACE_S = 0.5
"""Seconds that a read that was given up may take to get done before its agent is spoiled."""

READ_COUNT = 256
"""How many segments one agent reads at a time."""

_KNOWN_REGIONS = 4096


class Read:
    """One segment that is read from another host.

    Args:
        location: where from.
        segments: where to.
        result: gets the segment or the error. Whoever does not wait for it any more cancels it, and the read
            is given up.

    Raises:
        TransportError: the location is damaged.
    """

    def __init__(
        self, location: NixlLocation, segments: ShmSegmentStore, result: "Future[ShmLocation]"
    ) -> None:
        self.location = location
        self.descriptor = read_descriptor(location)
        self.segments = segments
        self.reservation: Reservation | None = None
        self.result = result
        self.window: Window | None = None
        self.scratch = -1
        self.next_byte = 0
        self.chunks: deque[tuple[object, int]] = deque()
        self.slot: object | None = None
        self.slot_reads = 0
        self.sums: list[Future[np.ndarray]] = []
        self.summed: list[memoryview] = []
        self.error: BaseException | None = None
        self.give_up_at = float("inf")
        self.spoiled = False

    @property
    def is_wanted(self) -> bool:
        """Whether its bytes still have a use."""
        return self.error is None and not self.result.cancelled()

    def end(self) -> None:
        """Drops the segment and tells why; its memory is not written any more."""
        if self.reservation is not None:
            self.reservation.abort()
        self.tell_error()

    def tell_error(self) -> None:
        """Tells whoever waits why there will be no segment."""
        if not self.result.done() and claim(self.result):
            self.result.set_exception(self.error or TransportError("the read was given up"))


class NixlReads:
    """The reads over one agent.

    Args:
        agent: a new one, of this object alone.
        ranges: where segments are mapped.
        spare_bytes: how many bytes of segments stay mapped and registered after their reads.
        sum_bytes: computes the block values of bytes in another thread.
    """

    def __init__(
        self,
        agent: NixlAgent,
        ranges: AddressRanges,
        spare_bytes: int,
        sum_bytes: "Callable[[memoryview], Future[np.ndarray]]",
    ) -> None:
        self._agent = agent
        self._ranges = ranges
        self._sum_bytes = sum_bytes
        self._pool = RegisteredPool(agent, ranges, spare_bytes)
        self._scratch = allocate(ranges, SLOT_BYTES * READ_COUNT)
        agent.register(self._scratch, SLOT_BYTES * READ_COUNT)
        self._free_scratch = list(range(READ_COUNT))
        self._waiting: deque[Read] = deque()
        self._running: list[Read] = []
        self._quarantined: list[Read] = []
        self._unusable = False
        self._peers: dict[str, dict[tuple[int, int], bytes]] = {}

    def __len__(self) -> int:
        """How many reads wait or run."""
        return len(self._waiting) + len(self._running)

    @property
    def byte_count(self) -> int:
        """Bytes that are registered."""
        return self._pool.byte_count

    @property
    def quarantined_bytes(self) -> int:
        """Bytes of segments that may still be written though nobody waits for them."""
        return sum(read.location.byte_count for read in self._quarantined)

    @property
    def is_spoiled(self) -> bool:
        """Whether the agent must end: before some memory is free, or some peer can be read."""
        return bool(self._quarantined) or self._unusable

    @property
    def is_idle(self) -> bool:
        """Whether nothing needs :meth:`step`."""
        return not self._waiting and not self._running and not self._pool.has_spare

    def add(self, read: Read) -> None:
        """Takes a read over."""
        self._waiting.append(read)

    def step(self) -> bool:
        """Does what can be done now; returns whether anything moved."""
        moved = False
        for _ in range(len(self._waiting)):
            read = self._waiting.popleft()
            if not read.is_wanted:
                read.end()
            elif self._can_start(read):
                moved = True
                self._start(read)
            else:
                self._waiting.append(read)
        for read in list(self._running):
            moved = self._advance(read) or moved
        return moved

    def sweep(self) -> None:
        """Lets go of segments that are gone."""
        self._pool.sweep()

    def give_up(self) -> None:
        """Gives every read up."""
        for read in [*self._waiting, *self._running]:
            read.error = read.error or TransportError("the transport was closed")

    def close(self) -> None:
        """Ends the agent, and with it every read; then their segments are dropped."""
        reads = [*self._waiting, *self._running, *self._quarantined]
        self._waiting.clear()
        self._running.clear()
        self._quarantined.clear()
        for read in reads:
            for handle in self._handles(read):
                self._agent.release(handle)
            read.chunks.clear()
            read.slot = None
        self._agent.close()
        for read in reads:
            self._wait_for_sums(read)
        self._pool.abandon()
        self._ranges.give_back(self._scratch)
        for read in reads:
            read.error = read.error or TransportError("the transport was closed")
            read.end()

    def _can_start(self, read: Read) -> bool:
        """Whether there is room, and the peer's metadata can be taken in.

        Metadata that say something else about a known address (it was registered again) are taken only when
        the peer is forgotten first, which no other read from it survives.
        """
        if not self._free_scratch:
            return False
        known = self._peers.get(read.location.agent, {})
        if len(known) < _KNOWN_REGIONS and known.get(_region(read), _digest(read)) == _digest(read):
            return True
        return all(other.location.agent != read.location.agent for other in self._running)

    def _start(self, read: Read) -> None:
        try:
            self._introduce(read)
            read.reservation = read.segments.reserve(read.location.byte_count)
            read.window = self._pool.acquire(read.reservation.name)
            read.scratch = self._free_scratch.pop()
        except BaseException as error:  # noqa: BLE001  # told to whoever waits for the read
            read.error = error
            self._finish(read)
            return
        self._running.append(read)
        self._read_slot(read)

    def _introduce(self, read: Read) -> None:
        peer = read.location.agent
        known = self._peers.get(peer)
        if known is not None and (
            len(known) >= _KNOWN_REGIONS or known.get(_region(read), _digest(read)) != _digest(read)
        ):
            del self._peers[peer]
            self._agent.remove_peer(peer)
            known = None
        if known is None or _region(read) not in known:
            try:
                name = self._agent.add_peer(read.location.metadata)
            except TransportError:  # NIXL keeps what it took in until then, and refuses the rest from now on
                self._unusable = True
                raise
            self._peers.setdefault(name, {})[_region(read)] = _digest(read)
            if name != peer:
                raise TransportError(f"the metadata are those of agent {name}, the location says {peer}")

    def _advance(self, read: Read) -> bool:
        moved = self._collect(read)
        try:
            if read.is_wanted:
                moved = self._post(read) or moved
                if self._is_complete(read):
                    self._deliver(read)
                    return True
        except BaseException as error:  # noqa: BLE001  # told to whoever waits for the read
            read.error = error
        if not read.is_wanted:
            if not read.spoiled and next(self._handles(read), None) is None:
                self._running.remove(read)
                self._finish(read)
                return True
            now = time.monotonic()
            read.give_up_at = min(read.give_up_at, now + GRACE_S)
            if read.spoiled or now >= read.give_up_at:
                self._running.remove(read)
                self._quarantined.append(read)
                read.tell_error()
                return True
        return moved

    def _collect(self, read: Read) -> bool:
        """Takes in what NIXL has done for ``read``."""
        moved = False
        if read.slot is not None and self._is_done(read, read.slot):
            read.slot = None
            read.slot_reads += 1
            moved = True
            found = ctypes.string_at(self._scratch_address(read), SLOT_BYTES)
            if found != slot_content(read.location.transfer_id):
                read.error = read.error or TransportError(
                    f"agent {read.location.agent} does not offer transfer {read.location.transfer_id} any "
                    "more: it was withdrawn, is too old, or was read as often as it may be"
                )
        while read.chunks and self._is_done(read, read.chunks[0][0]):
            _, start = read.chunks.popleft()
            moved = True
            if read.is_wanted and read.window is not None:
                count = min(CHUNK_BYTES, read.location.byte_count - start)
                read.summed.append(read.window.view(start, count))
                read.sums.append(self._sum_bytes(read.summed[-1]))
        return moved

    def _post(self, read: Read) -> bool:
        """Starts what can be started of ``read``."""
        assert read.window is not None
        moved = False
        total = read.location.byte_count
        while read.next_byte < total and len(read.chunks) < CHUNKS_IN_FLIGHT:
            start = read.next_byte
            count = min(CHUNK_BYTES, total - start)
            handle = self._agent.read(
                read.location.agent, read.window.address + start, read.descriptor.address + start, count
            )
            read.chunks.append((handle, start))
            read.next_byte += count
            moved = True
            self._collect(read)  # a read inside one host is done at once, and can be summed
        if read.next_byte == total and not read.chunks and read.slot is None and read.slot_reads == 1:
            self._read_slot(read)
            moved = True
        return moved

    def _is_complete(self, read: Read) -> bool:
        if read.next_byte < read.location.byte_count or read.chunks or read.slot_reads < 2:
            return False
        for index, values in enumerate(read.sums):
            if (
                values.cancel()
            ):  # the other thread has not come to it yet, and there is nothing else to do here
                read.sums[index] = Future()
                read.sums[index].set_result(block_values(read.summed[index]))
        return all(values.done() for values in read.sums)

    def _deliver(self, read: Read) -> None:
        assert read.reservation is not None
        byte_count = read.location.byte_count
        found = combine([values.result() for values in read.sums], byte_count)
        if found != read.descriptor.checksum:
            raise TransportError(
                f"the {byte_count} bytes of transfer {read.location.transfer_id} have checksum "
                f"{found.hex()}, their owner offered {read.descriptor.checksum.hex()}"
            )
        self._running.remove(read)
        self._let_go(read, keep=True)
        if not claim(read.result):
            read.reservation.abort()
            return
        try:
            read.result.set_result(read.reservation.commit())
        except ShmError as error:
            read.result.set_exception(error)
            return
        try:
            self._agent.notify(read.location.agent, READ_MESSAGE + read.location.transfer_id.encode())
        except TransportError:  # its offer ends with its time instead
            self._unusable = True

    def _finish(self, read: Read) -> None:
        """Ends a read of which nothing is on its way."""
        self._let_go(read, keep=False)
        read.end()

    def _let_go(self, read: Read, *, keep: bool) -> None:
        self._wait_for_sums(read)
        if read.window is not None:
            self._pool.release(read.window, keep=keep)
            read.window = None
        if read.scratch >= 0:
            self._free_scratch.append(read.scratch)
            read.scratch = -1

    def _read_slot(self, read: Read) -> None:
        address = self._scratch_address(read)
        ctypes.memset(address, 0, SLOT_BYTES)
        try:
            read.slot = self._agent.read(
                read.location.agent, address, read.descriptor.slot_address, SLOT_BYTES
            )
        except TransportError as error:
            read.error = error

    def _is_done(self, read: Read, handle: object) -> bool:
        state = self._agent.state(handle)
        if state is TransferState.DONE:
            self._agent.release(handle)
            return True
        if state is TransferState.FAILED:
            read.spoiled = True
            read.error = read.error or TransportError(
                f"the read from agent {read.location.agent} broke after {read.next_byte} of "
                f"{read.location.byte_count} bytes were asked for: its process ended, or the network did"
            )
        return False

    def _handles(self, read: Read) -> Iterator[object]:
        if read.slot is not None:
            yield read.slot
        for handle, _ in read.chunks:
            yield handle

    def _wait_for_sums(self, read: Read) -> None:
        """Their bytes must stay mapped while they are summed; a chunk takes milliseconds."""
        for values in read.sums:
            if not values.cancel():
                values.exception()

    def _scratch_address(self, read: Read) -> int:
        return self._scratch + read.scratch * SLOT_BYTES


def _region(read: Read) -> tuple[int, int]:
    return (read.descriptor.region_address, read.descriptor.region_bytes)


def _digest(read: Read) -> bytes:
    return hashlib.blake2b(read.location.metadata, digest_size=16).digest()
