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
        for name, kind in _field_types(type(self)):
            value = getattr(self, name)
            try:
                checked = msgspec.convert(value, kind)
                if type(checked) is str and not checked.isascii():
                    checked.encode()
            except (msgspec.ValidationError, OverflowError) as error:
                options = ", ".join(map(repr, get_args(kind))) if get_origin(kind) is Literal else ""
                told = (
                    f"{_shown(value)} is not one of {options}"
                    if options
                    else f"{error}; it is {_shown(value)}"
                )
                raise SpecError(f"{type(self).__name__}.{name}: {told}") from None
            except UnicodeEncodeError as error:
                raise SpecError(f"{type(self).__name__}.{name}: half a character ({error.reason})") from None
            if checked is not value:
                msgspec.structs.force_setattr(self, name, checked)


def _shown(value: object) -> str:
    """``value`` on one line; Python refuses to write very large numbers out."""
    if isinstance(value, int) and value.bit_length() > 4096:
        return f"a number of {value.bit_length()} bits"
    return repr(value)


@cache
def _field_types(spec: type[Spec]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in msgspec.structs.fields(spec))
