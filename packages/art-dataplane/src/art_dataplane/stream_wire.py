"""What crosses the connection of a stream, and the connection itself.

::

    reader                                          owner
    magic 8, transfer id 16, nonce 32   ->
                                        <-          nonce 32
    reader's proof 32                   ->
                                        <-          owner's proof 32, the bytes, seal 32, end of stream
    receipt 32                          ->

What always holds:

- The secret never crosses. Proofs, keys, seal and receipt are HMAC-SHA256 under a key that is derived from
  the secret and from all that was agreed: magic, transfer id, byte count, MAC and both nonces. So nothing
  that was recorded from one connection is of use on another.
- The owner says the same to whoever does not know the secret, whether it has the transfer or not: 32 random
  bytes. The reader takes no byte of the data before the owner has proved that it knows the secret.
- The bytes are authenticated, not encrypted.
"""

import hmac
import socket
import threading
from types import TracebackType
from typing import Self

import msgspec

from art_dataplane.errors import DataPlaneError, TransportError
from art_dataplane.stream_mac import MacName

MAGIC = b"ARTSTRM1"
TRANSFER_ID_BYTES = 16
NONCE_BYTES = 32
PROOF_BYTES = 32
SECRET_BYTES = 32
HELLO_BYTES = len(MAGIC) + TRANSFER_ID_BYTES + NONCE_BYTES


class SessionKeys(msgspec.Struct, frozen=True):
    """What both ends of one connection derive, each for one purpose.

    Args:
        reader_proof: shows the owner that the reader knows the secret.
        owner_proof: shows the reader that the owner knows it.
        chunk_key: keys the tags of the chunks.
        seal_key: keys the seal over the tags.
        receipt: shows the owner that the reader has verified all bytes.
    """

    reader_proof: bytes
    owner_proof: bytes
    chunk_key: bytes
    seal_key: bytes
    receipt: bytes

    def __repr__(self) -> str:
        """Nothing of the keys."""
        return "SessionKeys(...)"


def derive_keys(
    secret: bytes, transfer_id: bytes, byte_count: int, mac: MacName, reader_nonce: bytes, owner_nonce: bytes
) -> SessionKeys:
    """The keys of one connection (extract and expand with HMAC-SHA256, as in RFC 5869).

    Args:
        secret: of the transfer, :data:`SECRET_BYTES` bytes.
        transfer_id: :data:`TRANSFER_ID_BYTES` bytes.
        byte_count: of the transfer.
        mac: that authenticates the bytes.
        reader_nonce: :data:`NONCE_BYTES` random bytes of the reader.
        owner_nonce: as many of the owner.
    """
    # Every field but the last has a fixed size, so no two transcripts are the same bytes.
    transcript = b"".join(
        (MAGIC, transfer_id, byte_count.to_bytes(8), reader_nonce, owner_nonce, mac.encode("ascii"))
    )
    key = hmac.digest(secret, transcript, "sha256")
    return SessionKeys(
        **{purpose: hmac.digest(key, purpose.encode(), "sha256") for purpose in SessionKeys.__struct_fields__}
    )


class Connection:
    """A connected socket, used by one thread, that any thread can end. Close it, or use ``with``.

    Reads and writes block; whoever sets a deadline calls :meth:`end` when it has passed.

    Args:
        sock: the socket, owned from here on.
        peer: how messages name the other end.
    """

    def __init__(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._lock = threading.Lock()
        self._reason: DataPlaneError | None = None
        self.peer = peer
        self.sent_bytes = 0
        self.received_bytes = 0

    def end(self, reason: DataPlaneError) -> None:
        """Makes what the thread is blocked in, and all that follows, raise ``reason``; the first counts."""
        with self._lock:
            if self._reason is None and self._socket.fileno() != -1:
                self._reason = reason
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError as error:  # the peer has closed it: nothing blocks on it any more
                    reason.add_note(f"the connection was down already: {error}")

    def check(self) -> None:
        """Raises the reason that :meth:`end` was given, if it was called."""
        with self._lock:
            if self._reason is not None:
                raise self._reason

    def send(self, data: bytes | memoryview) -> None:
        """Sends all of ``data``.

        Raises:
            TransportError: the connection broke.
        """
        try:
            self._socket.sendall(data)
        except OSError as error:
            self.check()
            raise TransportError(
                f"the connection to {self.peer} broke after {self.sent_bytes} bytes: {error.strerror}"
            ) from error
        self.sent_bytes += len(data)

    def finish_sending(self) -> None:
        """Tells the peer that nothing follows.

        Raises:
            TransportError: the connection broke.
        """
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.check()
            raise TransportError(f"the connection to {self.peer} broke: {error.strerror}") from error

    def receive_into(self, buffer: memoryview) -> None:
        """Fills ``buffer``.

        Raises:
            TransportError: the connection broke or ended before.
        """
        filled = 0
        while filled < len(buffer):
            with buffer[filled:] as rest:
                count = self._receive(rest)
            if count == 0:
                self.check()
                raise TransportError(
                    f"{self.peer} ended the stream {len(buffer) - filled} bytes before the end of what it "
                    f"was to send next, after {self.received_bytes} bytes in all"
                )
            filled += count

    def receive(self, byte_count: int) -> bytes:
        """Receives so many bytes.

        Raises:
            TransportError: the connection broke or ended before.
        """
        data = bytearray(byte_count)
        with memoryview(data) as view:
            self.receive_into(view)
        return bytes(data)

    def expect_end(self) -> None:
        """Waits for the peer's end of stream.

        Raises:
            TransportError: bytes came instead, or the connection broke.
        """
        surplus = bytearray(1)
        with memoryview(surplus) as view:
            if self._receive(view):
                raise TransportError(f"{self.peer} sent more bytes than it offered")
        self.check()

    def close(self) -> None:
        """Closes the socket; a second call does nothing."""
        with self._lock:
            self._socket.close()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        self.close()

    def _receive(self, view: memoryview) -> int:
        try:
            count = self._socket.recv_into(view, len(view), socket.MSG_WAITALL)
        except OSError as error:
            self.check()
            raise TransportError(
                f"the connection to {self.peer} broke after {self.received_bytes} bytes: {error.strerror}"
            ) from error
        self.received_bytes += count
        return count
