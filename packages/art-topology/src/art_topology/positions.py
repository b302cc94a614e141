"""Where in a text the keys of a topology stand.

A *place* is the path to a value as a tuple of keys and indices, ``("cluster", "hosts", 0, "address")``; the
diagnostics write it ``cluster.hosts[0].address``. A *span* is where its key (or, in a list, the value itself)
begins and ends in the text, counted in characters from 0.
"""

import re
from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property

from art_topology.diagnostics import SourceLocation

type Place = tuple[str | int, ...]
type Span = tuple[int, int]

_LONGEST_LINE = 4096
"""Of longer lines nothing is shown."""

_STEP = re.compile(r"\.?([^.\[\]]+)|\[([0-9]+)\]")


def place_of(path: str) -> Place:
    """The place that a diagnostic's path names."""
    return tuple(step[1] if step[1] is not None else int(step[2]) for step in _STEP.finditer(path))


def path_of(place: Place) -> str:
    """The path of a place, as diagnostics write it."""
    path = ""
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path if path.isascii() else path.encode(errors="replace").decode()


class SourceText:
    """A text and, once somebody asks, the spans of its keys.

    Args:
        text: With ``\\n`` between its lines.
        name: Of the file; None for text that was not read from one.
        spans: Finds the spans of all places in a well-formed text.
    """

    def __init__(self, text: str, name: str | None, spans: Callable[[str], dict[Place, Span]]) -> None:
        self.text = text
        self.name = name
        self._find_spans = spans

    @cached_property
    def _spans(self) -> dict[Place, Span]:
        return self._find_spans(self.text)

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    def span(self, place: Place) -> Span:
        """The span of a place or, where the text does not have it, of the nearest one around it; the very
        beginning if there is none."""
        while place and place not in self._spans:
            place = place[:-1]
        return self._spans.get(place, (0, 0))

    def locate(self, path: str) -> SourceLocation:
        """Where a diagnostic's path stands, or what is nearest around it."""
        return self.at(*self.span(place_of(path)))

    def at(self, start: int, end: int | None = None) -> SourceLocation:
        """The location of a span, as far as it is on one line."""
        start = max(0, min(start, len(self.text)))
        line = bisect_right(self._line_starts, start) - 1
        begin = self._line_starts[line]
        line_end = self.text.find("\n", begin)
        text = self.text[begin:] if line_end < 0 else self.text[begin:line_end]
        width = max(0, min(start if end is None else end, begin + len(text)) - start)
        return SourceLocation(
            file=self.name,
            line=line + 1,
            column=start - begin + 1,
            width=width,
            text=text if len(text) <= _LONGEST_LINE else "",
        )

    def offset(self, line: int, column: int) -> int:
        """The offset of a line and column, both from 1, within the text."""
        starts = self._line_starts
        if line > len(starts):
            return len(self.text)
        return min(starts[line - 1] + column - 1, len(self.text))
