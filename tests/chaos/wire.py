"""Calls between the processes of a chaos session: one message and one answer over a Unix socket.

A message is one struct of :mod:`chaos.messages`, an answer its result or the error that it raised, each
behind its length. A process that is gone shows as ``ConnectionError`` or ``EOFError``, one that does not
answer as ``DeadlineError``.
"""

import asyncio
import pickle
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from chaos.messages import Message

from art_dataplane import DataPlaneError, DeadlineError, decode, encode

_LENGTH_BYTES = 8


async def serve(path: Path, handle: Callable[[Message], Awaitable[Any]]) -> asyncio.Server:
    """Answers messages at ``path`` until it is closed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            message = decode(await _receive(reader), Message)
            try:
                reply = b"+" + encode(await handle(message))
            except Exception as error:  # noqa: BLE001  # told to the caller
                if not isinstance(error, DataPlaneError | OSError):
                    error.add_note(traceback.format_exc())
                reply = b"-" + pickle.dumps(error)
            await _send(writer, reply)
        except (ConnectionError, EOFError):
            return  # the caller gave up or was killed
        finally:
            writer.close()

    return await asyncio.start_unix_server(answer, path)


class Peer:
    """Another process of the session, by its name; a call does not outlive its deadline.

    Args:
        folder: where the sockets are.
        name: of the process.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.name = name

    async def call[T](self, message: Message, kind: type[T], deadline_s: float) -> T:
        """Sends ``message`` and waits for the answer, of type ``kind``.

        Raises:
            ConnectionError, EOFError: the process is gone.
            DeadlineError: there was no answer within ``deadline_s`` seconds.
            Exception: what the other process raised.
        """
        what = f"{type(message).__name__} to {self.name}"
        if not deadline_s > 0:
            raise DeadlineError(f"{what}: the deadline has passed")
        try:
            async with asyncio.timeout(deadline_s):
                reply = await self._exchange(encode(message))
        except (TimeoutError, BlockingIOError) as error:  # the latter when a stopped process accepts no more
            raise DeadlineError(f"{what}: no answer within {deadline_s} s") from error
        if reply[:1] == b"-":
            raise pickle.loads(reply[1:])
        return decode(reply[1:], kind)

    async def _exchange(self, message: bytes) -> bytes:
        try:
            reader, writer = await asyncio.open_unix_connection(self._folder / self.name)
        except FileNotFoundError as error:
            raise ConnectionRefusedError(f"{self.name} has ended") from error
        try:
            await _send(writer, message)
            return await _receive(reader)
        finally:
            writer.close()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big"))
