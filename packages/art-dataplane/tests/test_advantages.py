"""Advantages against the closed form, computed by Python's statistics module."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_dataplane import AdvantageRule, group_advantages

rewards = st.floats(-100, 100).map(lambda value: round(value, 3))


def offsets_of(groups):
    return np.cumsum([0, *map(len, groups)])


@given(st.lists(st.lists(rewards, min_size=1, max_size=8), min_size=1, max_size=6))
def test_every_group_is_centred_and_scaled_by_itself(groups):
    flat = np.array([value for group in groups for value in group])
    scaled = group_advantages(flat, offsets_of(groups), AdvantageRule(epsilon=1e-4))
    centred = group_advantages(flat, offsets_of(groups), AdvantageRule(scale="none"))
    expected_scaled, expected_centred, equal = [], [], []
    for group in groups:
        mean = statistics.fmean(group)
        same = len(set(group)) == 1
        equal.append(same)
        expected_centred += [0.0 if same else value - mean for value in group]
        expected_scaled += [
            0.0 if same else (value - mean) / (statistics.pstdev(group) + 1e-4) for value in group
        ]
    np.testing.assert_allclose(scaled.advantages, expected_scaled, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(centred.advantages, expected_centred, rtol=1e-6, atol=1e-9)
    assert scaled.is_zero_variance.tolist() == equal


def test_rounding_noise_is_no_variance_even_without_epsilon():
    noisy = np.array([0.1 + 0.2, 0.3, 0.3])
    result = group_advantages(noisy, np.array([0, 3]), AdvantageRule(epsilon=0.0))
    assert result.advantages.tolist() == [0.0, 0.0, 0.0]
    assert result.is_zero_variance.tolist() == [True]


def test_no_groups_give_no_advantages():
    result = group_advantages(np.zeros(0), np.array([0]), AdvantageRule())
    assert result.advantages.shape == (0,)


def test_the_rule_accepts_only_its_words():
    import msgspec

    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'median'"):
        msgspec.convert({"scale": "median"}, AdvantageRule)
