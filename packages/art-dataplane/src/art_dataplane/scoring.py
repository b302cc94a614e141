"""Which records of a batch are trained on, and how much better each did than its group."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from art_dataplane.advantages import AdvantageRule, group_advantages
from art_dataplane.errors import PackingError, RecordError
from art_dataplane.records import TrajectoryRecord


class ScoredGroup(NamedTuple):
    """One group that takes part, with its records that are trained on and their advantages."""

    group_id: str
    records: list[TrajectoryRecord]
    advantages: list[float]


def check_records(groups: Sequence[Sequence[TrajectoryRecord]], policy_version: int) -> None:
    """Checks all records of a batch, also against each other.

    Raises:
        PackingError: one is invalid, of another group than the others, there twice, or (unless it failed) of
            a version after ``policy_version`` or sampled at temperature 0.
    """
    seen: set[str] = set()
    for group in groups:
        for record in group:
            try:
                record.validate()
            except RecordError as error:
                raise PackingError(str(error)) from error
            if record.group_id != group[0].group_id:
                raise PackingError(
                    f"record {record.record_id} of group {record.group_id} is among those of "
                    f"{group[0].group_id}"
                )
            if record.record_id in seen:
                raise PackingError(f"record {record.record_id} is there twice; it would be trained on twice")
            seen.add(record.record_id)
            if record.error is None:
                _check_trainable(record, policy_version)


def _check_trainable(record: TrajectoryRecord, policy_version: int) -> None:
    for index, exchange in enumerate(record.exchanges):
        if len(exchange.completion_ids) and exchange.temperature == 0:
            raise PackingError(
                f"record {record.record_id}, exchange {index} was sampled at temperature 0, where log-probs "
                "say nothing about the policy; sample with a temperature above 0"
            )
        newest = max((span.version for span in exchange.completion_spans), default=0)
        if newest > policy_version:
            raise PackingError(
                f"record {record.record_id}, exchange {index} has tokens of version {newest}, after the "
                f"version {policy_version} that this step starts from"
            )


def score_groups(
    groups: Sequence[Sequence[TrajectoryRecord]], rule: AdvantageRule
) -> tuple[list[ScoredGroup], dict[str, int]]:
    """Chooses what is trained on, with its advantage over the rollouts of its group that did not fail.

    Returns:
        The groups that take part, and what was left out under the names of ``PackingCounts``.
    """
    finished = [[record for record in group if record.error is None] for group in groups]
    failed = sum(map(len, groups)) - sum(map(len, finished))
    finished = [group for group in finished if group]
    rewards = np.array([record.reward for group in finished for record in group], np.float64)
    offsets = np.concatenate(([0], np.cumsum([len(group) for group in finished], dtype=np.int64)))
    result = group_advantages(rewards, offsets, rule)
    values = result.advantages.tolist()
    scored: list[ScoredGroup] = []
    without_targets = dropped = 0
    for group, begin, equal in zip(
        finished, offsets.tolist(), result.is_zero_variance.tolist(), strict=False
    ):
        if equal and rule.zero_variance == "drop":
            dropped += 1
            continue
        chosen = [
            (record, values[begin + index])
            for index, record in enumerate(group)
            if any(len(exchange.completion_ids) for exchange in record.exchanges)
        ]
        without_targets += len(group) - len(chosen)
        if chosen:
            scored.append(
                ScoredGroup(group[0].group_id, [each[0] for each in chosen], [each[1] for each in chosen])
            )
    return scored, {
        "dropped_zero_variance_groups": dropped,
        "failed_records": failed,
        "records_without_targets": without_targets,
        "zero_variance_groups": int(result.is_zero_variance.sum()),
    }
