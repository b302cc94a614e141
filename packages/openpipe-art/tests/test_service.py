"""A service's methods are called with typed messages, cancelled, streamed, closed; its errors come back."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator

import msgspec
import numpy as np
import pytest

from art.distributed.service import (
    Call,
    Cancel,
    End,
    NextItem,
    Raised,
    ServiceError,
    ServiceHost,
    Value,
    encode,
    load,
    method_signature,
    reference_of,
)
from art_dataplane import arrays


class Point(msgspec.Struct, frozen=True):
    x: int
    values: np.ndarray


class Calculator:
    def __init__(self, start: int, names: list[str]) -> None:
        self.start = start
        self.names = names
        self.closed = False
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.finished_streams = 0
        self.threads: list[int] = []

    async def add(self, point: Point, factor: int = 1) -> Point:
        return Point(self.start + factor * point.x, point.values * factor)

    def thread(self) -> int:
        self.threads.append(threading.get_ident())
        return threading.get_ident()

    async def wait(self) -> None:
        self.waiting.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.cancelled.set()

    async def fail(self) -> None:
        raise KeyError("missing")

    async def leave(self) -> None:
        sys.exit(3)

    async def count(self, stop: int) -> AsyncIterator[int]:
        try:
            for number in range(stop):
                yield number
        finally:
            self.finished_streams += 1

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def service() -> Calculator:
    return load(reference_of(Calculator, (10, ["a"])))


def call(method: str, *arguments: object, call_id: int = 1) -> Call:
    return Call(call_id, method, encode(list(arguments)))


async def test_arguments_and_results_are_typed(service: Calculator) -> None:
    assert (service.start, service.names) == (10, ["a"])
    reply = await ServiceHost(service).call(call("add", Point(2, np.arange(3)), 2))
    assert isinstance(reply, Value)
    result = arrays.decode(reply.data, method_signature(Calculator, "add").result)
    assert result.x == 14
    assert result.values.tolist() == [0, 2, 4]


async def test_plain_methods_share_one_thread_that_is_not_the_loops(service: Calculator) -> None:
    host = ServiceHost(service)
    replies = await asyncio.gather(*(host.call(call("thread", call_id=n)) for n in range(4)))
    assert all(isinstance(reply, Value) for reply in replies)
    assert len(set(service.threads)) == 1
    assert service.threads[0] != threading.get_ident()


async def test_an_exception_comes_back_with_its_traceback(service: Calculator) -> None:
    reply = await ServiceHost(service).call(call("fail"))
    assert isinstance(reply, Raised)
    assert reply.kind == "KeyError"
    assert "missing" in reply.message
    assert 'raise KeyError("missing")' in reply.traceback


async def test_leaving_the_process_is_an_error_like_another(service: Calculator) -> None:
    reply = await ServiceHost(service).call(call("leave"))
    assert isinstance(reply, Raised)
    assert reply.kind == "SystemExit"


@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        ("add", ("x",), r"arguments of Calculator.add\(\): Expected `object`, got `str`"),
        ("add", (), r"takes 1 to 2 arguments, got 0"),
        ("nothing", (), "has no method 'nothing'"),
        ("__init__", (1, []), "has no method '__init__'"),
        ("start", (), "has no method 'start'"),
    ],
)
async def test_a_call_that_does_not_fit_is_refused(
    service: Calculator, method: str, arguments: tuple[object, ...], text: str
) -> None:
    reply = await ServiceHost(service).call(call(method, *arguments))
    assert isinstance(reply, Raised)
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(reply.message)


async def test_cancelling_a_call_cancels_the_method(service: Calculator) -> None:
    host = ServiceHost(service)
    running = asyncio.ensure_future(host.call(call("wait", call_id=7)))
    await asyncio.wait_for(service.waiting.wait(), 5)
    await host.cancel(Cancel(7))
    reply = await asyncio.wait_for(running, 5)
    assert isinstance(reply, Raised)
    assert reply.kind == "asyncio.CancelledError"
    assert service.cancelled.is_set()
    await host.cancel(Cancel(7))


async def test_a_stream_gives_its_items_and_its_end(service: Calculator) -> None:
    host = ServiceHost(service)
    assert await host.call(call("count", 2, call_id=5)) == Value(b"")
    replies = [await host.next_item(NextItem(5)) for _ in range(3)]
    assert [arrays.decode(reply.data, int) for reply in replies[:2] if isinstance(reply, Value)] == [0, 1]
    assert replies[2] == End()
    assert service.finished_streams == 1


async def test_closing_a_stream_early_runs_its_clean_up(service: Calculator) -> None:
    host = ServiceHost(service)
    await host.call(call("count", 100, call_id=5))
    await host.next_item(NextItem(5))
    await host.cancel(Cancel(5))
    assert service.finished_streams == 1
    assert isinstance(await host.next_item(NextItem(5)), Raised)


async def test_close_cancels_what_runs_and_closes_the_service(service: Calculator) -> None:
    host = ServiceHost(service)
    running = asyncio.ensure_future(host.call(call("wait")))
    await asyncio.wait_for(service.waiting.wait(), 5)
    assert await host.close() == Value(b"")
    assert isinstance(await asyncio.wait_for(running, 5), Raised)
    assert service.closed


def test_a_class_that_cannot_be_imported_is_refused() -> None:
    class Local:
        pass

    with pytest.raises(ServiceError, match="define it at the top level of a module"):
        reference_of(Local, ())


def test_a_value_that_is_no_message_is_refused() -> None:
    with pytest.raises(ServiceError, match="cannot cross a process boundary"):
        encode([object()])
