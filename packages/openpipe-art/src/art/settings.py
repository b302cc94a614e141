"""Checks of single settings, with one message for all of them: the value, what it must be, one that works."""

import difflib
import math
import re
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import msgspec

from art.errors import SettingError
from art.user_code import described, shown, with_place

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

SEEDS = (0, 2**32 - 1)
"""The least and the greatest seed that every part takes."""


def number(
    name: str,
    value: object,
    example: float,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float = math.inf,
) -> float:
    """Returns ``value`` as a float, when it is a finite number in its range.

    Args:
        name: of the setting.
        value: what was given.
        example: one that works.
        above: what it must be above.
        at_least: what it must be at least.
        at_most: what it must be at most.

    Raises:
        SettingError: it is something else.
    """
    wanted = f"a number {_range(above, at_least, at_most)}".rstrip()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong_type(name, value, wanted, example)
    found = float(value)
    if not math.isfinite(found) or not _inside(found, above, at_least, at_most):
        raise _refused(f"{name} is {value}; it must be {wanted}, for example {name}={example!r}")
    return found


def whole_number(
    name: str, value: object, example: int, *, at_least: int = 1, at_most: int = 2**31 - 1
) -> int:
    """Returns ``value`` as an int, when it is a whole number in its range.

    Raises:
        SettingError: it is something else.
    """
    wanted = f"a whole number from {at_least} to {at_most}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _wrong_type(name, value, wanted, example)
    found = int(value)
    if not at_least <= found <= at_most:
        raise _refused(f"{name} is {found}; it must be {wanted}, for example {name}={example}")
    return found


def flag(name: str, value: object, example: bool) -> bool:
    """Returns ``value``, when it is ``True`` or ``False``.

    Raises:
        SettingError: it is something else.
    """
    if not isinstance(value, bool):
        raise _wrong_type(name, value, "True or False", example)
    return value


def one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    """Checks that ``value`` is one of the texts ``allowed``.

    Raises:
        SettingError: it is something else.
    """
    if value not in allowed:
        listed = " or ".join(repr(text) for text in allowed)
        raise _refused(f"{name} is {shown(value)}; it must be {listed}, for example {name}={allowed[0]!r}")


PLAIN_NAME_CHARACTERS = 128


def plain_name(name: str, value: str, example: str) -> str:
    """Returns ``value``, when it can name a folder and a part of a run alike.

    Args:
        name: of the setting.
        value: what was given.
        example: one that works.

    Raises:
        ValueError: it is empty, too long, or has other characters than ASCII letters, digits and ``. _ -``.
    """
    rule = (
        f"it must have 1 to {PLAIN_NAME_CHARACTERS} ASCII letters, digits, '.', '_' or '-' and begin with a "
        f"letter or digit, for example {name}={example!r}"
    )
    if not value.strip():
        raise ValueError(f"{name} is empty; {rule}")
    if len(value) > PLAIN_NAME_CHARACTERS:
        raise ValueError(f"{name} has {len(value)} characters; {rule}")
    if _PLAIN_NAME.fullmatch(value) is None:
        raise ValueError(f"{name} is {shown(value)}; {rule}")
    return value


def instance[T](name: str, value: object, kind: type[T], example: str) -> T:
    """Returns ``value``, when it is of the class ``kind``.

    Raises:
        SettingError: it is something else.
    """
    if not isinstance(value, kind):
        raise _refused(f"{name} is {described(value)}; it must be of {kind.__name__}: {example}")
    return value


class SettingsMeta(msgspec.StructMeta):
    """Of structs that users make by hand: fields that have no name, are unknown or missing are told in one
    sentence, with the user's line."""

    def __call__(cls, *unnamed: Any, **fields: Any) -> Any:  # noqa: N805 - of a metaclass
        """Makes the struct.

        Raises:
            SettingError: a field has no name, or is unknown or missing.
        """
        known = cls.__struct_fields__
        if unnamed:
            raise _refused(
                f"art.{cls.__name__} takes its fields by name, for example "
                f"art.{cls.__name__}({known[0]}={unnamed[0]!r}); its fields are {', '.join(known)}"
            )
        for name in fields:
            if name not in known:
                raise _refused(f"art.{cls.__name__} has no field {name!r}; {meant(name, known)}")
        try:
            return super().__call__(**fields)
        except TypeError as error:
            raise _refused(f"art.{cls.__name__}: {error}") from None


def meant(name: str, known: Sequence[str], kind: str = "fields") -> str:
    """Which of the ``known`` names was meant by ``name``, or which there are; ``kind`` is what they name."""
    close = difflib.get_close_matches(name, known, 1)
    initials = [field for field in known if "".join(part[0] for part in field.split("_")) == name]
    for field in (*close, *initials):
        return f"did you mean {field!r}?"
    return f"its {kind} are {', '.join(known)}"


def keep(settings: msgspec.Struct, **checked: Any) -> None:
    """Sets checked values in a frozen struct, from its ``__post_init__``: a NumPy number becomes Python's."""
    for name, value in checked.items():
        if getattr(settings, name) is not value:
            msgspec.structs.force_setattr(settings, name, value)


def _refused(text: str) -> SettingError:
    return SettingError(with_place(text))


def _wrong_type(name: str, value: object, wanted: str, example: object) -> SettingError:
    return _refused(f"{name} is {described(value)}; it must be {wanted}, for example {name}={example!r}")


def _inside(value: float, above: float | None, at_least: float | None, at_most: float) -> bool:
    return (above is None or value > above) and (at_least is None or value >= at_least) and value <= at_most


def _range(above: float | None, at_least: float | None, at_most: float) -> str:
    parts = []
    if above is not None:
        parts.append(f"above {above:g}")
    if at_least is not None:
        parts.append(f"of at least {at_least:g}")
    if at_most < math.inf:
        parts.append(f"{'at' if parts else 'of at'} most {at_most:g}")
    return " and ".join(parts)
