"""What every specification has in common: it is frozen and holds only values of the declared types and
ranges.

A specification says nothing about whether it fits its neighbours; that is the compiler's part. So a wrong
topology can be written down whole, and compiled to see everything that is wrong with it.
"""

from functools import cache
from typing import Annotated, Any

import msgspec

Name = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(?!\n)$",
        description="Letters, digits, '.', '_' and '-'; begins with a letter or digit.",
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
Count = Annotated[int, msgspec.Meta(ge=1)]
GpuId = (
    Annotated[int, msgspec.Meta(ge=0, description="Index of a GPU, as the driver counts.")]
    | Annotated[str, msgspec.Meta(pattern="^(GPU|MIG)-", description="UUID of a GPU or MIG slice.")]
)
"""A GPU of a host: its index, as the driver counts, or the UUID of a GPU or MIG slice (``GPU-...``,
``MIG-...``)."""


class SpecError(ValueError):
    """A value of the wrong type or out of its range, or a file that does not describe a topology."""


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
            except msgspec.ValidationError as error:
                raise SpecError(f"{type(self).__name__}.{name}: {error}; it is {value!r}") from None
            if checked is not value:
                msgspec.structs.force_setattr(self, name, checked)


@cache
def _field_types(spec: type[Spec]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in msgspec.structs.fields(spec))
