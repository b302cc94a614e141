"""The clipped policy-gradient loss, the divergence from a reference, and what is reported about them.

Source: the clipped surrogate of Schulman et al. 2017 (arXiv:1707.06347, equation 7) per token, with two clip
distances; the KL estimators are k1 and k3 of Schulman's "Approximating KL Divergence" (2020).

What always holds: losses are sums with the batch's weights as they are. What they are a mean over is said by
the weights alone (:class:`art_dataplane.LossWeightRule`), so the losses of a batch's rows add up to its own.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from art_trainer.rows import LossEntries


def clipped_policy_gradient(
    logprob: Tensor, loss: LossEntries, *, clip_low: float, clip_high: float
) -> Tensor:
    """``sum(weight * -min(ratio * A, clip(ratio) * A))`` over the entries of one row, float32, a scalar.

    Args:
        logprob: float32 ``[L]``, under the weights being trained; carries gradients.
        loss: the entries.
        clip_low: the ratio is clipped below ``1 - clip_low``; ``clip_high``: and above ``1 + clip_high``.
    """
    ratio = (logprob - loss.old_logprob).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    surrogate = torch.minimum(ratio * loss.advantage, clipped * loss.advantage)
    return -(surrogate * loss.weight).sum()


def reference_divergence(logprob: Tensor, loss: LossEntries) -> Tensor | None:
    """``sum(kl_weight * k3)`` over the entries of one row, a scalar; None when they have no ``kl_weight``.

    ``k3 = exp(d) - d - 1`` with ``d = reference_logprob - logprob``: Shao et al. 2024, arXiv:2402.03300,
    equation 4.

    Args:
        logprob: float32 ``[L]``, under the weights being trained; carries gradients.
        loss: the entries.
    """
    if loss.kl_weight is None or loss.reference_logprob is None:
        return None
    difference = loss.reference_logprob - logprob
    return (loss.kl_weight * (difference.expm1() - difference)).sum()


@dataclass
class LossMetrics:
    """Collects what the rows of one batch say; weights count every entry's share as in the loss."""

    clip_low: float
    clip_high: float
    version: int
    _logprob: list[Tensor] = field(default_factory=list)
    _entropy: list[Tensor] = field(default_factory=list)
    _loss: list[LossEntries] = field(default_factory=list)

    def add(self, logprob: Tensor, entropy: Tensor, loss: LossEntries) -> None:
        """Takes one row's results, ``[L]`` each."""
        self._logprob.append(logprob.detach())
        self._entropy.append(entropy)
        self._loss.append(loss)

    def summary(self) -> dict[str, float]:
        """Dimensionless numbers (log-probabilities in nats).

        ``ratio_mean``, ``clip_fraction`` (entries whose gradient the clip stopped), ``kl_k1`` and ``kl_k3``
        (of the sampling policy from this one), ``entropy_mean``, ``advantage_mean`` and ``logprob_mean``
        are weighted means. ``sampler_difference_*`` compare this forward pass with the sampler's
        log-probabilities for the tokens that version ``version``, whose weights these are, has sampled:
        mean and 99th percentile of the absolute difference, and how many tokens; the first two are absent
        when there are none.
        """
        logprob, entropy = torch.cat(self._logprob).double(), torch.cat(self._entropy).double()
        old = torch.cat([loss.old_logprob for loss in self._loss]).double()
        advantage = torch.cat([loss.advantage for loss in self._loss]).double()
        weight = torch.cat([loss.weight for loss in self._loss]).double()
        weight = weight / weight.sum()
        difference = logprob - old
        ratio = difference.exp()
        clipped = ((ratio > 1 + self.clip_high) & (advantage > 0)) | (
            (ratio < 1 - self.clip_low) & (advantage < 0)
        )
        values = {
            "ratio_mean": ratio,
            "clip_fraction": clipped.double(),
            "kl_k1": -difference,
            "kl_k3": ratio - 1 - difference,
            "entropy_mean": entropy,
            "advantage_mean": advantage,
            "logprob_mean": logprob,
        }
        summary = {name: float((value * weight).sum()) for name, value in values.items()}
        current = torch.cat([loss.version for loss in self._loss]) == self.version
        gaps = difference[current].abs().numpy()
        summary["sampler_difference_count"] = float(len(gaps))
        if len(gaps):
            summary["sampler_difference_mean"] = float(gaps.mean())
            summary["sampler_difference_p99"] = float(np.percentile(gaps, 99))
            summary["sampler_difference_max"] = float(gaps.max())
        return summary
