"""Which cause is told of a process that ended."""

import asyncio
import subprocess
from collections.abc import Iterator

import pytest

from art.distributed.handle import ActorHandle
from art.distributed.processes import identify


@pytest.fixture
def killed() -> Iterator[int]:
    """The pid of a process that was killed and not waited for yet."""
    process = subprocess.Popen(["sleep", "60"])
    process.kill()
    yield process.pid
    process.wait()


async def test_what_ends_a_moment_before_its_worker_is_told_to_have_ended_with_it(killed: int) -> None:
    looks = iter([None])
    end = "(pid 7) was killed by SIGKILL"
    handle = ActorHandle("packing worker", "packing_worker", object, 0, lambda: next(looks, end))
    process = identify(killed)
    assert process is not None
    handle._watch(process)
    try:
        died = await asyncio.wait_for(handle.wait_died(), 10)
    finally:
        handle.release("stopped")
    assert died.cause == f"the worker process of its host {end}"
