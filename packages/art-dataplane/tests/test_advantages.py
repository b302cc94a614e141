"""Advantages against closed forms in plain Python, with its statistics module."""

import math
import statistics

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_dataplane import AdvantageRule, group_advantages
from art_dataplane.advantages import OverlongPenalty, batch_advantages

rewards = st.floats(-100, 100).map(lambda value: round(value, 3))
groups_of_rewards = st.lists(st.lists(rewards, min_size=1, max_size=8), min_size=1, max_size=6)


def offsets_of(groups):
    return np.cumsum([0, *map(len, groups)])


def flat(groups):
    return np.array([value for group in groups for value in group])


def closed_form(groups, *, scale, baseline, epsilon):
    everything = [value for group in groups for value in group]
    expected = []
    for group in groups:
        for index, value in enumerate(group):
            if len(set(group)) == 1:
                expected.append(0.0)
                continue
            others = group[:index] + group[index + 1 :]
            difference = value - statistics.fmean(group if baseline == "mean" else others)
            spread = {"std": group, "batch_std": everything}.get(scale)
            expected.append(
                difference if spread is None else difference / (statistics.pstdev(spread) + epsilon)
            )
    return expected


@pytest.mark.parametrize("scale", ["std", "batch_std", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@given(groups=groups_of_rewards)
def test_every_group_is_compared_with_itself(groups, scale, baseline):
    rule = AdvantageRule(scale=scale, baseline=baseline, epsilon=1e-4)
    result = group_advantages(flat(groups), offsets_of(groups), rule)
    expected = closed_form(groups, scale=scale, baseline=baseline, epsilon=1e-4)
    np.testing.assert_allclose(result.advantages, expected, rtol=1e-6, atol=1e-9)
    assert result.is_zero_variance.tolist() == [len(set(group)) == 1 for group in groups]


def test_rounding_noise_is_no_variance_even_without_epsilon():
    noisy = np.array([0.1 + 0.2, 0.3, 0.3])
    for scale in ("std", "batch_std"):
        result = group_advantages(noisy, np.array([0, 3]), AdvantageRule(scale, epsilon=0.0))
        assert result.advantages.tolist() == [0.0, 0.0, 0.0]
        assert result.is_zero_variance.tolist() == [True]


def test_no_groups_give_no_advantages():
    result = group_advantages(np.zeros(0), np.array([0]), AdvantageRule())
    assert result.advantages.shape == (0,)


signed = st.lists(
    st.tuples(st.floats(-5, 5).map(lambda value: round(value, 2)), st.floats(0.01, 3)),
    min_size=1,
    max_size=12,
)


@given(signed, st.floats(-1, 1), st.booleans(), st.booleans())
def test_the_batch_is_balanced_and_scaled_in_this_order(pairs, balance, equal_sums, unit_magnitude):
    rule = AdvantageRule(balance=balance, equal_sums=equal_sums, unit_magnitude=unit_magnitude)
    values, mass = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    result = batch_advantages(np.array(values), np.array(mass), rule)
    above = math.fsum(m * v for v, m in pairs if v > 0)
    below = math.fsum(-m * v for v, m in pairs if v < 0)
    half = (above + below) / 2
    expected = []
    for value in values:
        if equal_sums and above and below:
            value *= half / above if value > 0 else half / below
        if value < 0 < balance:
            value *= 1 - balance
        if balance < 0 < value:
            value *= 1 + balance
        expected.append(value)
    magnitude = math.fsum(m * abs(v) for v, m in zip(expected, mass, strict=True)) / math.fsum(mass)
    if unit_magnitude and magnitude:
        expected = [value / magnitude for value in expected]
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)


def test_equal_sums_weigh_one_long_failure_as_much_as_many_short_successes():
    advantages, mass = np.array([1.0, 1.0, -2.0]), np.array([0.05, 0.05, 0.9])
    result = batch_advantages(advantages, mass, AdvantageRule(equal_sums=True))
    assert (mass * result)[:2].sum() == pytest.approx(-(mass * result)[2])
    assert (mass * np.abs(result)).sum() == pytest.approx((mass * np.abs(advantages)).sum())


def test_the_ends_of_the_balance_learn_from_one_sign_only():
    advantages, mass = np.array([1.5, -0.5, 0.0]), np.ones(3)
    assert batch_advantages(advantages, mass, AdvantageRule(balance=1.0)).tolist() == [1.5, 0.0, 0.0]
    assert batch_advantages(advantages, mass, AdvantageRule(balance=-1.0)).tolist() == [0.0, -0.5, 0.0]
    assert advantages.tolist() == [1.5, -0.5, 0.0]


@pytest.mark.parametrize(
    ("tokens", "lost"), [(0, 0.0), (60, 0.0), (70, 0.125), (80, 0.25), (100, 0.5), (1000, 0.5)]
)
def test_the_last_tokens_before_the_limit_cost_ever_more(tokens, lost):
    penalty = OverlongPenalty(max_tokens=100, buffer_tokens=40, penalty=0.5)
    assert penalty.of(np.array([tokens])).tolist() == [pytest.approx(lost)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdvantageRule(balance=1.5), "balance is 1.5; it must be from -1 to 1"),
        (lambda: AdvantageRule(epsilon=-1.0), "epsilon is -1.0"),
        (lambda: AdvantageRule(epsilon=math.nan), "epsilon is nan"),
        (lambda: OverlongPenalty(10, 11), "buffer_tokens is 11; it must be from 1 to max_tokens, 10"),
        (lambda: OverlongPenalty(10, 0), "buffer_tokens is 0"),
        (lambda: OverlongPenalty(10, 5, 0.0), "penalty is 0.0"),
        (lambda: msgspec.convert({"scale": "median"}, AdvantageRule), "Invalid enum value 'median'"),
        (lambda: msgspec.convert({"balance": 2.0}, AdvantageRule), "balance is 2.0"),
    ],
)
def test_the_rule_accepts_only_its_words_and_ranges(make, message):
    with pytest.raises(ValueError, match=message):
        make()
