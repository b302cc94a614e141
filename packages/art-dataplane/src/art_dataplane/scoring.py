"""Which records of a batch are trained on, and how much better each did than its group."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from art_dataplane.advantages import AdvantageRule, group_advantages
from art_dataplane.batch import Objective
from art_dataplane.errors import PackingError, RecordError
from art_dataplane.kl import KlRule, check_references, divergence_sums
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
    groups: Sequence[Sequence[TrajectoryRecord]],
    rule: AdvantageRule,
    kl: KlRule = KlRule(),  # noqa: B008 - frozen
    objective: Objective = "rl",
) -> tuple[list[ScoredGroup], dict[str, int]]:
    """Chooses what is trained on, with its advantage over the rollouts of its group that did not fail.

    With the objective ``"sft"`` rewards mean nothing: every record has the advantage 1.

    Returns:
        The groups that take part, and what was left out under the names of ``PackingCounts``. The advantages
        are those of :func:`~art_dataplane.group_advantages`.

    Raises:
        PackingError: ``kl`` needs reference log-probs that are missing, or ``"sft"`` comes with a penalty
            that needs a policy that sampled.
    """
    finished = [[record for record in group if record.error is None] for group in groups]
    failed = sum(map(len, groups)) - sum(map(len, finished))
    finished = [group for group in finished if group]
    records = [record for group in finished for record in group]
    check_references(records, kl)
    sizes = [len(group) for group in finished]
    if objective == "sft":
        if kl.coefficient and kl.place != "loss":
            raise PackingError(
                f"the objective 'sft' has no policy that sampled, so a divergence cannot be charged to the "
                f"{kl.place}; use KlRule(place='loss') or a coefficient of 0"
            )
        values, equal = [1.0] * len(records), [False] * len(finished)
    else:
        offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        result = group_advantages(_compared_rewards(records, rule, kl), offsets, rule)
        values, equal = result.advantages.tolist(), result.is_zero_variance.tolist()
    scored: list[ScoredGroup] = []
    without_targets = dropped = end = 0
    for group, is_equal in zip(finished, equal, strict=True):
        begin, end = end, end + len(group)
        if is_equal and rule.zero_variance == "drop":
            dropped += 1
            continue
        chosen = [pair for pair in zip(group, values[begin:end], strict=True) if _sampled_tokens(pair[0])]
        without_targets += len(group) - len(chosen)
        if chosen:
            scored.append(
                ScoredGroup(group[0].group_id, [each[0] for each in chosen], [each[1] for each in chosen])
            )
    return scored, {
        "dropped_zero_variance_groups": dropped,
        "failed_records": failed,
        "records_without_targets": without_targets,
        "zero_variance_groups": sum(equal),
    }


def _compared_rewards(records: Sequence[TrajectoryRecord], rule: AdvantageRule, kl: KlRule) -> np.ndarray:
    rewards = np.array([_reward(record) for record in records], np.float64)
    if rule.overlong is not None:
        rewards -= rule.overlong.of(np.array([_sampled_tokens(record) for record in records], np.int64))
    if kl.coefficient and kl.place == "reward":
        rewards -= kl.coefficient * divergence_sums(records)
    return rewards


def _reward(record: TrajectoryRecord) -> float:
    if record.reward is None:
        raise PackingError(f"record {record.record_id} has no reward; a rollout without one sets error")
    return record.reward


def _sampled_tokens(record: TrajectoryRecord) -> int:
    return sum(len(exchange.completion_ids) for exchange in record.exchanges)
