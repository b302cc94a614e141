"""Calls that must be awaited say so, with the line of the call, when they are not."""

import functools
import inspect
import warnings
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, NoReturn

from art.calls import check_arguments
from art.user_code import AWAIT_HINT, caller_place, place

_told_once: dict[str | tuple[str, type[Warning], int], int] = {}
"""By which the warnings module knows the lines that were told."""


class NotAwaitedWarning(RuntimeWarning):
    """A call of ART's did nothing, since nobody awaited it."""


def must_be_awaited[**P, T](
    function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorates an ``async def``: what a call gives is a coroutine that tells how it should have been used.

    An attribute of it, or a loop over it, is an error that asks for the ``await``; one that is dropped before
    it ran warns with the line of the call. Wrong arguments raise :class:`art.calls.ArgumentError` at the
    call.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> Coroutine[Any, Any, T]:
        check_arguments(signature, function.__qualname__, arguments, keywords)
        return _Call(lambda: function(*arguments, **keywords), function.__qualname__, *caller_place(1))

    return inspect.markcoroutinefunction(call)


def hand_over(awaitable: object) -> None:
    """Says that somebody else sees to it that ``awaitable`` is awaited, so that dropping it is no mistake."""
    if isinstance(awaitable, _Call):
        awaitable.handed_over = True


class _Call[T](Coroutine[Any, Any, T]):
    """The coroutine of one call; the function's own is made when this one is first used.

    Made before, it would warn as well when it is dropped, without the line of the call.
    """

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]], name: str, file: str, line: int) -> None:
        self.__qualname__ = name
        self.__name__ = name.rpartition(".")[2]
        self._make = make
        self._coroutine: Coroutine[Any, Any, T] | None = None
        self._closed = False
        self.handed_over = False
        self._file = file
        self._line = line

    def _made(self) -> Coroutine[Any, Any, T]:
        if self._coroutine is None:
            if self._closed:
                raise RuntimeError("cannot reuse already awaited coroutine")
            self._coroutine = self._make()
        return self._coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        return self._made().__await__()

    def send(self, value: Any) -> Any:
        """As a coroutine's."""
        return self._made().send(value)

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None, /) -> Any:
        """As a coroutine's."""
        return self._made().throw(kind if value is None else value)

    def close(self) -> None:
        """As a coroutine's."""
        self._closed = True
        if self._coroutine is not None:
            self._coroutine.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "cr_")):  # what asyncio and debuggers ask of a coroutine
            return getattr(self._coroutine, name)
        raise AttributeError(f"{name!r} of {self._told()}", name=name, obj=self)

    def __iter__(self) -> NoReturn:
        raise TypeError(f"iteration over {self._told()}")

    def __getitem__(self, _key: object) -> NoReturn:
        raise TypeError(f"an item of {self._told()}")

    def _told(self) -> str:
        return (
            f"{self.__qualname__}(...), which was not awaited ({place(self._file, self._line)}): {AWAIT_HINT}"
        )

    def __del__(self) -> None:
        if self._coroutine is None and not self._closed and not self.handed_over:
            text = f"{self.__qualname__}(...) was never awaited, so it did nothing: {AWAIT_HINT}"
            warnings.warn_explicit(text, NotAwaitedWarning, self._file, self._line, registry=_told_once)
