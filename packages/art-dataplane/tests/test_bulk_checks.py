"""What passes the check of a whole batch passes the checks one by one, which are the rules."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_dataplane import PackingError, RolloutError, RouteBlock, VersionSpan
from art_dataplane.bulk_checks import pass_at_once
from art_dataplane.scoring import check_records

NEWEST = 9


def is_refused(groups):
    try:
        check_records(groups, NEWEST)
    except PackingError:
        return True
    return False


def with_exchange(made, **fields):
    return msgspec.structs.replace(
        made, exchanges=(msgspec.structs.replace(made.exchanges[0], **fields), *made.exchanges[1:])
    )


ids, floats = (lambda *values: np.array(values, np.int32)), (lambda *values: np.array(values, np.float32))
SPOILED_EXCHANGES = {
    "an id below 0 in the prompt": {"prompt_ids": ids(1, -2, 3)},
    "an id below 0 in the completion": {"completion_ids": ids(4, -5)},
    "a prompt of int64": {"prompt_ids": np.array([1, 2, 3])},
    "a completion of int64": {"completion_ids": np.array([4, 5])},
    "a list of ids": {"prompt_ids": [1, 2, 3]},
    "ids of two dimensions": {"prompt_ids": ids(1, 2, 3).reshape(3, 1)},
    "no prompt": {"prompt_ids": ids(), "prompt_spans": ()},
    "log-probs of float64": {"logprobs": np.array([-0.5, -0.5])},
    "too few log-probs": {"logprobs": floats(-0.5)},
    "a log-prob above 0": {"logprobs": floats(-0.5, 0.1)},
    "a log-prob that is no number": {"logprobs": floats(-0.5, math.nan)},
    "an infinite log-prob": {"logprobs": floats(-0.5, -math.inf)},
    "too many reference log-probs": {"reference_logprobs": floats(-0.5, -0.5, -0.5)},
    "reference log-probs above 0": {"reference_logprobs": floats(-0.5, 0.5)},
    "reference log-probs of float64": {"reference_logprobs": np.array([-0.5, -0.5])},
    "a span that begins late": {"prompt_spans": (VersionSpan(1, 3, 0),)},
    "spans with a gap": {"prompt_spans": (VersionSpan(0, 1, 0), VersionSpan(2, 3, 0))},
    "an empty span": {"completion_spans": (VersionSpan(0, 0, 0), VersionSpan(0, 2, 0))},
    "a span too short": {"completion_spans": (VersionSpan(0, 1, 0),)},
    "a span too long": {"completion_spans": (VersionSpan(0, 3, 0),)},
    "a version below 0": {"prompt_spans": (VersionSpan(0, 3, -1),)},
    "a version to come": {"completion_spans": (VersionSpan(0, 2, NEWEST + 1),)},
    "a negative temperature": {"temperature": -1.0},
    "temperature 0": {"temperature": 0.0},
    "an infinite temperature": {"temperature": math.inf},
    "a temperature that is no number": {"temperature": math.nan},
    "too few routes": {"routes": RouteBlock(np.zeros((4, 1, 1), np.uint8))},
    "routes of int32": {"routes": RouteBlock(np.zeros((5, 1, 1), np.int32))},
    "flat routes": {"routes": RouteBlock(np.zeros(5, np.uint8))},
}
SOUND_EXCHANGES = {
    "the newest version": {"completion_spans": (VersionSpan(0, 1, 0), VersionSpan(1, 2, NEWEST))},
    "a prompt of a later version": {"prompt_spans": (VersionSpan(0, 3, NEWEST + 1),)},
    "log-probs of 0": {"logprobs": floats(0.0, -0.0)},
    "a completion that is empty": {
        "completion_ids": ids(),
        "logprobs": floats(),
        "completion_spans": (),
    },
    "reference log-probs": {"reference_logprobs": floats(-0.5, -3.0)},
    "routes": {"routes": RouteBlock(np.zeros((5, 1, 1), np.uint16))},
}
FAILED = RolloutError("ValueError", "the environment broke")
SPOILED_RECORDS = {
    "no id": {"record_id": ""},
    "an id that is there": {"record_id": "r1"},
    "no group": {"group_id": ""},
    "another group": {"group_id": "g9"},
    "no reward": {"reward": None},
    "a reward that is no number": {"reward": math.nan},
    "an infinite reward": {"reward": -math.inf},
    "a reward of a failure": {"reward": 1.0, "error": FAILED},
}
SOUND_RECORDS = {
    "a failure": {"reward": None, "error": FAILED},
    "a failure without exchanges": {"reward": None, "error": FAILED, "exchanges": ()},
    "no exchanges": {"exchanges": ()},
}


@pytest.mark.parametrize("name", SPOILED_EXCHANGES)
def test_a_spoiled_exchange_is_noticed(record, name):
    groups = [[record("r0"), record("r1"), with_exchange(record("r2"), **SPOILED_EXCHANGES[name])]]
    assert is_refused(groups)
    assert not pass_at_once(groups, NEWEST)


@pytest.mark.parametrize("name", SPOILED_RECORDS)
def test_a_spoiled_record_is_noticed(record, name):
    groups = [[record("r0"), record("r1")], [record("r3", "g1")]]
    groups[0][0] = msgspec.structs.replace(groups[0][0], **SPOILED_RECORDS[name])
    assert is_refused(groups)
    assert not pass_at_once(groups, NEWEST)


@pytest.mark.parametrize("name", SOUND_EXCHANGES)
def test_a_sound_exchange_passes(record, name):
    groups = [[record("r0"), with_exchange(record("r1"), **SOUND_EXCHANGES[name])]]
    assert not is_refused(groups)
    assert pass_at_once(groups, NEWEST)


@pytest.mark.parametrize("name", SOUND_RECORDS)
def test_a_sound_record_passes(record, name):
    groups = [[record("r0"), msgspec.structs.replace(record("r1"), **SOUND_RECORDS[name])], []]
    assert not is_refused(groups)
    assert pass_at_once(groups, NEWEST)


@given(st.data())
def test_nothing_passes_that_is_refused_one_by_one(record, data):
    changes = {**SPOILED_EXCHANGES, **SOUND_EXCHANGES}
    others = {**SPOILED_RECORDS, **SOUND_RECORDS}
    groups = []
    for group in range(data.draw(st.integers(0, 3))):
        made = [record(f"r{group}{index}", f"g{group}") for index in range(data.draw(st.integers(0, 3)))]
        for index, each in enumerate(made):
            if data.draw(st.integers(0, 3)) == 0:
                made[index] = with_exchange(each, **changes[data.draw(st.sampled_from(sorted(changes)))])
            elif data.draw(st.integers(0, 5)) == 0:
                made[index] = msgspec.structs.replace(
                    each, **others[data.draw(st.sampled_from(sorted(others)))]
                )
        groups.append(made)
    assert not (pass_at_once(groups, NEWEST) and is_refused(groups))


def test_many_records_are_all_looked_at(record):
    groups = [[record(f"r{number}") for number in range(1500)]]
    assert pass_at_once(groups, NEWEST)
    for place in (0, 700, 1499):
        spoiled = [*groups[0]]
        spoiled[place] = with_exchange(spoiled[place], completion_ids=ids(4, -1))
        assert not pass_at_once([spoiled], NEWEST)
