"""Fields that speak of a model's structure are read or refused, never passed over."""

import json
from pathlib import Path
from typing import Any

import pytest

from art_topology.models import GqaShape, ModelConfigError, MoeShape, load_model_config, parameters

_PLAIN: dict[str, Any] = {
    "model_type": "zork",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
}
_ERNIE: dict[str, Any] = {
    "model_type": "ernie4_5_moe",
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_intermediate_size": 1536,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 27,
    "moe_layer_interval": 1,
    "moe_num_shared_experts": 2,
    "vocab_size": 103424,
    "tie_word_embeddings": True,
}
_GEMMA_3: dict[str, Any] = {
    "model_type": "gemma3_text",
    "head_dim": 128,
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "num_attention_heads": 32,
    "num_hidden_layers": 62,
    "num_key_value_heads": 16,
    "sliding_window": 1024,
    "vocab_size": 262208,
}


def test_ernie_has_the_experts_that_its_own_names_say() -> None:
    """transformers 5.19 on the meta device: 21,825,437,888, of which 27 * 64 are correction biases."""
    assert parameters(load_model_config(_ERNIE)).total == 21_825_437_888 - 27 * 64


def test_gemma_3_without_a_pattern_has_its_own() -> None:
    """transformers 5.19: 27,009,346,304 parameters, and each sixth layer attends to everything."""
    model = load_model_config(_GEMMA_3)
    assert parameters(model).total == 27_009_346_304
    windows = [layer.attention.window for layer in model.layers if isinstance(layer.attention, GqaShape)]
    assert windows == [None if i % 6 == 5 else 1024 for i in range(62)]


def test_gemma_2_attends_to_everything_in_each_second_layer() -> None:
    """transformers 5.19: 27,009,330,432 parameters of these sizes."""
    model = load_model_config(_GEMMA_3 | {"model_type": "gemma2", "sliding_window": 4096})
    assert parameters(model).total == 27_009_330_432


def test_a_window_of_unknown_layers_is_taken_for_none() -> None:
    model = load_model_config(_PLAIN | {"sliding_window": 128})
    windows = [layer.attention.window for layer in model.layers if isinstance(layer.attention, GqaShape)]
    assert windows == [None] * len(model.layers)
    assert any("sliding_window" in assumed for assumed in model.assumptions)


@pytest.mark.parametrize(
    "names",
    [
        {"n_experts": 64, "n_experts_per_tok": 4},
        {"moe_num_experts": 64, "moe_k": 4},
        {"num_experts": 64, "moe_top_k": 4},
        {"num_local_experts": 64, "experts_per_token": 4},
    ],
)
def test_experts_go_by_many_names(names: dict[str, int]) -> None:
    mlp = load_model_config(_PLAIN | {"moe_intermediate_size": 128} | names).layers[-1].mlp
    assert isinstance(mlp, MoeShape)
    assert (mlp.experts, mlp.topk, mlp.expert_size) == (64, 4, 128)


@pytest.mark.parametrize(
    "config",
    [
        _PLAIN | {"model_type": "mixtral"},
        _PLAIN | {"model_type": "qwen3_moe", "num_experts_per_tok": 8, "moe_intermediate_size": 128},
        _PLAIN | {"num_experts_per_tok": 8},
        _PLAIN | {"moe_intermediate_size": 128},
        _PLAIN | {"architectures": ["ZorkMoeForCausalLM"]},
    ],
)
def test_experts_without_their_number_are_refused_with_that_alone(config: dict[str, Any]) -> None:
    with pytest.raises(ModelConfigError) as caught:
        load_model_config(config)
    [problem] = caught.value.problems
    assert "num_experts" in problem
    assert "missing" in problem


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssm_cfg", {"layer": "Mamba2"}),
        ("state_size", 16),
        ("mamba_expand", 2),
        ("time_step_rank_ssm", 8),
        ("cross_attention_layers", [3, 8]),
        ("encoder", {"hidden_size": 8}),
        ("num_decoder_layers", 4),
        ("n_hash_experts", 4),
        ("moe_dense_width", 64),
    ],
)
def test_a_field_of_structure_that_nothing_reads_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ModelConfigError) as caught:
        load_model_config(_PLAIN | {name: value})
    [problem] = caught.value.problems
    assert problem.startswith(f"{name} is set")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_experts", 0),
        ("num_local_experts", None),
        ("is_encoder_decoder", False),
        ("cross_attention_layers", []),
        ("mamba_ssm_dtype", "float32"),
        ("router_aux_loss_coef", 0.001),
        ("moe_aux_loss_coeff", 0.001),
    ],
)
def test_what_is_switched_off_or_has_no_weights_is_no_reason(name: str, value: Any) -> None:
    changed = load_model_config(_PLAIN | {name: value})
    assert parameters(changed).total == parameters(load_model_config(_PLAIN)).total


def test_experts_that_are_said_to_be_none_need_no_more() -> None:
    load_model_config(_PLAIN | {"num_experts": 0, "num_experts_per_tok": 8, "moe_intermediate_size": 128})


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "bert"},
        {"model_type": "xlm-roberta"},
        {"model_type": "t5"},
        {"type_vocab_size": 2},
        {"is_encoder_decoder": True},
        {"architectures": ["ZorkForMaskedLM"]},
    ],
)
def test_an_encoder_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ModelConfigError, match="encoder"):
        load_model_config(_PLAIN | change)


def test_a_missing_field_is_not_told_as_a_contradiction_too() -> None:
    config = {
        name: value for name, value in _PLAIN.items() if name not in ("hidden_size", "num_attention_heads")
    }
    with pytest.raises(ModelConfigError) as caught:
        load_model_config(config)
    assert [problem.split()[0] for problem in caught.value.problems] == ["hidden_size", "num_attention_heads"]


def test_a_key_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(_PLAIN)[:-1] + ', "hidden_size": 512}')
    with pytest.raises(ModelConfigError, match="'hidden_size' is given twice"):
        load_model_config(file)


def test_a_byte_order_mark_and_numbers_of_python_are_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(_PLAIN | {"limit": [0.0, float("inf")]}), encoding="utf-8-sig")
    assert load_model_config(file).hidden_size == 256


def test_what_is_said_of_json_names_no_python(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for text, told in (
        ("null", "nothing"),
        ("[1]", "a list"),
        (f'{{"hidden_size": {"9" * 5000}}}', "too large"),
    ):
        file.write_text(text)
        with pytest.raises(ModelConfigError, match=told) as caught:
            load_model_config(file)
        assert "NoneType" not in str(caught.value)
        assert "set_int_max_str_digits" not in str(caught.value)
