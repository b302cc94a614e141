"""The transport over NIXL (UCX): a host reads another one's memory, without its processor where it can.

**NIXL knows neither authentication nor encryption.** Whoever reaches the ports on which UCX listens can read
and write the memory of this process: in UCX's software emulation (TCP) any address of it, by RDMA what is
registered. Use it only where the network is private and everyone on it is trusted, and name its interface in
``devices``; elsewhere use the stream transport. A checksum in each location shows accidents, not attacks;
the digest of a snapshot's manifest, which travels apart from the bytes, shows both
(:func:`art_dataplane.read_tensors`).

What always holds:

- No call waits for longer than its deadline, whatever NIXL does: one thread of the transport makes all calls
  of NIXL, and moves all transfers side by side, so none that hangs keeps another from going on.
- Memory of a transfer that is not proved over is neither reused nor unmapped
  (:mod:`art_dataplane.nixl_reads`), and an address that another host was told stays mapped
  (:mod:`art_dataplane.windows`).
- UCX listens on the interfaces in ``devices`` only, each at its own address.

NIXL is imported when the first agent is made, not with this module.

What NIXL 1.5.1 does not allow for: over TCP, UCX now and then aborts an owner whose reader's agent
went while the owner stood still ("Endpoint timeout"). What it held is then lost, as when any owner dies.
"""

import asyncio
import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import numpy as np

from art_dataplane.checksum import block_values
from art_dataplane.errors import DeadlineError, ShmError, TransportError
from art_dataplane.locations import NixlLocation, ShmLocation
from art_dataplane.nixl_agent import NixlAgent
from art_dataplane.nixl_offers import NixlOffers, claim
from art_dataplane.nixl_reads import NixlReads, Read
from art_dataplane.shm import ShmSegmentStore
from art_dataplane.transport import RemoteLocation, check_offer
from art_dataplane.waiting import check_deadline
from art_dataplane.windows import AddressRanges

SPARE_BYTES = 1 << 30
"""How many bytes of segments each agent keeps mapped and registered when no transfer uses them."""

CALL_LIMIT_S = 60.0
"""Seconds that an offer or a withdrawal may take; usual are milliseconds, half a second for the first."""

_SWEEP_S = 0.25
_NOTIFICATIONS_S = 0.02
_SHORTEST_LOOK_S = 0.00005
_LONGEST_LOOK_S = 0.001


class NixlStats(msgspec.Struct, frozen=True):
    """What a transport holds.

    Args:
        offers: how many stand.
        reads: how many wait or run.
        quarantined_bytes: bytes of segments that may still be written although nobody waits for them; they
            count in their store until the transfer is proved over.
        registered_bytes: bytes of segments that are registered with NIXL.
    """

    offers: int
    reads: int
    quarantined_bytes: int
    registered_bytes: int


class NixlTransport:
    """Moves segments between hosts with NIXL. Implements :class:`art_dataplane.Transport`.

    Its methods may be called from one event loop; ``close()`` it there. Agents are made on first use, which
    takes some half a second each: one for what is offered, one for what is received.

    Args:
        devices: interfaces that UCX may use, for example ``["lo"]``, ``["eth0"]`` or ``["mlx5_0:1"]``.
        transports: UCX's transports (``["tcp"]``); empty leaves the choice among those of the devices to UCX.
            On a host with NVIDIA GPUs, NIXL asks for ``"cuda_copy"`` in the list.
        backend: NIXL's backend; the same at both ends.
        spare_bytes: how many bytes of segments each agent keeps mapped and registered after their transfer.
            Helps with stores that recycle their segments.

    Raises:
        TransportError: ``devices`` is empty.
    """

    def __init__(
        self,
        devices: Sequence[str],
        *,
        transports: Sequence[str] = (),
        backend: str = "UCX",
        spare_bytes: int = SPARE_BYTES,
    ) -> None:
        if not devices:
            raise TransportError(
                "name the interfaces that UCX may listen on in devices, for example ['eth0']"
            )
        self._agent_name = f"art-{uuid.uuid4().hex}"
        self._backend = backend
        self._devices = tuple(devices)
        self._transports = tuple(transports)
        self._spare_bytes = spare_bytes
        self._ranges = AddressRanges()
        # Not SimpleQueue: its get() of Python 3.12.1 was seen to sleep for ever at timeouts of microseconds.
        self._commands: queue.Queue[Callable[[], None]] = queue.Queue()
        self._summing = ThreadPoolExecutor(1, thread_name_prefix="art-nixl-sum")
        self._offers: NixlOffers | None = None
        self._reads: NixlReads | None = None
        self._spoiled: list[NixlReads] = []
        self._agent_count = 0
        self._close_at: float | None = None
        self._lock = threading.Lock()  # guards what follows and the order of commands and the end
        self._ended = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """The tag of its locations."""
        return "nixl"

    async def offer(self, source: ShmLocation, *, duration_s: float, reads: int = 1) -> NixlLocation:
        """Registers the bytes of a committed segment and sums them; see :class:`art_dataplane.Transport`.

        A read counts when its reader has all bytes and says so.

        Args:
            source: a segment of this host.
            duration_s: seconds that it may be read from now on.
            reads: how many hosts may read it, each once.

        Raises:
            ShmError: the segment is gone.
            TransportError: NIXL is not installed or refused, too many offers stand, or the transport is
                closed.
            DeadlineError: NIXL hangs (:data:`CALL_LIMIT_S`).
        """
        check_offer(source, duration_s, reads)
        result: Future[NixlLocation] = Future()

        def open_offer() -> None:
            try:
                self._offering().open(source, duration_s, reads, result)
            except BaseException as error:  # noqa: BLE001  # told to the caller
                if claim(result):
                    result.set_exception(error)

        self._command(open_offer)
        return await _answered(result)

    async def withdraw(self, location: RemoteLocation) -> bool:
        """Ends an offer and takes its bytes away; see :class:`art_dataplane.Transport`.

        Args:
            location: what was offered.

        Returns:
            False when it was over already.

        Raises:
            TransportError: the transport is closed.
            DeadlineError: NIXL hangs (:data:`CALL_LIMIT_S`).
        """
        if not isinstance(location, NixlLocation):
            return False
        return await self._ask(
            lambda: self._offers is not None and self._offers.withdraw(location.transfer_id)
        )

    async def receive(
        self, location: RemoteLocation, segments: ShmSegmentStore, deadline_s: float
    ) -> ShmLocation:
        """Reads another host's segment into one of ``segments``; see :class:`art_dataplane.Transport`.

        After a deadline, a cancellation or an error, the segment counts in its store until the transfer is
        proved over; nothing else is kept.

        Args:
            location: what another host offered.
            segments: where the bytes go.
            deadline_s: seconds for all of it.

        Raises:
            TransportError: the offer is over, the owner is gone, the bytes are not those that were offered,
                the location is not one of NIXL or is damaged, or the transport is closed.
            DeadlineError: not within ``deadline_s`` seconds.
            ShmFullError: no room for the bytes; nothing was read.
        """
        if not isinstance(location, NixlLocation):
            raise TransportError(f"{location} is not a location of NIXL; receive it with its own transport")
        if location.backend != self._backend or location.byte_count < 1:
            raise TransportError(
                f"{location} asks for {location.byte_count} bytes over {location.backend}; this transport "
                f"moves at least one, over {self._backend}"
            )
        check_deadline(deadline_s)
        until = time.monotonic() + deadline_s
        result: Future[ShmLocation] = Future()
        read = Read(location, segments, result)

        def start() -> None:
            try:
                self._reading().add(read)
            except BaseException as error:  # noqa: BLE001  # told to the caller
                read.error = error
                read.tell_error()

        self._command(start)
        wrapped = asyncio.wrap_future(result)
        try:
            await asyncio.wait([wrapped], timeout=until - time.monotonic())
            if not wrapped.done():
                raise DeadlineError(
                    f"{location.byte_count} bytes of agent {location.agent} were not here within "
                    f"{deadline_s} s; the owner is slow, stopped, or not reachable"
                )
        except BaseException:
            if not result.cancel():  # it is being delivered at this moment
                await asyncio.to_thread(_drop_result, result, segments)
            raise
        return wrapped.result()

    def stats(self) -> NixlStats:
        """What is held at this moment."""
        offers, reads = self._offers, self._reads
        groups = [*self._spoiled, *([] if reads is None else [reads])]
        return NixlStats(
            offers=0 if offers is None else len(offers),
            reads=sum(len(group) for group in groups),
            quarantined_bytes=sum(group.quarantined_bytes for group in groups),
            registered_bytes=(0 if offers is None else offers.byte_count)
            + sum(group.byte_count for group in groups),
        )

    async def close(self, deadline_s: float) -> None:
        """Withdraws every offer and ends every read, then the agents, threads and mappings.

        Args:
            deadline_s: seconds that running reads get to be done with what is on its way; then the agents
                end, which ends it too.

        Raises:
            DeadlineError: a call of NIXL does not return; its thread is left, and ends with the process.
        """
        with self._lock:
            self._ended = True
            thread = self._thread
        if thread is not None:
            close_at = time.monotonic() + max(deadline_s, 0.0)

            def begin() -> None:
                self._close_at = close_at

            self._commands.put(begin)
            await asyncio.to_thread(thread.join, max(deadline_s, 0.0) + 5.0)
            if thread.is_alive():
                raise DeadlineError(
                    f"NIXL did not let its agents end within {deadline_s} + 5 s; the thread {thread.name} is "
                    "left until the process ends"
                )
        self._summing.shutdown()

    def _command(self, command: Callable[[], None]) -> None:
        with self._lock:
            self._check_open()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="art-nixl", daemon=True)
                self._thread.start()
            self._commands.put(command)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise TransportError("the transport failed before; make another one") from self._failure
        if self._ended:
            raise TransportError("the transport is closed; make another one")

    async def _ask[T](self, question: Callable[[], T]) -> T:
        answer: Future[T] = Future()

        def ask() -> None:
            if not claim(answer):
                return
            try:
                answer.set_result(question())
            except BaseException as error:  # noqa: BLE001  # told to the caller
                answer.set_exception(error)

        self._command(ask)
        return await _answered(answer)

    def _run(self) -> None:
        """The thread that owns the agents. Whatever happens, everyone who waits is told."""
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001  # told to all who wait, and to all who come
            with self._lock:
                self._failure = error
        with self._lock:
            self._ended = True
        try:
            self._end()
        finally:
            while not self._commands.empty():
                self._commands.get()()  # each finds the transport closed, and tells its caller

    def _serve(self) -> None:
        """Takes commands and moves transfers until asked to end."""
        look_s = 0.0
        swept_at = time.monotonic()
        while True:
            try:
                command: Callable[[], None] | None = self._commands.get(timeout=self._wait_s(look_s))
            except queue.Empty:
                command = None
            if command is not None:
                command()
            moved = self._step()
            look_s = 0.0 if moved else min(max(2 * look_s, _SHORTEST_LOOK_S), _LONGEST_LOOK_S)
            now = time.monotonic()
            if now - swept_at >= _SWEEP_S:
                swept_at = now
                for group in self._groups():
                    group.sweep()
                if self._offers is not None:
                    self._offers.sweep()
            if self._close_at is not None:
                for group in self._groups():
                    group.give_up()
                if now >= self._close_at or not any(len(group) for group in self._groups()):
                    return

    def _step(self) -> bool:
        moved = False
        if self._offers is not None:
            self._offers.step()
        for group in self._groups():
            moved = group.step() or moved
        if self._reads is not None and self._reads.is_spoiled:
            self._spoiled.append(self._reads)
            self._reads = None
        for group in [group for group in self._spoiled if not len(group)]:
            self._spoiled.remove(group)
            group.close()
        return moved

    def _wait_s(self, look_s: float) -> float | None:
        """Seconds until the next look; None for when nothing is there to look at."""
        if any(len(group) for group in self._groups()) or self._close_at is not None:
            return look_s
        if self._offers is not None and self._offers.is_busy:
            return look_s
        if self._offers is not None and len(self._offers):
            return _NOTIFICATIONS_S
        idle = all(group.is_idle for group in self._groups())
        return None if idle and (self._offers is None or self._offers.is_idle) else _SWEEP_S

    def _end(self) -> None:
        for group in self._groups():
            group.close()
        self._spoiled.clear()
        self._reads = None
        if self._offers is not None:
            self._offers.close()
            self._offers = None
        self._ranges.close()

    def _groups(self) -> list[NixlReads]:
        return [*self._spoiled, *([] if self._reads is None else [self._reads])]

    def _offering(self) -> NixlOffers:
        if self._offers is None:
            self._offers = NixlOffers(
                self._new_agent(), self._backend, self._ranges, self._spare_bytes, self._sum
            )
        return self._offers

    def _reading(self) -> NixlReads:
        if self._reads is None or self._close_at is not None:
            self._reads = NixlReads(self._new_agent(), self._ranges, self._spare_bytes, self._sum)
        return self._reads

    def _new_agent(self) -> NixlAgent:
        if self._close_at is not None or self._failure is not None:
            raise TransportError("the transport is closed; make another one") from self._failure
        self._agent_count += 1
        name = f"{self._agent_name}-{self._agent_count}"
        return NixlAgent(name, self._backend, self._devices, self._transports)

    def _sum(self, data: memoryview) -> "Future[np.ndarray]":
        return self._summing.submit(block_values, data)


async def _answered[T](future: "Future[T]") -> T:
    """What the transport's thread answers.

    Raises:
        DeadlineError: nothing within :data:`CALL_LIMIT_S`; what was asked for is undone when its turn comes.
    """
    wrapped = asyncio.wrap_future(future)
    try:
        await asyncio.wait([wrapped], timeout=CALL_LIMIT_S)
    finally:
        future.cancel()  # does nothing when it is done
    if not wrapped.done():
        raise DeadlineError(f"NIXL did not answer within {CALL_LIMIT_S} s; close the transport")
    return wrapped.result()


def _drop_result(result: "Future[ShmLocation]", segments: ShmSegmentStore) -> None:
    """Drops a segment that was delivered to someone who had gone."""
    try:
        segments.drop(result.result())
    except (TransportError, ShmError):
        return  # there is none: the read ended with an error, which nobody waits for any more
