"""The offers of one process: which memory other hosts may read with NIXL, and for how long.

What always holds:

- The memory of an offer stays mapped, registered and unchanged until the offer is over, and its address stays
  mapped after it (:mod:`art_dataplane.windows`).
- An offer is over when it was withdrawn, was read as often as it may be, or is too old; its slot is cleared
  then.

One thread owns it.
"""

import ctypes
import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from art_dataplane.checksum import combine
from art_dataplane.errors import TransportError
from art_dataplane.locations import NixlLocation, ShmLocation
from art_dataplane.nixl_agent import NixlAgent
from art_dataplane.nixl_descriptor import (
    SLOT_BYTES,
    SLOT_COUNT,
    NixlDescriptor,
    make_location,
    slot_content,
)
from art_dataplane.segment_files import open_segment
from art_dataplane.windows import AddressRanges, RegisteredPool, Window, allocate

READ_MESSAGE = b"art-read:"
"""What a reader's message starts with when it has all bytes; the transfer's id follows."""


def claim[T](result: "Future[T]") -> bool:
    """Whether someone still waits for ``result``, which is then set; it cannot be cancelled any more."""
    return not result.cancelled() and result.set_running_or_notify_cancel()


class _Offer:
    def __init__(
        self, transfer_id: str, held: int, window: Window, slot: int, expires_at: float, reads: int
    ) -> None:
        self.transfer_id = transfer_id
        self.held = held
        self.window = window
        self.slot = slot
        self.expires_at = expires_at
        self.reads_left = reads


class _Opening:
    """An offer whose bytes are being summed."""

    def __init__(
        self, offer: _Offer, source: ShmLocation, sums: "Future[np.ndarray]", result: "Future[NixlLocation]"
    ) -> None:
        self.offer = offer
        self.source = source
        self.sums = sums
        self.result = result


class NixlOffers:
    """The offers of one agent.

    Args:
        agent: a new one, of this object alone.
        backend: its backend.
        ranges: where segments are mapped.
        spare_bytes: how many bytes of segments stay mapped and registered after their offers.
        sum_bytes: computes the block values of bytes in another thread.
    """

    def __init__(
        self,
        agent: NixlAgent,
        backend: str,
        ranges: AddressRanges,
        spare_bytes: int,
        sum_bytes: "Callable[[memoryview], Future[np.ndarray]]",
    ) -> None:
        self._agent = agent
        self._backend = backend
        self._ranges = ranges
        self._sum_bytes = sum_bytes
        self._pool = RegisteredPool(agent, ranges, spare_bytes)
        self._slots = allocate(ranges, SLOT_BYTES * SLOT_COUNT)
        agent.register(self._slots, SLOT_BYTES * SLOT_COUNT)
        self._free_slots = list(range(SLOT_COUNT))
        self._opening: list[_Opening] = []
        self._offers: dict[str, _Offer] = {}

    def __len__(self) -> int:
        """How many offers stand or are being made."""
        return len(self._offers) + len(self._opening)

    @property
    def byte_count(self) -> int:
        """Bytes that are registered."""
        return self._pool.byte_count

    @property
    def is_busy(self) -> bool:
        """Whether an offer is being made."""
        return bool(self._opening)

    @property
    def is_idle(self) -> bool:
        """Whether nothing needs :meth:`step`."""
        return not self._opening and not self._offers and not self._pool.has_spare

    def open(
        self, source: ShmLocation, duration_s: float, reads: int, result: "Future[NixlLocation]"
    ) -> None:
        """Begins an offer; ``result`` gets its location.

        Raises:
            ShmError: the segment is gone or too small.
            TransportError: too many offers stand, or the memory cannot be registered.
        """
        if not self._free_slots:
            raise TransportError(f"{SLOT_COUNT} offers stand already; withdraw some or let them end")
        held = open_segment(source)  # under its lock: its owner does not use the pages again meanwhile
        try:
            window = self._pool.acquire(source.name)
        except BaseException:
            os.close(held)
            raise
        try:
            sums = self._sum_bytes(window.view(source.offset, source.byte_count))
        except BaseException:
            os.close(held)
            self._pool.release(window, keep=True)
            raise
        expires_at = time.monotonic() + duration_s
        offer = _Offer(uuid.uuid4().hex, held, window, self._free_slots.pop(), expires_at, reads)
        self._opening.append(_Opening(offer, source, sums, result))

    def withdraw(self, transfer_id: str) -> bool:
        """Ends an offer.

        Returns:
            False when it was over already.
        """
        self._count_reads()
        offer = self._offers.pop(transfer_id, None)
        if offer is None:
            return False
        self._end(offer, keep=False)
        return True

    def step(self) -> None:
        """Does what is due: answers those whose bytes are summed, counts reads, ends offers."""
        for opening in [opening for opening in self._opening if opening.sums.done()]:
            self._opening.remove(opening)
            self._finish(opening)
        if self._offers:
            self._count_reads()
        now = time.monotonic()
        for offer in [offer for offer in self._offers.values() if now >= offer.expires_at]:
            del self._offers[offer.transfer_id]
            self._end(offer, keep=False)

    def sweep(self) -> None:
        """Lets go of segments that are gone."""
        self._pool.sweep()

    def close(self) -> None:
        """Ends every offer, then the agent with all connections."""
        for opening in self._opening:
            opening.sums.exception()  # waits: the bytes must stay mapped while they are summed
            if claim(opening.result):
                opening.result.set_exception(TransportError("the transport was closed"))
        for offer in [*(opening.offer for opening in self._opening), *self._offers.values()]:
            self._end(offer, keep=True)
        self._opening.clear()
        self._offers.clear()
        self._agent.close()
        self._pool.abandon()
        self._ranges.give_back(self._slots)

    def _finish(self, opening: _Opening) -> None:
        offer, source = opening.offer, opening.source
        try:
            summed = combine([opening.sums.result()], source.byte_count)
            descriptor = NixlDescriptor(
                address=offer.window.address + source.offset,
                slot_address=self._slot_address(offer),
                region_address=offer.window.address,
                region_bytes=offer.window.byte_count,
                checksum=summed,
                seal=b"",
            )
            metadata = self._agent.metadata(
                [(offer.window.address, offer.window.byte_count), (self._slots, SLOT_BYTES * SLOT_COUNT)]
            )
            location = make_location(
                self._agent.name, metadata, self._backend, offer.transfer_id, source.byte_count, descriptor
            )
        except BaseException as error:  # noqa: BLE001  # told to whoever asked for the offer
            self._end(offer, keep=True)
            if claim(opening.result):
                opening.result.set_exception(error)
            return
        if not claim(opening.result):
            self._end(offer, keep=True)
            return
        self._write_slot(offer, slot_content(offer.transfer_id))
        self._offers[offer.transfer_id] = offer
        opening.result.set_result(location)

    def _count_reads(self) -> None:
        for message in self._agent.notifications():
            if not message.startswith(READ_MESSAGE):
                continue  # of another program that speaks to this agent; NIXL lets anyone
            transfer_id = message[len(READ_MESSAGE) :].decode("ascii", "replace")
            offer = self._offers.get(transfer_id)
            if offer is None:
                continue  # it ended between the reader's last look and now
            offer.reads_left -= 1
            if offer.reads_left == 0:
                del self._offers[transfer_id]
                self._end(offer, keep=True)

    def _end(self, offer: _Offer, *, keep: bool) -> None:
        self._write_slot(offer, bytes(SLOT_BYTES))
        self._free_slots.append(offer.slot)
        os.close(offer.held)
        self._pool.release(offer.window, keep=keep)

    def _slot_address(self, offer: _Offer) -> int:
        return self._slots + offer.slot * SLOT_BYTES

    def _write_slot(self, offer: _Offer, content: bytes) -> None:
        ctypes.memmove(self._slot_address(offer), content, SLOT_BYTES)
