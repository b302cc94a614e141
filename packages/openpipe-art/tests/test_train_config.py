"""A configuration that is made wrongly is refused as any other public class refuses it."""

import re
from typing import Any

import msgspec
import pytest

import art


@pytest.mark.parametrize(
    ("arguments", "fields", "said"),
    [
        ((), {"lr": 1}, "art.TrainConfig has no field 'lr'; did you mean 'learning_rate'?"),
        ((), {"learning_rte": 1}, "did you mean 'learning_rate'?"),
        (
            (),
            {"zzz": 1},
            "art.TrainConfig has no field 'zzz'; its fields are learning_rate, clip_epsilon_low",
        ),
        (
            (5e-4,),
            {},
            "art.TrainConfig takes its fields by name, for example art.TrainConfig(learning_rate=0.0005)",
        ),
        ((), {"learning_rate": "x"}, "learning_rate is the str 'x'"),
    ],
)
def test_a_wrong_field_is_told_with_the_line(
    arguments: tuple[Any, ...], fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(art.SettingError, match=re.escape(said)) as caught:
        art.TrainConfig(*arguments, **fields)
    assert f"{__file__}:" in str(caught.value)


def test_the_runtime_s_configuration_says_likewise() -> None:
    with pytest.raises(art.SettingError, match="did you mean 'packed_sequence_length'"):
        art.MegatronRuntimeConfig(packed_sequence=8, topology=art.MegatronTopologyConfig())  # type: ignore[call-arg]
    with pytest.raises(art.SettingError, match=r"art\.MegatronRuntimeConfig: .*topology"):
        art.MegatronRuntimeConfig()  # type: ignore[call-arg]


def test_a_configuration_travels_as_before() -> None:
    made = art.TrainConfig(learning_rate=1e-4)
    assert msgspec.json.decode(msgspec.json.encode(made), type=art.TrainConfig) == made
    assert msgspec.structs.replace(made, learning_rate=2e-4).learning_rate == 2e-4
