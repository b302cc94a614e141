"""The one Monarch actor: it holds a service (:mod:`art.distributed.service`) in a process of its own.

Only this module, ``monarch_setup`` and ``worker_process`` import monarch. Messages are MessagePack bytes.
"""

import contextlib
import gc
import os
import socket
import sys
from collections.abc import Iterator

import msgspec
from monarch.actor import Actor, concurrent_endpoint

from art.distributed.processes import machine_id, this_process
from art.distributed.service import (
    Call,
    Cancel,
    NextItem,
    Raised,
    Reply,
    ServiceHost,
    ServiceReference,
    load,
    raised,
)


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """Who an actor's process is. ``machine`` tells whether its process id means anything to the caller."""

    pid: int
    start_ticks: int
    hostname: str
    machine: str


Greeting = Hello | Raised


class ServiceActor(Actor):  # type: ignore[misc]
    """Made by the runtime; ``start`` comes first."""

    def __init__(self) -> None:
        self._host: ServiceHost | None = None

    @concurrent_endpoint  # type: ignore[untyped-decorator]
    async def start(self, reference: bytes) -> bytes:
        """Imports and makes the service (a :class:`ServiceReference`); answers with a :class:`Greeting`."""
        return msgspec.msgpack.encode(self._start(msgspec.msgpack.decode(reference, type=ServiceReference)))

    def _start(self, reference: ServiceReference) -> Greeting:
        try:
            sys.path[:0] = [path for path in reference.python_path if path not in sys.path]
            with _uncollected():
                self._host = ServiceHost(load(reference))
        except Exception as error:  # noqa: BLE001 - handed to the caller
            return raised(error)
        me = this_process()
        return Hello(os.getpid(), me.start_ticks, socket.gethostname(), machine_id())

    @property
    def _started(self) -> ServiceHost:
        if self._host is None:
            raise RuntimeError("the service was not started")
        return self._host

    @concurrent_endpoint  # type: ignore[untyped-decorator]
    async def call(self, message: bytes) -> bytes:
        """A :class:`Call`; answers with a :class:`Reply`."""
        return _encode(await self._started.call(msgspec.msgpack.decode(message, type=Call)))

    @concurrent_endpoint  # type: ignore[untyped-decorator]
    async def next_item(self, message: bytes) -> bytes:
        """A :class:`NextItem`; answers with a :class:`Reply`."""
        return _encode(await self._started.next_item(msgspec.msgpack.decode(message, type=NextItem)))

    @concurrent_endpoint  # type: ignore[untyped-decorator]
    async def cancel(self, message: bytes) -> bytes:
        """A :class:`Cancel`; answers with nothing."""
        await self._started.cancel(msgspec.msgpack.decode(message, type=Cancel))
        return b""

    @concurrent_endpoint  # type: ignore[untyped-decorator]
    async def close(self, _message: bytes) -> bytes:
        """Closes the service; answers with a :class:`Reply`."""
        return _encode(await self._started.close())


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """For imports: nearly all that they allocate stays, so looking for garbage in it is in vain, now and
    later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _encode(reply: Reply) -> bytes:
    return msgspec.msgpack.encode(reply)
