"""What a rollout gives back: trajectories, and handles to trajectories that stay with their owner."""

import math
import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import msgspec
import pydantic

from art.checked_model import CheckedModel
from art.errors import ArtError, RolloutFailed, TrajectoryError
from art.messages import MessageOrChoice, Messages, MessagesAndChoices, Tools, as_messages, checked
from art.user_code import described, user_place, with_place
from art_dataplane.records import RolloutError, TrajectoryRef

type MetadataValue = str | int | float | bool | None


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
            policy versions. Training is on these tokens: another ``choice.message.content`` changes what
            :meth:`messages` says, and nothing of what is trained on.
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
    """A trajectory that stays with its owner; takes a trajectory's place in a :class:`art.TrajectoryGroup`.

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


def rewards_of(rollouts: Iterable[Rollout]) -> list[float]:
    """The rewards there are, in order: a rollout that failed has none and is left out, never taken for 0."""
    return [item.reward for item in rollouts if item.reward is not None]


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
