"""Records are checked where they are made, with the numbers in the message."""

import dataclasses

import msgspec
import numpy as np
import pytest

from art_dataplane import (
    RecordError,
    RolloutError,
    RouteBlock,
    TrajectoryRecord,
    TrajectoryRef,
    VersionSpan,
    branches,
    decode,
    decode_json,
    encode,
    encode_json,
    logical_token_count,
    trajectory_ref,
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_ids": np.zeros(0, np.int32), "prompt_spans": ()}, "the prompt is empty"),
        ({"prompt_ids": np.array([1, 2], np.int64)}, "prompt_ids must be a NumPy array int32"),
        ({"completion_ids": np.array([[1], [2]], np.int32)}, r"one dimension, not int32 \(2, 1\)"),
        ({"completion_ids": [4, 5]}, "not list"),
        ({"logprobs": np.array([-1.0], np.float32)}, "1 log-probs for 2 completion tokens"),
        ({"logprobs": np.array([-1.0, np.nan], np.float32)}, r"logprobs\[1\] is nan"),
        ({"logprobs": np.array([0.5, -1.0], np.float32)}, r"logprobs\[0\] is 0.5"),
        ({"logprobs": np.array([-np.inf, -1.0], np.float32)}, r"logprobs\[0\] is -inf"),
        ({"completion_ids": np.array([4, -7], np.int32)}, r"completion_ids\[1\] is -7"),
        ({"completion_spans": (VersionSpan(0, 1, 0),)}, "cover 1 of 2 tokens"),
        ({"completion_spans": (VersionSpan(0, 1, 0), VersionSpan(0, 2, 1))}, "must begin at 1"),
        ({"completion_spans": (VersionSpan(0, 3, 0),)}, "cover 3 of 2 tokens"),
        ({"completion_spans": (VersionSpan(0, 2, -1),)}, "version of at least 0"),
        ({"prompt_spans": ()}, "cover 0 of 3 tokens"),
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"temperature": float("nan")}, "temperature nan"),
        (
            {"routes": RouteBlock(np.zeros((4, 2, 2), np.uint8))},
            r"\[5, layers, topk\], not uint8 \(4, 2, 2\)",
        ),
        ({"routes": RouteBlock(np.zeros((5, 2, 2), np.int32))}, "not int32"),
    ],
)
def test_a_broken_exchange_is_refused_with_its_numbers(exchange, change, message):
    broken = msgspec.structs.replace(exchange([1, 2, 3], [4, 5]), **change)
    with pytest.raises(RecordError, match=message):
        broken.validate()


def test_a_record_names_itself_and_the_exchange_that_is_broken(exchange, record):
    bad = msgspec.structs.replace(exchange([1], [2]), temperature=-1.0)
    with pytest.raises(RecordError, match="record r7, exchange 1: temperature"):
        record("r7", exchanges=[exchange([1], [2]), bad]).validate()


def test_a_reward_is_finite_and_a_failed_rollout_has_none(record):
    for reward in (float("nan"), float("inf"), None):
        with pytest.raises(RecordError, match=f"reward {reward} is not finite"):
            record(reward=reward).validate()
    failed = record(failed=True)
    failed.validate()
    for reward in (0.0, float("nan")):
        with pytest.raises(RecordError, match=f"failed and has a reward of {reward}"):
            msgspec.structs.replace(failed, reward=reward).validate()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ok": False}, "record r0 failed and has a reward of 1.0"),
        ({"reward": None}, "reward None is not finite"),
        ({"byte_count": 0}, "0 bytes and 5 tokens; a record has at least 1 byte"),
        ({"owner": ""}, "group 'g0' with '': both ids and the owner must be given"),
    ],
)
def test_a_reference_that_contradicts_itself_is_refused(record, changes, message):
    ref = trajectory_ref(record(), "w")
    ref.validate()
    with pytest.raises(RecordError, match=message):
        msgspec.structs.replace(ref, **changes).validate()


def test_a_failure_keeps_its_exception_and_its_reference_says_why(record):
    try:
        raise ValueError("no " * 200)
    except ValueError as error:
        kept = RolloutError.of(error)
    assert (kept.kind, kept.message) == ("ValueError", "no " * 200)
    assert "test_records.py" in kept.traceback
    ref = trajectory_ref(msgspec.structs.replace(record(failed=True), error=kept), "w")
    assert ref.reward is None
    assert ref.failure.startswith("ValueError: no no")
    assert len(ref.failure) == 200
    assert str(RolloutError.of(KeyboardInterrupt())) == "KeyboardInterrupt"
    assert decode(encode(ref), TrajectoryRef) == ref


def test_ids_must_be_given(record):
    with pytest.raises(RecordError, match="both ids must be given"):
        record("").validate()


def test_prompts_that_extend_form_one_chain_and_others_branch(exchange):
    turns = [
        exchange([1, 2], [3]),
        exchange([1, 2, 3, 9], [4]),  # extends the first
        exchange([1, 2, 3, 8], [5]),  # the first was extended already: a branch
        exchange([1, 2, 3, 9, 4], [6]),  # extends the second
        exchange([7], [7]),  # another conversation
        exchange([1, 2, 3, 8, 5], []),  # extends the third
    ]
    assert branches(turns) == ((0, 1, 3), (2, 5), (4,))
    assert logical_token_count(turns) == 6 + 5 + 2


def test_a_retokenized_history_is_a_branch_and_not_an_extension(exchange):
    assert branches([exchange([1, 2], [3, 4]), exchange([1, 2, 3, 5, 9], [6])]) == ((0,), (1,))


def test_a_reference_says_what_the_controller_needs_and_carries_no_tokens(exchange, record):
    made = record("r1", "g1", [exchange([1, 2], [3, 4, 5], versions=[6, 6, 9])], 0.25)
    ref = trajectory_ref(made, "worker-3")
    assert (ref.record_id, ref.group_id, ref.owner, ref.reward) == ("r1", "g1", "worker-3", 0.25)
    assert (ref.min_version, ref.max_version, ref.token_count, ref.ok) == (6, 9, 5, True)
    assert ref.byte_count == len(encode(made))
    assert len(encode(ref)) < 128


def test_the_reference_to_a_failed_rollout_is_not_ok_and_has_no_reward(record):
    ref = trajectory_ref(record(reward=3.0, failed=True, exchanges=[]), "w")
    assert (ref.ok, ref.reward, ref.min_version, ref.token_count) == (False, None, 0, 0)


@pytest.mark.parametrize(("write", "read"), [(encode, decode), (encode_json, decode_json)])
def test_a_record_survives_both_encodings(exchange, record, write, read):
    routes = RouteBlock(np.arange(5 * 2 * 3, dtype=np.uint16).reshape(5, 2, 3))
    made = record("r", "g", [exchange([1, 2, 3], [4, 5], logprobs=[-0.25, -3.5], routes=routes)], 2.0)
    back = read(write(made), TrajectoryRecord)
    back.validate()
    assert (back.record_id, back.reward, back.error) == ("r", 2.0, None)
    before, after = made.exchanges[0], back.exchanges[0]
    for name in ("prompt_ids", "completion_ids", "logprobs"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name), strict=True)
    np.testing.assert_array_equal(before.routes.experts, after.routes.experts, strict=True)
    assert before.completion_spans == after.completion_spans


def test_object_arrays_are_neither_written_nor_read():
    with pytest.raises(NotImplementedError, match="cannot encode Other"):
        encode(type("Other", (), {})())
    sneaky = msgspec.msgpack.encode(("|O", (1,), b"12345678"))
    with pytest.raises(msgspec.ValidationError, match="holds objects"):
        decode(sneaky, np.ndarray)


def test_records_are_frozen(record):
    with pytest.raises((AttributeError, dataclasses.FrozenInstanceError)):
        record().reward = 5.0
