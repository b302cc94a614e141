"""What of a selection is trained on, and what a long answer loses."""

import msgspec
import pytest

from art_dataplane import AdvantageRule, PackingError
from art_dataplane.advantages import OverlongPenalty
from art_dataplane.kl import KlRule
from art_dataplane.scoring import score_groups


def test_an_answer_in_the_buffer_loses_part_of_its_reward_before_it_is_compared(exchange, record):
    group = [
        record("short", exchanges=[exchange([1], [2] * 3), exchange([5], [2] * 3)], reward=1.0),
        record("long", exchanges=[exchange([1], [2] * 5), exchange([5], [2] * 3)], reward=1.0),
    ]
    rule = AdvantageRule("none", overlong=OverlongPenalty(max_tokens=10, buffer_tokens=4))
    (scored,), excluded = score_groups([group], rule)
    assert scored.advantages == [pytest.approx(0.25), pytest.approx(-0.25)]
    assert excluded["zero_variance_groups"] == 0
    without, excluded = score_groups([group], AdvantageRule("none"))
    assert (without, excluded["dropped_zero_variance_groups"]) == ([], 1)


def test_groups_without_variance_are_dropped_or_kept_and_counted_either_way(exchange, record):
    groups = [
        [record("a", "g0", reward=1.0), record("b", "g0", reward=0.0), record("c", "g0", failed=True)],
        [record("d", "g1"), record("e", "g1")],
        [record("f", "g2")],
        [record("g", "g3", failed=True)],
        [record("h", "g4", [exchange([1], [])], reward=2.0), record("i", "g4", reward=0.0)],
    ]
    dropped, excluded = score_groups(groups, AdvantageRule())
    assert [each.group_id for each in dropped] == ["g0", "g4"]
    assert excluded == {
        "dropped_zero_variance_groups": 2,
        "failed_records": 2,
        "records_without_targets": 1,
        "zero_variance_groups": 2,
    }
    kept, excluded = score_groups(groups, AdvantageRule(zero_variance="keep"))
    assert [each.group_id for each in kept] == ["g0", "g1", "g2", "g4"]
    assert kept[1].advantages == [0.0, 0.0]
    assert [each.record_id for each in kept[3].records] == ["i"]
    assert kept[3].advantages == [pytest.approx(-1.0, abs=1e-5)]
    assert (excluded["dropped_zero_variance_groups"], excluded["zero_variance_groups"]) == (0, 2)


def test_supervised_examples_all_count_alike_whatever_their_reward(record):
    groups = [[record("a", reward=3.0), record("b", reward=3.0), record("c", failed=True)]]
    (scored,), excluded = score_groups(groups, AdvantageRule(), objective="sft")
    assert scored.advantages == [1.0, 1.0]
    assert (excluded["failed_records"], excluded["zero_variance_groups"]) == (1, 0)


@pytest.mark.parametrize("place", ["advantage", "reward"])
def test_supervised_examples_have_no_sampler_that_could_diverge(exchange, record, place):
    made = msgspec.structs.replace(exchange([1], [2]), reference_logprobs=exchange([1], [2]).logprobs)
    with pytest.raises(PackingError, match=f"a divergence cannot be charged to the {place}"):
        score_groups([[record("a", exchanges=[made])]], AdvantageRule(), KlRule(0.1, place), "sft")
