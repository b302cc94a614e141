"""The notation of megatron-core's ``pipeline_model_parallel_layout``: strings to stages and back.

Grammar: ``layout = item*``, ``item = atom | atom "*" count | "(" (atom | atom "*" count)+ ")" "*" count``,
``atom = E | t | m | L | "|"``; commas may stand anywhere and mean nothing. megatron-core expands by two
regular expressions and so accepts more than this; what is refused here and accepted there is listed in the
tests, none of it means what it seems to.
"""

import re
from itertools import groupby

_ATOMS = "EtmL|"
_MOST_SYMBOLS = 1_000_000
_ITEM = re.compile(r"(?P<atom>[EtmL|])(?:\*(?P<count>[0-9]+))?|\((?P<body>[^()]*)\)\*(?P<times>[0-9]+)")


class StageError(ValueError):
    """Layers that cannot be divided into stages as asked.

    Args:
        message: What is wrong, with the numbers.
        hint: What would work.
        field: What it is about: a field of ``MegatronTopologyConfig`` such as ``"pipeline_layout"``, or
            ``"num_layers"`` or ``"mtp"``.
    """

    def __init__(self, message: str, hint: str, field: str) -> None:
        super().__init__(message, hint, field)
        self.message = message
        self.hint = hint
        self.field = field

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}"


def read_stages(text: str) -> list[str]:
    """The letters of each stage, repetitions written out: ``"E|(t|)*2L"`` gives ``["E", "t", "t", "L"]``.

    Raises:
        StageError: the text is not of the grammar, or stands for more than a million letters.
    """
    return _expand(text.replace(",", ""), text).split("|")


def write_stages(stages: list[str]) -> str:
    """The notation of stages, short: equal neighbours as ``(tt|)*3``, equal letters as ``t*3``."""
    parts = []
    for stage, equal in groupby(stages[:-1]):
        times = len(list(equal))
        written = _write_letters(stage) + "|" if stage else ""
        grouped = f"({written})*{times}" if stage else f"|*{times}"
        parts.append(min((written or "|") * times, grouped, key=len))
    return "".join(parts) + _write_letters(stages[-1])


def _write_letters(stage: str) -> str:
    parts = []
    for letter, equal in groupby(stage):
        count = len(list(equal))
        parts.append(f"{letter}*{count}" if count > 2 else letter * count)
    return "".join(parts)


def _expand(text: str, whole: str) -> str:
    parts: list[str] = []
    size = position = 0
    while position < len(text):
        item = _ITEM.match(text, position)
        if item is None:
            raise _unreadable(text[position:], whole)
        unit = item["atom"] or _expand_body(item["body"], whole)
        count = _count(item["count"] or item["times"] or "1", whole)
        size += len(unit) * count
        if size > _MOST_SYMBOLS:
            raise StageError(
                f"the layout {_shown(whole)} stands for more than {_MOST_SYMBOLS:,} letters",
                "use smaller repetitions",
                "pipeline_layout",
            )
        parts.append(unit * count)
        position = item.end()
        if text[position : position + 1] == "*":
            raise _unreadable(text[position:], whole)
    return "".join(parts)


def _expand_body(body: str, whole: str) -> str:
    if not body:
        raise _unreadable("()", whole)
    return _expand(body, whole)


def _count(digits: str, whole: str) -> int:
    if len(digits) > 7:
        raise StageError(
            f"the layout {_shown(whole)} repeats something {_shown(digits)} times",
            f"use at most {_MOST_SYMBOLS}",
            "pipeline_layout",
        )
    return int(digits)


def _unreadable(rest: str, whole: str) -> StageError:
    first = rest[0]
    if first == "(":
        why = "parentheses must hold something, stand alone and be repeated"
        hint = "write them as '(tt|)*3', not one in another"
    elif first == "*":
        why = "it repeats nothing, or what is already repeated"
        hint = "write one '*' and a count after a letter, '|' or ')'"
    elif first in _ATOMS + ")":
        why = "it stands alone"
        hint = "write repetitions as 't*3' and '(tt|)*3'"
    else:
        why = "it is no part of a layout"
        hint = "use E, t, m and L (embedding, decoder and multi-token prediction layer, loss), '|', '*', '()'"
    return StageError(f"{first!r} in the layout {_shown(whole)}: {why}", hint, "pipeline_layout")


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 80 else repr(text[:77] + "...")
