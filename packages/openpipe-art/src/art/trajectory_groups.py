"""Groups of rollouts: what is compared with each other, and how rollouts are awaited together.

Invariant: a rollout that failed is never a trajectory with some reward. It is an exception in its group.
"""

import asyncio
import traceback
import uuid
from collections.abc import Awaitable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec

from art.awaiting import hand_over
from art.distributed.errors import CallableError, PartFailed
from art.errors import RolloutFailed, TrajectoryError
from art.trajectories import MetadataValue, Rollout, Trajectory, TrajectoryHandle, checked_rollout
from art.user_code import described, with_place

_gathering: ContextVar[str | None] = ContextVar("_gathering", default=None)


def gathering_group_id() -> str | None:
    """The id of the :class:`TrajectoryGroup` that awaits the running task as one of its rollouts, if any."""
    return _gathering.get()


_expecting: ContextVar[bool] = ContextVar("_expecting", default=False)


@contextmanager
def expecting_trajectories() -> Iterator[None]:
    """In tasks that are made in the ``with`` block, a rollout must return a trajectory: ``executor.run``
    refuses anything else there, with the function's name and line. In a :class:`TrajectoryGroup` it does so
    anyway."""
    token = _expecting.set(True)
    try:
        yield
    finally:
        _expecting.reset(token)


def trajectories_expected() -> bool:
    """Whether what the running task's rollouts return must be trajectories."""
    return _expecting.get() or _gathering.get() is not None


class FailureText(msgspec.Struct, frozen=True):
    """An exception as text.

    Args:
        kind: its type's name, ``module.Type``.
        message: its text.
        traceback: its formatted traceback.
    """

    kind: str
    message: str
    traceback: str


class TrajectoryGroup:
    """Rollouts of one scenario, whose rewards are compared with each other.

    Made from trajectories, handles, exceptions, or awaitables of the first two. With awaitables it must be
    awaited (:func:`art.gather_trajectory_groups` does); they then run concurrently, and what they raise is
    kept in ``exceptions``. Coroutines of ``executor.submit`` without ``group_id`` get one in common then.

    Args:
        trajectories: the rollouts. Afterwards the attribute of this name holds those that did not fail.
        exceptions: failures from elsewhere, to be kept with those of the rollouts.
        metadata: small values to keep beside the group.
        metrics: numbers to keep beside the group.

    Raises:
        TrajectoryError: something else than a rollout or an exception was given.
    """

    def __init__(
        self,
        trajectories: Iterable[Rollout | BaseException | Awaitable[Rollout]] = (),
        *,
        exceptions: Iterable[BaseException] = (),
        metadata: dict[str, MetadataValue] | None = None,
        metrics: dict[str, float | int | bool] | None = None,
    ) -> None:
        self.trajectories: list[Rollout] = []
        self.exceptions: list[BaseException] = list(exceptions)
        self.metadata: dict[str, MetadataValue] = dict(metadata or {})
        self.metrics: dict[str, float | int | bool] = dict(metrics or {})
        self._id = uuid.uuid4().hex
        self._pending: list[Awaitable[Rollout]] = []
        if isinstance(trajectories, Trajectory | TrajectoryHandle) or not isinstance(trajectories, Iterable):
            raise TrajectoryError(
                with_place(
                    f"art.TrajectoryGroup takes a list of rollouts, not {described(trajectories)}. "
                    "Example: art.TrajectoryGroup(executor.submit(rollout, model, x, None) for _ in range(8))"
                )
            )
        for item in trajectories:
            if isinstance(item, Awaitable):
                hand_over(item)
                self._pending.append(item)
            else:
                self._add(item)

    def _add(self, item: object) -> None:
        failure = item.failure if isinstance(item, TrajectoryHandle) else None
        if failure is not None:
            self.exceptions.append(failure)
        elif isinstance(item, BaseException):
            self.exceptions.append(item)
        else:
            self.trajectories.append(checked_rollout(item, "a rollout of this group"))

    @property
    def pending(self) -> int:
        """How many rollouts are still to be awaited."""
        return len(self._pending)

    def give_up(self) -> None:
        """Drops what is still to be awaited: its rollouts are not run."""
        pending, self._pending = self._pending, []
        for rollout in pending:
            if isinstance(rollout, Coroutine):
                rollout.close()
            elif isinstance(rollout, asyncio.Future):
                rollout.cancel()

    def __await__(self) -> Generator[Any, None, "TrajectoryGroup"]:
        return self.resolve().__await__()

    async def resolve(self) -> "TrajectoryGroup":
        """Runs what is pending concurrently and returns itself. A cancellation cancels the rollouts.

        Raises:
            PartFailed: a part that rollouts depend on failed; the other rollouts are cancelled. Likewise
            CallableError: a scenario or a configuration cannot be sent.
            TrajectoryError: a rollout returned something else than a trajectory or a handle to one.
        """
        pending, self._pending = self._pending, []
        token = _gathering.set(self._id)  # the tasks that are made of coroutines begin with it
        try:
            tasks = [asyncio.ensure_future(each) for each in pending]
        finally:
            _gathering.reset(token)
        try:
            await _unless_all_fails(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            self._add(asyncio.CancelledError() if task.cancelled() else task.exception() or task.result())
        return self

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)

    def __repr__(self) -> str:
        return (
            f"TrajectoryGroup({len(self.trajectories)} trajectories, {len(self.exceptions)} exceptions, "
            f"{len(self._pending)} pending)"
        )

    def failures(self) -> tuple[FailureText, ...]:
        """The exceptions as text, to be logged or stored."""
        return tuple(_failure_text(error) for error in self.exceptions)


def checked_groups(groups: object) -> "list[TrajectoryGroup]":
    """The groups that a training step was given, as a list.

    Raises:
        TrajectoryError: it is something else, for example what must be awaited first.
    """
    take = "A training step takes the list that `await art.gather_trajectory_groups(...)` gives"
    alone = isinstance(groups, Awaitable | Trajectory | TrajectoryHandle)  # a group is awaitable
    if alone or not isinstance(groups, Iterable):
        what = "one TrajectoryGroup" if isinstance(groups, TrajectoryGroup) else described(groups)
        raise TrajectoryError(with_place(f"groups is {what}. {take}, or [group]"))
    found = list(groups)
    for index, group in enumerate(found):
        if not isinstance(group, TrajectoryGroup):
            raise TrajectoryError(with_place(f"groups[{index}] is {described(group)}. {take}"))
    return found


async def _unless_all_fails(tasks: Iterable[asyncio.Future[Rollout]]) -> None:
    """Waits for all; what concerns more than the one rollout that raised it is raised at once."""
    waiting = set(tasks)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            error = None if task.cancelled() else task.exception()
            if isinstance(error, PartFailed | CallableError) or not isinstance(error, Exception | None):
                raise error


def _failure_text(error: BaseException) -> FailureText:
    if isinstance(error, RolloutFailed):
        return FailureText(error.kind, error.message, error.traceback_text)
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return FailureText(kind, str(error), "".join(traceback.format_exception(error)))
