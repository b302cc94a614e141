"""How much room text takes, without a font: at least as much as in common sans-serif fonts.

Widths follow DejaVu Sans, which is wider than Helvetica, Arial, Segoe UI, Roboto and Inter.
"""

import unicodedata

_WIDTHS: dict[str, float] = {
    **dict.fromkeys("ijl'", 0.29),
    **dict.fromkeys("I.,:;/| ", 0.35),
    **dict.fromkeys('-!()[]"', 0.46),
    **dict.fromkeys("frt", 0.42),
    **dict.fromkeys("csz", 0.56),
    **dict.fromkeys("mw", 0.98),
    **dict.fromkeys("MW@%", 1.0),
    **dict.fromkeys("CDGHNOQRU", 0.79),
    **dict.fromkeys("_", 0.5),
    **dict.fromkeys("+<=>~#^&", 0.84),
    "\N{HORIZONTAL ELLIPSIS}": 1.0,
    "\N{EN DASH}": 0.5,
    "\N{MIDDLE DOT}": 0.35,
    "\N{BLACK STAR}": 0.9,
    "\N{MULTIPLICATION SIGN}": 0.84,
}
_BOLD = 1.13
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def width(text: str, size: float, *, bold: bool = False) -> float:
    """At most so many pixels wide is a text in a font of ``size`` pixels."""
    units = sum(_unit(character) for character in text)
    return units * size * (_BOLD if bold else 1)


def _unit(character: str) -> float:
    known = _WIDTHS.get(character)
    if known is not None:
        return known
    if character.isascii():
        return 0.7 if character.isupper() else 0.65
    if unicodedata.combining(character):
        return 0.0
    # Wide scripts take a square; anything else unknown is given as much.
    return 1.05


def fitted(text: str, size: float, room: float, *, bold: bool = False) -> str:
    """The text, or as much of its beginning as there is room for, and an ellipsis; empty if not even that."""
    if width(text, size, bold=bold) <= room:
        return text
    kept = text
    while kept and width(kept + _ELLIPSIS, size, bold=bold) > room:
        kept = kept[:-1]
    return kept.rstrip() + _ELLIPSIS if kept.rstrip() else ""


def wrapped(text: str, size: float, room: float, *, most_lines: int = 3) -> list[str]:
    """The text in lines that fit; what does not fit into ``most_lines`` is cut off with an ellipsis."""
    lines: list[str] = []
    words = text.split()
    line = ""
    for index, word in enumerate(words):
        longer = f"{line} {word}" if line else word
        if width(longer, size) <= room or not line:
            line = longer
            continue
        if len(lines) == most_lines - 1:
            return [*lines, fitted(" ".join([line, *words[index:]]), size, room)]
        lines.append(fitted(line, size, room))
        line = word
    return [*lines, fitted(line, size, room)] if line else lines
