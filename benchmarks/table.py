"""What every benchmark tells in one form, and the one table that is made of it.

A benchmark keeps its own printout. With ``--json OUT`` it writes ``{"rows": [...], "figures": {...}}``: rows
as :class:`Row`, and all figures in a form of its own.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

WIDTH = 100
_COLUMNS = (38, 11, 10, 20, 7, 12)  # what, ART, peer's figure, peer, ratio, aim
_HEADERS = ("what", "ART", "peer", "", "ratio", "aim")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison. Less is better in every unit, so a ratio above 1 is in ART's favour.

    Args:
        what: what was done, the same on both sides.
        peer: name and version of the other side; None if nobody else does it.
        unit: of both medians: "s", "ms", "us", "MiB", "rows" or "tokens".
        ours: ART's median.
        theirs: the peer's median; None without a peer.
        ratio: ``theirs / ours``; the median of paired ratios where the sides took turns.
        aim: what was to be reached, in words; None if no aim was set.
        reached: whether it was; None without an aim.
        note: what is compared, as far as ``what`` does not say it.
    """

    what: str
    peer: str | None
    unit: str
    ours: float
    theirs: float | None
    ratio: float | None
    aim: str | None = None
    reached: bool | None = None
    note: str = ""


class Result(msgspec.Struct, frozen=True):
    """The part of a benchmark's file that all have in common."""

    rows: list[Row]


def compare(
    what: str,
    peer: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    unit: str = "ms",
    aim: float | None = None,
    note: str = "",
) -> Row:
    """A row of two sides that took turns: equally many figures in the order of the turns.

    Times are given in seconds, memory in bytes, and come out in ``unit``. ``aim`` is the least ratio.
    """
    ratio = median(other / own for own, other in zip(ours, theirs, strict=True))
    scale = _SCALES[unit]
    return Row(
        what=what,
        peer=peer,
        unit=unit,
        ours=median(ours) * scale,
        theirs=median(theirs) * scale,
        ratio=ratio,
        aim=None if aim is None else f">= {aim:g}x",
        reached=None if aim is None else ratio >= aim,
        note=note,
    )


def alone(what: str, ours: Sequence[float], *, unit: str = "ms", most: float, note: str = "") -> Row:
    """A row without a peer, with ``most`` in ``unit`` as its aim."""
    value = median(ours) * _SCALES[unit]
    return Row(
        what=what,
        peer=None,
        unit=unit,
        ours=value,
        theirs=None,
        ratio=None,
        aim=f"< {most:g} {unit}",
        reached=value < most,
        note=note,
    )


_SCALES = {"s": 1.0, "ms": 1e3, "us": 1e6, "MiB": 2.0**-20, "rows": 1, "tokens": 1}


def write(path: Path | None, rows: Sequence[Row], figures: Mapping[str, Any]) -> None:
    """Writes the file of ``--json``, if one was asked for."""
    if path is not None:
        content = {"rows": rows, "figures": figures}
        path.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def read(path: Path) -> list[Row]:
    """The rows of a file that :func:`write` wrote.

    Raises:
        msgspec.DecodeError: it is something else.
    """
    return msgspec.json.decode(path.read_bytes(), type=Result).rows


def parser(name: str, description: str, *, repeats: int | None = None) -> argparse.ArgumentParser:
    """A benchmark's parser with what all of them take: ``--json``, and ``--repeats`` with its default."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    made.add_argument(
        "--json", type=Path, metavar="OUT", help="where to write the rows of the table and all figures"
    )
    if repeats is not None:
        made.add_argument(
            "--repeats", type=int, default=repeats, metavar="N", help=f"turns of each side; default {repeats}"
        )
    return made


def ratio_text(ratio: float | None) -> str:
    """Three digits, or all before the point."""
    if ratio is None:
        return ""
    if ratio < 1:
        return f"{ratio:.3g}x"
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"


def figure_text(value: float | None, unit: str) -> str:
    """A median with its unit in three digits or more; what is counted is a whole number without one."""
    if value is None:
        return ""
    if unit in ("rows", "tokens"):
        return f"{value:,.0f}"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 4
    return f"{value:,.{digits}f} {unit}"


def aim_text(row: Row) -> str:
    """The aim, and whether it was reached."""
    return "" if row.aim is None else f"{row.aim} {'yes' if row.reached else 'no'}"


def cells(row: Row) -> tuple[str, ...]:
    """The row as text: what, ART, the peer's figure, the peer, ratio, aim."""
    return (
        row.what,
        figure_text(row.ours, row.unit),
        figure_text(row.theirs, row.unit),
        row.peer or "",
        ratio_text(row.ratio),
        aim_text(row),
    )


def text(results: Mapping[str, Sequence[Row]]) -> str:
    """The table for a terminal of 100 columns, one part for each benchmark."""
    lines = [_line(_HEADERS), "-" * WIDTH]
    for name, rows in results.items():
        lines.append(name)
        lines += [_line((f"  {first}", *others)) for first, *others in map(cells, rows)]
    return "\n".join(lines)


def _line(values: Sequence[str]) -> str:
    what, ours, theirs, peer, ratio, aim = values
    widths = _COLUMNS
    return (
        f"{what:<{widths[0]}}{ours:>{widths[1]}}{theirs:>{widths[2]}} {peer:<{widths[3]}}"
        f"{ratio:>{widths[4]}} {aim:<{widths[5]}}"
    ).rstrip()


def markdown(rows: Sequence[Row]) -> str:
    """The same rows as a table of Markdown, with notes; dots begin one that belongs to the row above."""
    lines = [
        "| what | ART | peer | | ratio | aim | compared |",
        "|---|---:|---:|---|---:|---|---|",
    ]
    lines += ["| " + " | ".join(_escape(cell) for cell in (*cells(row), row.note)) + " |" for row in rows]
    return "\n".join(lines)


def _escape(cell: str) -> str:
    cell = f"... {cell.strip()}" if cell.startswith(" ") else cell
    return cell.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")
