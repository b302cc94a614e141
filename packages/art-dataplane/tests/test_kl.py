"""The price of a divergence, by records packed into batches, against plain Python."""

import math
import statistics

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_dataplane import (
    AdvantageRule,
    LossWeightRule,
    PackingError,
    RecordError,
    TokenRecord,
    decode,
    encode,
    plan_packing,
)
from art_dataplane.batch import view_tensors
from art_dataplane.kl import KlRule

logprobs = st.floats(-8, 0).map(lambda value: float(np.float32(value)))


def with_reference(exchange, values):
    return msgspec.structs.replace(exchange, reference_logprobs=np.array(values, np.float32))


@st.composite
def groups_with_references(draw, exchange, record):
    """Groups of two to four records of one or two exchanges that begin alike."""
    groups = []
    for group in range(draw(st.integers(1, 3))):
        records = []
        for index in range(draw(st.integers(2, 4))):
            turns = []
            for turn in range(draw(st.integers(1, 2))):
                old = draw(st.lists(logprobs, min_size=1, max_size=4))
                reference = draw(st.lists(logprobs, min_size=len(old), max_size=len(old)))
                made = exchange([1, 2, turn], [10 + index] * len(old), logprobs=old)
                turns.append(with_reference(made, reference))
            reward = float(draw(st.integers(-3, 3)))
            records.append(record(f"g{group}r{index}", f"g{group}", turns, reward))
        groups.append(records)
    return groups


def entries(groups, **rules):
    """Per record: advantage, weight, and the tensors of the reference, in the order of its tokens."""
    plan = plan_packing(groups, packed_sequence_length=256, policy_version=0, **rules)
    buffer = bytearray(plan.byte_count)
    plan.write(memoryview(buffer))
    batch = view_tensors(plan.tensors, memoryview(buffer))
    names = [name for name in batch if name.startswith("loss_") and name != "loss_row_offsets"]
    found = {record_id: [] for record_id in plan.record_ids}
    for index in range(plan.counts.loss_entries):
        found[plan.record_ids[batch["loss_record"][index]]].append(
            {name: batch[name][index].item() for name in names}
        )
    return found


def tokens_of(record):
    """The old and reference log-probs of a record's sampled tokens."""
    return [
        pair
        for exchange in record.exchanges
        for pair in zip(exchange.logprobs.tolist(), exchange.reference_logprobs.tolist(), strict=True)
    ]


def plain_advantages(groups, rewards):
    result = {}
    for group in groups:
        values = [rewards[record.record_id] for record in group]
        for record, value in zip(group, values, strict=True):
            result[record.record_id] = value - statistics.fmean(values)
    return result


PLAIN = {"advantage": AdvantageRule("none", zero_variance="keep")}


@settings(deadline=None)
@given(st.data(), st.floats(0.01, 2), st.sampled_from(["token_mean", "trajectory_mean"]))
def test_in_the_advantages_tokens_pay_for_their_divergence_above_the_mean(
    exchange, record, data, coefficient, normalize
):
    groups = data.draw(groups_with_references(exchange, record))
    records = [each for group in groups for each in group]
    found = entries(groups, kl=KlRule(coefficient), loss_weight=LossWeightRule(normalize), **PLAIN)
    lengths = {each.record_id: len(tokens_of(each)) for each in records}
    total = sum(lengths.values())
    weight = {
        name: 1 / total if normalize == "token_mean" else 1 / len(records) / length
        for name, length in lengths.items()
    }
    mean = math.fsum(
        weight[each.record_id] * (old - reference) for each in records for old, reference in tokens_of(each)
    )
    plain = plain_advantages(groups, {each.record_id: each.reward for each in records})
    changes = 0.0
    for each in records:
        expected = [
            plain[each.record_id] + coefficient * (mean - (old - reference))
            for old, reference in tokens_of(each)
        ]
        got = [entry["loss_advantage"] for entry in found[each.record_id]]
        assert sorted(got) == pytest.approx(sorted(expected), rel=1e-5, abs=1e-5)
        by_pair = {
            (entry["loss_old_logprob"], entry["loss_reference_logprob"]): entry["loss_advantage"]
            for entry in found[each.record_id]
        }
        for pair, value in zip(tokens_of(each), expected, strict=True):
            assert by_pair[pair] == pytest.approx(value, rel=1e-5, abs=1e-5)
        assert "loss_kl_weight" not in found[each.record_id][0]
        changes += weight[each.record_id] * (math.fsum(got) - len(got) * plain[each.record_id])
    assert changes == pytest.approx(0.0, abs=1e-5)


@settings(deadline=None)
@given(st.data(), st.floats(0.01, 2))
def test_in_the_reward_trajectories_pay_for_the_sum_before_they_are_compared(
    exchange, record, data, coefficient
):
    groups = data.draw(groups_with_references(exchange, record))
    found = entries(groups, kl=KlRule(coefficient, "reward"), **PLAIN)
    charged = {
        each.record_id: each.reward
        - coefficient * math.fsum(old - reference for old, reference in tokens_of(each))
        for group in groups
        for each in group
    }
    for name, value in plain_advantages(groups, charged).items():
        for entry in found[name]:
            assert entry["loss_advantage"] == pytest.approx(value, rel=1e-5, abs=1e-4)


@settings(deadline=None)
@given(st.data(), st.floats(0.01, 2))
def test_in_the_loss_the_batch_carries_reference_and_weight_and_advantages_stay(
    exchange, record, data, coefficient
):
    groups = data.draw(groups_with_references(exchange, record))
    found, plain = entries(groups, kl=KlRule(coefficient, "loss"), **PLAIN), entries(groups, **PLAIN)
    for group in groups:
        for each in group:
            got = found[each.record_id]
            assert sorted(
                (entry["loss_old_logprob"], entry["loss_reference_logprob"]) for entry in got
            ) == sorted(tokens_of(each))
            for entry, other in zip(got, plain[each.record_id], strict=True):
                assert entry["loss_kl_weight"] == pytest.approx(coefficient * entry["loss_weight"], rel=1e-6)
                assert entry["loss_advantage"] == other["loss_advantage"]
            assert "loss_reference_logprob" not in plain[each.record_id][0]


def test_equal_rewards_with_different_divergence_are_no_equal_rewards(exchange, record):
    drifted = with_reference(exchange([1], [2], logprobs=[-0.5]), [-2.0])
    stayed = with_reference(exchange([1], [3], logprobs=[-0.5]), [-0.5])
    groups = [[record("a", exchanges=[drifted]), record("b", exchanges=[stayed])]]
    assert entries(groups, kl=KlRule(0.5, "loss")) == {}
    found = entries(groups, kl=KlRule(0.5, "reward"), advantage=AdvantageRule("none"))
    assert found["a"][0]["loss_advantage"] == pytest.approx(-0.375)
    assert found["b"][0]["loss_advantage"] == pytest.approx(0.375)


def test_a_missing_reference_is_named(exchange, record):
    made = [record("a", reward=0.0), record("b", exchanges=[with_reference(exchange([1], [2]), [-1.0])])]
    with pytest.raises(PackingError, match="record a, exchange 0 has no reference_logprobs"):
        entries([made], kl=KlRule(0.1))
    assert set(entries([made])) == {"a", "b"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([-1.0, -1.0], np.float32), "2 reference log-probs for 1 completion tokens"),
        (np.array([0.5], np.float32), r"reference_logprobs\[0\] is 0.5"),
        (np.array([-1.0]), "reference_logprobs must be a NumPy array float32"),
    ],
)
def test_references_that_do_not_fit_their_tokens_are_refused(exchange, values, message):
    with pytest.raises(RecordError, match=message):
        msgspec.structs.replace(exchange([1], [2]), reference_logprobs=values).validate()


def test_references_survive_the_wire(exchange):
    made = decode(encode(with_reference(exchange([1], [2, 3]), [-1.5, -0.25])), TokenRecord)
    assert made.reference_logprobs.tolist() == [-1.5, -0.25]
    assert decode(encode(exchange([1], [2])), TokenRecord).reference_logprobs is None


def test_a_coefficient_is_not_negative():
    with pytest.raises(ValueError, match=r"coefficient is -0.1; it must be a finite number of at least 0"):
        KlRule(-0.1)
