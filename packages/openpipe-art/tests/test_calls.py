"""Wrong arguments of public calls: one sentence, what was meant, the user's line."""

import pytest

import art
from art.calls import ArgumentError
from art.checks.prompts import check_prompt_lengths
from art.distributed import ArtRuntime, RolloutExecutor

CALLS = [
    (
        lambda: art.init_megatron_runtime_config(packed_sequence_len=64),
        "init_megatron_runtime_config",
        "packed_sequence_len",
        "packed_sequence_length",
    ),
    (
        lambda: check_prompt_lengths("m", [], max_token=1),
        "check_prompt_lengths",
        "max_token",
        "max_tokens",
    ),
    (
        lambda: ArtRuntime.rollout_executor(None, print, target_worker=1),
        "ArtRuntime.rollout_executor",
        "target_worker",
        "target_workers",
    ),
    (
        lambda: RolloutExecutor.submit(None, print, None, 1, None, groupid="g"),
        "RolloutExecutor.submit",
        "groupid",
        "group_id",
    ),
    (
        lambda: art.gather_trajectory_groups([], max_exception=1),
        "gather_trajectory_groups",
        "max_exception",
        "max_exceptions",
    ),
]


@pytest.mark.parametrize(("call", "name", "given", "meant"), CALLS)
def test_an_unknown_argument_is_told_with_what_was_meant(call, name, given, meant):
    with pytest.raises(ArgumentError) as raised:
        call()
    text = str(raised.value)
    assert text.startswith(f"{name}() has no argument {given!r}; did you mean {meant!r}? ")
    assert f"({__file__}:" in text


def test_an_argument_that_is_missing_is_told_with_those_that_there_are():
    with pytest.raises(ArgumentError) as raised:
        RolloutExecutor.submit(None, print, None, 1)
    text = str(raised.value)
    assert text.startswith(
        "RolloutExecutor.submit() missing a required argument: 'config'; its arguments are function, model, "
        f"scenario, config, group_id ({__file__}:"
    )


def test_it_is_what_python_raises_and_what_art_raises():
    assert issubclass(ArgumentError, TypeError)
    assert issubclass(ArgumentError, art.ConfigError)
