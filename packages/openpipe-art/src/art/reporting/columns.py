"""The table of steps: a header, and a line per step, as wide as there is room for."""

from collections.abc import Callable
from typing import NamedTuple

from art.reporting.events import StepEnded


class Column(NamedTuple):
    """One column: ``width`` in characters; ``rank`` 0 is dropped last where there is too little room."""

    title: str
    width: int
    rank: int
    text: Callable[[StepEnded], str]
    left: bool = False


def _number(name: str, form: str, unit: str = "") -> Callable[[StepEnded], str]:
    def text(event: StepEnded) -> str:
        value = event.metrics.get(name)
        return "-" if value is None else f"{value:{form}}{unit}"

    return text


def policy(event: StepEnded) -> str:
    """Which versions sampled the tokens, and which is active now: ``v3 -> v4``, or ``v3 kept`` where the step
    had nothing to learn from."""
    now = f"v{event.metrics['policy_version']:.0f}"
    if event.metrics.get("skipped"):
        return f"{now} kept"
    if event.sampled_by is None:
        return now
    low, high = event.sampled_by
    sampled = f"v{low}" if low == high else f"v{low}-{high}"
    return now if sampled == now else f"{sampled} -> {now}"


def difference(event: StepEnded) -> str:
    """How far the trainer's log-probs of the sampled tokens are from the sampler's, or why there is none."""
    metrics = event.metrics
    mean, p99 = metrics.get("sampler_difference_mean"), metrics.get("sampler_difference_p99")
    if metrics.get("skipped"):
        return "no step: equal rewards"
    if mean is None or p99 is None:
        return "-"
    return f"{mean:.1e}, p99 {p99:.1e}"


COLUMNS = (
    Column("step", 4, 0, lambda event: str(event.step)),
    Column("reward", 6, 1, _number("reward", ".3f")),
    Column("tokens/s", 8, 6, _number("tokens_per_s", ".0f")),
    Column("rollout", 7, 4, _number("rollout_s", ".1f", " s")),
    Column("train", 7, 5, _number("train_s", ".1f", " s")),
    Column("policy", 10, 3, policy),
    Column("log-prob difference", 22, 7, difference, left=True),
    Column("summary", 34, 2, lambda event: event.summary, left=True),
)
_GAP = 2


def shown(width: int | None, *, summary: bool = True) -> tuple[Column, ...]:
    """The columns that fit into ``width`` characters, all of them when it is None; the last one, of
    summaries, where there are any."""
    columns = COLUMNS if summary else COLUMNS[:-1]
    if width is None:
        return columns
    chosen: list[Column] = []
    used = -_GAP
    for column in sorted(columns, key=lambda column: column.rank):
        if chosen and used + column.width + _GAP > width:
            continue
        used += column.width + _GAP
        chosen.append(column)
    return tuple(column for column in columns if column in chosen)


def header(width: int | None, *, summary: bool = True) -> str:
    """The titles, at most ``width`` characters."""
    return _joined([(column, column.title) for column in shown(width, summary=summary)], width)


def row(event: StepEnded, width: int | None) -> str:
    """A step, at most ``width`` characters."""
    return _joined([(column, column.text(event)) for column in shown(width)], width)


def _joined(cells: list[tuple[Column, str]], width: int | None) -> str:
    padded = [text.ljust(column.width) if column.left else text.rjust(column.width) for column, text in cells]
    return (" " * _GAP).join(padded).rstrip()[:width]
