"""The Yes/No/Maybe task."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import art
from art.demo import task

ROUND = len(task.prompts(task.TRAINING_WORDINGS))


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("yes", 0.5),
        ("No", 0.75),
        ("MAYBE", 1.0),
        ("  Maybe.\n", 1.0),
        ("no!!", 0.75),
        ("yes ,", 0.5),
        ("maybe...?", 1.0),
        ("", 0.0),
        (".", 0.0),
        ("maybe not", 0.0),
        ("'maybe'", 0.0),
        ("yes, no or maybe", 0.0),
        ("may be", 0.0),
    ],
)
def test_an_answer_is_worth_what_its_word_is_worth(answer: str, worth: float) -> None:
    assert task.reward(answer) == worth


def test_training_and_held_out_prompts_are_disjoint() -> None:
    training, held_out = task.prompts(task.TRAINING_WORDINGS), task.prompts(task.HELD_OUT_WORDINGS)
    assert len(set(training)) == len(training) >= 100
    assert len(set(held_out)) == len(held_out) >= 32
    assert set(training).isdisjoint(held_out)


def test_every_prompt_offers_the_three_words_and_says_nothing_of_their_worth() -> None:
    for prompt in task.prompts(task.TRAINING_WORDINGS + task.HELD_OUT_WORDINGS):
        bare = prompt.lower().translate(str.maketrans(",.:?'\"", "      ")).split()
        assert [bare.count(word) for word in ("yes", "no", "maybe")] == [1, 1, 1], prompt
        assert not {"best", "reward", "prefer", "score"} & set(bare)


@given(st.integers())
def test_equal_seeds_give_equal_groups(seed: int) -> None:
    first, second = (
        list(itertools.islice(task.scenario_groups(task.TRAINING_WORDINGS, samples=3, seed=seed), 9))
        for _ in range(2)
    )
    assert first == second


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_a_group_has_one_prompt_and_as_many_seeds_as_samples(seed: int, samples: int) -> None:
    group = next(task.scenario_groups(task.TRAINING_WORDINGS, samples=samples, seed=seed))
    assert len(group) == samples
    assert len({scenario.prompt for scenario in group}) == 1
    assert len({scenario.seed for scenario in group}) == samples


@given(st.integers(0, 2**32))
def test_every_prompt_comes_once_before_one_comes_again(seed: int) -> None:
    groups = task.scenario_groups(task.TRAINING_WORDINGS, samples=1, seed=seed)
    rounds = [[scenario.prompt for (scenario,) in itertools.islice(groups, ROUND)] for _ in range(2)]
    assert sorted(rounds[0]) == sorted(rounds[1]) == sorted(task.prompts(task.TRAINING_WORDINGS))
    assert rounds[0] != rounds[1]


def test_the_summary_counts_what_was_said() -> None:
    answers = ["Maybe.", "yes", "no", "MAYBE", "Well,", ""]
    group = art.TrajectoryGroup(
        art.TrajectoryHandle(reward=0.0, metrics={}, metadata={"answer": answer}) for answer in answers
    )
    assert task.summary([group]).split() == ["yes", "1", "no", "1", "maybe", "2", "other", "2"]


@given(st.integers(0, 2**32), st.integers(0, 40))
def test_a_run_that_goes_on_asks_what_it_would_have_asked(seed: int, done: int) -> None:
    whole = list(itertools.islice(task.scenario_groups(task.TRAINING_WORDINGS, samples=2, seed=seed), 44))
    again = task.scenario_groups(task.TRAINING_WORDINGS, samples=2, seed=seed)
    assert list(itertools.islice(itertools.islice(again, done, None), 4)) == whole[done : done + 4]
