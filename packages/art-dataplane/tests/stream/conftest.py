"""Transports that are closed, a relay that changes what passes, and the check that nothing is left."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from art_dataplane import ShmLocation, ShmSegmentStore, StreamLocation, map_location
from art_dataplane.stream import StreamTransport

HOSTS = ("127.0.0.1", "::1")


async def closed(writers: list[asyncio.StreamWriter]) -> None:
    """Ends connections and waits until their sockets are gone."""
    for writer in writers:
        writer.transport.abort()
    await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


Dial = Callable[..., Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Relay:
    """Stands between reader and owner. ``to_reader`` and ``to_owner`` are given the offset of bytes in their
    direction and the bytes, and return what to pass on; None cuts both connections."""

    def __init__(self) -> None:
        self.passed_to_reader = bytearray()
        self.passed_to_owner = bytearray()
        self.connections = 0
        self.to_reader: Callable[[int, bytes], bytes | None] = lambda offset, data: data
        self.to_owner: Callable[[int, bytes], bytes | None] = lambda offset, data: data
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.hold_after: int | None = None
        self.held = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self, location: StreamLocation) -> StreamLocation:
        """Returns the location with the relay's address in it."""
        self._target = (location.host, location.port)
        self._server = await asyncio.start_server(self._start, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return msgspec.structs.replace(location, host="127.0.0.1", port=port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await closed(self._writers)

    def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        self._tasks.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        self._writers.append(up_writer)
        pumps = [
            asyncio.create_task(self._pump(up_reader, writer, self.passed_to_reader, "to_reader")),
            asyncio.create_task(self._pump(reader, up_writer, self.passed_to_owner, "to_owner")),
        ]
        try:
            while pending := {pump for pump in pumps if not pump.done()}:
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if any(pump.done() and pump.result() for pump in pumps):
                    break  # cut
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, up_writer):
                end.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passed: bytearray, way: str
    ) -> bool:
        """Returns whether the connection is to be cut."""
        offset = 0
        try:
            while True:
                if way == "to_reader" and self.hold_after is not None and offset >= self.hold_after:
                    self.held.set()
                    await self.go_on.wait()
                data = await reader.read(1 << 16)
                changed = getattr(self, way)(offset, data)
                offset += len(data)
                if changed is None:
                    return True
                passed += changed
                writer.write(changed)
                await writer.drain()
                if not data:
                    writer.write_eof()
                    return False
        except ConnectionError:
            return True


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    relay = Relay()
    yield relay
    await relay.stop()


@pytest.fixture
async def dial() -> AsyncIterator[
    Callable[..., Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
]:
    """Connects to the owner of a location without a word."""
    writers: list[asyncio.StreamWriter] = []

    async def dial(
        location: StreamLocation, **options: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(location.host, location.port, **options)
        writers.append(writer)
        return reader, writer

    yield dial
    await closed(writers)


@pytest.fixture
async def transport() -> AsyncIterator[Callable[..., StreamTransport]]:
    """Makes transports; they are closed at the end of the test, within 5 s."""
    made: list[StreamTransport] = []

    def make(host: str = "127.0.0.1", **options: object) -> StreamTransport:
        made.append(StreamTransport(host, **options))
        return made[-1]

    yield make
    for one in made:
        await one.close(5.0)


@pytest.fixture
def commit(segments: ShmSegmentStore) -> Callable[[bytes], ShmLocation]:
    def commit(data: bytes) -> ShmLocation:
        with segments.reserve(len(data)) as reservation:
            reservation.buffer[:] = data
            return reservation.commit()

    return commit


@pytest.fixture
def copies(run_id: str) -> Iterator[ShmSegmentStore]:
    """Where readers put what they read; empty at the end of the test."""
    with ShmSegmentStore(run_id, 64 << 20) as store:
        yield store
        assert store.stats().segment_count == 0, "a copy was kept"


@pytest.fixture
def take(copies: ShmSegmentStore) -> Callable[[ShmLocation], bytes]:
    """Reads a copy and drops it."""

    def take(location: ShmLocation) -> bytes:
        with map_location(location) as mapped:
            data = bytes(mapped.view)
        assert copies.drop(location)
        return data

    return take


@pytest.fixture
def eventually() -> Callable[..., Awaitable[None]]:
    async def eventually(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
        deadline = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            await asyncio.sleep(0.005)

    return eventually


@pytest.fixture
def is_mapped(run_id: str) -> Callable[[], bool]:
    """Whether this process has a segment of the test mapped."""
    return lambda: f"art-{run_id}-" in Path("/proc/self/maps").read_text()


def _sockets() -> int:
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{entry}").startswith("socket:")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return count


@pytest.fixture(autouse=True)
def _leave_no_thread_and_no_socket_behind() -> Iterator[None]:
    sockets = _sockets()
    yield
    deadline = time.monotonic() + 5.0
    while _sockets() > sockets and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _sockets() <= sockets
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("art-stream")] == []
