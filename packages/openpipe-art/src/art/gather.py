"""Gathers groups of rollouts that run concurrently."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable

from art.errors import GatherError
from art.trajectories import TrajectoryGroup


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
        max_exceptions: how many rollouts may fail: a count, or a share of all rollouts when it is a float
            below 1. Failures that are allowed stay in their group's ``exceptions``.
        after_each: called with each finished group, for example to score it; its result takes the group's
            place, and ``None`` drops it.

    Raises:
        GatherError: more rollouts failed. What still runs is cancelled first.
    """
    awaitables = list(groups)
    failures: list[BaseException] = []
    rollouts = 0
    finished = 0
    share = isinstance(max_exceptions, float) and max_exceptions < 1
    counter = _Counter(pbar_desc, len(awaitables))

    async def one(awaitable: Awaitable[TrajectoryGroup]) -> TrajectoryGroup | None:
        nonlocal rollouts, finished
        group = await awaitable
        rollouts += len(group.trajectories) + len(group.exceptions)
        finished += 1
        failures.extend(group.exceptions)
        if not share and len(failures) > max_exceptions:
            raise _too_many(failures, rollouts, max_exceptions)
        counter.show(finished, len(failures))
        return await after_each(group) if after_each is not None else group

    tasks = [asyncio.ensure_future(one(awaitable)) for awaitable in awaitables]
    try:
        gathered = await asyncio.gather(*tasks)
    finally:
        unfinished = [task for task in tasks if not task.done()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        counter.end()
    if share and len(failures) > max_exceptions * rollouts:
        raise _too_many(failures, rollouts, max_exceptions)
    return [group for group in gathered if group is not None]


def _too_many(failures: list[BaseException], rollouts: int, allowed: int | float) -> GatherError:
    first = failures[0]
    error = GatherError(
        f"{len(failures)} of {rollouts} rollouts failed; max_exceptions={allowed}. The first: "
        f"{type(first).__name__}: {first}",
        list(failures),
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
