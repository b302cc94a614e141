"""Supervised examples, packed, against the labels that a plain loop over their tokens gives."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_dataplane import (
    Lease,
    LossWeightRule,
    Outcome,
    PackingRequest,
    RecordError,
    Selection,
    ShmBatchMapper,
    TrajectoryRecord,
    decode,
    encode,
    pack,
    plan_packing,
    trajectory_ref,
)
from art_dataplane.batch import view_tensors
from art_dataplane.sft import Turn, conversation_record, example_record


@st.composite
def examples(draw):
    """Texts over few tokens, so that they share prefixes, with a mask that leaves out the first."""
    made = []
    for _ in range(draw(st.integers(1, 6))):
        pairs = draw(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=10))
        tokens = [7, *(token for token, _ in pairs), draw(st.integers(0, 2))]
        mask = [
            False,
            *(learned for _, learned in pairs),
            draw(st.booleans()) or not any(p[1] for p in pairs),
        ]
        made.append((tokens, mask))
    return made


def entries_of(groups, capacity, rule):
    plan = plan_packing(
        groups, packed_sequence_length=capacity, policy_version=0, loss_weight=rule, objective="sft"
    )
    buffer = bytearray(plan.byte_count)
    plan.write(memoryview(buffer))
    batch = view_tensors(plan.tensors, memoryview(buffer))
    found = []
    for row in range(plan.counts.row_count):
        begin, end = batch["row_offsets"][row : row + 2]
        tokens, ends = batch["token_ids"][begin:end], batch["subtree_end"][begin:end]
        for entry in range(*batch["loss_row_offsets"][row : row + 2]):
            source = batch["loss_source"][entry]
            context = tokens[(np.arange(end - begin) <= source) & (source < ends)]
            found.append(
                (
                    plan.record_ids[batch["loss_record"][entry]],
                    tuple(context.tolist()),
                    int(batch["loss_target"][entry]),
                    round(float(batch["loss_weight"][entry]), 6),
                )
            )
            assert batch["loss_advantage"][entry] == 1.0
            assert batch["loss_old_logprob"][entry] == 0.0
            assert batch["loss_version"][entry] == 0
            assert batch["loss_temperature"][entry] == 1.0
    return Counter(found), plan


@settings(deadline=None)
@given(examples(), st.integers(12, 40), st.sampled_from(["token_mean", "trajectory_mean"]))
def test_every_learned_token_is_predicted_once_from_what_stands_before_it(made, capacity, normalize):
    records = [example_record(f"r{index}", *example) for index, example in enumerate(made)]
    found, plan = entries_of([records], capacity, LossWeightRule(normalize))
    total = sum(sum(mask) for _, mask in made)
    expected = Counter()
    for index, (tokens, mask) in enumerate(made):
        weight = 1 / total if normalize == "token_mean" else 1 / len(made) / sum(mask)
        for at, learned in enumerate(mask):
            if learned:
                expected[
                    (f"r{index}", tuple(tokens[:at]), tokens[at], round(float(np.float32(weight)), 6))
                ] += 1
    assert found == expected
    assert plan.counts.dropped_zero_variance_groups == plan.counts.zero_variance_groups == 0


def test_what_examples_share_is_computed_once():
    system = list(range(100, 140))
    records = [example_record(f"r{i}", [*system, i, i, i], [False] * 41 + [True] * 2) for i in range(8)]
    _, plan = entries_of([records], 128, LossWeightRule())
    assert plan.counts.logical_tokens == 8 * 43
    assert plan.counts.physical_tokens == 40 + 8 * 2


TURNS = [
    Turn("system", [1, 2]),
    Turn("user", [3]),
    Turn("assistant", [4, 5]),
    Turn("tool", []),
    Turn("user", [6]),
    Turn("assistant", [7, 8, 9]),
    Turn("user", [10]),
]


@pytest.mark.parametrize(
    ("options", "completions"),
    [
        ({}, [[4, 5], [7, 8, 9]]),
        ({"learn": "last"}, [[7, 8, 9]]),
        ({"roles": ("user",)}, [[3], [6], [10]]),
        ({"roles": ("user", "assistant")}, [[3, 4, 5, 6, 7, 8, 9, 10]]),
        ({"roles": ("system", "user"), "learn": "last"}, [[10]]),
    ],
)
def test_the_turns_of_the_roles_are_learned(options, completions):
    made = conversation_record("r", TURNS, **options)
    assert [each.completion_ids.tolist() for each in made.exchanges] == completions
    text = list(range(1, 11))
    for each in made.exchanges:
        count = len(each.prompt_ids)
        assert each.prompt_ids.tolist() == text[:count]
        assert each.completion_ids.tolist() == text[count : count + len(each.completion_ids)]
    back = decode(encode(made), TrajectoryRecord)
    assert [each.completion_ids.tolist() for each in back.exchanges] == completions


def test_a_batch_of_examples_takes_the_same_path_and_says_what_it_is(segments):
    records = [conversation_record(f"r{index}", TURNS[: 3 + 3 * index]) for index in range(2)]
    refs = tuple(trajectory_ref(each, "owner") for each in records)
    request = PackingRequest(Selection((refs,), Lease("l", 1, "p", 9.0)), 64, 1, 12, objective="sft")
    ref = pack([records], decode(encode(request), PackingRequest), segments, owner="packing-0").ref
    assert (ref.objective, ref.versions, ref.record_ids) == ("sft", (), ("r0", "r1"))
    with ShmBatchMapper().map(ref) as batch:
        assert sorted(batch.loss_target.tolist()) == [4, 4, 5, 5, 7, 8, 9]
        assert batch.loss_weight.sum() == pytest.approx(1.0)
    segments.release(ref.location, ref.lease, Outcome.CONSUMED)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: example_record("r", [1, 2], [False]), r"token_ids \[2\] and mask bool \[1\]"),
        (lambda: example_record("r", [1, 2], [0, 1]), r"mask int64 \[2\]"),
        (lambda: example_record("r", [1, 2], [False, False]), "none of 2 tokens is learned"),
        (lambda: example_record("r", [1, 2], [True, True]), "the mask begins with the first token"),
        (lambda: example_record("r", [1, -2], [False, True]), "int64 from -2 to 1"),
        (lambda: example_record("r", [1, 2**31], [False, True]), "int64 from 1 to 2147483648"),
        (lambda: example_record("r", [1.0, 2.0], [False, True]), "float64 from 1.0 to 2.0"),
        (
            lambda: conversation_record("r", TURNS[:2]),
            "none of 2 turns is of assistant; .* system, user",
        ),
        (lambda: conversation_record("r", []), "none of 0 turns is of assistant; there are: none"),
        (lambda: conversation_record("r", [Turn("assistant", [])]), "none of 0 tokens is learned"),
    ],
)
def test_examples_without_a_meaning_are_refused(make, message):
    with pytest.raises(RecordError, match=message):
        make()
