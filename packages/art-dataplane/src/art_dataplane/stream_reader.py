"""The reader's end of a stream: proves itself, reads into a new segment, verifies, and only then commits."""

import contextlib
import hmac
import secrets
from concurrent.futures import ThreadPoolExecutor

from art_dataplane.errors import DataPlaneError, TransportError
from art_dataplane.locations import ShmLocation, StreamLocation
from art_dataplane.shm import Reservation, ShmSegmentStore
from art_dataplane.stream_mac import CHUNK_BYTES, SEAL_BYTES, ChunkSealer, MacName
from art_dataplane.stream_wire import (
    MAGIC,
    NONCE_BYTES,
    PROOF_BYTES,
    SECRET_BYTES,
    TRANSFER_ID_BYTES,
    Connection,
    SessionKeys,
    derive_keys,
)


def check_location(stream: StreamLocation) -> bytes:
    """Returns the bytes of the transfer's id.

    Raises:
        TransportError: a field of the location is malformed.
    """
    try:
        transfer_id = bytes.fromhex(stream.transfer_id)
    except ValueError as error:
        raise TransportError(f"{stream} is malformed: {error}") from error
    if (
        len(transfer_id) != TRANSFER_ID_BYTES
        or len(stream.secret) != SECRET_BYTES
        or not 0 < stream.port < 1 << 16
        or not 0 < stream.byte_count < 1 << 63
    ):
        raise TransportError(f"{stream} is malformed, with a secret of {len(stream.secret)} bytes")
    return transfer_id


def read(
    connection: Connection,
    stream: StreamLocation,
    transfer_id: bytes,
    mac: MacName,
    segments: ShmSegmentStore,
    pool: ThreadPoolExecutor,
) -> ShmLocation:
    """Reads the bytes of ``stream`` and closes the connection; blocks.

    Args:
        connection: to the owner; :meth:`Connection.end` ends the read with its reason.
        stream: what to read.
        transfer_id: from :func:`check_location`.
        mac: that authenticates the bytes.
        segments: where the bytes go.
        pool: where slow MACs are computed.

    Raises:
        TransportError: the owner does not know the secret or does not offer the bytes, they are not the ones
            that were offered, or the connection broke; nothing was kept.
        ShmFullError: no room for the bytes; none of them was read.
        DataPlaneError: the reason that the connection was ended with; nothing was kept.
    """
    with connection:
        keys = _handshake(connection, stream, transfer_id, mac)
        with segments.reserve(stream.byte_count) as reservation:
            _fill(reservation, connection, ChunkSealer(mac, keys.chunk_key, keys.seal_key, pool), stream)
            received = reservation.commit()
        # The bytes are verified, receipt or not; without one the read does not count, and may be repeated.
        with contextlib.suppress(DataPlaneError):
            connection.send(keys.receipt)
        return received


def _handshake(
    connection: Connection, stream: StreamLocation, transfer_id: bytes, mac: MacName
) -> SessionKeys:
    nonce = secrets.token_bytes(NONCE_BYTES)
    try:
        connection.send(MAGIC + transfer_id + nonce)
        keys = derive_keys(
            stream.secret, transfer_id, stream.byte_count, mac, nonce, connection.receive(NONCE_BYTES)
        )
        connection.send(keys.reader_proof)
        proof = connection.receive(PROOF_BYTES)
    except TransportError as error:
        connection.check()
        raise TransportError(
            f"{connection.peer} did not admit the read of {stream}: the transfer is over, its secret or its "
            "size is another one, or too many peers come at once"
        ) from error
    if not hmac.compare_digest(proof, keys.owner_proof):
        raise TransportError(f"{connection.peer} does not know the secret of {stream}; nothing was read")
    return keys


def _fill(
    reservation: Reservation, connection: Connection, sealer: ChunkSealer, stream: StreamLocation
) -> None:
    """Receives the bytes straight into the segment and verifies them."""
    try:
        for start in range(0, stream.byte_count, CHUNK_BYTES):
            end = min(start + CHUNK_BYTES, stream.byte_count)
            with reservation.buffer[start:end] as chunk:
                connection.receive_into(chunk)
            sealer.add(reservation.buffer[start:end])
        seal = connection.receive(SEAL_BYTES)
        connection.expect_end()
        if not hmac.compare_digest(seal, sealer.seal()):
            raise TransportError(
                f"the bytes that came from {connection.peer} are not those of {stream}: they were changed on "
                "the way"
            )
    finally:
        sealer.finish()
