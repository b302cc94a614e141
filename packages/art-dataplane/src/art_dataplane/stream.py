"""Bytes from a segment of one host into a segment of another, over an authenticated TCP connection.

The location of an offer carries a secret; whoever has it may read. The handshake proves to both ends that the
other one has it, without sending it, and every byte is under a MAC whose key no other read has, see
:mod:`art_dataplane.stream_wire`. The bytes are not encrypted: where the network may not read them, tunnel it.
"""

import asyncio
import math
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec

from art_dataplane.errors import DeadlineError, TransportError
from art_dataplane.locations import ShmLocation, StreamLocation
from art_dataplane.segments import MappedBytes, map_location
from art_dataplane.shm import ShmSegmentStore
from art_dataplane.stream_addresses import SocketAddress, bind, check_host, resolve
from art_dataplane.stream_mac import choose_mac, require_mac
from art_dataplane.stream_reader import check_location, read
from art_dataplane.stream_server import OfferCounts, OfferServer
from art_dataplane.stream_wire import Connection
from art_dataplane.threads import OwnedThreads, result_of
from art_dataplane.transport import RemoteLocation, check_offer

_HASHING_THREADS = 4
_POLL_S = 0.005


class StreamStats(msgspec.Struct, frozen=True):
    """What a transport did and does.

    Args:
        offers: that are open.
        pending: connections of peers that have not proved yet that they know a secret.
        sending: reads of others that are under way.
        receiving: own reads that are under way.
        completed_reads: of others, verified by their reader.
        failed_reads: of others, that had begun.
        refused: connections that did not prove that they know a secret.
        sent_bytes: bytes to others, handshakes included, over connections that ended.
        received_bytes: bytes from others, handshakes included, over connections that ended.
    """

    offers: int
    pending: int
    sending: int
    receiving: int
    completed_reads: int
    failed_reads: int
    refused: int
    sent_bytes: int
    received_bytes: int


class StreamTransport:
    """Moves bytes between hosts over TCP; implements :class:`art_dataplane.Transport` for both ends.

    It listens from its first offer on, on one address and one port for all offers; one that only receives
    opens no port. Use it from one event loop, and close it.

    Args:
        host: address of this host that others connect to, IPv4 or IPv6, or a name of it; the only one that is
            listened on. For one host alone, ``127.0.0.1`` or ``::1``.
        port: to listen on; 0 for one that is free.
        mac: what authenticates the bytes of offers made here: ``aes-gmac``, ``hmac-sha256``, or ``auto`` for
            the first of them that is installed. It is visible in the location, and the reader needs it too.
        handshake_s: seconds that a peer has to prove that it knows a secret.
        pending_limit: peers that may be about to; one more waits for a place, and after a quarter of a second
            gets that of the first.

    Raises:
        TransportError: ``host`` stands for every address, or ``mac`` is not there.
    """

    def __init__(
        self,
        host: str,
        *,
        port: int = 0,
        mac: str = "auto",
        handshake_s: float = 5.0,
        pending_limit: int = 16,
    ) -> None:
        check_host(host)
        if not 0 < handshake_s < math.inf or pending_limit < 1:
            raise TransportError(
                f"handshake_s {handshake_s} must be positive and finite, pending_limit {pending_limit} "
                "at least 1"
            )
        self._host = host
        self._port = port
        self._mac = choose_mac(mac)
        self._handshake_s = handshake_s
        self._pending_limit = pending_limit
        self._threads = OwnedThreads("art-stream")
        self._pool = ThreadPoolExecutor(min(_HASHING_THREADS, len(os.sched_getaffinity(0))), "art-stream-mac")
        self._server: OfferServer | None = None
        self._server_lock = asyncio.Lock()
        self._connecting: set[asyncio.Task[None]] = set()
        self._reads: set[Connection] = set()
        self._received_bytes = 0
        self._closed = False

    @property
    def name(self) -> str:
        """``stream``."""
        return "stream"

    async def offer(self, source: ShmLocation, *, duration_s: float, reads: int = 1) -> StreamLocation:
        """Makes the bytes of a committed segment readable by whoever has the location.

        A read counts when its reader has verified all bytes; one that fails may be repeated. The offer is
        over after ``reads`` reads, after ``duration_s`` seconds, or when it is withdrawn.

        Args:
            source: a segment of this host.
            duration_s: seconds that it may be read from now on.
            reads: how many hosts may read it, each once.

        Raises:
            ShmError: the segment is gone.
            TransportError: the address cannot be listened on, a number makes no sense, or it is closed.
        """
        self._check_open()
        check_offer(source, duration_s, reads)
        server = await self._listen()
        mapped = await result_of(
            self._threads.start("map", lambda: map_location(source)),
            stop=lambda: None,
            undo=lambda mapped: _close(mapped),
        )
        try:
            transfer_id, secret = server.add(mapped, self._mac, duration_s, reads)
        except TransportError:
            mapped.close()
            raise
        return StreamLocation(self._host, self._port, transfer_id, source.byte_count, secret, self._mac)

    async def withdraw(self, location: RemoteLocation) -> bool:
        """Ends an offer; reads that have begun fail at their readers.

        Returns:
            False when it was over already.

        Raises:
            TransportError: the location is not one of a stream.
        """
        server, transfer_id = self._server, _stream(location).transfer_id
        if server is None or self._closed:
            return False
        return await result_of(
            self._threads.start("withdraw", lambda: server.withdraw(transfer_id)),
            stop=lambda: None,
            undo=lambda _: None,
        )

    async def receive(
        self, location: RemoteLocation, segments: ShmSegmentStore, deadline_s: float
    ) -> ShmLocation:
        """Reads the bytes into a new segment of ``segments``, which the caller drops.

        Args:
            location: of an offer of another :class:`StreamTransport`.
            segments: where the bytes go.
            deadline_s: seconds from now that all of it may take.

        Raises:
            TransportError: the peer is not the one that made the location, or does not offer the bytes (any
                more); they are not the ones that were offered; the connection broke. Nothing was kept.
            DeadlineError: not within ``deadline_s`` seconds; nothing was kept.
            ShmFullError: no room for the bytes; none of them was read.
        """
        self._check_open()
        stream = _stream(location)
        mac = require_mac(stream.mac)
        transfer_id = check_location(stream)
        if not 0 < deadline_s < math.inf:
            raise DeadlineError(f"a deadline of {deadline_s} s; give a finite number of seconds above 0")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        late = DeadlineError(f"{stream} was not received within {deadline_s} s")
        connection = await self._connect(stream, deadline, late)
        self._reads.add(connection)
        timer = loop.call_at(deadline, connection.end, late)
        try:
            return await result_of(
                self._threads.start(
                    "receive", lambda: read(connection, stream, transfer_id, mac, segments, self._pool)
                ),
                stop=lambda: connection.end(TransportError(f"the read of {stream} was cancelled")),
                undo=lambda received: _drop(segments, received),
            )
        finally:
            timer.cancel()
            connection.close()
            self._reads.discard(connection)
            self._received_bytes += connection.received_bytes

    def stats(self) -> StreamStats:
        """What it did and does now."""
        counts = self._server.counts() if self._server is not None else OfferCounts()
        return StreamStats(
            offers=counts.offers,
            pending=counts.pending,
            sending=counts.reading,
            receiving=len(self._reads) + len(self._connecting),
            completed_reads=counts.completed_reads,
            failed_reads=counts.failed_reads,
            refused=counts.refused,
            sent_bytes=counts.sent_bytes,
            received_bytes=self._received_bytes,
        )

    async def close(self, deadline_s: float) -> None:
        """Withdraws every offer, ends every read and waits until sockets and threads are gone.

        Args:
            deadline_s: seconds that the threads have to end.

        Raises:
            DeadlineError: some have not ended; they do as soon as what they are blocked in returns.
        """
        self._closed = True
        async with self._server_lock:
            if self._server is not None:
                self._server.stop()
        for task in self._connecting:
            task.cancel()
        for connection in self._reads:
            connection.end(TransportError("the transport is closed"))
        deadline = time.monotonic() + deadline_s
        while len(self._threads) or self._reads or self._connecting:
            if time.monotonic() >= deadline:
                raise DeadlineError(
                    f"{len(self._threads)} threads of a stream transport have not ended within {deadline_s} s"
                )
            await asyncio.sleep(_POLL_S)
        self._pool.shutdown()

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError("the transport is closed")

    async def _listen(self) -> OfferServer:
        async with self._server_lock:
            self._check_open()
            if self._server is None:
                listener = bind(*(await resolve(self._host, self._port))[0])
                self._port = listener.getsockname()[1]
                self._server = OfferServer(
                    listener, self._threads, self._pool, self._handshake_s, self._pending_limit
                )
            return self._server

    async def _connect(self, stream: StreamLocation, deadline: float, late: DeadlineError) -> Connection:
        peer = f"{stream.host} port {stream.port}"
        failures: list[OSError] = []
        try:
            async with asyncio.timeout_at(deadline):
                for family, address in await resolve(stream.host, stream.port):
                    sock = socket.socket(family, socket.SOCK_STREAM)
                    try:
                        await self._connect_socket(sock, address)
                        return Connection(sock, peer)
                    except OSError as error:
                        sock.close()
                        failures.append(error)
                    except BaseException:
                        sock.close()
                        raise
        except TimeoutError:
            raise late from None
        reason = os.strerror(failures[-1].errno or 0)
        raise TransportError(
            f"cannot connect to {peer} for {stream}: {reason}; its owner has ended, or listens on an address "
            "that cannot be reached from here"
        ) from failures[-1]

    async def _connect_socket(self, sock: socket.socket, address: SocketAddress) -> None:
        sock.setblocking(False)
        task = asyncio.ensure_future(asyncio.get_running_loop().sock_connect(sock, address))
        self._connecting.add(task)
        try:
            await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self._closed and current is not None and not current.cancelling():
                raise TransportError("the transport is closed") from None
            raise
        finally:
            self._connecting.discard(task)


def _drop(segments: ShmSegmentStore, received: ShmLocation) -> None:
    segments.drop(received)


def _close(mapped: MappedBytes) -> None:
    mapped.close()


def _stream(location: RemoteLocation) -> StreamLocation:
    if not isinstance(location, StreamLocation):
        raise TransportError(f"{location} is not one of a stream; give it to the transport that made it")
    return location
