"""What a rollout gives back: trajectories, handles to trajectories that stay with their owner, and groups of
them.

Invariant: a rollout that failed is never a trajectory with some reward. It is an exception in its group.
"""

import asyncio
import math
import time
import traceback
import uuid
from collections.abc import Awaitable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import msgspec
import pydantic

from art.awaiting import hand_over
from art.checked_model import CheckedModel
from art.distributed.errors import CallableError, PartFailed
from art.errors import ArtError, RolloutFailed, TrajectoryError
from art.messages import MessageOrChoice, Messages, MessagesAndChoices, Tools, as_messages, checked
from art.user_code import described, user_place, with_place
from art_dataplane.records import RolloutError, TrajectoryRef

type MetadataValue = str | int | float | bool | None

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


def checked_reward(value: Any) -> float:
    """Returns the reward as a float; whatever has a number in it, such as a NumPy scalar, is taken.

    Raises:
        ValueError: it is a text, ``None``, not a number, or not finite.
    """
    rule = "it must be a finite number, for example reward=1.0"
    if value is None:
        raise ValueError(f"reward is None; {rule}. Begin with reward=0.0 where it is known later only")
    if isinstance(value, str | bytes):
        raise ValueError(f"reward is {described(value)}; {rule}")
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"reward is {described(value)}; {rule}") from None
    if not math.isfinite(found):
        raise ValueError(
            f"reward is {found}; {rule}. A rollout that has no reward must raise: then it is not trained on"
        )
    return found


CheckedMessages = Annotated[pydantic.SkipValidation[MessagesAndChoices], pydantic.BeforeValidator(checked)]


class History(CheckedModel):
    """A further conversation of the same trajectory, for example a sub-agent's.

    Args:
        messages_and_choices: as a trajectory's.
        tools: the tools that were offered, as OpenAI's.
    """

    _example: ClassVar[str] = 'art.History(messages_and_choices=[{"role": "user", "content": "..."}, choice])'
    _refusal: ClassVar[type[ArtError]] = TrajectoryError

    messages_and_choices: CheckedMessages
    tools: Tools | None = None

    if TYPE_CHECKING:

        def __init__(
            self, *, messages_and_choices: Sequence[MessageOrChoice], tools: Tools | None = None
        ) -> None: ...

    def messages(self) -> Messages:
        """The conversation as plain messages.

        Raises:
            TrajectoryError: something else than a message or a choice is in it.
        """
        return as_messages(self.messages_and_choices)


class Trajectory(CheckedModel):
    """One finished rollout.

    Args:
        messages_and_choices: the conversation, any sequence, kept as a list; what the trained model said
            stands as the openai ``Choice`` it came in, since the choice carries the token ids, log-probs and
            policy versions.
        reward: what the rollout is worth, a finite number.
        metrics: numbers to report, averaged over a step.
        metadata: small values to keep beside it.
        tools: the tools that were offered, as OpenAI's.
        logs: lines for a human.
        additional_histories: further conversations that share the reward.
        initial_policy_version: the lowest policy version of the tokens that the model said. Unless you set
            it, ``executor.run`` sets it on what comes back, and training on a trajectory sets it. Its choices
            say the version of each token.
        final_policy_version: the highest, likewise.
        started_unix_s: when it was made, in seconds since 1970 (Unix time).
        duration_s: seconds it took; :meth:`finish` sets it.

    Raises:
        TrajectoryError: a field is wrong; the text names it, the line of the program, and what to write.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    _example: ClassVar[str] = (
        'art.Trajectory(messages_and_choices=[{"role": "user", "content": "..."}, completion.choices[0]], '
        "reward=1.0)"
    )
    _refusal: ClassVar[type[ArtError]] = TrajectoryError

    messages_and_choices: CheckedMessages
    reward: Annotated[float, pydantic.PlainValidator(checked_reward)]
    metrics: dict[str, float | int | bool] = pydantic.Field(default_factory=dict)
    metadata: dict[str, MetadataValue] = pydantic.Field(default_factory=dict)
    tools: Tools | None = None
    logs: list[str] = pydantic.Field(default_factory=list)
    additional_histories: list[History] = pydantic.Field(default_factory=list)
    initial_policy_version: int | None = None
    final_policy_version: int | None = None
    started_unix_s: float = pydantic.Field(default_factory=time.time)
    duration_s: float | None = None
    _started: float = pydantic.PrivateAttr(default_factory=time.monotonic)
    _made_in: str = pydantic.PrivateAttr(default_factory=user_place)

    if TYPE_CHECKING:  # pydantic's own, but for type checkers a list is no list of a wider type

        def __init__(
            self,
            *,
            messages_and_choices: Sequence[MessageOrChoice],
            reward: float,
            metrics: Mapping[str, float | int | bool] = ...,
            metadata: Mapping[str, MetadataValue] = ...,
            tools: Tools | None = None,
            logs: Sequence[str] = ...,
            additional_histories: Sequence[History] = ...,
            initial_policy_version: int | None = None,
            final_policy_version: int | None = None,
            started_unix_s: float = ...,
            duration_s: float | None = None,
        ) -> None: ...

    else:

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "reward":
                try:
                    value = checked_reward(value)
                except ValueError as error:
                    raise TrajectoryError(with_place(f"art.Trajectory: {error}")) from None
            super().__setattr__(name, value)

    @property
    def made_in(self) -> str:
        """The line of the program that made it, ``FILE:LINE, in FUNCTION``; empty if it is not known."""
        return self._made_in

    def log(self, message: str) -> None:
        """Adds the line ``message`` to ``logs``."""
        self.logs.append(message)

    def finish(self) -> Self:
        """Sets ``duration_s`` and the metric ``duration`` (seconds since it was made) and returns itself."""
        self.duration_s = time.monotonic() - self._started
        self.metrics["duration"] = self.duration_s
        return self

    @contextmanager
    def track_duration(self, metric_name: str) -> Iterator[None]:
        """Adds the seconds spent in the ``with`` block to the metric ``<metric_name>_duration``."""
        key, start = f"{metric_name}_duration", time.monotonic()
        try:
            yield
        finally:
            self.metrics[key] = self.metrics.get(key, 0.0) + time.monotonic() - start

    def messages(self) -> Messages:
        """The conversation as plain messages.

        Raises:
            TrajectoryError: something else than a message or a choice is in it.
        """
        return as_messages(self.messages_and_choices)

    def for_logging(self) -> dict[str, Any]:
        """The trajectory as plain data, without token ids."""
        return {
            "reward": self.reward,
            "metrics": self.metrics,
            "metadata": self.metadata,
            "messages": self.messages(),
            "tools": self.tools,
            "logs": self.logs,
        }


class TrajectoryHandle(msgspec.Struct, frozen=True):
    """A trajectory that stays with its owner; usable in a :class:`TrajectoryGroup` in a trajectory's place.

    Args:
        reward: of the rollout; ``None`` when it failed.
        metrics: as the trajectory's.
        metadata: as the trajectory's.
        ref: names the record and the process that holds it; ``None`` when no record exists.
        error: why the rollout failed.
        worker: what ran it, for example ``rollout worker 3 (pid 123)``.
        scenario: what it was asked, shortened, as ``repr`` shows it.
    """

    reward: float | None
    metrics: dict[str, float]
    metadata: dict[str, str | int | float | bool | None]
    ref: TrajectoryRef | None = None
    error: RolloutError | None = None
    worker: str = ""
    scenario: str = ""

    @property
    def failure(self) -> RolloutFailed | None:
        """The failure of the rollout as an exception."""
        if self.error is None:
            return None
        error = self.error
        return RolloutFailed(error.kind, error.message, error.traceback, self.worker, self.scenario)

    def raise_for_error(self) -> Self:
        """Returns itself.

        Raises:
            RolloutFailed: the rollout failed.
        """
        failure = self.failure
        if failure is not None:
            raise failure
        return self


type Rollout = Trajectory | TrajectoryHandle


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


def checked_rollout(value: object, who: str) -> Rollout:
    """Returns ``value``, when it is a trajectory or a handle to one.

    Args:
        value: what was given in place of a rollout.
        who: what gave it, for the message: ``a rollout of this evaluation``.

    Raises:
        TrajectoryError: it is something else.
    """
    if isinstance(value, Trajectory | TrajectoryHandle):
        return value
    raise not_a_trajectory(who, value, "(or a handle to one)")


def not_a_trajectory(who: str, value: object, more: str = "") -> TrajectoryError:
    """What is said of a rollout that returned something else than a trajectory."""
    expected = f"expected an art.Trajectory {more}".rstrip()
    write = "await ..." if isinstance(value, Awaitable) else "art.Trajectory(...)"
    return TrajectoryError(
        with_place(f"{who} returned {described(value)}; {expected}. Write `return {write}`")
    )


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
