"""The loss and its metrics against formulas written out entry by entry."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.losses import LossMetrics, clipped_policy_gradient
from art_trainer.rows import LossEntries


def entries(old, advantage, weight=None, version=None):
    count = len(old)
    return LossEntries(
        source=torch.arange(count),
        target=torch.arange(count),
        old_logprob=torch.tensor(old, dtype=torch.float32),
        advantage=torch.tensor(advantage, dtype=torch.float32),
        weight=torch.tensor(weight if weight is not None else [1.0] * count, dtype=torch.float32),
        version=torch.tensor(version if version is not None else [0] * count),
        temperature=torch.ones(count),
    )


@given(
    new=st.floats(-5, 0),
    old=st.floats(-5, 0),
    advantage=st.floats(-3, 3),
    low=st.floats(0.01, 1.0),
    high=st.floats(0.01, 3.0),
)
def test_one_entry_is_the_clipped_surrogate(new, old, advantage, low, high):
    logprob = torch.tensor([new], requires_grad=True)
    loss = clipped_policy_gradient(
        logprob, entries([old], [advantage], weight=[0.5]), clip_low=low, clip_high=high
    )
    ratio = math.exp(np.float32(new) - np.float32(old))
    clipped = min(max(ratio, 1 - low), 1 + high)
    assert float(loss.detach()) == pytest.approx(
        -min(ratio * advantage, clipped * advantage) / 2, rel=1e-4, abs=1e-6
    )
    loss.backward()
    stopped = (advantage > 0 and ratio > (1 + high) * 1.0001) or (
        advantage < 0 and ratio < (1 - low) * 0.9999
    )
    if stopped:
        assert float(logprob.grad) == 0.0


def test_weights_choose_and_scale_entries():
    """They are taken as they are: nothing divides by their sum."""
    logprob = torch.tensor([-1.0, -2.0, -3.0])
    all_three = entries([-1.1, -2.0, -2.5], [1.0, -1.0, 2.0], weight=[2.0, 1.0, 0.0])
    loss = clipped_policy_gradient(logprob, all_three, clip_low=0.2, clip_high=0.2)
    expected = -(2 * math.exp(0.1) * 1.0 + 1 * 1.0 * -1.0)
    assert float(loss) == pytest.approx(expected, rel=1e-6)


def test_metrics_over_several_rows():
    rng = np.random.default_rng(0)
    new, old, advantage = rng.uniform(-3, -1, 40), rng.uniform(-3, -1, 40), rng.standard_normal(40)
    weight, version = rng.uniform(0.5, 2, 40), rng.integers(5, 7, 40)
    metrics = LossMetrics(clip_low=0.1, clip_high=0.3, version=6)
    for part in (slice(0, 15), slice(15, 40)):
        row = entries(old[part], advantage[part], weight[part], version[part])
        metrics.add(torch.tensor(new[part], dtype=torch.float32), torch.ones(len(new[part])) * 2, row)
    got = metrics.summary()
    difference, share = new - old, weight / weight.sum()
    ratio = np.exp(difference)
    clipped = ((ratio > 1.3) & (advantage > 0)) | ((ratio < 0.9) & (advantage < 0))
    expected = {
        "ratio_mean": (ratio * share).sum(),
        "clip_fraction": (clipped * share).sum(),
        "kl_k1": -(difference * share).sum(),
        "kl_k3": ((ratio - 1 - difference) * share).sum(),
        "entropy_mean": 2.0,
        "advantage_mean": (advantage * share).sum(),
        "logprob_mean": (new * share).sum(),
        "sampler_difference_count": (version == 6).sum(),
        "sampler_difference_mean": np.abs(difference)[version == 6].mean(),
        "sampler_difference_p99": np.percentile(np.abs(difference)[version == 6], 99),
        "sampler_difference_max": np.abs(difference)[version == 6].max(),
    }
    assert got == pytest.approx(expected, rel=1e-5)


def test_without_tokens_of_this_version_there_is_no_difference_to_report():
    metrics = LossMetrics(clip_low=0.2, clip_high=0.2, version=3)
    metrics.add(torch.tensor([-1.0]), torch.tensor([1.0]), entries([-1.0], [1.0], version=[2]))
    summary = metrics.summary()
    assert summary["sampler_difference_count"] == 0
    assert "sampler_difference_mean" not in summary
