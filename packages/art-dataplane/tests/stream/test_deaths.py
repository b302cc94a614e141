"""Processes that are killed or stopped in the middle of a stream."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from art_dataplane import (
    DeadlineError,
    ShmSegmentStore,
    StreamLocation,
    TransportError,
    decode_json,
    encode_json,
    sweep,
)
from art_dataplane.stream_mac import CHUNK_BYTES

SIZE = 48 << 20
"""More than any socket's buffers hold."""

OWNER = """
import asyncio, sys
from art_dataplane import ShmSegmentStore, encode_json
from art_dataplane.stream import StreamTransport

async def main(run_id, host, size):
    with ShmSegmentStore(run_id, size + 4096) as store:
        with store.reserve(size) as reservation:
            reservation.buffer[:] = b"s" * size
            source = reservation.commit()
        transport = StreamTransport(host)
        print(encode_json(await transport.offer(source, duration_s=60, reads=2)).decode(), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await transport.close(5)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""

READER = """
import asyncio, sys, time
from art_dataplane import ShmSegmentStore, StreamLocation, decode_json
from art_dataplane.stream import StreamTransport

class Slow(ShmSegmentStore):
    def reserve(self, byte_count):
        print("admitted", flush=True)
        time.sleep(600)

async def main(run_id, location):
    with Slow(run_id, 64 << 20) as store:
        await StreamTransport("127.0.0.1").receive(decode_json(location, StreamLocation), store, 600)

asyncio.run(main(sys.argv[1], sys.argv[2].encode()))
"""


class HeldStore(ShmSegmentStore):
    """Lets the reader go on only when the test says so: until then the owner is in the middle of sending."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, SIZE + 4096)
        self.admitted = threading.Event()
        self.go_on = threading.Event()

    def reserve(self, byte_count: int):
        self.admitted.set()
        assert self.go_on.wait(30)
        return super().reserve(byte_count)


@pytest.fixture
def start(run_id):
    processes: list[subprocess.Popen] = []

    def start(code: str, *arguments: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", code, run_id, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=30)
    sweep(run_id)


async def line(process: subprocess.Popen) -> bytes:
    text = await asyncio.to_thread(process.stdout.readline)
    assert text, "the process did not start"
    return text


async def test_an_owner_that_is_killed_in_the_middle(transport, start, run_id):
    owner = start(OWNER, "127.0.0.1", str(SIZE))
    location = decode_json(await line(owner), StreamLocation)
    with HeldStore(run_id) as store:
        read = asyncio.create_task(transport().receive(location, store, 60.0))
        assert await asyncio.to_thread(store.admitted.wait, 30)
        owner.send_signal(signal.SIGKILL)
        owner.wait(30)
        store.go_on.set()
        started = time.monotonic()
        with pytest.raises(TransportError, match=r"ended the stream|broke after"):
            await read
        assert time.monotonic() - started < 20
        assert store.stats().segment_count == 0


async def test_an_owner_that_is_stopped_in_the_middle(transport, start, run_id):
    owner = start(OWNER, "::1", str(SIZE))
    location = decode_json(await line(owner), StreamLocation)
    with HeldStore(run_id) as store:
        read = asyncio.create_task(transport().receive(location, store, 2.0))
        assert await asyncio.to_thread(store.admitted.wait, 30)
        owner.send_signal(signal.SIGSTOP)
        store.go_on.set()
        with pytest.raises(DeadlineError, match=r"not received within 2\.0 s"):
            await read
        assert store.stats().segment_count == 0
        owner.send_signal(signal.SIGCONT)
        again = await transport().receive(location, store, 60.0)
        assert store.drop(again)


async def test_a_reader_that_is_killed_in_the_middle(
    transport, start, commit, copies, take, eventually, is_mapped
):
    owner = transport()
    location = await owner.offer(commit(b"t" * SIZE), duration_s=60, reads=1)
    reader = start(READER, encode_json(location).decode())
    assert await line(reader) == b"admitted\n"
    await eventually(lambda: owner.stats().sending == 1)
    reader.send_signal(signal.SIGKILL)
    await eventually(lambda: owner.stats().failed_reads == 1)
    assert owner.stats().sending == 0
    assert owner.stats().offers == 1
    assert take(await transport().receive(location, copies, 60.0)) == b"t" * SIZE
    await eventually(lambda: owner.stats().offers == 0)
    assert not is_mapped()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_two_processes(transport, start, copies, take, host):
    size = 3 * CHUNK_BYTES + 17
    owner = start(OWNER, host, str(size))
    location = decode_json(await line(owner), StreamLocation)
    assert take(await transport().receive(location, copies, 60.0)) == b"s" * size
    assert owner.poll() is None
    await asyncio.to_thread(owner.communicate, timeout=30)
    assert owner.returncode == 0
    assert os.listdir("/dev/shm").count(f"art-{owner.pid}") == 0
