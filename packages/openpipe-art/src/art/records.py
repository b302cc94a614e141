"""From a trajectory of the facade to the record that the trainer's side knows.

Each openai ``Choice`` of ART's server carries the extra field ``art``: base64 of the MessagePack of one
:class:`art_dataplane.records.TokenRecord`. openai's model keeps unknown fields, so any client carries it.
Tokens come from there and are never computed again from text.
"""

import base64
import binascii
import contextlib
import math
import uuid
from collections.abc import Iterable, Mapping

import msgspec
from openai.types.chat.chat_completion import Choice

from art.errors import RecordError, TrajectoryError
from art.messages import as_messages
from art.trajectories import MetadataValue, Trajectory
from art.user_code import described
from art_dataplane import arrays
from art_dataplane.records import RolloutTiming, TokenRecord, TrajectoryRecord

CHOICE_FIELD = "art"


def encode_choice_field(record: TokenRecord) -> str:
    """The text of a choice's field ``art`` for ``record``."""
    return base64.b64encode(arrays.encode(record)).decode("ascii")


def token_record(choice: Choice) -> TokenRecord:
    """The exchange that ``choice`` carries.

    Raises:
        RecordError: the field is absent or is not a token record.
    """
    text = (choice.model_extra or {}).get(CHOICE_FIELD)
    if text is None:
        raise RecordError(
            f"a choice has no field {CHOICE_FIELD!r} and so no token ids: not one of ART's server, or "
            "was rebuilt from text. Take it from model.openai_client() and keep the Choice object itself; "
            f"it says {str(choice.message.content)[:60]!r}"
        )
    try:
        return arrays.decode(base64.b64decode(text, validate=True), TokenRecord)
    except (binascii.Error, TypeError, ValueError, msgspec.DecodeError) as error:
        raise RecordError(f"the field {CHOICE_FIELD!r} of a choice is not a token record: {error}") from error


def _made(trajectory: Trajectory) -> str:
    """Where it was made, to follow a sentence."""
    return f" (the trajectory was made at {trajectory.made_in})" if trajectory.made_in else ""


def token_records(trajectory: Trajectory) -> tuple[TokenRecord, ...]:
    """All exchanges of a trajectory: of its conversation, then of its additional histories.

    Raises:
        RecordError: a choice carries no record, there is no choice at all, or something else than messages
            and choices is there. The text names the line that made the trajectory.
    """
    try:
        _check_items(trajectory)
        choices = _choices(trajectory)
        if not choices:
            raise RecordError(
                "a trajectory holds no openai Choice, so there is nothing to train on. Put "
                "completion.choices[0] itself into messages_and_choices where the model spoke"
            )
        return tuple(token_record(choice) for choice in choices)
    except (RecordError, TrajectoryError) as error:
        raise RecordError(f"{error}{_made(trajectory)}") from None


def _choices(trajectory: Trajectory) -> list[Choice]:
    conversations = [
        trajectory.messages_and_choices,
        *(history.messages_and_choices for history in trajectory.additional_histories),
    ]
    return [item for conversation in conversations for item in conversation if isinstance(item, Choice)]


def _check_items(trajectory: Trajectory) -> None:
    """What was appended after the trajectory was made has not been looked at yet."""
    as_messages(trajectory.messages_and_choices)
    for history in trajectory.additional_histories:
        as_messages(history.messages_and_choices)


def set_policy_versions(trajectory: Trajectory, exchanges: Iterable[TokenRecord] | None = None) -> None:
    """Sets the trajectory's ``initial_policy_version`` and ``final_policy_version`` where they are not set.

    Args:
        trajectory: it stays as it is when no token is known.
        exchanges: its exchanges; by default those that its choices carry, as far as they do.

    Raises:
        RecordError: the field of a choice is not a token record.
    """
    if exchanges is None:
        carried = (one for one in _choices(trajectory) if CHOICE_FIELD in (one.model_extra or {}))
        exchanges = [token_record(choice) for choice in carried]
    versions = [span.version for exchange in exchanges for span in exchange.completion_spans]
    if not versions:
        return
    if trajectory.initial_policy_version is None:
        trajectory.initial_policy_version = min(versions)
    if trajectory.final_policy_version is None:
        trajectory.final_policy_version = max(versions)


def check_texts(trajectory: Trajectory) -> None:
    """Checks that all texts of a trajectory can be written as UTF-8.

    Raises:
        RecordError: one holds half of a surrogate pair. The text names the field, and the line that made the
            trajectory.
    """
    for field in ("metrics", "metadata"):
        for name, value in getattr(trajectory, field).items():
            _check_text(trajectory, f"a name in {field}", name)
            _check_text(trajectory, f"{field}[{name!r}]", value)
    for index, line in enumerate(trajectory.logs):
        _check_text(trajectory, f"logs[{index}]", line)
    for index, item in enumerate(trajectory.messages_and_choices):
        if isinstance(item, Mapping):
            _check_text(trajectory, f"messages_and_choices[{index}]['content']", item.get("content"))


def _check_text(trajectory: Trajectory, field: str, value: object) -> None:
    if not isinstance(value, str):
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RecordError(
            f"{field} is {described(value)}, whose character {error.start} is half of a surrogate pair and "
            "can be written to no file. Write for example text.encode(errors='replace').decode()"
            f"{_made(trajectory)}"
        ) from None


def trajectory_record(
    trajectory: Trajectory, *, group_id: str, record_id: str | None = None
) -> TrajectoryRecord:
    """The training record of a trajectory, whose policy versions are set (:func:`set_policy_versions`).

    Raises:
        RecordError: a choice carries no token record, or the reward, a metric or a value of the metadata is
            none. The text names the line that made the trajectory.
    """
    if not math.isfinite(trajectory.reward):
        raise RecordError(
            f"a trajectory has the reward {trajectory.reward}; it must be a finite number{_made(trajectory)}"
        )
    exchanges = token_records(trajectory)
    check_texts(trajectory)
    set_policy_versions(trajectory, exchanges)
    return TrajectoryRecord(
        record_id=record_id if record_id is not None else uuid.uuid4().hex,
        group_id=group_id,
        exchanges=exchanges,
        reward=float(trajectory.reward),
        metrics={name: _metric(trajectory, name) for name in trajectory.metrics},
        metadata={name: _metadata(trajectory, name) for name in trajectory.metadata},
        timing=RolloutTiming(trajectory.duration_s or 0.0, trajectory.started_unix_s),
    )


def _metric(trajectory: Trajectory, name: str) -> float:
    value: object = trajectory.metrics[name]
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(value, str | bytes):
            return float(value)  # type: ignore[arg-type]  # what has no number in it raises
    raise RecordError(
        f"metrics[{name!r}] is {described(value)}; a metric is a number. Leave it out where it is not known, "
        f"or put a text into metadata{_made(trajectory)}"
    )


def _metadata(trajectory: Trajectory, name: str) -> MetadataValue:
    value = trajectory.metadata[name]
    if value is not None and not isinstance(value, str | int | float | bool):
        raise RecordError(
            f"metadata[{name!r}] is {described(value)}; it must be a text, a number, True, False or None. "
            f"Write for example str(...){_made(trajectory)}"
        )
    return value
