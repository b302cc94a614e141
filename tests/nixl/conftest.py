"""Other hosts, as processes and as network namespaces, and the check that nothing of them is left."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from art_dataplane import NixlLocation, ShmSegmentStore, decode, list_segments
from art_dataplane.nixl import NixlTransport

MIB = 1 << 20


class PeerProcess:
    """``peer.py`` and what it is asked."""

    def __init__(self, run_id: str, devices: str, transports: str, namespace: str | None = None) -> None:
        prefix = ["ip", "netns", "exec", namespace] if namespace else []
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(Path(__file__).parent / "peer.py"), run_id, devices, transports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    async def ask(self, do: str, **arguments: Any) -> Any:
        """The answer; a ``RuntimeError`` with the peer's error when it has one."""
        answer = await asyncio.to_thread(self._ask, {"do": do, **arguments})
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    async def offer(self, byte_count: int, seed: int = 0, **arguments: Any) -> NixlLocation:
        text = await self.ask("offer", byte_count=byte_count, seed=seed, **arguments)
        return decode(b64decode(text), NixlLocation)

    async def wakes_up(self) -> bool:
        """Lets a stopped owner go on, and waits until it has seen to what waited for it.

        False when UCX ended it: now and then it aborts an owner whose reader went while it was stopped
        (``Fatal: unexpected error: Endpoint timeout``, NIXL 1.5.1 over TCP), which the reader cannot prevent.
        """
        os.kill(self.pid, signal.SIGCONT)
        try:
            await self.offer(4096)
        except (AssertionError, BrokenPipeError):
            if self.process.wait(10) != -signal.SIGABRT:
                raise
            return False
        return True

    def end(self) -> None:
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
        try:
            self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            assert line, f"the peer ended with {self.process.wait(10)} when asked {request}"
            if line.startswith("{"):  # UCX writes its warnings there, too
                return json.loads(line)


StartPeer = Callable[..., PeerProcess]


@pytest.fixture
def run_id() -> Iterator[str]:
    run_id = f"nixl-{uuid.uuid4().hex[:12]}"
    yield run_id
    for info in list_segments(run_id):  # of peers that a test killed
        assert info.owner_alive is False, f"{info.name} is left by a process that lives"
        Path("/dev/shm", info.name).unlink()


@pytest.fixture
def start_peer(run_id: str) -> Iterator[StartPeer]:
    """Starts a peer; ``transports`` are UCX's, ``devices`` its interfaces."""
    peers: list[PeerProcess] = []

    def start(transports: str = "", devices: str = "lo", namespace: str | None = None) -> PeerProcess:
        peers.append(PeerProcess(run_id, devices, transports, namespace))
        return peers[-1]

    yield start
    for peer in peers:
        peer.end()


@pytest.fixture
def segments(run_id: str) -> Iterator[ShmSegmentStore]:
    with ShmSegmentStore(run_id, 1024 * MIB, recycle_bytes=512 * MIB) as store:
        yield store


@pytest.fixture
async def transport() -> AsyncIterator[NixlTransport]:
    """This process's transport, with TCP forced: every byte needs the other process's help."""
    before = set(threading.enumerate())
    transport = NixlTransport(["lo"], transports=["tcp"])
    yield transport
    await transport.close(2.0)
    left = [thread.name for thread in threading.enumerate() if thread not in before and "nixl" in thread.name]
    assert left == []


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """Waits until a condition holds, which may be a coroutine function."""

    async def wait(condition: Callable[[], bool | Awaitable[bool]], within_s: float = 30.0) -> None:
        async def holds() -> bool:
            found = condition()
            return found if isinstance(found, bool) else await found

        deadline = time.monotonic() + within_s
        while not await holds():
            assert time.monotonic() < deadline, f"not true within {within_s} s"
            await asyncio.sleep(0.01)

    return wait
