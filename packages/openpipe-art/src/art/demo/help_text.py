"""The help of a command whose text is laid out by hand, also on a narrow terminal."""

import argparse
import re
import textwrap
from collections.abc import Iterator

_PROSE_INDENT = 2
_LEAST_WIDTH = 20


class HelpText(argparse.RawDescriptionHelpFormatter):
    """Leaves a text as it is where there is room for its lines.

    Where there is not, paragraphs, which are indented by at most two, are filled anew; lines of tables and
    commands, which are indented by more, go on below their second column or further in.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines()
        if all(len(indent) + len(line) <= width for line in lines):
            return super()._fill_text(text, width, indent)
        return "\n".join(
            filled for block in _blocks(lines) for filled in _filled(block, max(width, _LEAST_WIDTH), indent)
        )


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """The lines that belong together: of a paragraph all, else one and what goes on in its second column."""
    block: list[str] = []
    for line in lines:
        if block and not _goes_on(block, line):
            yield block
            block = []
        block.append(line)
    if block:
        yield block


def _goes_on(block: list[str], line: str) -> bool:
    if not line.strip() or not block[-1].strip():
        return False
    if _indent(block[0]) <= _PROSE_INDENT:
        return _indent(line) == _indent(block[0])
    return _indent(line) == _column(block[0])


def _filled(block: list[str], width: int, indent: str) -> list[str]:
    first = indent + " " * _indent(block[0])
    text = " ".join(line.strip() for line in block)
    later = first
    if _indent(block[0]) > _PROSE_INDENT:
        column = _column(block[0]) if "  " in block[0].strip() else len(first) + 2
        later = " " * min(column, len(first) + 4)
    return textwrap.wrap(
        re.sub(r"  +", "  ", text),
        width,
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
        break_long_words=False,
    ) or [""]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _column(line: str) -> int:
    """Where the second column of a line begins; a line of one column has it nowhere."""
    found = re.match(r" *\S.*?  +(?=\S)", line)
    return found.end() if found else -1
