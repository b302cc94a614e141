"""What runs inside an actor's process: an ordinary object whose methods are called by name with typed
messages.

A *service* is an object of a top-level class. Its public methods are its interface; their annotations say how
arguments and results are encoded (MessagePack by :mod:`art_dataplane.arrays`). Rules:

- an ``async def`` method runs on the process's event loop, concurrently with others;
- a ``def`` method runs in one thread of the process, one at a time, in the order of the calls;
- an ``async def`` method with ``yield`` is a stream: the caller takes item by item;
- ``close`` (either kind, without arguments), if there is one, is called once before the process ends in
order.

No module here imports monarch, so a service can be tested in process.
"""

import asyncio
import contextlib
import importlib
import inspect
import traceback
import types
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from art.errors import ArtError
from art_dataplane import arrays
from art_dataplane.errors import OwnerDiedError, RecordsLostError, RecordsMissingError


class ServiceReference(msgspec.Struct, frozen=True):
    """Names a service class by import path, with what its constructor is given (encoded)."""

    module: str
    qualname: str
    arguments: bytes
    python_path: tuple[str, ...] = ()


class Call(msgspec.Struct, frozen=True):
    """One call. ``arguments`` is the MessagePack of a list; ``call_id`` is unique per caller."""

    call_id: int
    method: str
    arguments: bytes


class NextItem(msgspec.Struct, frozen=True, tag="next"):
    """Asks for a stream's next item."""

    call_id: int


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancels a call or closes a stream; an unknown id is ignored, since the call may just have ended."""

    call_id: int


class Value(msgspec.Struct, frozen=True, tag="value"):
    """A result or a stream's item, encoded."""

    data: bytes


class End(msgspec.Struct, frozen=True, tag="end"):
    """A stream is over."""


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """The method raised.

    Args:
        kind: the exception's type, ``module.Type``.
        message: its text.
        traceback: its formatted traceback.
        arguments: MessagePack of what an error of the data plane about records was made with, such as their
            ids; empty for every other one.
    """

    kind: str
    message: str
    traceback: str
    arguments: bytes = b""


Reply = Value | End | Raised


class ServiceError(ArtError):
    """A class cannot be a service, or a call does not fit its interface."""


def reference_of(
    cls: type, arguments: tuple[Any, ...], python_path: tuple[str, ...] = ()
) -> ServiceReference:
    """The reference to ``cls``.

    Raises:
        ServiceError: it is not importable by its name.
    """
    if "<locals>" in cls.__qualname__ or cls.__module__ == "__main__":
        raise ServiceError(
            f"{cls.__module__}.{cls.__qualname__} cannot be imported in another process; define it at the "
            "top level of a module"
        )
    return ServiceReference(cls.__module__, cls.__qualname__, encode(list(arguments)), python_path)


def load(reference: ServiceReference) -> Any:
    """Imports the class and makes the object; its arguments are decoded by the constructor's annotations."""
    module = importlib.import_module(reference.module)
    cls = module
    for part in reference.qualname.split("."):
        cls = getattr(cls, part)
    return cls(*decode_arguments(_signature(cls.__init__), reference.arguments))  # type: ignore[operator, misc]


def encode(value: Any) -> bytes:
    """Encodes a message.

    Raises:
        ServiceError: it is not made of structs, plain data and arrays.
    """
    try:
        return arrays.encode(value)
    except (TypeError, NotImplementedError) as error:
        raise ServiceError(
            f"{type(value).__name__} cannot cross a process boundary: {error}. Send msgspec structs, plain "
            "data or NumPy arrays"
        ) from error


class Signature(msgspec.Struct, frozen=True):
    """The types of a method: its parameters in order, how many are required, its result or its stream's
    items."""

    name: str
    parameters: tuple[Any, ...]
    required: int
    result: Any
    streams: bool


def _signature(function: Callable[..., Any]) -> Signature:
    hints = typing.get_type_hints(function)
    parameters = [
        parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self" and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    result = hints.get("return", Any)
    streams = inspect.isasyncgenfunction(function)
    if streams:
        result = (typing.get_args(result) or (Any,))[0]
    return Signature(
        name=function.__qualname__,
        parameters=tuple(hints.get(parameter.name, Any) for parameter in parameters),
        required=sum(parameter.default is parameter.empty for parameter in parameters),
        result=types.NoneType if result is None else result,
        streams=streams,
    )


def method_signature(cls: type, method: str) -> Signature:
    """The types of a public method.

    Raises:
        ServiceError: there is no such method.
    """
    function = None if method.startswith("_") else inspect.getattr_static(cls, method, None)
    if not inspect.isfunction(function):
        raise ServiceError(f"{cls.__module__}.{cls.__qualname__} has no method {method!r}")
    return _signature(function)


def decode_arguments(signature: Signature, data: bytes) -> list[Any]:
    """Decodes a call's arguments by the method's annotations.

    Raises:
        ServiceError: their number or types do not fit.
    """
    raw = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
    if not signature.required <= len(raw) <= len(signature.parameters):
        raise ServiceError(
            f"{signature.name}() takes {signature.required} to {len(signature.parameters)} arguments, got "
            f"{len(raw)}"
        )
    try:
        return [
            arrays.decode(bytes(item), kind) for item, kind in zip(raw, signature.parameters, strict=False)
        ]
    except msgspec.ValidationError as error:
        raise ServiceError(f"arguments of {signature.name}(): {error}") from error


_TELLING = (OwnerDiedError, RecordsLostError, RecordsMissingError)
"""Errors that say which records and groups they are about."""


def raised(error: BaseException) -> Raised:
    """An exception as a reply."""
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    arguments = arrays.encode(error.args) if isinstance(error, _TELLING) else b""
    return Raised(kind, sendable(str(error)), sendable("".join(traceback.format_exception(error))), arguments)


def sendable(text: str) -> str:
    """The text with what UTF-8 cannot hold, halves of surrogate pairs, written as ``\\udXXX``."""
    return text.encode("utf-8", "backslashreplace").decode()


class ServiceHost:
    """Holds one service and runs the calls made to it. All its methods belong to one event loop."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="art-service")
        self._running: dict[int, asyncio.Task[Any]] = {}
        self._streams: dict[int, AsyncIterator[Any]] = {}

    async def call(self, call: Call) -> Reply:
        """Runs a method to its end, or opens a stream (then the value is empty)."""
        task = asyncio.ensure_future(self._run(call))
        self._running[call.call_id] = task
        try:
            return await task
        except asyncio.CancelledError:
            how = (
                "was cancelled by its caller"
                if task.cancelling()
                else "raised it, though nobody cancelled it"
            )
            return Raised("asyncio.CancelledError", f"{call.method}() {how}", "")
        finally:
            del self._running[call.call_id]

    async def _run(self, call: Call) -> Reply:
        try:
            signature = method_signature(type(self._service), call.method)
            arguments = decode_arguments(signature, call.arguments)
            method = getattr(self._service, call.method)
            if signature.streams:
                self._streams[call.call_id] = method(*arguments)
                return Value(b"")
            if inspect.iscoroutinefunction(method):
                return Value(encode(await method(*arguments)))
            loop = asyncio.get_running_loop()
            return Value(encode(await loop.run_in_executor(self._thread, method, *arguments)))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - also sys.exit() in a method goes to its caller
            return raised(error)

    async def next_item(self, request: NextItem) -> Reply:
        """Takes the next item of a stream."""
        stream = self._streams.get(request.call_id)
        if stream is None:
            return Raised("ServiceError", f"no stream {request.call_id}: it was closed", "")
        task = asyncio.ensure_future(anext(stream))
        self._running[request.call_id] = task
        try:
            return Value(encode(await task))
        except StopAsyncIteration:
            del self._streams[request.call_id]
            return End()
        except asyncio.CancelledError:
            return Raised("asyncio.CancelledError", "the stream was closed by its caller", "")
        except Exception as error:  # noqa: BLE001 - every error of a stream goes to its caller
            self._streams.pop(request.call_id, None)
            return raised(error)
        finally:
            del self._running[request.call_id]

    async def cancel(self, request: Cancel) -> None:
        """Cancels a call or closes a stream. A ``def`` method that already runs goes on to its end."""
        task = self._running.get(request.call_id)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await asyncio.wait([task], timeout=1.0)
        stream = self._streams.pop(request.call_id, None)
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()

    async def close(self) -> Reply:
        """Cancels what runs and closes the service, if it has a ``close``."""
        for task in list(self._running.values()):
            task.cancel()
        close = getattr(self._service, "close", None)
        if close is None:
            return Value(b"")
        try:
            if inspect.iscoroutinefunction(close):
                await close()
            else:
                await asyncio.get_running_loop().run_in_executor(self._thread, close)
        except Exception as error:  # noqa: BLE001 - handed to the caller
            return raised(error)
        return Value(b"")
