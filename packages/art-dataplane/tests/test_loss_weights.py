"""Loss weights against the formulas of their sources, token by token in exact fractions."""

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_dataplane import LossWeightRule, PackingError
from art_dataplane.loss_weights import record_weights

grouped_lengths = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=6), min_size=1, max_size=5)


def arrays_of(groups):
    counts = np.array([length for group in groups for length in group], np.int64)
    return counts, np.repeat(np.arange(len(groups)), [len(group) for group in groups])


def losses_of(groups):
    """Some loss for every token, group by group and trajectory by trajectory."""
    return [
        [[Fraction(7 * g + 3 * r + t + 1) for t in range(length)] for r, length in enumerate(group)]
        for g, group in enumerate(groups)
    ]


def mean(values):
    values = list(values)
    return sum(values, Fraction(0)) / len(values)


def averaged(losses, normalize):
    """The batch's loss as the sources write it: nested means and sums, no weights."""
    trajectories = [trajectory for group in losses for trajectory in group]
    if normalize == "token_mean":
        return mean(loss for trajectory in trajectories for loss in trajectory)
    if normalize == "trajectory_mean":
        return mean(mean(trajectory) for trajectory in trajectories)
    if normalize == "group_mean":
        return mean(mean(loss for trajectory in group for loss in trajectory) for group in losses)
    return mean(sum(trajectory) / 64 for trajectory in trajectories)


@pytest.mark.parametrize("normalize", ["token_mean", "trajectory_mean", "group_mean", "constant"])
@given(groups=grouped_lengths)
def test_the_weighted_sum_is_the_mean_that_the_rule_names(groups, normalize):
    rule = LossWeightRule(normalize, 64 if normalize == "constant" else None)
    counts, owners = arrays_of(groups)
    weights = record_weights(counts, owners, rule)
    assert weights.dtype == np.float64
    trajectories = [trajectory for group in losses_of(groups) for trajectory in group]
    weighted = sum(
        weight * float(sum(trajectory)) for weight, trajectory in zip(weights, trajectories, strict=True)
    )
    assert weighted == pytest.approx(float(averaged(losses_of(groups), normalize)), rel=1e-12)
    if normalize != "constant":
        assert (weights * counts).sum() == pytest.approx(1.0, rel=1e-12)


def test_a_constant_length_gives_no_token_another_weight_when_its_trajectory_is_longer():
    weights = record_weights(np.array([1, 100]), np.array([0, 0]), LossWeightRule("constant", 200))
    assert weights.tolist() == [1 / 400, 1 / 400]


def test_nothing_packed_has_no_weights():
    assert record_weights(np.zeros(0), np.zeros(0, np.int64), LossWeightRule("group_mean")).shape == (0,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LossWeightRule("constant"), "constant_length is None with normalize='constant'"),
        (lambda: LossWeightRule("token_mean", 5), "constant_length is 5 with normalize='token_mean'"),
        (lambda: LossWeightRule("constant", 0), "constant_length is 0; it must be at least 1"),
        (lambda: msgspec.convert({"normalize": "sum"}, LossWeightRule), "Invalid enum value 'sum'"),
    ],
)
def test_the_rule_accepts_only_what_has_a_meaning(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_record_without_entries_is_refused():
    with pytest.raises(PackingError, match="record 1 of 2 has 0 loss entries"):
        record_weights(np.array([3, 0]), np.array([0, 0]), LossWeightRule("trajectory_mean"))
