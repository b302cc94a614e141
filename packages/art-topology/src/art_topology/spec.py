"""What every specification has in common: it is frozen and holds only values of the declared types and
ranges.

A specification says nothing about whether it fits its neighbours; that is the compiler's part. So a wrong
topology can be written down whole, and compiled to see everything that is wrong with it.
"""

from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from art_topology.diagnostics import Diagnostic, rendered

Name = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(?!\n)$",
        description="a name of letters, digits, '.', '_' and '-' that begins with a letter or digit",
    ),
]
Port = Annotated[
    int,
    msgspec.Meta(
        ge=0,
        le=65535,
        description="A TCP port. 0: chosen by the host that listens, and reported back.",
    ),
]
Seconds = Annotated[
    float, msgspec.Meta(gt=0, le=604_800, description="A duration in seconds, at most a week.")
]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
"""How many of something; at most what every JSON parser reads exactly."""

MOST_WAYS = 2**24
Ways = Annotated[
    int,
    msgspec.Meta(
        ge=1, le=MOST_WAYS, description="Among how many ranks, stages or workers something is divided."
    ),
]
MOST_SLOTS = 2**16
"""CPU slots of a host, at most."""
GpuId = (
    Annotated[int, msgspec.Meta(ge=0, description="Index of a GPU, as the driver counts.")]
    | Annotated[
        str,
        msgspec.Meta(pattern="^(GPU|MIG)-", description="the UUID of a GPU or MIG slice, GPU-... or MIG-..."),
    ]
)
"""A GPU of a host: its index, as the driver counts, or the UUID of a GPU or MIG slice (``GPU-...``,
``MIG-...``)."""


class SpecError(ValueError):
    """A value of the wrong type or out of its range, or a file that does not describe a topology.

    Args:
        message: What is wrong.
        diagnostics: Everything found, if it came from a file or from plain values.
    """

    def __init__(self, message: str, diagnostics: tuple[Diagnostic, ...] = ()) -> None:
        super().__init__(message)
        self.diagnostics = diagnostics

    @classmethod
    def of(cls, *diagnostics: Diagnostic) -> "SpecError":
        """The error whose text is all the ``diagnostics``, to be shown as it is."""
        return cls(rendered(diagnostics, "the input"), diagnostics)


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all specifications: checks types and ranges however it is built, from a file or in Python.

    Raises:
        SpecError: a field has the wrong type or is out of range; the message names the field.
    """

    def __post_init__(self) -> None:
        kind = type(self)
        given = msgspec.structs.astuple(self)
        try:
            checked = msgspec.structs.astuple(msgspec.convert(given, _row_of(kind)))
            for value in checked:
                if type(value) is str and not value.isascii():
                    value.encode()
        except (msgspec.ValidationError, OverflowError, UnicodeEncodeError) as error:
            raise SpecError(_mistake(kind, given) or f"{kind.__name__}: {error}") from None
        for name, before, value in zip(kind.__struct_fields__, given, checked, strict=True):
            if value is not before:
                msgspec.structs.force_setattr(self, name, value)


def _mistake(spec: type[Spec], values: tuple[Any, ...]) -> str | None:
    """What is wrong with the first field whose value is not of its type."""
    for field, value in zip(msgspec.structs.fields(spec), values, strict=True):
        kind = field.type
        try:
            checked = msgspec.convert(value, kind)
            if type(checked) is str:
                checked.encode()
        except (msgspec.ValidationError, OverflowError) as error:
            options = ", ".join(map(repr, get_args(kind))) if get_origin(kind) is Literal else ""
            told = (
                f"{_shown(value)} is not one of {options}" if options else f"{error}; it is {_shown(value)}"
            )
        except UnicodeEncodeError as error:
            told = f"half a character ({error.reason})"
        else:
            continue
        return f"{spec.__name__}.{field.name}: {told}"
    return None


def _shown(value: object) -> str:
    """``value`` on one line; Python refuses to write very large numbers out."""
    if isinstance(value, int) and value.bit_length() > 4096:
        return f"a number of {value.bit_length()} bits"
    return repr(value)


@cache
def _row_of(spec: type[Spec]) -> type[msgspec.Struct]:
    """A struct of the same fields that is converted from a tuple of them: all in one call, and ``msgspec``
    keeps what it knows of a struct's types, but not of others."""
    fields = [(field.name, field.type) for field in msgspec.structs.fields(spec)]
    return msgspec.defstruct(spec.__name__, fields, array_like=True)
