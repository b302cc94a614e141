"""What commands print: tables and coloured text on a terminal, plain aligned text elsewhere, and JSON.

What always holds: names from files cannot steer a terminal, nothing is cut short where nobody looks at a
terminal, and rich is loaded only for one.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from art_topology.diagnostics import printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from art_topology.diagnostics import Diagnostic

_NARROW = 64
"""Columns below which a table becomes one block per row, if it does not fit."""
_LEAST_LAST = 24
"""Columns that the last column of a table needs at least to be wrapped rather than put into blocks."""


def is_terminal(stream: TextIO) -> bool:
    """Whether somebody looks at what is written there."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def print_json(document: Any) -> None:
    """One document, indented, with a line's end."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")


def say(text: str = "", style: str = "", *, stream: TextIO | None = None) -> None:
    """Lines of text; ``style`` is rich's and holds on terminals only."""
    stream = stream or sys.stdout
    text = "\n".join(map(printable, text.split("\n")))
    if style and is_terminal(stream):
        text = _styled(text, style)
    stream.write(text + "\n")


def say_diagnostics(diagnostics: Iterable[Diagnostic], *, stream: TextIO | None = None) -> None:
    """All of them, each a block with its source line and caret."""
    stream = stream or sys.stdout
    coloured = is_terminal(stream)
    for found in diagnostics:
        text = found.render()
        stream.write((_coloured(text, found.severity) if coloured else text) + "\n\n")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> None:
    """A table; the last column may be long and is wrapped on terminals.

    Args:
        header: Names of the columns.
        rows: As many texts each.
        right: Columns that are aligned to the right, such as numbers.
    """
    told = [[printable(cell) for cell in row] for row in rows]
    widths = [
        max(map(cells, column)) for column in zip(header, *told, strict=True)
    ]  # fmt: skip
    numbers = frozenset(right)
    if not is_terminal(sys.stdout):
        for row in (header, *told):
            sys.stdout.write(_aligned(row, widths, numbers) + "\n")
        return
    room = _columns()
    natural = sum(widths) + 2 * len(widths)
    if natural > room and (room < _NARROW or natural - widths[-1] + _LEAST_LAST > room):
        _blocks(header, told)
    else:
        _rich_table(header, told, numbers)


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def _aligned(row: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> str:
    parts = []
    for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
        gap = " " * (width - cells(cell))
        parts.append(gap + cell if index in right else cell + gap)
    return "  ".join(parts).rstrip()


def _blocks(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    width = max(map(cells, header))
    for row in rows:
        for name, cell in zip(header, row, strict=True):
            if cell:
                gap = " " * (width - cells(name) + 2)
                sys.stdout.write(f"{_styled(name, 'bold')}{gap}{cell}\n")
        say()


def _rich_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for index, name in enumerate(header):
        last = index == len(header) - 1
        grid.add_column(
            Text(name),
            justify="right" if index in right else "left",
            no_wrap=not last,
            overflow="fold",
        )
    for row in rows:
        grid.add_row(*map(Text, row))
    sys.stdout.write(_rendered(grid))


def _coloured(text: str, severity: str) -> str:
    colour = "red" if severity == "error" else "yellow"
    lines = []
    for index, line in enumerate(text.split("\n")):
        stripped = line.lstrip(" |")
        if index == 0:
            head, colon, rest = line.partition(": ")
            lines.append(_styled(head, f"bold {colour}") + _styled(colon + rest, "bold"))
        elif stripped and not stripped.strip("^"):
            lines.append(line.replace(stripped, _styled(stripped, f"bold {colour}")))
        elif line.startswith(("  --> ", "   :: ")):
            lines.append(_styled(line[:6], "bold blue") + line[6:])
        elif line.startswith("  help: "):
            lines.append(_styled("  help:", "bold green") + line[7:])
        else:
            lines.append(line)
    return "\n".join(lines)


def _styled(text: str, style: str) -> str:
    from rich.text import Text

    return _rendered(Text(text, style), end="", soft_wrap=True)


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size((80, 24)).columns


def _rendered(shown: Table | Text, *, end: str = "\n", soft_wrap: bool = False) -> str:
    """What rich would write: the one place that writes out is standard output itself."""
    import io

    from rich.console import Console

    written = io.StringIO()
    console = Console(
        file=written,
        force_terminal=True,
        width=max(1, _columns()),
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(shown, end=end, soft_wrap=soft_wrap)
    return written.getvalue()
