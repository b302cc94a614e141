"""Trajectories: what they hold, and what is said of what they cannot hold."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai.types.chat.chat_completion import Choice

import art
from art.trajectories import checked_rollout


def choice(content: str) -> Choice:
    return Choice.model_validate(
        {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": content}}
    )


def trajectory(reward: float = 1.0) -> art.Trajectory:
    return art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "Say yes."}, choice("yes")], reward=reward
    )


def test_messages_give_each_choice_as_an_assistant_message() -> None:
    assert trajectory().messages() == [
        {"role": "user", "content": "Say yes."},
        {"role": "assistant", "content": "yes"},
    ]


def test_a_choice_is_kept_as_the_object_it_is_and_survives_json() -> None:
    kept = choice("yes")
    made = art.Trajectory(messages_and_choices=[kept], reward=0.5)
    assert made.messages_and_choices[0] is kept
    again = art.Trajectory.model_validate_json(made.model_dump_json())
    assert isinstance(again.messages_and_choices[0], Choice)
    assert again.messages() == made.messages()


def test_something_else_than_a_message_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"messages_and_choices\[1\] is the str .*choices\[0\]"):
        art.Trajectory(messages_and_choices=[{"role": "user", "content": "x"}, "yes"], reward=0.0)  # type: ignore[list-item]


def test_finish_and_track_duration_add_metrics() -> None:
    made = trajectory()
    with made.track_duration("env"):
        pass
    assert made.finish() is made
    assert made.metrics["duration"] == made.duration_s
    assert made.metrics["env_duration"] >= 0


def test_any_sequence_of_messages_is_taken_and_kept_as_a_list() -> None:
    messages: art.Messages = [{"role": "user", "content": "x"}]
    for given in (messages, tuple(messages)):
        made = art.Trajectory(messages_and_choices=given, reward=0.0)
        assert made.messages_and_choices == messages
        assert isinstance(made.messages_and_choices, list)
        made.messages_and_choices.append(choice("yes"))
    assert len(messages) == 1
    assert art.History(messages_and_choices=tuple(messages)).messages() == messages


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"reward": float("nan")}, "reward is nan; it must be a finite number, for example reward=1.0"),
        ({"reward": float("inf")}, "reward is inf"),
        ({"reward": "good"}, "reward is the str 'good'; it must be a finite number"),
        ({"reward": "0.5"}, "reward is the str '0.5'"),
        ({"reward": None}, r"reward is None.*Begin with reward=0\.0"),
        ({"reward": [1.0]}, r"reward is the list \[1\.0\]"),
        ({"reward": asyncio.sleep}, "reward is the function"),
        ({"rewards": 1.0}, "it has no field 'rewards'; did you mean 'reward'"),
        ({"messages_and_choices": "yes"}, "messages_and_choices is the str 'yes'; it must be a list"),
        ({"messages_and_choices": ["yes"]}, r"messages_and_choices\[0\] is the str 'yes'.*choices\[0\]"),
        ({"metadata": [1]}, r"metadata is the list \[1\]; it must be a dict"),
        ({"metadata": {"a": [1]}}, r"metadata\['a'\] is the list \[1\]; it must be a text in quotes or a"),
        ({"metrics": {"a": "x"}}, r"metrics\['a'\] is the str 'x'; it must be a number or"),
        ({"logs": [1, 2]}, r"logs\[0\] is the int 1; it must be a text in quotes; logs\[1\] is the int 2;"),
    ],
)
def test_a_wrong_field_is_told_in_one_sentence_with_the_line(fields: dict[str, Any], said: str) -> None:
    good = {"messages_and_choices": [{"role": "user", "content": "x"}], "reward": 1.0}
    line = inspect.currentframe().f_lineno + 2
    with pytest.raises(art.TrajectoryError, match=said) as caught:
        art.Trajectory(**{**good, **fields})
    text = str(caught.value)
    assert text.startswith("art.Trajectory: ")
    assert f"({__file__}:{line}, in test_a_wrong_field" in text
    assert "\n" not in text
    assert "pydantic" not in text


async def test_a_coroutine_in_place_of_a_value_is_asked_for_the_await() -> None:
    async def judge() -> float:
        return 1.0

    for field in ("reward", "messages_and_choices"):
        waiting = judge()
        with pytest.raises(art.TrajectoryError, match=rf"{field} is a coroutine of .*judge.*forget `await`"):
            art.Trajectory(**{"messages_and_choices": [], "reward": 1.0, field: waiting})
        waiting.close()


@pytest.mark.parametrize("wrong", [float("nan"), "good", None])
def test_a_reward_that_is_set_later_is_checked_as_well(wrong: Any) -> None:
    made = trajectory()
    with pytest.raises(art.TrajectoryError, match=rf"reward is .*{Path(__file__).name}"):
        made.reward = wrong
    assert made.reward == 1.0
    made.reward = np.float32(0.5)
    assert made.reward == 0.5
    assert type(made.reward) is float
    made.reward = True
    assert made.reward == 1.0
    with pytest.raises(art.TrajectoryError, match="it has no field 'rewrad'; did you mean 'reward'"):
        made.rewrad = 1.0  # type: ignore[attr-defined]


def test_a_wrong_item_that_was_appended_is_told_where_the_conversation_is_read() -> None:
    made = trajectory()
    made.messages_and_choices.append("yes")  # type: ignore[arg-type]
    with pytest.raises(art.TrajectoryError, match=r"messages_and_choices\[2\] is the str 'yes'"):
        made.messages()


@pytest.mark.parametrize("value", [None, 0.5, ["a"]])
def test_what_is_no_rollout_is_told(value: object) -> None:
    made = trajectory()
    assert checked_rollout(made, "a rollout") is made
    with pytest.raises(
        art.TrajectoryError, match=r"a rollout of mine returned .*Write `return art\.Trajectory"
    ):
        checked_rollout(value, "a rollout of mine")
