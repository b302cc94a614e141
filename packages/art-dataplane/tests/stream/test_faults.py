"""Peers that lie, break off, say nothing or come in crowds: an error in time, and nothing is kept."""

import asyncio
import hashlib
import hmac
import os
import socket
import threading
import time

import msgspec
import pytest

from art_dataplane import DeadlineError, StreamLocation, TransportError, stream_mac, stream_server
from art_dataplane.stream_mac import CHUNK_BYTES, MAC_NAMES, choose_mac

MAGIC = b"ARTSTRM1"
HELLO, NONCE, PROOF, SEAL = 8 + 16 + 32, 32, 32, 32
SIZE = 2 * CHUNK_BYTES + 100


def flip(at: int):
    """Flips one bit of the byte at this offset of a direction."""

    def change(offset: int, data: bytes) -> bytes:
        if offset <= at < offset + len(data):
            changed = bytearray(data)
            changed[at - offset] ^= 0x10
            return bytes(changed)
        return data

    return change


class Peer:
    """A listener that follows a script instead of the protocol."""

    def __init__(self, script) -> None:
        self._script = script
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Peer":
        self._server = await asyncio.start_server(self._start, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self._tasks.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._script(reader, writer)
        writer.close()

    def location(self, size: int = SIZE) -> StreamLocation:
        return StreamLocation("127.0.0.1", self.port, os.urandom(16).hex(), size, os.urandom(32))


def keys(location: StreamLocation, reader_nonce: bytes, owner_nonce: bytes) -> dict[str, bytes]:
    """The keys of a connection, written down a second time from the description of the protocol."""
    agreed = (
        MAGIC
        + bytes.fromhex(location.transfer_id)
        + location.byte_count.to_bytes(8, "big")
        + reader_nonce
        + owner_nonce
        + location.mac.encode()
    )
    key = hmac.new(location.secret, agreed, hashlib.sha256).digest()
    return {
        name: hmac.new(key, name.encode(), hashlib.sha256).digest()
        for name in ("reader_proof", "owner_proof", "chunk_key", "seal_key", "receipt")
    }


def seal(location: StreamLocation, found: dict[str, bytes], data: bytes) -> bytes:
    tags = b""
    for index, start in enumerate(range(0, len(data), CHUNK_BYTES)):
        chunk = data[start : start + CHUNK_BYTES]
        number = index.to_bytes(12, "big")
        if location.mac == "hmac-sha256":
            chunk_key = hmac.new(found["chunk_key"], number, hashlib.sha256).digest()
            tags += hmac.new(chunk_key, chunk, hashlib.sha256).digest()
        else:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

            gmac = Cipher(algorithms.AES(found["chunk_key"]), modes.GCM(number)).encryptor()
            gmac.authenticate_additional_data(chunk)
            gmac.finalize()
            tags += gmac.tag
    return hmac.new(found["seal_key"], tags, hashlib.sha256).digest()


async def admit(location: StreamLocation, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
    """An honest owner up to its proof; returns the keys."""
    hello = await reader.readexactly(HELLO)
    nonce = os.urandom(NONCE)
    writer.write(nonce)
    found = keys(location, hello[-NONCE:], nonce)
    assert await reader.readexactly(PROOF) == found["reader_proof"]
    writer.write(found["owner_proof"])
    return found


@pytest.mark.parametrize("mac", MAC_NAMES)
async def test_a_reader_written_from_the_description_is_served(transport, commit, eventually, mac, dial):
    data = os.urandom(SIZE)
    owner = transport(mac=mac)
    location = await owner.offer(commit(data), duration_s=30)
    reader, writer = await dial(location)
    nonce = os.urandom(NONCE)
    writer.write(MAGIC + bytes.fromhex(location.transfer_id) + nonce)
    found = keys(location, nonce, await reader.readexactly(NONCE))
    writer.write(found["reader_proof"])
    assert await reader.readexactly(PROOF) == found["owner_proof"]
    assert await reader.readexactly(SIZE) == data
    assert await reader.readexactly(SEAL) == seal(location, found, data)
    assert await reader.read() == b""
    writer.write(found["receipt"])
    await eventually(lambda: owner.stats().completed_reads == 1)


@pytest.mark.parametrize("mac", MAC_NAMES)
async def test_an_owner_written_from_the_description_is_read(transport, copies, take, eventually, mac):
    data = os.urandom(SIZE)
    receipts: list[bool] = []

    async def script(reader, writer):
        found = await admit(location, reader, writer)
        writer.write(data + seal(location, found, data))
        writer.write_eof()
        receipts.append(await reader.readexactly(PROOF) == found["receipt"])

    async with Peer(script) as peer:
        location = msgspec.structs.replace(peer.location(), mac=mac)
        assert take(await transport().receive(location, copies, 30.0)) == data
        await eventually(lambda: receipts == [True])


@pytest.mark.parametrize("mac", MAC_NAMES)
@pytest.mark.parametrize(
    "at",
    [
        0,
        NONCE,
        NONCE + PROOF,
        NONCE + PROOF + CHUNK_BYTES,
        NONCE + PROOF + SIZE - 1,
        NONCE + PROOF + SIZE,
        NONCE + PROOF + SIZE + SEAL - 1,
    ],
    ids=["nonce", "proof", "first byte", "second chunk", "last byte", "seal", "end of the seal"],
)
async def test_one_bit_that_is_flipped_on_its_way_to_the_reader(
    transport, commit, copies, relay, eventually, mac, at
):
    owner = transport(mac=mac)
    location = await owner.offer(commit(os.urandom(SIZE)), duration_s=30)
    relay.to_reader = flip(at)
    with pytest.raises(TransportError):
        await transport().receive(await relay.start(location), copies, 30.0)
    assert copies.stats().segment_count == 0
    await eventually(lambda: owner.stats().refused + owner.stats().failed_reads == 1)
    assert owner.stats().completed_reads == 0


@pytest.mark.parametrize("at", [0, 8, 24, HELLO], ids=["magic", "transfer", "nonce", "proof"])
async def test_one_bit_that_is_flipped_on_its_way_to_the_owner(
    transport, commit, copies, relay, eventually, at
):
    owner = transport()
    location = await owner.offer(commit(os.urandom(SIZE)), duration_s=30)
    relay.to_owner = flip(at)
    with pytest.raises(TransportError, match="did not admit the read"):
        await transport().receive(await relay.start(location), copies, 30.0)
    await eventually(lambda: owner.stats().refused == 1)
    assert len(relay.passed_to_reader) == NONCE


async def test_a_receipt_that_was_changed_does_not_count(transport, commit, copies, take, relay, eventually):
    owner = transport()
    location = await owner.offer(commit(b"j" * 100), duration_s=30)
    relay.to_owner = flip(HELLO + PROOF)
    take(await transport().receive(await relay.start(location), copies, 30.0))
    await eventually(lambda: owner.stats().failed_reads == 1)
    assert owner.stats().completed_reads == 0


async def test_chunks_that_changed_places_are_found(transport, copies):
    data = os.urandom(3 * CHUNK_BYTES)
    swapped = data[CHUNK_BYTES : 2 * CHUNK_BYTES] + data[:CHUNK_BYTES] + data[2 * CHUNK_BYTES :]

    async def script(reader, writer):
        found = await admit(location, reader, writer)
        writer.write(swapped + seal(location, found, data))
        writer.write_eof()
        await reader.read()

    async with Peer(script) as peer:
        for mac in MAC_NAMES:
            location = msgspec.structs.replace(peer.location(len(data)), mac=mac)
            with pytest.raises(TransportError, match="not those of"):
                await transport().receive(location, copies, 30.0)


@pytest.mark.parametrize("count", [0, 1, NONCE, NONCE + PROOF, NONCE + PROOF + 1, NONCE + PROOF + SIZE, -1])
async def test_a_stream_that_is_too_short(transport, commit, copies, relay, count):
    whole = NONCE + PROOF + SIZE + SEAL
    count = whole - 1 if count == -1 else count
    location = await transport().offer(commit(os.urandom(SIZE)), duration_s=30)

    def cut(offset: int, data: bytes) -> bytes:
        return data[: max(0, count - offset)]

    relay.to_reader = cut
    stuck = count < NONCE  # both wait for the other
    with pytest.raises(DeadlineError if stuck else TransportError):
        await transport().receive(await relay.start(location), copies, 0.5 if stuck else 30.0)


@pytest.mark.parametrize("surplus", [1, 100_000])
async def test_a_stream_that_is_too_long(transport, copies, surplus):
    data = os.urandom(SIZE)

    async def script(reader, writer):
        found = await admit(location, reader, writer)
        writer.write(data + seal(location, found, data) + bytes(surplus))
        writer.write_eof()
        await reader.read()

    async with Peer(script) as peer:
        location = peer.location()
        with pytest.raises(TransportError, match="more bytes than it offered"):
            await transport().receive(location, copies, 30.0)


@pytest.mark.parametrize("at", [0, NONCE, NONCE + PROOF + 5, NONCE + PROOF + SIZE])
async def test_a_byte_that_is_slipped_in(transport, commit, copies, relay, at):
    location = await transport().offer(commit(os.urandom(SIZE)), duration_s=30)

    def slip(offset: int, data: bytes) -> bytes:
        return data[: at - offset] + b"!" + data[at - offset :] if offset <= at < offset + len(data) else data

    relay.to_reader = slip
    with pytest.raises(TransportError):
        await transport().receive(await relay.start(location), copies, 30.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda location: {"secret": os.urandom(32)},
        lambda location: {"transfer_id": os.urandom(16).hex()},
        lambda location: {"byte_count": location.byte_count - 1},
        lambda location: {"byte_count": location.byte_count + 1},
        lambda location: {"mac": "hmac-sha256"},
    ],
    ids=["secret", "transfer", "fewer bytes", "more bytes", "mac"],
)
async def test_who_does_not_have_the_location_learns_nothing(
    transport, commit, copies, take, relay, eventually, change
):
    """Whatever is wrong, known transfer or not, the owner says the same: 32 bytes, never the same twice."""
    owner = transport(mac="aes-gmac")
    location = await owner.offer(commit(b"k" * SIZE), duration_s=30)
    wrong = msgspec.structs.replace(await relay.start(location), **change(location))
    for attempt in (1, 2):
        with pytest.raises(TransportError, match="did not admit the read") as failed:
            await transport().receive(wrong, copies, 30.0)
        await eventually(lambda: owner.stats().refused == attempt)  # noqa: B023  # awaited here
        for secret in (location.secret, wrong.secret):
            assert secret.hex() not in repr(failed.value)
            assert repr(secret) not in repr(failed.value)
    said = bytes(relay.passed_to_reader)
    assert len(said) == 2 * NONCE
    assert said[:NONCE] != said[NONCE:]
    assert len(take(await transport().receive(location, copies, 30.0))) == SIZE


async def test_who_does_not_know_the_secret_is_not_read_from(transport, copies):
    """An impostor with the address of the owner: nothing that it sends is taken, not even memory."""

    async def script(reader, writer):
        await reader.readexactly(HELLO)
        writer.write(os.urandom(NONCE))
        await reader.readexactly(PROOF)
        writer.write(os.urandom(PROOF) + bytes(SIZE + SEAL))
        await reader.read()

    async with Peer(script) as peer:
        with pytest.raises(TransportError, match="does not know the secret"):
            await transport().receive(peer.location(), copies, 30.0)


async def test_the_secret_and_the_keys_never_cross(transport, commit, copies, take, relay):
    location = await transport().offer(commit(b"l" * 1000), duration_s=30)
    take(await transport().receive(await relay.start(location), copies, 30.0))
    sent, received = bytes(relay.passed_to_owner), bytes(relay.passed_to_reader)
    found = keys(location, sent[HELLO - NONCE : HELLO], received[:NONCE])
    for hidden in (location.secret, found["chunk_key"], found["seal_key"]):
        for text in (hidden, hidden.hex().encode()):
            assert text not in sent
            assert text not in received


async def test_a_recorded_reader_is_not_served(transport, commit, copies, take, relay, eventually, dial):
    owner = transport()
    location = await owner.offer(commit(b"m" * 1000), duration_s=30, reads=5)
    take(await transport().receive(await relay.start(location), copies, 30.0))
    await eventually(lambda: owner.stats().completed_reads == 1)
    reader, writer = await dial(location)
    writer.write(bytes(relay.passed_to_owner[: HELLO + PROOF]))
    assert len(await asyncio.wait_for(reader.read(), 30)) == NONCE
    await eventually(lambda: owner.stats().refused == 1)
    assert owner.stats().completed_reads == 1


async def test_a_recorded_owner_is_not_believed(transport, commit, copies, take, relay):
    location = await transport().offer(commit(b"n" * 1000), duration_s=30)
    through = await relay.start(location)
    take(await transport().receive(through, copies, 30.0))
    recorded = bytes(relay.passed_to_reader)

    async def script(reader, writer):
        writer.write(recorded)
        writer.write_eof()
        await reader.read()

    async with Peer(script) as peer:
        with pytest.raises(TransportError, match="does not know the secret"):
            await transport().receive(msgspec.structs.replace(location, port=peer.port), copies, 30.0)


async def silent(reader, writer):
    await reader.read()


async def silent_after_its_nonce(reader, writer):
    writer.write(os.urandom(NONCE))
    await reader.read()


async def one_byte_at_a_time(reader, writer):
    while not reader.at_eof():
        writer.write(b"?")
        await writer.drain()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("script", [silent, silent_after_its_nonce, one_byte_at_a_time])
async def test_a_peer_that_is_silent_or_slow_costs_no_more_than_the_deadline(transport, copies, script):
    async with Peer(script) as peer:
        started = time.monotonic()
        with pytest.raises(DeadlineError, match=r"not received within 0\.3 s"):
            await transport().receive(peer.location(), copies, 0.3)
        assert 0.3 <= time.monotonic() - started < 5


@pytest.mark.parametrize("held", [1, CHUNK_BYTES + 1, SIZE])
async def test_an_owner_that_falls_silent_in_the_middle(transport, copies, held):
    data = os.urandom(SIZE)

    async def script(reader, writer):
        await admit(location, reader, writer)
        writer.write(data[:held])
        await reader.read()

    async with Peer(script) as peer:
        location = peer.location()
        started = time.monotonic()
        with pytest.raises(DeadlineError):
            await transport().receive(location, copies, 0.5)
        assert 0.5 <= time.monotonic() - started < 5


async def test_an_owner_that_does_not_end_its_stream(transport, copies):
    data = os.urandom(SIZE)

    async def script(reader, writer):
        found = await admit(location, reader, writer)
        writer.write(data + seal(location, found, data))
        await reader.read()

    async with Peer(script) as peer:
        location = peer.location()
        with pytest.raises(DeadlineError):
            await transport().receive(location, copies, 0.5)


async def test_a_reader_that_takes_nothing_is_let_go_with_the_offer(
    transport, commit, eventually, is_mapped, dial
):
    owner = transport()
    location = await owner.offer(commit(bytes(30 << 20)), duration_s=1.0)
    reader, writer = await dial(location, limit=1024)
    nonce = os.urandom(NONCE)
    writer.write(MAGIC + bytes.fromhex(location.transfer_id) + nonce)
    writer.write(keys(location, nonce, await reader.readexactly(NONCE))["reader_proof"])
    await eventually(lambda: owner.stats().sending == 1)
    await eventually(lambda: owner.stats().sending == 0)
    assert owner.stats().failed_reads == 1
    assert not is_mapped()


async def test_withdrawing_waits_for_the_reads_that_it_ends(
    transport, commit, dial, eventually, is_mapped, monkeypatch
):
    send, go_on = stream_server._send, threading.Event()

    def send_and_linger(*arguments):
        try:
            send(*arguments)
        finally:
            assert go_on.wait(30)

    monkeypatch.setattr(stream_server, "_send", send_and_linger)
    owner = transport()
    location = await owner.offer(commit(bytes(30 << 20)), duration_s=60.0)
    reader, writer = await dial(location, limit=1024)
    nonce = os.urandom(NONCE)
    writer.write(MAGIC + bytes.fromhex(location.transfer_id) + nonce)
    writer.write(keys(location, nonce, await reader.readexactly(NONCE))["reader_proof"])
    await eventually(lambda: owner.stats().sending == 1)
    withdrawing = asyncio.create_task(owner.withdraw(location))
    await eventually(lambda: owner.stats().offers == 0)
    done, _ = await asyncio.wait([withdrawing], timeout=0.2)
    assert not done
    assert is_mapped()
    go_on.set()
    assert await withdrawing
    assert owner.stats().sending == 0
    assert not is_mapped()


async def test_an_address_that_does_not_answer(transport, copies, eventually):
    """A listener whose queue is full drops what comes: connecting waits."""
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    fillers = [socket.socket() for _ in range(4)]
    try:
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        location = StreamLocation("127.0.0.1", full.getsockname()[1], "00" * 16, 1, bytes(32))
        reader = transport()
        started = time.monotonic()
        with pytest.raises(DeadlineError):
            await reader.receive(location, copies, 0.3)
        assert time.monotonic() - started < 5
        cancelled = asyncio.create_task(reader.receive(location, copies, 60.0))
        closed = asyncio.create_task(reader.receive(location, copies, 60.0))
        await eventually(lambda: reader.stats().receiving == 2)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await reader.close(5.0)
        with pytest.raises(TransportError, match="closed"):
            await closed
    finally:
        for one in (full, *fillers):
            one.close()


async def test_an_address_where_nobody_listens(transport, copies):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        location = StreamLocation("127.0.0.1", unused.getsockname()[1], "00" * 16, 1, bytes(32))
        with pytest.raises(TransportError, match="Connection refused; its owner has ended"):
            await transport().receive(location, copies, 30.0)


async def test_a_name_without_an_address(transport, copies):
    location = StreamLocation("no-such-host.invalid", 1, "00" * 16, 1, bytes(32))
    with pytest.raises(TransportError, match="has no address"):
        await transport().receive(location, copies, 30.0)


async def test_a_cancelled_read_leaves_nothing(transport, commit, copies, relay, eventually):
    owner, reader = transport(), transport()
    location = await owner.offer(commit(os.urandom(30 << 20)), duration_s=60)
    relay.hold_after = CHUNK_BYTES
    relay.go_on.clear()
    read = asyncio.create_task(reader.receive(await relay.start(location), copies, 60.0))
    await asyncio.wait_for(relay.held.wait(), 30)
    await eventually(lambda: copies.stats().segment_count == 1)
    read.cancel()
    started = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await read
    assert time.monotonic() - started < 20  # of the 60 that it had
    assert copies.stats().segment_count == 0
    assert reader.stats().receiving == 0
    await eventually(lambda: len(reader._threads) == 0)
    await relay.stop()
    await eventually(lambda: owner.stats().failed_reads == 1)


async def test_a_closed_reader_tells_its_reads(transport, commit, copies, relay):
    reader = transport()
    location = await transport().offer(commit(os.urandom(30 << 20)), duration_s=60)
    relay.hold_after = CHUNK_BYTES
    relay.go_on.clear()
    read = asyncio.create_task(reader.receive(await relay.start(location), copies, 60.0))
    await asyncio.wait_for(relay.held.wait(), 30)
    await reader.close(5.0)
    with pytest.raises(TransportError, match="closed"):
        await read
    assert copies.stats().segment_count == 0


async def test_a_crowd_without_a_secret_takes_bounded_room_and_nobody_elses(
    transport, commit, copies, take, eventually, dial
):
    owner = transport(handshake_s=60.0, pending_limit=4)
    location = await owner.offer(commit(b"o" * SIZE), duration_s=30)
    crowd = [await dial(location) for _ in range(40)]
    await eventually(lambda: owner.stats().refused == 36)
    assert owner.stats().pending == 4
    await eventually(lambda: len(owner._threads) == 5)  # one that listens, and theirs
    for reader, _ in crowd[:36]:
        assert await asyncio.wait_for(reader.read(), 10) == b""  # let go, and told nothing
    assert len(take(await transport().receive(location, copies, 30.0))) == SIZE


async def test_who_came_first_has_time_for_its_proof_before_another_gets_the_place(transport, commit, dial):
    owner = transport(handshake_s=60.0, pending_limit=1)
    location = await owner.offer(commit(b"p"), duration_s=30)
    began = time.monotonic()
    first, _ = await dial(location)
    await dial(location)
    assert await asyncio.wait_for(first.read(), 10) == b""
    assert time.monotonic() - began >= 0.25


async def test_a_peer_that_says_nothing_is_let_go(transport, commit, eventually, dial):
    owner = transport(handshake_s=0.3)
    location = await owner.offer(commit(b"s"), duration_s=30)
    reader, _ = await dial(location)
    started = time.monotonic()
    assert await asyncio.wait_for(reader.read(), 10) == b""
    assert time.monotonic() - started > 0.2
    await eventually(lambda: (owner.stats().pending, owner.stats().refused) == (0, 1))
    await eventually(lambda: len(owner._threads) == 1)


async def test_a_peer_that_drips_its_hello_is_let_go(transport, commit, eventually, dial):
    owner = transport(handshake_s=0.5)
    location = await owner.offer(commit(b"p"), duration_s=30)
    reader, writer = await dial(location)
    started = time.monotonic()
    dripped = 0
    while not reader.at_eof() and dripped < HELLO - 1:
        writer.write(b"A")
        dripped += 1
        await asyncio.sleep(0.02)
    assert 0.4 < time.monotonic() - started < 5
    assert 0 < dripped < HELLO - 1
    await eventually(lambda: owner.stats().refused == 1)


async def test_garbage_in_front_of_a_proof_is_not_collected(transport, commit, eventually, dial):
    owner = transport()
    location = await owner.offer(commit(b"q"), duration_s=30)
    reader, writer = await dial(location)
    writer.write(os.urandom(8 << 20))
    await eventually(lambda: owner.stats().refused == 1)
    await eventually(lambda: writer.transport.is_closing() or reader.at_eof())
    assert owner.stats().sent_bytes <= NONCE


def test_without_cryptography_the_default_is_hmac(monkeypatch):
    assert choose_mac("auto") == "aes-gmac"
    monkeypatch.setattr(stream_mac.importlib.util, "find_spec", lambda name: None)
    assert choose_mac("auto") == "hmac-sha256"
    with pytest.raises(TransportError, match=r"install art-dataplane\[stream\]"):
        choose_mac("aes-gmac")
    with pytest.raises(TransportError, match="there is no MAC 'md5'"):
        choose_mac("md5")


@pytest.mark.parametrize("mac", ["auto", "none", ""])
async def test_a_location_with_another_mac_is_refused(transport, commit, copies, mac):
    location = await transport().offer(commit(b"r"), duration_s=30)
    with pytest.raises(TransportError, match="there is no MAC"):
        await transport().receive(msgspec.structs.replace(location, mac=mac), copies, 5.0)
