"""The process-wide configuration: set once, fixed once a backend took it."""

import pytest

import art
from art import megatron_config
from art.errors import ConfigError


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron_config, "_config", None)
    monkeypatch.setattr(megatron_config, "_taken", False)


def test_what_is_set_is_what_the_backend_gets() -> None:
    topology = art.MegatronTopologyConfig(tp=2)
    art.init_megatron_runtime_config(topology=topology, packed_sequence_length=131072, snapshot_capacity=3)
    taken = art.get_megatron_runtime_config()
    assert (taken.topology, taken.packed_sequence_length, taken.snapshot_capacity) == (topology, 131072, 3)


def test_the_same_values_again_are_fine_and_others_are_not() -> None:
    art.init_megatron_runtime_config(packed_sequence_length=4096)
    art.init_megatron_runtime_config(packed_sequence_length=4096)
    with pytest.raises(ConfigError, match=r"initialised before with.*4096.*8192"):
        art.init_megatron_runtime_config(packed_sequence_length=8192)


def test_nothing_changes_after_a_backend_took_the_default() -> None:
    taken = art.get_megatron_runtime_config()
    with pytest.raises(ConfigError, match="already runs with"):
        art.init_megatron_runtime_config(packed_sequence_length=taken.packed_sequence_length + 1)
    assert art.get_megatron_runtime_config() == taken


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"packed_sequence_length": 0}, "is 0; it must be a whole number from 1 to 16777216"),
        ({"packed_sequence_length": 2048.0}, "the float 2048.0"),
        ({"packed_sequence_length": "2048"}, "the str '2048'"),
        ({"packed_sequence_length": 10**12}, "to 16777216"),
        ({"snapshot_capacity": 0}, "is 0"),
        ({"snapshot_capacity": True}, "the bool True"),
        ({"topology": "tp=1"}, r"the str 'tp=1'; .*art\.MegatronTopologyConfig\(\)"),
    ],
)
def test_values_are_checked(wrong: dict[str, object], said: str) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=f"^{name} is .*{said.removeprefix('is ')}"):
        art.init_megatron_runtime_config(**wrong)  # type: ignore[arg-type]
