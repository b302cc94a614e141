"""Pydantic models whose users see one sentence about a wrong field, in place of pydantic's report."""

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import pydantic
import pydantic_core

from art.errors import ArtError
from art.user_code import described, with_place

_WANTED = {  # pydantic's sentences are about input; these are about the field
    "string_type": "a text in quotes",
    "float_type": "a number",
    "float_parsing": "a number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "True or False",
    "bool_parsing": "True or False",
    "dict_type": "a dict",
    "list_type": "a list",
    "none_required": "None",
}


class CheckedModel(pydantic.BaseModel):
    """A model that says which field is wrong, what was given, and what to write, with the user's line."""

    _example: ClassVar[str]
    """How one is made."""

    _refusal: ClassVar[type[ArtError]]
    """What a wrong field raises; a ``ValueError``, so that pydantic counts it as a refusal."""

    if not TYPE_CHECKING:

        def __init__(self, /, *unnamed: Any, **fields: Any) -> None:
            if unnamed:
                raise self._refusal(
                    with_place(f"art.{type(self).__name__} takes its fields by name: {self._example}")
                )
            try:
                super().__init__(**fields)
            except pydantic.ValidationError as error:
                raise self._refusal(with_place(self._explained(error))) from None

        def __setattr__(self, name: str, value: Any) -> None:
            if (
                not name.startswith("_")
                and not hasattr(type(self), name)
                and name not in type(self).model_fields
            ):
                raise self._refusal(with_place(f"art.{type(self).__name__}: {self._unknown(name)}"))
            try:
                super().__setattr__(name, value)
            except pydantic.ValidationError as error:
                raise self._refusal(with_place(self._explained(error))) from None

    @classmethod
    def _explained(cls, error: pydantic.ValidationError) -> str:
        errors = error.errors(include_url=False)
        text = f"art.{cls.__name__}: {'; '.join(dict.fromkeys(cls._problems(errors)))}"
        incomplete = any(one["type"] in ("missing", "extra_forbidden") for one in errors)
        end = " " if text.endswith("?") else ". "
        return f"{text}{end}Write for example {cls._example}" if incomplete else text

    @classmethod
    def _problems(cls, errors: list[pydantic_core.ErrorDetails]) -> Iterator[str]:
        wanted: dict[tuple[int | str, ...], list[str]] = {}
        for error in errors:
            field = _field(error["loc"])
            if error["type"] == "missing":
                yield f"{field} is missing"
            elif error["type"] == "extra_forbidden":
                yield cls._unknown(str(error["loc"][0]))
            elif error["type"] == "value_error":
                text = error["msg"].removeprefix("Value error, ")
                yield text if text.startswith(str(error["loc"][0])) else f"{field} {text}"
            elif error["type"] in _WANTED:
                # Of a field that may be of several types, each type reports; its name is the last part.
                several = [other["loc"][:-1] for other in errors].count(error["loc"][:-1]) > 1
                place = error["loc"][:-1] if several and len(error["loc"]) > 1 else error["loc"]
                wanted.setdefault(place, []).append(_WANTED[error["type"]])
                if error is errors[-1] or not several or errors[errors.index(error) + 1]["loc"][:-1] != place:
                    these = " or ".join(wanted[place])
                    yield f"{_field(place)} is {described(error['input'])}; it must be {these}"
            else:
                text = error["msg"]
                yield f"{field} is {described(error['input'])}; {text[:1].lower()}{text[1:]}"

    @classmethod
    def _unknown(cls, name: str) -> str:
        close = difflib.get_close_matches(name, cls.model_fields, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"its fields are {', '.join(cls.model_fields)}"
        return f"it has no field {name!r}; {hint}"


def _field(loc: tuple[int | str, ...]) -> str:
    return "".join(f"[{part!r}]" if index else str(part) for index, part in enumerate(loc)) or "it"
