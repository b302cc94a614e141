"""Group-relative advantages: how much better a rollout did than the others with the same task.

Source: group-relative policy optimization (Shao et al. 2024, arXiv:2402.03300, section 4.1.2); without the
division, Liu et al. 2025 (arXiv:2503.20783, section 3.2).
"""

from typing import Literal, NamedTuple

import msgspec
import numpy as np

EQUAL_REWARDS = 1e-9
"""Rewards of a group that differ by no more than this, relative to the largest magnitude, count as equal."""


class AdvantageRule(msgspec.Struct, frozen=True):
    """How rewards become advantages.

    Args:
        scale: ``"std"`` gives ``(r - mean) / (std + epsilon)`` with the population's standard deviation over
            the group, ``"none"`` gives ``r - mean``.
        epsilon: added to the standard deviation.
        zero_variance: what becomes of groups whose rewards are all equal, and which therefore teach nothing:
            ``"drop"`` leaves them out of the batch, ``"keep"`` packs them with an advantage of 0 (they then
            take part in the normalization of the loss weights).
    """

    scale: Literal["std", "none"] = "std"
    epsilon: float = 1e-6
    zero_variance: Literal["drop", "keep"] = "drop"


class GroupAdvantages(NamedTuple):
    """What :func:`group_advantages` computes for ``N`` rewards in ``G`` groups.

    Args:
        advantages: float64 ``[N]``.
        is_zero_variance: bool ``[G]``: whether all rewards of a group are equal.
    """

    advantages: np.ndarray
    is_zero_variance: np.ndarray


def group_advantages(rewards: np.ndarray, offsets: np.ndarray, rule: AdvantageRule) -> GroupAdvantages:
    """Computes the advantages of many groups at once.

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
    if rule.scale == "none":
        return GroupAdvantages(centred, equal)
    deviation = np.sqrt(np.add.reduceat(centred * centred, starts) / sizes)
    divisor = np.where(equal, 1.0, deviation + rule.epsilon)
    return GroupAdvantages(centred / np.repeat(divisor, sizes), equal)
