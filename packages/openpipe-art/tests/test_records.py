"""From choices to training records: the tokens are the server's, and what lacks them is refused."""

import inspect
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion import ChatCompletion

import art
from art.errors import RecordError
from art.records import encode_choice_field, set_policy_versions, token_record, trajectory_record
from art_dataplane import TokenRecord, VersionSpan


def record(prompt: list[int], completion: list[int], version: int = 3) -> TokenRecord:
    return TokenRecord(
        prompt_ids=np.array(prompt, dtype=np.int32),
        completion_ids=np.array(completion, dtype=np.int32),
        logprobs=-np.arange(len(completion), dtype=np.float32),
        prompt_spans=(VersionSpan(0, len(prompt), version),),
        completion_spans=(VersionSpan(0, len(completion), version),) if completion else (),
        temperature=0.7,
        finish_reason="stop",
    )


def response(*records: TokenRecord) -> ChatCompletion:
    """A response as it comes from the wire: JSON, read by openai's own model."""
    body = {
        "id": "1",
        "created": 0,
        "model": "m",
        "object": "chat.completion",
        "choices": [
            {
                "index": index,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "yes"},
                "art": encode_choice_field(one),
            }
            for index, one in enumerate(records)
        ],
    }
    return ChatCompletion.model_validate_json(json.dumps(body))


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20), st.lists(st.integers(0, 9), max_size=20))
def test_a_record_comes_through_openai_and_pydantic_unchanged(
    prompt: list[int], completion: list[int]
) -> None:
    made = art.Trajectory(
        messages_and_choices=[
            {"role": "user", "content": "x"},
            response(record(prompt, completion)).choices[0],
        ],
        reward=0.5,
    )
    again = art.Trajectory.model_validate_json(made.model_dump_json())
    (exchange,) = trajectory_record(again, group_id="g").exchanges
    assert exchange.prompt_ids.tolist() == prompt
    assert exchange.completion_ids.tolist() == completion
    assert exchange.logprobs.tolist() == [-float(index) for index in range(len(completion))]
    assert exchange.prompt_ids.dtype == np.int32
    assert exchange.temperature == 0.7
    assert exchange.prompt_spans == (VersionSpan(0, len(prompt), 3),)


def test_a_record_holds_all_exchanges_also_of_further_histories() -> None:
    first, second = response(record([1, 2], [3])).choices[0], response(record([1, 2, 3, 4], [5])).choices[0]
    made = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "a"}, first],
        additional_histories=[art.History(messages_and_choices=[{"role": "user", "content": "b"}, second])],
        reward=1,
        metrics={"turns": 2, "won": True},
        metadata={"task": "t"},
    )
    made.finish()
    kept = trajectory_record(made, group_id="g", record_id="r")
    assert (kept.record_id, kept.group_id, kept.reward) == ("r", "g", 1.0)
    assert [exchange.prompt_ids.tolist() for exchange in kept.exchanges] == [[1, 2], [1, 2, 3, 4]]
    assert kept.metrics["turns"] == 2.0
    assert kept.metrics["won"] == 1.0
    assert kept.metadata == {"task": "t"}
    assert kept.timing.duration_s == made.duration_s
    kept.validate()


def said(*versions: int) -> art.Trajectory:
    """A trajectory with a choice of each version."""
    choices = [response(record([1], [2], version)).choices[0] for version in versions]
    return art.Trajectory(messages_and_choices=[{"role": "user", "content": "a"}, *choices], reward=1)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_trajectory_says_which_policy_versions_it_is_of(recorded: bool) -> None:
    made = said(4, 2, 3)
    assert (made.initial_policy_version, made.final_policy_version) == (None, None)
    if recorded:
        trajectory_record(made, group_id="g")
    else:
        set_policy_versions(made)
    assert (made.initial_policy_version, made.final_policy_version) == (2, 4)


def test_policy_versions_that_the_user_set_or_nobody_knows_are_left() -> None:
    mine = said(4)
    mine.initial_policy_version = 1
    set_policy_versions(mine)
    assert (mine.initial_policy_version, mine.final_policy_version) == (1, 4)
    other = art.Trajectory(messages_and_choices=[response(record([1], [2])).choices[0]], reward=0)
    other.messages_and_choices[0] = other.messages_and_choices[0].model_copy(update={"art": None})
    del other.messages_and_choices[0].model_extra["art"]
    set_policy_versions(other)
    assert (other.initial_policy_version, other.final_policy_version) == (None, None)


def test_a_choice_without_tokens_is_refused() -> None:
    bare = response(record([1], [2])).choices[0]
    assert bare.model_extra is not None
    del bare.model_extra["art"]
    with pytest.raises(RecordError, match=r"no field 'art' and so no token ids.*model.openai_client\(\)"):
        token_record(bare)


@pytest.mark.parametrize("text", ["???", "aGVsbG8=", 7])
def test_a_field_that_is_no_record_is_refused(text: object) -> None:
    broken = response(record([1], [2])).choices[0]
    assert broken.model_extra is not None
    broken.model_extra["art"] = text
    with pytest.raises(RecordError, match="is not a token record"):
        token_record(broken)


def made_here(items: list[Any]) -> art.Trajectory:
    return art.Trajectory(messages_and_choices=items, reward=1.0)


def test_text_alone_cannot_be_trained_on() -> None:
    made = made_here([{"role": "assistant", "content": "yes"}])
    with pytest.raises(RecordError, match="no openai Choice, so there is nothing to train on") as caught:
        trajectory_record(made, group_id="g")
    line = inspect.getsourcelines(made_here)[1] + 1
    assert str(caught.value).endswith(f"(the trajectory was made at {__file__}:{line}, in made_here)")
    again = pickle.loads(pickle.dumps(made))
    assert again.made_in == made.made_in


def one_choice() -> Any:
    return response(record([1], [2])).choices[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda made: made.messages_and_choices.append("yes"), r"messages_and_choices\[1\] is the str 'yes'"),
        (
            lambda made: made.messages_and_choices.append(response(record([1], [2]))),
            r"\[1\] is the ChatCompletion .*In its place pass its choices\[0\]",
        ),
        (
            lambda made: made.messages_and_choices.append(one_choice().message),
            r"\[1\] is the ChatCompletionMessage .*keep the Choice",
        ),
        (lambda made: made.metrics.update(turns="two"), r"metrics\['turns'\] is the str 'two'"),
        (lambda made: made.metadata.update(words=["a"]), r"metadata\['words'\] is the list \['a'\].*str\("),
        (lambda made: made.__dict__.update(reward=float("nan")), "the reward nan"),
    ],
)
def test_what_was_changed_later_is_told_with_the_line_that_made_the_trajectory(
    change: Callable[[art.Trajectory], None], said: str
) -> None:
    made = made_here([one_choice()])
    change(made)
    with pytest.raises(RecordError, match=said) as caught:
        trajectory_record(made, group_id="g")
    assert f"made at {__file__}:" in str(caught.value)
