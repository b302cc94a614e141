"""What a divergence from a reference policy costs: in the reward, in the advantages or in the loss.

The reference's log-probs of the sampled tokens come with the records
(``TokenRecord.reference_logprobs``). A divergence that is estimated here is the sampler's, for each token
``old_logprob - reference_logprob`` (the estimator k1 of Schulman, "Approximating KL Divergence", 2020); for
the loss the batch carries what the trainer needs to estimate its own. Everything is computed in float64.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from art_dataplane.choices import check_choices
from art_dataplane.errors import PackingError
from art_dataplane.records import TokenRecord, TrajectoryRecord


class KlRule(msgspec.Struct, frozen=True):
    """How far the policy is held to a reference policy.

    Args:
        coefficient: at least 0; 0 asks for no reference log-probs and changes nothing.
        place: where the divergence is charged:

            ``"advantage"`` adds ``coefficient * (mean - divergence)`` to each token's advantage. The mean is
            that over the batch by the loss weights, so the changes sum to 0 by these weights: tokens that
            drifted less than others gain what those lose. OpenPipe ART's ``kl_penalty_coef`` with
            ``kl_penalty_source="sample"``.

            ``"reward"`` subtracts ``coefficient`` times the sum over a trajectory's sampled tokens from its
            reward, before rewards are compared (Ziegler et al. 2019, arXiv:1909.08593, equation 2; Ahmadian
            et al. 2024, arXiv:2402.14740).

            ``"loss"`` leaves rewards and advantages; the batch carries ``loss_reference_logprob`` and
            ``loss_kl_weight = coefficient * loss_weight``, and the trainer adds the sum over all entries of
            that weight times its estimate (Shao et al. 2024, arXiv:2402.03300, equations 3 and 4).

    Raises:
        ValueError: the coefficient is negative or not finite.
    """

    coefficient: float = 0.0
    place: Literal["advantage", "reward", "loss"] = "advantage"

    def __post_init__(self) -> None:
        check_choices(self)
        if not 0 <= self.coefficient < np.inf:
            raise ValueError(f"coefficient is {self.coefficient}; it must be a finite number of at least 0")

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors, float32 ``[L]``, that a batch gets by this rule."""
        if not self.coefficient:
            return ()
        if self.place == "loss":
            return ("loss_reference_logprob", "loss_kl_weight")
        return ("loss_reference_logprob",)


def check_references(records: Sequence[TrajectoryRecord], rule: KlRule) -> None:
    """Checks that every record that is to be trained on has what the rule needs.

    Raises:
        PackingError: one lacks reference log-probs.
    """
    if not rule.coefficient:
        return
    for record in records:
        for index, exchange in enumerate(record.exchanges):
            if exchange.reference_logprobs is None and len(exchange.completion_ids):
                raise PackingError(
                    f"record {record.record_id}, exchange {index} has no reference_logprobs, which a "
                    f"coefficient of {rule.coefficient} needs; compute them before packing or set it to 0"
                )


def divergence_sums(records: Sequence[TrajectoryRecord]) -> np.ndarray:
    """float64 ``[N]``: for each record the sum of ``old_logprob - reference_logprob`` over sampled tokens."""
    sums = np.zeros(len(records))
    for index, record in enumerate(records):
        for exchange in record.exchanges:
            if exchange.reference_logprobs is not None:
                sums[index] += exchange.logprobs.sum(dtype=np.float64)
                sums[index] -= exchange.reference_logprobs.sum(dtype=np.float64)
    return sums


def charged_advantages(
    advantages: np.ndarray, weights: np.ndarray, old: np.ndarray, reference: np.ndarray, coefficient: float
) -> np.ndarray:
    """The advantages of all entries of a batch with the divergence charged to each token, centred.

    Args:
        advantages: float64 ``[L]``.
        weights: float64 ``[L]``, not all 0: the loss weights.
        old: float32 ``[L]``: log-probs under the policy that sampled.
        reference: float32 ``[L]``: log-probs under the reference policy.
        coefficient: of :class:`KlRule`.

    Returns:
        float64 ``[L]``: ``advantages + coefficient * (mean - divergence)``.
    """
    divergence = old.astype(np.float64) - reference
    mean = np.average(divergence, weights=weights)
    return np.asarray(advantages + coefficient * (mean - divergence))


def reference_logprobs(exchanges: Sequence[TokenRecord]) -> np.ndarray:
    """float32 ``[L]``: the reference's log-probs of the completions of ``exchanges``, one after the other.

    Raises:
        PackingError: one has none.
    """
    parts = [exchange.reference_logprobs for exchange in exchanges if exchange.reference_logprobs is not None]
    if len(parts) != len(exchanges):
        raise PackingError(
            f"{len(exchanges) - len(parts)} of {len(exchanges)} exchanges have no reference_logprobs"
        )
    return np.concatenate(parts)
