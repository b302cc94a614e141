"""Group-relative advantages: how much better a rollout did than the others with the same task.

Sources: group-relative policy optimization (Shao et al. 2024, arXiv:2402.03300, section 4.1.2), and those of
its variants at :class:`AdvantageRule`. Everything is computed for all groups at once, in float64.
"""

from typing import Literal, NamedTuple

import msgspec
import numpy as np

from art_dataplane.choices import check_choices

EQUAL_REWARDS = 1e-9
"""Rewards of a group that differ by no more than this, relative to the largest magnitude, count as equal."""


class OverlongPenalty(msgspec.Struct, frozen=True):
    """A reward loses up to ``penalty`` over the last ``buffer_tokens`` before ``max_tokens``, linearly.

    With ``n`` sampled tokens the loss is ``penalty * clip((n - (max_tokens - buffer_tokens)) / buffer_tokens,
    0, 1)``. Source: the soft overlong punishment of Yu et al. 2025, arXiv:2503.14476, equation 13.

    Args:
        max_tokens: sampled tokens of a trajectory from which on the whole penalty is due.
        buffer_tokens: over how many tokens before that it grows, from 1 to ``max_tokens``.
        penalty: above 0, in units of the reward.

    Raises:
        ValueError: a value is out of its range.
    """

    max_tokens: int
    buffer_tokens: int
    penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.buffer_tokens <= self.max_tokens:
            raise ValueError(
                f"buffer_tokens is {self.buffer_tokens}; it must be from 1 to max_tokens, {self.max_tokens}"
            )
        if not 0 < self.penalty < np.inf:
            raise ValueError(f"penalty is {self.penalty}; it must be a finite number above 0")

    def of(self, token_counts: np.ndarray) -> np.ndarray:
        """float64 ``[N]``: what trajectories with ``token_counts`` ``[N]`` sampled tokens lose."""
        over = np.asarray(token_counts, np.float64) - (self.max_tokens - self.buffer_tokens)
        return np.asarray(self.penalty * np.clip(over / self.buffer_tokens, 0.0, 1.0))


class AdvantageRule(msgspec.Struct, frozen=True):
    """How rewards become advantages.

    The steps, in this order: a reward loses the ``overlong`` penalty, then its ``baseline``; the result is
    scaled (``scale``); and once it is known what is packed, ``equal_sums``, ``balance`` and
    ``unit_magnitude`` are applied over the whole batch.

    Args:
        scale: ``"std"`` divides by ``std + epsilon``, the population's standard deviation over the group;
            ``"batch_std"`` by that over all rewards of the batch (Liu et al. 2025, arXiv:2508.08221; TRL's
            ``scale_rewards="batch"``); ``"none"`` leaves it (Liu et al. 2025, arXiv:2503.20783, section 3.2).
        epsilon: added to the standard deviation.
        zero_variance: what becomes of groups whose rewards are all equal, and which therefore teach nothing:
            ``"drop"`` leaves them out of the batch, ``"keep"`` packs them with an advantage of 0 (they then
            take part in the normalization of the loss weights).
        baseline: ``"mean"`` of the group, or ``"leave_one_out"``, the mean of the others (Ahmadian et al.
            2024, arXiv:2402.14740), which is ``n / (n - 1)`` times as far away.
        balance: from -1 to 1. Above 0 it multiplies negative advantages by ``1 - balance``, below 0 positive
            ones by ``1 + balance``: at 1 only what was better is learned from, at -1 only what was worse.
            OpenPipe ART's ``advantage_balance``.
        equal_sums: first scales positive and negative advantages, each by one factor, to the same sum of
            weight times magnitude over the batch's loss entries, so that long bad rollouts do not outweigh
            short good ones; the sum of both stays. Without one of the signs nothing changes.
        unit_magnitude: last divides all advantages by one factor, so that their magnitude is 1 in the mean by
            weight over the batch's loss entries. OpenPipe ART always does.
        overlong: what long trajectories lose.

    Raises:
        ValueError: ``balance`` is outside of [-1, 1], or ``epsilon`` is negative or not finite.
    """

    scale: Literal["std", "batch_std", "none"] = "std"
    epsilon: float = 1e-6
    zero_variance: Literal["drop", "keep"] = "drop"
    baseline: Literal["mean", "leave_one_out"] = "mean"
    balance: float = 0.0
    equal_sums: bool = False
    unit_magnitude: bool = False
    overlong: OverlongPenalty | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        if not -1 <= self.balance <= 1:
            raise ValueError(f"balance is {self.balance}; it must be from -1 to 1")
        if not 0 <= self.epsilon < np.inf:
            raise ValueError(f"epsilon is {self.epsilon}; it must be a finite number of at least 0")


class GroupAdvantages(NamedTuple):
    """What :func:`group_advantages` computes for ``N`` rewards in ``G`` groups.

    Args:
        advantages: float64 ``[N]``.
        is_zero_variance: bool ``[G]``: whether all rewards of a group are equal.
    """

    advantages: np.ndarray
    is_zero_variance: np.ndarray


def group_advantages(rewards: np.ndarray, offsets: np.ndarray, rule: AdvantageRule) -> GroupAdvantages:
    """Compares the rewards of many groups at once: the rule's ``baseline`` and ``scale``.

    Args:
        rewards: float64 ``[N]``, finite; group ``g`` is ``rewards[offsets[g]:offsets[g + 1]]``.
        offsets: integers ``[G + 1]``, strictly ascending from 0 to ``N``: no group is empty.
        rule: see :class:`AdvantageRule`.
    """
    starts, sizes = offsets[:-1], np.diff(offsets)
    if not len(sizes):
        return GroupAdvantages(np.zeros(0), np.zeros(0, bool))
    highest = np.maximum.reduceat(rewards, starts)
    lowest = np.minimum.reduceat(rewards, starts)
    magnitude = np.maximum(np.abs(highest), np.abs(lowest))
    equal = highest - lowest <= EQUAL_REWARDS * magnitude
    centred = rewards - np.repeat(np.add.reduceat(rewards, starts) / sizes, sizes)
    centred[np.repeat(equal, sizes)] = 0.0
    divisor = np.ones(len(sizes))
    if rule.scale == "std":
        deviation = np.sqrt(np.add.reduceat(centred * centred, starts) / sizes)
        divisor = np.where(equal, 1.0, deviation + rule.epsilon)
    elif rule.scale == "batch_std":
        divisor = np.where(equal, 1.0, rewards.std() + rule.epsilon)
    if rule.baseline == "leave_one_out":
        divisor = divisor * np.where(equal, 1.0, (sizes - 1) / sizes)
    return GroupAdvantages(centred / np.repeat(divisor, sizes), equal)


def batch_advantages(advantages: np.ndarray, mass: np.ndarray, rule: AdvantageRule) -> np.ndarray:
    """What the batch as a whole changes: the rule's ``equal_sums``, ``balance`` and ``unit_magnitude``.

    Args:
        advantages: float64 ``[N]``, of the packed trajectories.
        mass: float64 ``[N]``: the sum of the loss weights of each one's entries.
        rule: see :class:`AdvantageRule`.

    Returns:
        float64 ``[N]``.
    """
    result = np.array(advantages, np.float64)
    positive, negative = result > 0, result < 0
    if rule.equal_sums:
        above = (mass[positive] * result[positive]).sum()
        below = -(mass[negative] * result[negative]).sum()
        if above > 0 and below > 0:
            result[positive] *= (above + below) / (2 * above)
            result[negative] *= (above + below) / (2 * below)
    if rule.balance > 0:
        result[negative] *= 1 - rule.balance
    elif rule.balance < 0:
        result[positive] *= 1 + rule.balance
    if rule.unit_magnitude:
        total = (mass * np.abs(result)).sum()
        if total > 0:
            result *= mass.sum() / total
    return result
