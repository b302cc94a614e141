"""Faults of a division of the model, and values that mend them.

A fault is found by a pure function of the parallelism. So a value that would work is found by trying: a
candidate is proposed only if with it the fault is gone and no other has come.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, product
from math import isqrt
from typing import Any

import msgspec

from art_topology.passes.findings import Findings, Suggestion, either, joined
from art_topology.spec import MOST_WAYS

_MOST_CANDIDATES = 200
_OF_WORKLOAD = "ART-T9"
"""Rules on the workload: a value that brings these up is better than none."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a division.

    Args:
        code: Of the rule.
        path: In the input.
        message: What is wrong, with the numbers.
        otherwise: What to do when no value of ``fields`` works, or instead.
        fields: Fields of the parallelism that are worth changing, the most likely first.
        suggestion: Where the way out is no field of the parallelism.
        related: Other places that take part.
    """

    code: str
    path: str
    message: str
    otherwise: str = ""
    fields: tuple[str, ...] = ()
    suggestion: Suggestion = None
    related: tuple[str, ...] = ()


def report_faults[P: msgspec.Struct](
    parallel: P,
    path: str,
    judge: Callable[[P], list[Fault]],
    candidates: Callable[[P, str], Iterable[Any]],
    findings: Findings,
) -> list[Fault]:
    """Reports every fault with a value that mends it, where there is one. What else would mend it is proposed
    too, unless the same value is at fault for another reason: to keep it would not do.

    Args:
        parallel: The parallelism.
        path: Of the parallelism in the input.
        judge: Finds its faults.
        candidates: Values of a field that are worth trying, the best first.
        findings: Takes the diagnostics.
    """
    faults = judge(parallel)
    codes = {fault.code for fault in faults}
    for fault in faults:
        suggestion, hint = fault.suggestion, fault.otherwise
        if suggestion is None and fault.fields:
            changes = _mend(parallel, fault, codes, judge, candidates)
            if changes is not None:
                suggestion = _suggested(parallel, path, changes)
                alone = sum(other.path == fault.path for other in faults) == 1
                hint = either(_told(changes), fault.otherwise if alone else "")
        hint = hint or f"choose another {fault.path.rsplit('.', 1)[-1]}"
        findings.report(fault.code, fault.path, fault.message, hint, fault.related, suggestion)
    return faults


def _mend[P: msgspec.Struct](
    parallel: P,
    fault: Fault,
    codes: set[str],
    judge: Callable[[P], list[Fault]],
    candidates: Callable[[P, str], Iterable[Any]],
) -> dict[str, Any] | None:
    tried = {name: list(islice(candidates(parallel, name), _MOST_CANDIDATES)) for name in fault.fields}
    second: dict[str, Any] | None = None
    for proposed in _single_then_joint(tried):
        changes = {name: value for name, value in proposed.items() if value != getattr(parallel, name)}
        found = {other.code for other in judge(msgspec.structs.replace(parallel, **changes))}
        if fault.code not in found:
            if found <= codes:
                return changes
            if second is None and all(code.startswith(_OF_WORKLOAD) for code in found - codes):
                second = changes
    return second


def _single_then_joint(tried: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for name, values in tried.items():
        for value in values:
            yield {name: value}
    if len(tried) > 1:
        joint = product(*((*values[:23], *values[23:][-1:]) for values in tried.values()))
        for together in islice(joint, 2 * _MOST_CANDIDATES):
            yield dict(zip(tried, together, strict=True))


def _suggested(parallel: msgspec.Struct, path: str, changes: dict[str, Any]) -> tuple[str, Any]:
    if len(changes) == 1:
        [(name, value)] = changes.items()
        return f"{path}.{name}", value
    return path, written(msgspec.structs.replace(parallel, **changes))


def written(parallel: msgspec.Struct) -> dict[str, Any]:
    """The parallelism as a file has it: without what is left out."""
    whole: dict[str, Any] = msgspec.to_builtins(parallel)
    return {name: value for name, value in whole.items() if value is not None}


def _told(changes: dict[str, Any]) -> str:
    left = [name for name, value in changes.items() if value is None]
    used = [
        f"{name}={str(value).lower() if isinstance(value, bool) else repr(value)}"
        for name, value in changes.items()
        if value is not None
    ]
    parts = [f"use {joined(used)}"] if used else []
    return " and ".join([*parts, *([f"leave {joined(left)} out"] if left else [])])


def divisors(total: int) -> list[int]:
    """All divisors of a number that parallelism can have, ascending."""
    small = [d for d in range(1, isqrt(total) + 1) if total % d == 0]
    large = [total // d for d in reversed(small) if d * d != total]
    return small + [d for d in large if d <= MOST_WAYS]


def nearest(values: Sequence[int], wanted: int) -> list[int]:
    """The others in the order in which one would rather have them: those below first, the nearest before."""
    below = sorted((value for value in values if value < wanted), reverse=True)
    return below + sorted(value for value in values if value > wanted)
