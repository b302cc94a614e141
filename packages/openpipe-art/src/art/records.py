"""From a trajectory of the facade to the record that the trainer's side knows.

Each openai ``Choice`` of ART's server carries the extra field ``art``: base64 of the MessagePack of one
:class:`art_dataplane.records.TokenRecord`. openai's model keeps unknown fields, so any client carries it.
Tokens come from there and are never computed again from text.
"""

import base64
import binascii
import math
import uuid
from collections.abc import Iterable

import msgspec
from openai.types.chat.chat_completion import Choice

from art.errors import RecordError
from art.trajectories import Trajectory
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


def token_records(trajectory: Trajectory) -> tuple[TokenRecord, ...]:
    """All exchanges of a trajectory: of its conversation, then of its additional histories.

    Raises:
        RecordError: a choice carries no record, or there is no choice at all.
    """
    choices = _choices(trajectory)
    if not choices:
        raise RecordError(
            "a trajectory holds no openai Choice, so there is nothing to train on. Put response.choices[0] "
            "itself into messages_and_choices where the model spoke"
        )
    return tuple(token_record(choice) for choice in choices)


def _choices(trajectory: Trajectory) -> list[Choice]:
    conversations = [
        trajectory.messages_and_choices,
        *(history.messages_and_choices for history in trajectory.additional_histories),
    ]
    return [item for conversation in conversations for item in conversation if isinstance(item, Choice)]


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


def trajectory_record(
    trajectory: Trajectory, *, group_id: str, record_id: str | None = None
) -> TrajectoryRecord:
    """The training record of a trajectory, whose policy versions are set (:func:`set_policy_versions`).

    Raises:
        RecordError: a choice carries no token record, or the reward is not a finite number.
    """
    if not math.isfinite(trajectory.reward):
        raise RecordError(f"a trajectory has the reward {trajectory.reward}; it must be a finite number")
    exchanges = token_records(trajectory)
    set_policy_versions(trajectory, exchanges)
    return TrajectoryRecord(
        record_id=record_id if record_id is not None else uuid.uuid4().hex,
        group_id=group_id,
        exchanges=exchanges,
        reward=float(trajectory.reward),
        metrics={name: float(value) for name, value in trajectory.metrics.items()},
        metadata=dict(trajectory.metadata),
        timing=RolloutTiming(trajectory.duration_s or 0.0, trajectory.started_unix_s),
    )
