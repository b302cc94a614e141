"""The owner's end of streams: one listening socket, the offers, and a thread for each connection.

What always holds:

- The bytes of an offer are mapped while it is open and until its last connection has ended, and not longer.
- A peer that has not proved that it knows a secret gets 32 random bytes and no more, is let go after
  ``handshake_s`` seconds, and takes one of ``pending_limit`` places; when they are all taken, a newcomer
  waits until one is free, or takes that of the one that came first once that one had time for its proof.
- Only a read whose receipt came counts.
"""

import errno
import hmac
import logging
import math
import secrets
import selectors
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from art_dataplane.errors import DeadlineError, TransportError
from art_dataplane.segments import MappedBytes
from art_dataplane.stream_mac import CHUNK_BYTES, ChunkSealer, MacName
from art_dataplane.stream_wire import (
    HELLO_BYTES,
    MAGIC,
    NONCE_BYTES,
    PROOF_BYTES,
    SECRET_BYTES,
    TRANSFER_ID_BYTES,
    Connection,
    SessionKeys,
    derive_keys,
)
from art_dataplane.threads import OwnedThreads

_LOGGER = logging.getLogger(__name__)
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE_S = 0.05
_PATIENCE_S = 0.25  # for a proof, before another peer gets the place; a proof takes milliseconds


class OfferCounts(msgspec.Struct):
    """What a server did and does; read it under the lock of the server, see :meth:`OfferServer.counts`.

    Args:
        offers: that are open.
        pending: connections that have not proved anything yet.
        reading: connections that were admitted to an offer and have not ended.
        completed_reads: whose receipt came.
        failed_reads: that were admitted and ended without a receipt.
        refused: connections that proved nothing in time, or the wrong thing.
        sent_bytes: over all connections that ended.
    """

    offers: int = 0
    pending: int = 0
    reading: int = 0
    completed_reads: int = 0
    failed_reads: int = 0
    refused: int = 0
    sent_bytes: int = 0


class _Offer:
    """Mapped bytes, the secret of their transfer and the connections that read them."""

    def __init__(self, mapped: MappedBytes, mac: MacName, expires: float, reads: int) -> None:
        self.transfer_id = secrets.token_bytes(TRANSFER_ID_BYTES)
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self.mapped = mapped
        self.byte_count = mapped.view.nbytes
        self.mac = mac
        self.expires = expires
        self.reads_left = reads
        self.connections: set[Connection] = set()
        self.open = True


class OfferServer:
    """Listens on one address and sends what is offered. Thread-safe.

    Args:
        listener: a socket that listens; owned from here on.
        threads: where the server's threads run; its owner waits for them.
        pool: where slow MACs are computed; owned by the caller.
        handshake_s: seconds that a peer has to prove that it knows a secret.
        pending_limit: peers that may be about to.
    """

    def __init__(
        self,
        listener: socket.socket,
        threads: OwnedThreads,
        pool: ThreadPoolExecutor,
        handshake_s: float,
        pending_limit: int,
    ) -> None:
        self._listener = listener
        self._threads = threads
        self._pool = pool
        self._handshake_s = handshake_s
        self._pending_limit = pending_limit
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._offers: dict[bytes, _Offer] = {}
        self._pending: dict[Connection, float] = {}
        self._counts = OfferCounts()
        self._stopping = False
        self._wake_end, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._wake_end.setblocking(False)
        listener.setblocking(False)
        threads.start("listen", self._listen).add_done_callback(_report)

    def add(self, mapped: MappedBytes, mac: MacName, duration_s: float, reads: int) -> tuple[str, bytes]:
        """Opens an offer of ``mapped``, which is owned from here on.

        Returns:
            The id of the transfer, in hex, and its secret.

        Raises:
            TransportError: the server is stopping; ``mapped`` is left to the caller.
        """
        with self._lock:
            if self._stopping:
                raise TransportError("the transport is closed")
            offer = _Offer(mapped, mac, time.monotonic() + duration_s, reads)
            self._offers[offer.transfer_id] = offer
        self._notify()
        return offer.transfer_id.hex(), offer.secret

    def withdraw(self, transfer_id: str) -> bool:
        """Ends an offer and its connections and waits until they are gone; returns False if it was over."""
        with self._lock:
            offer = self._offers.get(_id_bytes(transfer_id))
            if offer is None:
                return False
            self._end_offer(offer, "was withdrawn by its owner")
            while offer.connections:
                self._changed.wait()
        return True

    def counts(self) -> OfferCounts:
        """A copy of what is so now."""
        with self._lock:
            return msgspec.structs.replace(
                self._counts,
                offers=len(self._offers),
                pending=len(self._pending),
                reading=sum(len(offer.connections) for offer in self._offers.values()),
            )

    def stop(self) -> None:
        """Ends everything; the threads end soon after."""
        with self._lock:
            self._stopping = True
            for offer in [*self._offers.values()]:
                self._end_offer(offer, "ended with its transport")
            for connection in self._pending:
                connection.end(TransportError("the transport is closed"))
            self._changed.notify_all()
        self._notify()

    def _notify(self) -> None:
        with self._lock:
            if self._wake.fileno() == -1:
                return  # the thread has ended
            try:
                self._wake.send(b"\0")
            except BlockingIOError:
                return  # it has not yet looked at earlier ones, and will look at everything then

    def _listen(self) -> None:
        with self._listener, self._wake_end, selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake_end, selectors.EVENT_READ)
            try:
                while True:
                    with self._lock:
                        if self._stopping:
                            return
                        timeout = self._expire()
                    for key, _ in selector.select(timeout):
                        if key.fileobj is self._listener:
                            self._accept()
                        else:
                            self._wake_end.recv(4096)
            finally:
                self.stop()
                with self._lock:
                    self._wake.close()

    def _expire(self) -> float | None:
        """Ends what is past its deadline; returns the seconds until the next one is due."""
        now = time.monotonic()
        for offer in [*self._offers.values()]:
            if offer.expires <= now:
                self._end_offer(offer, "expired")
        for connection, due in self._pending.items():
            if due <= now:
                connection.end(DeadlineError(f"no proof within {self._handshake_s} s"))
        due = min(
            (
                *(offer.expires for offer in self._offers.values()),
                *(due for due in self._pending.values() if due > now),
            ),
            default=math.inf,
        )
        return None if math.isinf(due) else due - now

    def _end_offer(self, offer: _Offer, how: str) -> None:
        del self._offers[offer.transfer_id]
        offer.open = False
        for connection in offer.connections:
            connection.end(TransportError(f"transfer {offer.transfer_id.hex()} {how}"))
        if not offer.connections:
            offer.mapped.close()

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the peer has gone before it was accepted
        except OSError as error:
            if error.errno not in _OUT_OF_RESOURCES:
                raise
            _LOGGER.warning("cannot accept a connection now: %s", error)
            with self._lock:  # the connection waits on, until one of ours has ended or the system has more
                self._evict()
                self._changed.wait(_PAUSE_S)
            return
        connection = Connection(sock, f"{address[0]} port {address[1]}")
        with self._lock:
            self._make_room()
            self._pending[connection] = time.monotonic() + self._handshake_s
        try:
            self._threads.start("send", lambda: self._serve(connection)).add_done_callback(_report)
        except RuntimeError as error:  # no more threads
            _LOGGER.warning("cannot serve %s: %s", connection.peer, error)
            self._let_go(connection)

    def _make_room(self) -> None:
        """Waits for a place while those that have one may only be about to prove themselves."""
        while len(self._pending) >= self._pending_limit and not self._stopping:
            came = next(iter(self._pending.values())) - self._handshake_s
            left = came + _PATIENCE_S - time.monotonic()
            if left <= 0:
                self._evict()
            else:
                self._changed.wait(left)

    def _evict(self) -> None:
        first = next(iter(self._pending), None)
        if first is not None:
            del self._pending[first]  # its thread ends as soon as it runs
            first.end(TransportError(f"{self._pending_limit} others came after it"))

    def _serve(self, connection: Connection) -> None:
        offer: _Offer | None = None
        try:
            with connection:
                offer, keys = self._admit(connection)
                _send(connection, offer, keys, self._pool)
        except (TransportError, DeadlineError) as error:
            _LOGGER.info("stream to %s failed: %s", connection.peer, error)
            self._let_go(connection, offer)
        except BaseException:
            self._let_go(connection, offer)
            raise
        else:
            self._let_go(connection, offer, completed=True)

    def _admit(self, connection: Connection) -> tuple[_Offer, SessionKeys]:
        hello = connection.receive(HELLO_BYTES)
        nonce = secrets.token_bytes(NONCE_BYTES)
        connection.send(nonce)
        proof = connection.receive(PROOF_BYTES)
        magic, transfer_id = hello[: len(MAGIC)], hello[len(MAGIC) : -NONCE_BYTES]
        with self._lock:
            offer = self._offers.get(transfer_id)
        secret = offer.secret if offer is not None else secrets.token_bytes(SECRET_BYTES)
        byte_count, mac = (offer.byte_count, offer.mac) if offer is not None else (0, "hmac-sha256")
        keys = derive_keys(secret, transfer_id, byte_count, mac, hello[-NONCE_BYTES:], nonce)
        proved = hmac.compare_digest(proof, keys.reader_proof)
        with self._lock:
            connection.check()
            if magic != MAGIC or not proved or offer is None or not offer.open:
                raise TransportError("it did not prove that it knows the secret of an open transfer")
            del self._pending[connection]
            offer.connections.add(connection)
            self._changed.notify_all()
        return offer, keys

    def _let_go(
        self, connection: Connection, offer: _Offer | None = None, *, completed: bool = False
    ) -> None:
        connection.close()
        with self._lock:
            self._pending.pop(connection, None)
            self._changed.notify_all()
            self._counts.sent_bytes += connection.sent_bytes
            if offer is None:
                self._counts.refused += 1
                return
            offer.connections.discard(connection)
            if completed:
                self._counts.completed_reads += 1
                offer.reads_left -= 1
                if offer.open and offer.reads_left == 0:
                    self._end_offer(offer, "was read as often as it was offered")
            else:
                self._counts.failed_reads += 1
            if not offer.open and not offer.connections:
                offer.mapped.close()


def _send(connection: Connection, offer: _Offer, keys: SessionKeys, pool: ThreadPoolExecutor) -> None:
    """Sends the bytes straight from the mapping and waits for the receipt."""
    connection.send(keys.owner_proof)
    sealer = ChunkSealer(offer.mac, keys.chunk_key, keys.seal_key, pool)
    try:
        for start in range(0, offer.byte_count, CHUNK_BYTES):
            sealer.add(offer.mapped.view[start : start + CHUNK_BYTES])
            with offer.mapped.view[start : start + CHUNK_BYTES] as chunk:
                connection.send(chunk)
        connection.send(sealer.seal())
    finally:
        sealer.finish()
    connection.finish_sending()
    receipt = connection.receive(PROOF_BYTES)
    if not hmac.compare_digest(receipt, keys.receipt):
        raise TransportError("the receipt is not the reader's")


def _report(future: Future[None]) -> None:
    error = future.exception()
    if error is not None:
        _LOGGER.error("a thread of a stream transport failed", exc_info=error)


def _id_bytes(transfer_id: str) -> bytes:
    try:
        return bytes.fromhex(transfer_id)
    except ValueError as error:
        raise TransportError(f"{transfer_id!r} is not the id of a stream's transfer") from error
