"""Where the passes put what they find."""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from art_topology.diagnostics import Diagnostic, severity_of

type Suggestion = tuple[str, Any] | None
"""A path of the input and the value, as JSON has it, that clears the finding when it is put there."""


class Findings:
    """Collects diagnostics in the order in which they are found."""

    def __init__(self) -> None:
        self._found: list[Diagnostic] = []
        self._told: set[tuple[str, str, str]] = set()

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Everything found so far."""
        return tuple(self._found)

    @property
    def has_errors(self) -> bool:
        """Whether the topology is refused."""
        return any(found.severity == "error" for found in self._found)

    def has_errors_at(self, *paths: str) -> bool:
        """Whether an error is at one of the paths, or below."""
        return any(found.severity == "error" and found.path.startswith(paths) for found in self._found)

    def report(
        self,
        code: str,
        path: str,
        message: str,
        hint: str,
        related: Iterable[str] = (),
        suggestion: Suggestion = None,
    ) -> None:
        """Adds a finding, once; its code says whether it refuses the topology."""
        if (code, path, message) in self._told:
            return
        self._told.add((code, path, message))
        self._found.append(
            Diagnostic(
                code=code,
                severity=severity_of(code),
                path=path,
                message=message,
                hint=hint,
                related=tuple(related),
                suggestion=suggestion,
            )
        )


def listed(values: Sequence[object], *, limit: int = 6) -> str:
    """``'a', 'b' and 'c'``, with only the first ``limit`` spelled out."""
    shown = [repr(value) for value in values[:limit]]
    if len(values) > limit:
        shown.append(f"{len(values) - limit} more")
    return joined(shown)


def joined(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def either(*proposals: str) -> str:
    """Proposals joined by ", or ", each once, however it is written."""
    kept: dict[str, str] = {}
    for part in ", or ".join(filter(None, proposals)).split(", or "):
        key = re.sub(r" ?= ?", "=", part.removeprefix("use ").removeprefix("divide unevenly by "))
        if not any(re.search(rf"(?<![\w=]){re.escape(key)}(?!\w)", known) for known in kept):
            kept[key] = part
    first, *others = kept.values()
    if first.startswith("use "):
        others = [other.removeprefix("use ") for other in others]
    return ", or ".join([first, *others])


def free_name(name: str, number: int, taken: Collection[str]) -> str:
    """``name-number`` or, if that is taken, the same with the next number that is not."""
    while (candidate := f"{name[:100]}-{number}") in taken:
        number += 1
    return candidate


def closest(value: str, candidates: Sequence[str]) -> str | None:
    """The candidate that ``value`` was most likely meant to be; None if none is near. Of very many, the first
    thousand are looked at."""
    import difflib

    if len(candidates) == 1:
        return candidates[0]
    same = [each for each in candidates[:1000] if each.casefold() == value.casefold()]
    near = same or difflib.get_close_matches(value, candidates[:1000], n=1)
    return near[0] if near else None
