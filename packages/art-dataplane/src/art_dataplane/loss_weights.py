"""How much each loss entry of a batch counts, and what a divergence from a reference policy costs.

A *loss entry* is one predicted token. The trainer sums ``weight * loss`` over the entries of a batch, so the
weights alone say over what the loss is averaged. All rules compute in float64.
"""

from typing import Literal

import msgspec
import numpy as np

from art_dataplane.choices import check_choices
from art_dataplane.errors import PackingError


class LossWeightRule(msgspec.Struct, frozen=True):
    """How much each loss entry counts: the trainer sums ``weight * loss`` over all entries of the batch.

    With ``L`` entries, ``N`` packed trajectories of ``n`` entries each, and ``G`` groups of ``m`` entries
    each, an entry weighs

    | normalize | weight | the loss is a mean over |
    |---|---|---|
    | ``"token_mean"`` | ``1 / L`` | tokens: long trajectories count more |
    | ``"trajectory_mean"`` | ``1 / (N n)`` | trajectories, inside of each over its tokens |
    | ``"group_mean"`` | ``1 / (G m)`` | groups, inside of each over its tokens |
    | ``"constant"`` | ``1 / (N constant_length)`` | trajectories, whose tokens are summed |

    Sources: the first as verl and NeMo-RL call it; Shao et al. 2024, arXiv:2402.03300, equation 3; Yu et al.
    2025, arXiv:2503.14476, equation 8; Liu et al. 2025, arXiv:2503.20783, section 3.2.

    The weights of a batch sum to 1 by the first three; by ``"constant"`` they sum to the mean number of
    entries per trajectory over ``constant_length``, so that no length changes the weight of a token.

    Args:
        normalize: which of these.
        constant_length: tokens, above 0, that ``"constant"`` divides by in place of each trajectory's own
            number: the most that a rollout may generate. Required there and used nowhere else.

    Raises:
        ValueError: ``constant_length`` is missing, not positive, or given to another rule.
    """

    normalize: Literal["token_mean", "trajectory_mean", "group_mean", "constant"] = "token_mean"
    constant_length: int | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        if (self.constant_length is not None) != (self.normalize == "constant"):
            raise ValueError(
                f"constant_length is {self.constant_length} with normalize={self.normalize!r}; the rule "
                "'constant' needs it, for example 4096, and the others have no use for it"
            )
        if self.constant_length is not None and self.constant_length <= 0:
            raise ValueError(f"constant_length is {self.constant_length}; it must be at least 1")


def record_weights(entry_counts: np.ndarray, groups: np.ndarray, rule: LossWeightRule) -> np.ndarray:
    """The weight of each entry of each record.

    Args:
        entry_counts: integers ``[N]``, each at least 1: loss entries of each packed record.
        groups: integers ``[N]`` from 0 on: which group each record is of.
        rule: see :class:`LossWeightRule`.

    Returns:
        float64 ``[N]``.

    Raises:
        PackingError: a record has no entry.
    """
    counts = np.asarray(entry_counts, np.float64)
    if not len(counts):
        return np.zeros(0)
    if counts.min() < 1:
        raise PackingError(
            f"record {int(counts.argmin())} of {len(counts)} has {int(counts.min())} loss entries; a packed "
            "record has at least one"
        )
    if rule.normalize == "token_mean":
        return np.full(len(counts), 1.0 / counts.sum())
    if rule.normalize == "trajectory_mean":
        return 1.0 / (len(counts) * counts)
    if rule.normalize == "group_mean":
        totals = np.bincount(groups, weights=counts)
        return np.asarray(1.0 / (np.count_nonzero(totals) * totals[groups]))
    assert rule.constant_length is not None
    return np.full(len(counts), 1.0 / (len(counts) * rule.constant_length))
