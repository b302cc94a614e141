"""Writes SVG 1.1: elements one after the other, every text escaped, every number short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from art_topology.render.palette import light
from art_topology.render.text import fitted, width

FONT = "Inter, 'Segoe UI', Roboto, Helvetica, Arial, 'DejaVu Sans', sans-serif"

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write, half characters included."""
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})


def escaped(text: str) -> str:
    """A text as it stands in XML; what XML cannot hold is replaced."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text).translate(_ENTITIES)


class Svg:
    """A picture that is being drawn, in pixels from its upper left corner."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 1

    def rect(
        self,
        x: float,
        y: float,
        wide: float,
        high: float,
        look: str = "",
        *,
        fill: str = "",
        round_: float = 0,
        dashed: bool = False,
    ) -> None:
        """A rectangle; ``look`` is a class of the palette, ``fill`` a colour of its own."""
        more = {"rx": _number(round_)} if round_ else {}
        if dashed:
            more["stroke-dasharray"] = "4 3"
        self._add("rect", x=x, y=y, width=wide, height=high, look=look, fill=fill, more=more)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        look: str = "ink",
        *,
        bold: bool = False,
        anchor: str = "start",
        fill: str = "",
        room: float | None = None,
    ) -> float:
        """A line of text on the baseline ``y``, cut short where it has no ``room``. Returns its width."""
        shown = text if room is None else fitted(text, size, room, bold=bold)
        if not shown.strip():
            return 0.0
        attributes = [f'x="{_number(x)}"', f'y="{_number(y)}"', f'font-size="{_number(size)}"']
        if bold:
            attributes.append('font-weight="600"')
        if anchor != "start":
            attributes.append(f'text-anchor="{anchor}"')
        attributes += [f'fill="{fill}"'] if fill else _looks(look)
        self._line(f"<text {' '.join(attributes)}>{escaped(shown)}</text>")
        return width(shown, size, bold=bold)

    def line(self, x1: float, y1: float, x2: float, y2: float, look: str = "rule") -> None:
        """A straight line."""
        ends = f'x1="{_number(x1)}" y1="{_number(y1)}" x2="{_number(x2)}" y2="{_number(y2)}"'
        self._line(f"<line {ends} {' '.join(_looks(look))}/>")

    @contextmanager
    def group(self, kind: str, title: str) -> Iterator[None]:
        """What belongs together, with a title that is read aloud and shown as a tooltip."""
        self._line(f'<g class="{kind}">')
        self._depth += 1
        self._line(f"<title>{escaped(title)}</title>")
        yield
        self._depth -= 1
        self._line("</g>")

    def extend(self, other: Svg) -> None:
        """Everything of another picture, on top of this one."""
        self._lines += other._lines

    def document(self, wide: int, high: int, *, title: str, description: str, style: str) -> str:
        """Everything as one file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
            f'viewBox="0 0 {wide} {high}" role="img" aria-labelledby="title description" '
            f'font-family="{escaped(FONT)}">'
        )
        lines = [
            head,
            f'  <title id="title">{escaped(title)}</title>',
            f'  <desc id="description">{escaped(description)}</desc>',
            f"  <style>{escaped(style)}</style>",
            *self._lines,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _add(
        self,
        name: str,
        look: str,
        fill: str,
        more: dict[str, str],
        **numbers: float,
    ) -> None:
        attributes = [f'{key}="{_number(value)}"' for key, value in numbers.items()]
        attributes += [f'{key}="{value}"' for key, value in more.items()]
        attributes += _looks(look) if look else []
        attributes += [f'fill="{fill}"'] if fill else []
        self._line(f"<{name} {' '.join(attributes)}/>")

    def _line(self, text: str) -> None:
        self._lines.append("  " * self._depth + text)


def _looks(name: str) -> list[str]:
    return [f'class="{name}"', *(f'{key}="{value}"' for key, value in light(name).items())]


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
