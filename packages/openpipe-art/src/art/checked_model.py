"""Pydantic models whose users see one sentence about a wrong field, in place of pydantic's report."""

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import pydantic
import pydantic_core

from art.errors import ArtError
from art.settings import meant
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
        text = f"art.{cls.__name__}: {'; '.join(cls._problems(errors))}"
        incomplete = any(one["type"] in ("missing", "extra_forbidden") for one in errors)
        end = " " if text.endswith("?") else ". "
        return f"{text}{end}Write for example {cls._example}" if incomplete else text

    @classmethod
    def _problems(cls, errors: list[pydantic_core.ErrorDetails]) -> list[str]:
        parents = Counter(error["loc"][:-1] for error in errors)
        found: dict[str, list[str]] = {}  # the begin of each sentence, and what it ends on
        for error in errors:
            loc, text = error["loc"], error["msg"]
            if error["type"] == "missing":
                found[f"{_field(loc)} is missing"] = []
            elif error["type"] == "extra_forbidden":
                found[cls._unknown(str(loc[0]))] = []
            elif error["type"] == "value_error":
                text = text.removeprefix("Value error, ")
                found[text if text.startswith(str(loc[0])) else f"{_field(loc)} {text}"] = []
            elif error["type"] in _WANTED:
                if len(loc) > 1 and isinstance(loc[-1], str) and parents[loc[:-1]] > 1:
                    loc = loc[:-1]  # it may be of several types; each reports, and its name is the last part
                sentence = f"{_field(loc)} is {described(error['input'])}; it must be "
                found.setdefault(sentence, []).append(_WANTED[error["type"]])
            else:
                sentence = f"{text[:1].lower()}{text[1:]}"
                found[f"{_field(loc)} is {described(error['input'])}; {sentence}"] = []
        return [f"{sentence}{' or '.join(kinds)}" for sentence, kinds in found.items()]

    @classmethod
    def _unknown(cls, name: str) -> str:
        return f"it has no field {name!r}; {meant(name, tuple(cls.model_fields))}"


def _field(loc: tuple[int | str, ...]) -> str:
    return "".join(f"[{part!r}]" if index else str(part) for index, part in enumerate(loc)) or "it"
