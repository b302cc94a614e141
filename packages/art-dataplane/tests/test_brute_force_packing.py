"""A packed batch against each trajectory computed alone, through a small attention model in float64.

The reference knows no trees and no rows: it runs every exchange by itself, as one sequence with a dense
causal mask. What it shares with the package are the records, nothing else.
"""

import random
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_dataplane import AdvantageRule, LossWeightRule, PackingError, logical_token_count
from art_dataplane.batch import view_tensors
from art_dataplane.packing_plan import plan_packing

VOCABULARY, WIDTH, DEPTHS = 5, 8, 64
KEEP = AdvantageRule(zero_variance="keep")


class Model:
    """Two layers of attention over embedded tokens and positions; all float64."""

    def __init__(self):
        chance = np.random.default_rng(5)
        self.tokens = chance.normal(size=(VOCABULARY, WIDTH))
        self.positions = chance.normal(size=(DEPTHS, WIDTH))
        self.layers = chance.normal(size=(2, 3, WIDTH, WIDTH)) / WIDTH**0.5
        self.head = chance.normal(size=(WIDTH, VOCABULARY))

    def logprobs(self, tokens, positions, mask, temperatures=1.0):
        """[n, vocabulary]; ``mask[q, k]`` says whether q sees k."""
        hidden = self.tokens[tokens] + self.positions[positions]
        for query, key, value in self.layers:
            scores = (hidden @ query) @ (hidden @ key).T / WIDTH**0.5
            scores = np.where(mask, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            hidden = hidden + weights / weights.sum(axis=1, keepdims=True) @ (hidden @ value)
        logits = hidden @ self.head / temperatures
        top = logits.max(axis=1, keepdims=True)
        return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


MODEL = Model()


def packed_entries(plan):
    """What the batch says of each record: (log-prob by the model, target, old log-prob, version), sorted."""
    buffer = memoryview(bytearray(plan.byte_count))
    plan.write(buffer)
    out = view_tensors(plan.tensors, buffer)
    found = defaultdict(list)
    for row in range(plan.counts.row_count):
        tokens, positions, ends = (
            out[name][slice(*out["row_offsets"][row : row + 2])]
            for name in ("token_ids", "position_ids", "subtree_end")
        )
        index = np.arange(len(tokens))
        mask = (index <= index[:, None]) & (index[:, None] < ends)
        part = slice(*out["loss_row_offsets"][row : row + 2])
        entries = {name: out[name][part] for name in out if name.startswith("loss_") and "row" not in name}
        for number in range(part.stop - part.start):
            temperature = entries["loss_temperature"][number]
            logprobs = MODEL.logprobs(tokens, positions, mask, temperature)
            source, target = entries["loss_source"][number], entries["loss_target"][number]
            found[plan.record_ids[entries["loss_record"][number]]].append(
                (
                    logprobs[source, target],
                    target,
                    entries["loss_old_logprob"][number],
                    entries["loss_version"][number],
                    entries["loss_weight"][number] * entries["loss_advantage"][number],
                )
            )
    return {name: sorted(entries) for name, entries in found.items()}


def entries_alone(groups):
    """The same from each exchange by itself."""
    found = defaultdict(list)
    trained = [record for group in groups for record in group if record.error is None]
    total = sum(len(exchange.completion_ids) for record in trained for exchange in record.exchanges)
    for group in groups:
        done = [record for record in group if record.error is None]
        rewards = np.array([record.reward for record in done])
        for record in done:
            spread = rewards.std()
            advantage = (record.reward - rewards.mean()) / (spread + KEEP.epsilon) if spread else 0.0
            for exchange in record.exchanges:
                tokens = np.concatenate((exchange.prompt_ids, exchange.completion_ids))
                count, first = len(tokens), len(exchange.prompt_ids)
                mask = np.tril(np.ones((count, count), bool))
                logprobs = MODEL.logprobs(tokens, np.arange(count), mask, np.float32(exchange.temperature))
                versions = [
                    span.version for span in exchange.completion_spans for _ in range(span.end - span.start)
                ]
                for place, version in zip(range(first, count), versions, strict=True):
                    found[record.record_id].append(
                        (
                            logprobs[place - 1, tokens[place]],
                            tokens[place],
                            exchange.logprobs[place - first],
                            version,
                            advantage / total,
                        )
                    )
    return {name: sorted(entries) for name, entries in found.items()}


@st.composite
def conversations(draw, exchange):
    exchanges = []
    for _ in range(draw(st.integers(0, 3))):
        earlier = draw(st.sampled_from([None, *exchanges]))
        prompt = [] if earlier is None else [*earlier.prompt_ids.tolist(), *earlier.completion_ids.tolist()]
        prompt = prompt[: draw(st.integers(max(0, len(prompt) - 2), len(prompt)))]
        prompt += draw(st.lists(st.integers(0, 2), min_size=0 if prompt else 1, max_size=3))
        completion = draw(st.lists(st.integers(0, 2), max_size=4))
        size = {"min_size": len(completion), "max_size": len(completion)}
        exchanges.append(
            exchange(
                prompt,
                completion,
                logprobs=draw(st.lists(st.sampled_from([-0.125, -1.0, -2.5]), **size)),
                versions=draw(st.lists(st.integers(0, 9), **size)),
                temperature=draw(st.sampled_from([0.5, 1.0, 0.75])),
            )
        )
    return exchanges


@st.composite
def batches(draw, exchange, record):
    return [
        [
            record(
                f"g{group}r{index}",
                f"g{group}",
                draw(conversations(exchange)),
                draw(st.sampled_from([0.0, 0.5, 1.0])),
                failed=draw(st.integers(0, 6)) == 0,
            )
            for index in range(draw(st.integers(1, 4)))
        ]
        for group in range(draw(st.integers(1, 3)))
    ]


def assert_same(packed, alone):
    assert packed.keys() == alone.keys()
    for name, entries in packed.items():
        assert [entry[1:4] for entry in entries] == [entry[1:4] for entry in alone[name]]
        for index, tolerance in ((0, 1e-9), (4, 1e-6)):
            np.testing.assert_allclose(
                [entry[index] for entry in entries], [entry[index] for entry in alone[name]], atol=tolerance
            )


@given(st.data(), st.integers(22, 50))
def test_losses_are_those_of_each_trajectory_alone(exchange, record, data, capacity):
    groups = data.draw(batches(exchange, record))
    plan = plan_packing(groups, packed_sequence_length=capacity, policy_version=9, advantage=KEEP)
    alone = entries_alone(groups)
    assert_same(packed_entries(plan), alone)
    packed = [each for group in groups for each in group if each.record_id in alone]
    assert plan.counts.logical_tokens == sum(logical_token_count(each.exchanges) for each in packed)


@given(st.data(), st.integers(22, 50), st.randoms(use_true_random=False))
def test_rows_do_not_depend_on_the_order_of_groups_and_records(exchange, record, data, capacity, chance):
    groups = data.draw(batches(exchange, record))
    mixed = [chance.sample(group, len(group)) for group in chance.sample(groups, len(groups))]
    plans = [
        plan_packing(each, packed_sequence_length=capacity, policy_version=9, advantage=KEEP)
        for each in (groups, mixed)
    ]
    assert plans[0].tensors == plans[1].tensors
    outs = []
    for plan in plans:
        buffer = memoryview(bytearray(plan.byte_count))
        plan.write(buffer)
        out = dict(view_tensors(plan.tensors, buffer))
        out["loss_record"] = [plan.record_ids[index] for index in out["loss_record"]]
        outs.append(out)
    for name, values in outs[0].items():
        np.testing.assert_array_equal(values, outs[1][name], err_msg=name)


def test_equal_completions_with_different_rewards_keep_their_entries(exchange, record):
    made = [record(f"r{i}", exchanges=[exchange([1, 2], [3, 4, 0])], reward=float(i)) for i in range(3)]
    plan = plan_packing([made], packed_sequence_length=16, policy_version=0, advantage=AdvantageRule("none"))
    assert (plan.counts.physical_tokens, plan.counts.loss_entries) == (4, 9)
    buffer = memoryview(bytearray(plan.byte_count))
    plan.write(buffer)
    out = view_tensors(plan.tensors, buffer)
    assert out["loss_source"].tolist() == [1, 2, 3] * 3
    assert out["loss_record"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert out["loss_advantage"].tolist() == [-1.0] * 3 + [0.0] * 3 + [1.0] * 3


def test_a_long_conversation_with_branches_in_small_rows(exchange, record):
    """Eight turns; at every second one the conversation goes on in two ways, in four trajectories."""
    chance = random.Random(1)

    def turns():
        text, found = [0, 1], []
        for turn in range(8):
            completion = [chance.randint(0, 4) for _ in range(3)]
            found.append(exchange(list(text), completion))
            if turn % 2:
                found.append(exchange(list(text), [chance.randint(0, 4) for _ in range(2)]))
            text += [*completion, chance.randint(0, 4)]
        return found

    groups = [
        [record(f"g{group}r{index}", f"g{group}", turns(), float(index)) for index in range(2)]
        for group in range(2)
    ]
    for capacity in (36, 60, 300):
        plan = plan_packing(groups, packed_sequence_length=capacity, policy_version=9, advantage=KEEP)
        assert_same(packed_entries(plan), entries_alone(groups))


@pytest.mark.parametrize("normalize", ["token_mean", "trajectory_mean", "group_mean"])
def test_weights_sum_to_one_however_rows_are_cut(exchange, record, normalize):
    made = [record(f"r{i}", exchanges=[exchange([1, 2, 3], [i % 5] * (i + 1))], reward=i) for i in range(9)]
    for capacity in (12, 24, 200):
        plan = plan_packing(
            [made], packed_sequence_length=capacity, policy_version=0, loss_weight=LossWeightRule(normalize)
        )
        buffer = memoryview(bytearray(plan.byte_count))
        plan.write(buffer)
        weights = view_tensors(plan.tensors, buffer)["loss_weight"]
        assert weights.sum(dtype=np.float64) == pytest.approx(1.0, abs=1e-6)


def test_trajectories_that_do_not_fit_are_named_and_counted(exchange, record):
    made = [record(f"long{i}", exchanges=[exchange(range(5), [1] * (8 + i))], reward=i) for i in range(5)]
    made.append(record("fits", reward=9.0))
    with pytest.raises(PackingError) as caught:
        plan_packing([made], packed_sequence_length=11, policy_version=0)
    assert str(caught.value) == (
        "5 of 6 trajectories do not fit: trajectory long0 of group g0 does not fit: prompt 5 + completion 8 "
        "tokens need 12 physical tokens; trajectory long1 of group g0 does not fit: prompt 5 + completion 9 "
        "tokens need 13 physical tokens; trajectory long2 of group g0 does not fit: prompt 5 + completion 10 "
        "tokens need 14 physical tokens; and 2 more, packed_sequence_length is 11; raise it or bound the "
        "rollouts' length"
    )
