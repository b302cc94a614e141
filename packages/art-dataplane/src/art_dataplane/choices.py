"""Words in rules: a misspelt one is refused when the rule is made, not taken for another."""

import difflib
from typing import Any, Literal, get_args, get_origin, get_type_hints

_known: dict[type, dict[str, tuple[Any, ...]]] = {}


def check_choices(rule: Any) -> None:
    """Checks every field whose type is a ``Literal`` against the words that it may hold.

    Raises:
        ValueError: another one, with those there are.
    """
    for name, allowed in _choices(type(rule)).items():
        value = getattr(rule, name)
        if value not in allowed:
            near = difflib.get_close_matches(str(value), [str(word) for word in allowed], 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(
                f"{type(rule).__name__}: {name} is {value!r}{meant}; it must be one of "
                f"{', '.join(map(repr, allowed))}"
            )


def _choices(kind: type) -> dict[str, tuple[Any, ...]]:
    if kind not in _known:
        hints = get_type_hints(kind)
        _known[kind] = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}
    return _known[kind]
