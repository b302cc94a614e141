"""The key figures of a run: what stands at the top of its page."""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from art.reporting.page.load import Evaluation, Run, Step

NONE = "\u2013"
"""Stands for a number that is not there."""

_STEP_TIMES = ("rollout_s", "train_s")
"""What a step's time is made of."""


class Figure(NamedTuple):
    """A label, the value in large type, and a line below it."""

    label: str
    value: str
    detail: str


def key_figures(run: Run) -> list[Figure]:
    """Reward in training and in each evaluation, steps, tokens and time, as far as the run has them."""
    figures = [_reward(run.steps)] if run.steps else []
    names = dict.fromkeys(item.name for item in run.evaluations)
    figures += [_evaluation(name, [item for item in run.evaluations if item.name == name]) for name in names]
    figures.append(_steps(run))
    more = [_tokens(run.steps), _speed(run.steps), _time(run)]
    return figures + [figure for figure in more if figure.value != NONE]


def day(unix_s: float) -> str:
    """The minute, in UTC."""
    if not math.isfinite(unix_s):
        return NONE
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix_s))


def duration(seconds: float | None) -> str:
    """`0.8 s`, `59 s`, `12 min 5 s`, `3 h 20 min`."""
    if seconds is None:
        return NONE
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"


def amount(value: float | None, unit: str = "") -> str:
    """`850`, `12.3 k`, `4.56 M`: three digits that matter, with the unit."""
    if value is None:
        return NONE
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size and abs(value) >= 10_000:
            scaled = value / size
            digits = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
            return f"{scaled:.{digits}f} {letter} {unit}".rstrip()
    return f"{value:,.0f} {unit}".rstrip()


def score(value: float | None) -> str:
    """A reward with three decimals, or four digits and more where it is large or small."""
    if value is None:
        return NONE
    if 1e3 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e3 else f"{value:.4g}"


def total(steps: Sequence[Step], name: str) -> float | None:
    """The sum over the steps that have it."""
    values = [value for step in steps if (value := step.get(name)) is not None]
    return math.fsum(values) if values else None


def _number(step: Step) -> str:
    return f"{int(step['step'] or 0):,}"


def _change(first: float | None, last: float | None) -> str:
    return f"{score(first)} → {score(last)}"


def _reward(steps: Sequence[Step]) -> Figure:
    if len(steps) == 1:
        return Figure("Reward, training", score(steps[0].get("reward")), "mean of the one step")
    value = _change(steps[0].get("reward"), steps[-1].get("reward"))
    return Figure("Reward, training", value, f"step {_number(steps[0])} → {_number(steps[-1])}, mean")


def _evaluation(name: str, items: Sequence[Evaluation]) -> Figure:
    label = f"Reward, {name}"
    last = items[-1]
    if len(items) == 1:
        return Figure(label, score(last.reward), f"{last.trajectories:,} answers after step {last.step}")
    detail = f"step {items[0].step:,} → {last.step:,}, {last.trajectories:,} answers"
    return Figure(label, _change(items[0].reward, last.reward), detail)


def _steps(run: Run) -> Figure:
    if not run.steps:
        return Figure("Steps", "0", "no step is finished")
    skipped = sum(bool(step.get("skipped")) for step in run.steps)
    parts = [f"{skipped:,} had nothing to learn from" if skipped else "each changed the policy"]
    restored = sum(bool(step.get("restored")) for step in run.steps)
    if restored:
        parts.append(f"{restored:,} restored after a kill")
    return Figure("Steps", f"{len(run.steps):,}", " · ".join(parts))


def _tokens(steps: Sequence[Step]) -> Figure:
    """Sampled tokens are what is trained on; their prompts are computed along with them."""
    logical, physical = total(steps, "logical_tokens"), total(steps, "physical_tokens")
    sampled = total(steps, "loss_entries")
    computed = f"{amount(physical)} computed, {logical / physical:.1f}x fewer" if logical and physical else ""
    if not sampled:
        return Figure("Tokens trained on, with prompts", amount(logical), computed)
    prompts = f"{amount(logical)} with their prompts" if logical else ""
    return Figure("Sampled tokens trained on", amount(sampled), "; ".join(filter(None, (prompts, computed))))


def _speed(steps: Sequence[Step]) -> Figure:
    sampled = [
        rate * seconds
        for step in steps
        if (rate := step.get("tokens_per_s")) is not None and (seconds := step.get("rollout_s")) is not None
    ]
    seconds = total(steps, "rollout_s")
    rate = math.fsum(sampled) / seconds if sampled and seconds else None
    return Figure(
        "Sampling", amount(rate, "tokens/s"), f"{amount(math.fsum(sampled))} tokens sampled for training"
    )


def whole_time(run: Run) -> float | None:
    """The time of the whole run in seconds: what all its parts add up to, and what was between them."""
    parts = [item.duration_s for item in run.phases if item.duration_s is not None]
    parts += [item.duration_s for item in run.evaluations if item.duration_s is not None]
    parts += [value for name in _STEP_TIMES if (value := total(run.steps, name)) is not None]
    told = [run.description.elapsed_s, *(step.get("elapsed_s") for step in run.steps[-1:])]
    known = [value for value in told if value is not None]
    return max([math.fsum(parts), *known]) if parts or known else None


def _time(run: Run) -> Figure:
    whole = whole_time(run)
    if whole is None:
        return Figure("Time", NONE, "")
    in_steps = [value for name in _STEP_TIMES if (value := total(run.steps, name)) is not None]
    return Figure("Time, all in all", duration(whole), f"{duration(math.fsum(in_steps))} of it in steps")
