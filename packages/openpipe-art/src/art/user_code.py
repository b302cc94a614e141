"""Which lines are the user's own, and what is said about them.

A message about what a user's program did names the place in that program: ``train.py:31, in rollout``.
"""

import functools
import importlib.util
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Literal

type Kind = Literal["user", "art", "library"]

AWAIT_HINT = "did you forget `await`?"

_ART = Path(__file__).resolve().parent
_SIBLINGS = ("art_topology", "art_dataplane", "art_kernels", "art_trainer", "art_serving")
_PROGRAMS = _ART / "demo"  # programs over the public interface, as users write them
_SHOWN_CHARACTERS = 80


@functools.cache
def _art_folders() -> tuple[Path, ...]:
    """ART's own packages; of a clone they are not installed among the libraries."""
    specs = (importlib.util.find_spec(name) for name in _SIBLINGS)
    return (_ART, *(Path(spec.origin).resolve().parent for spec in specs if spec is not None and spec.origin))


@functools.cache
def _libraries() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({Path(path).resolve() for name in names if (path := sysconfig.get_path(name))})


@functools.lru_cache(4096)
def kind_of(filename: str) -> Kind:
    """Whose file it is. The programs that ART brings along count as a user's."""
    path = Path(filename)
    if any(path.is_relative_to(folder) for folder in _art_folders()):
        return "user" if path.is_relative_to(_PROGRAMS) else "art"
    if filename.startswith("<") or any(path.is_relative_to(folder) for folder in _libraries()):
        return "library"
    return "user"


def is_users(filename: str) -> bool:
    """Whether the file is neither ART's nor an installed library's."""
    return kind_of(filename) == "user"


def user_line() -> tuple[str, int, str] | None:
    """The innermost line of the user's that runs now: file, line and function."""
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename):
            return code.co_filename, frame.f_lineno, code.co_qualname
        frame = frame.f_back
    return None


def user_place() -> str:
    """The innermost line of the user's that runs now, ``FILE:LINE, in FUNCTION``; empty if there is none."""
    found = user_line()
    return place(*found) if found is not None else ""


def with_place(text: str) -> str:
    """The text with the user's line that runs now behind it, if there is one."""
    found = user_place()
    return f"{text} ({found})" if found else text


def place(filename: str, line: int, function: str = "") -> str:
    """``FILE:LINE, in FUNCTION``."""
    return f"{filename}:{line}, in {function}" if function and function[0] != "<" else f"{filename}:{line}"


def definition(function: Callable[..., Any]) -> str:
    """A function with the place where it is defined: ``rollout (FILE:LINE)``."""
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    name = getattr(plain, "__qualname__", repr(plain))
    return name if code is None else f"{name} ({place(code.co_filename, code.co_firstlineno)})"


def shown(value: object) -> str:
    """A value for a message, as ``repr`` gives it, in one line and shortened."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:  # noqa: BLE001 - a user's __repr__ must not hide what is being told
        text = f"<{type(value).__name__} whose repr() raises {type(error).__name__}>"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def described(value: object) -> str:
    """A value of a wrong type for a message: ``the str 'good'``; of a coroutine, that it was not awaited."""
    if value is None:
        return "None"
    if inspect.isawaitable(value):
        kind = "coroutine" if isinstance(value, Coroutine) else type(value).__name__
        name = getattr(value, "__qualname__", "")
        called = f" of {name}(...)" if name else ""
        return f"a {kind}{called} that was not awaited ({AWAIT_HINT})"
    return f"the {type(value).__name__} {shown(value)}"


def await_hint(error: BaseException) -> str:
    """The question to ask about an error that using a coroutine as its result gives; else empty."""
    text = str(error)
    if not isinstance(error, TypeError | AttributeError) or AWAIT_HINT in text:
        return ""
    return AWAIT_HINT if re.search(r"\b(coroutine|async_generator)\b", text) else ""


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it or came before it, and the parts of groups."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
        waiting.append(one.__cause__ or (None if one.__suppress_context__ else one.__context__))


def caller_place(depth: int) -> tuple[str, int]:
    """File and line of the caller ``depth`` calls above the one that asks."""
    frame = sys._getframe(depth + 1)
    return frame.f_code.co_filename, frame.f_lineno
