"""Gathers groups of rollouts that run concurrently."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from art.awaiting import must_be_awaited
from art.errors import GatherError, SettingError, TrajectoryError
from art.trajectory_groups import TrajectoryGroup
from art.user_code import described, with_place


@must_be_awaited
async def gather_trajectory_groups(
    groups: Iterable[Awaitable[TrajectoryGroup]],
    *,
    pbar_desc: str | None = None,
    max_exceptions: int | float = 0,
    after_each: Callable[[TrajectoryGroup], Awaitable[TrajectoryGroup | None]] | None = None,
) -> list[TrajectoryGroup]:
    """Runs all groups concurrently and returns them in order.

    Args:
        groups: :class:`art.TrajectoryGroup` objects, or anything that gives one when awaited.
        pbar_desc: with it, and when standard error is a terminal, a line counts the finished groups.
        max_exceptions: how many rollouts of all groups together may fail: a whole number, or a share of all
            rollouts when it is a float below 1. A number is looked at whenever a group ends, a share when all
            have ended. Failures that are allowed stay in their group's ``exceptions``.
        after_each: called with each finished group, for example to score it; its result takes the group's
            place, and ``None`` drops it.

    Raises:
        GatherError: more rollouts failed. What still runs is cancelled first.
        PartFailed: a part that rollouts depend on failed, however many rollouts may fail; likewise
        CallableError: a scenario or a configuration cannot be sent.
        SettingError: ``max_exceptions`` is neither a count nor a share.
        TrajectoryError: ``groups`` holds something else than groups.
    """
    share = isinstance(max_exceptions, float) and max_exceptions < 1
    _check_limit(max_exceptions)
    awaitables = _checked(groups)
    failures: list[_Failure] = []
    rollouts = 0
    finished = 0
    counter = _Counter(pbar_desc, len(awaitables))

    def too_many() -> GatherError:
        done = f"{finished} of {len(awaitables)} groups" if finished < len(awaitables) else "all groups"
        return _too_many(failures, rollouts, done, max_exceptions)

    async def one(number: int, awaitable: Awaitable[TrajectoryGroup]) -> TrajectoryGroup | None:
        nonlocal rollouts, finished
        group = await awaitable
        if not isinstance(group, TrajectoryGroup):
            raise TrajectoryError(f"groups[{number - 1}] gave {described(group)}; {_EXPECTED}")
        rollouts += len(group.trajectories) + len(group.exceptions)
        finished += 1
        failures.extend(_Failure(number, error) for error in group.exceptions)
        if not share and len(failures) > max_exceptions:
            raise too_many()
        counter.show(finished, len(failures))
        return await after_each(group) if after_each is not None else group

    tasks = [asyncio.ensure_future(one(*numbered)) for numbered in enumerate(awaitables, 1)]
    try:
        gathered = await asyncio.gather(*tasks)
    finally:
        unfinished = [task for task in tasks if not task.done()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        for awaitable in awaitables:  # those whose turn had not come when the others were cancelled
            if isinstance(awaitable, TrajectoryGroup):
                awaitable.give_up()
        counter.end()
    if share and len(failures) > max_exceptions * rollouts:
        raise too_many()
    return [group for group in gathered if group is not None]


class _Failure(NamedTuple):
    group: int
    error: BaseException


_EXPECTED = (
    "expected an art.TrajectoryGroup, for example "
    "art.TrajectoryGroup(executor.submit(rollout, model, question, None) for _ in range(8))"
)


def _check_limit(value: object) -> None:
    if isinstance(value, float) and 0 <= value < 1:
        return
    if isinstance(value, float) and value.is_integer() and value >= 1:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SettingError(
            with_place(
                f"max_exceptions is {described(value)}; it must be a count of rollouts, for example "
                "max_exceptions=2, or a share of them below 1, for example max_exceptions=0.1"
            )
        )


def _checked(groups: object) -> list[Awaitable[TrajectoryGroup]]:
    if isinstance(groups, Awaitable) or not isinstance(groups, Iterable):
        what = (
            "one TrajectoryGroup; pass [group]" if isinstance(groups, TrajectoryGroup) else described(groups)
        )
        raise TrajectoryError(with_place(f"groups is {what}; expected a list or a generator of groups"))
    found = list(groups)
    for index, group in enumerate(found):
        if not isinstance(group, Awaitable):
            raise TrajectoryError(with_place(f"groups[{index}] is {described(group)}; {_EXPECTED}"))
    return found


def _too_many(failures: list[_Failure], rollouts: int, done: str, allowed: int | float) -> GatherError:
    group, first = failures[0]
    error = GatherError(
        f"{len(failures)} of {rollouts} rollouts failed in {done}; max_exceptions={allowed} for all groups "
        f"together. The first, in group {group}: {type(first).__name__}: {first}",
        [failure.error for failure in failures],
    )
    error.__cause__ = first
    return error


class _Counter:
    def __init__(self, description: str | None, total: int) -> None:
        self._description = description if sys.stderr.isatty() else None
        self._total = total

    def show(self, finished: int, failed: int) -> None:
        if self._description is not None:
            tail = f", {failed} rollouts failed" if failed else ""
            sys.stderr.write(f"\r{self._description}: {finished}/{self._total} groups{tail}")
            sys.stderr.flush()

    def end(self) -> None:
        if self._description is not None:
            sys.stderr.write("\n")
