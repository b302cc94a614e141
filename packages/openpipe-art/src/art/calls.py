"""Wrong arguments of public calls are told in one sentence, with what was meant and the user's line."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from art.errors import SettingError
from art.settings import meant
from art.user_code import with_place


class ArgumentError(SettingError, TypeError):
    """A call has an argument too many, too few, or one of an unknown name; it is a ``TypeError``, too."""


def checked_call[**P, T](function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a function or a constructor that users call with keywords.

    Raises:
        ArgumentError: at the call, where its arguments do not fit.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> T:
        check_arguments(signature, function.__qualname__, arguments, keywords)
        return function(*arguments, **keywords)

    return call


def check_arguments(
    signature: inspect.Signature, name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> None:
    """Checks that a call's arguments fit.

    Args:
        signature: of the function.
        name: of the function, qualified; the name of a constructor is its class's.
        arguments: the positional ones, with ``self``.
        keywords: the others.

    Raises:
        ArgumentError: they do not.
    """
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        shown = name.removesuffix(".__init__")
        raise ArgumentError(with_place(f"{shown}() {_problem(signature, keywords, error)}")) from None


def _problem(signature: inspect.Signature, keywords: Mapping[str, Any], error: TypeError) -> str:
    names = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in ("self", "cls")
    ]
    for name in keywords:
        if name not in names:
            return f"has no argument {name!r}; {meant(name, names, 'arguments')}"
    return f"{error}; its arguments are {', '.join(names)}"
