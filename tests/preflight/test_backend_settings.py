"""The backend's settings are checked when it is made, before anything starts."""

import math
from pathlib import Path
from typing import Any

import pytest

import art


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lora_rank": "8"}, "the str '8'; it must be a whole number from 1 to 512, for example lora_rank=8"),
        ({"lora_rank": 0}, "is 0"),
        ({"lora_rank": 1024}, "is 1024"),
        ({"lora_alpha": -1}, "is -1; it must be a number above 0"),
        ({"lora_alpha": math.nan}, "is nan"),
        ({"seed": -1}, "is -1; it must be a whole number from 0"),
        ({"seed": 1.5}, "the float 1.5"),
        ({"dtype": "float16"}, "is 'float16'; it must be 'float32' or 'bfloat16'"),
        ({"resume": "yes"}, "the str 'yes'; it must be True or False"),
        ({"threads": 0}, "is 0; it must be a whole number from 1"),
        ({"threads": "all"}, "the str 'all'"),
        ({"step_timeout_s": 0}, "is 0; it must be a number above 0"),
        ({"step_timeout_s": math.inf}, "is inf"),
        ({"tool_parser": 3}, "the int 3"),
    ],
)
def test_a_wrong_setting_is_told_with_the_line_and_one_that_works(wrong: dict[str, Any], said: str) -> None:
    (name,) = wrong
    with pytest.raises(art.SettingError, match=rf"^{name} .*{said}.*{Path(__file__).name}:") as caught:
        art.MegatronBackend(**wrong)
    assert isinstance(caught.value, ValueError | art.ConfigError)


def test_the_settings_of_the_examples_are_taken() -> None:
    art.MegatronBackend(lora_rank=8, lora_alpha=16, seed=0, dtype="bfloat16", threads=2, tool_parser="hermes")


def test_an_unknown_setting_is_told_with_what_was_meant_and_the_line() -> None:
    said = (
        rf"^MegatronBackend\(\) has no argument 'progres'; did you mean 'progress'\? .*{Path(__file__).name}:"
    )
    with pytest.raises(art.SettingError, match=said):
        art.MegatronBackend(progres=print)  # type: ignore[call-arg]
