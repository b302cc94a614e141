"""Reading configurations: what is read, what is assumed, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology.models import (
    DenseShape,
    GatedDeltaNetShape,
    GqaShape,
    MlaShape,
    ModelConfigError,
    ModelDescription,
    MoeShape,
    load_model_config,
    parameters,
)

_PUBLISHED = {
    entry["name"]: entry
    for entry in json.loads((Path(__file__).parent / "published_models.json").read_text())
}


def _config(name: str, **changes: Any) -> dict[str, Any]:
    return _PUBLISHED[name]["config"] | changes


def _without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


@pytest.mark.parametrize("name", _PUBLISHED)
def test_the_parameters_of_a_published_model(name: str) -> None:
    """Recorded from transformers 5.19, which builds each of these configurations on the meta device."""
    assert parameters(load_model_config(_PUBLISHED[name]["config"])).total == _PUBLISHED[name]["parameters"]


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mistralai/Mixtral-8x7B-v0.1", 12.9),  # arXiv 2401.04088, "uses 13B active parameters"
        ("deepseek-ai/DeepSeek-V2", 21.4),  # arXiv 2405.04434, "21B are activated"
        ("deepseek-ai/DeepSeek-V3", 37.6),  # arXiv 2412.19437, "37B activated"
        ("moonshotai/Kimi-K2-Instruct", 32.9),  # arXiv 2507.20534, "32 billion activated"
        ("Qwen/Qwen3-235B-A22B", 22.2),  # arXiv 2505.09388
        ("Qwen/Qwen3-30B-A3B", 3.4),  # arXiv 2505.09388
    ],
)
def test_the_active_parameters_of_a_published_model(name: str, billions: float) -> None:
    assert parameters(load_model_config(_config(name))).active / 1e9 == pytest.approx(billions, abs=0.05)


def test_gpt_oss_states_its_active_parameters_without_the_embedding() -> None:
    """OpenAI's model card (2508.10925, table 1): 116.83B and 20.91B in all, 5.13B and 3.61B active."""
    for name, total, active in (("openai/gpt-oss-120b", 116.83, 5.13), ("openai/gpt-oss-20b", 20.91, 3.61)):
        counted = parameters(load_model_config(_config(name)))
        assert round(counted.total / 1e9, 2) == total
        assert round((counted.active - counted.embedding) / 1e9, 2) == active


def test_glm_5_with_its_prediction_layer_is_as_large_as_its_published_index_says() -> None:
    """The index of the published weights (zai-org/GLM-5.3, same architecture) has 1,506,659,919,872 bytes:
    16 bits a weight, and 32 for the correction bias of each of 256 experts in 75 layers and the prediction
    layer."""
    counted = parameters(load_model_config(_config("zai-org/GLM-5.2")))
    assert 2 * (counted.total + counted.mtp) + 4 * 256 * 76 == 1_506_659_919_872


def test_layers_of_several_kinds_are_told_apart() -> None:
    layers = load_model_config(_config("Qwen/Qwen3-Next-80B-A3B-Instruct")).layers
    kinds = [type(layer.attention) for layer in layers]
    assert kinds == [GatedDeltaNetShape, GatedDeltaNetShape, GatedDeltaNetShape, GqaShape] * 12

    layers = load_model_config(_config("openai/gpt-oss-20b")).layers
    assert [getattr(layer.attention, "window", None) for layer in layers] == [128, None] * 12

    model = load_model_config(_config("deepseek-ai/DeepSeek-V3"))
    assert [type(layer.mlp) for layer in model.layers] == [DenseShape] * 3 + [MoeShape] * 58
    assert len(model.mtp_layers) == 1

    shapes = [layer.attention for layer in load_model_config(_config("zai-org/GLM-5.2")).layers]
    sparse = [shape for shape in shapes if isinstance(shape, MlaShape) and shape.topk == 2048]
    assert len(sparse) == 78
    assert sum(shape.indexer is not None for shape in sparse) == 21


def test_the_text_part_of_a_multimodal_configuration_is_read() -> None:
    whole = _config("google/gemma-4-31B")
    assert load_model_config(whole) == load_model_config(whole["text_config"])
    assert load_model_config(whole).tied_embeddings


def test_a_file_and_its_folder_are_read(tmp_path: Path) -> None:
    config = _config("Qwen/Qwen3-8B")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (
        load_model_config(tmp_path)
        == load_model_config(tmp_path / "config.json")
        == load_model_config(config)
    )


@pytest.mark.parametrize("text", ["{", "[1]", "\udcff"], ids=["cut off", "a list", "not utf-8"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, errors="surrogateescape")
    with pytest.raises(ModelConfigError, match=r"config\.json"):
        load_model_config(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.1-8B",
        "deepseek-ai/DeepSeek-V3",
        "zai-org/GLM-5.2",
        "deepseek-ai/DeepSeek-V4-Flash",
    ],
)
def test_a_model_type_that_has_not_been_seen_is_planned_from_its_fields(name: str) -> None:
    model = load_model_config(_config(name, model_type="brand_new"))
    assert parameters(model).total == _PUBLISHED[name]["parameters"]
    assert any("brand_new" in assumption for assumption in model.assumptions)


def test_every_missing_field_is_named_with_its_meaning() -> None:
    config = _without(
        _config("deepseek-ai/DeepSeek-V3"), "hidden_size", "qk_nope_head_dim", "num_experts_per_tok"
    )
    with pytest.raises(ModelConfigError) as caught:
        load_model_config(config)
    problems = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 3
    for name, meaning in (
        ("hidden_size", "residual stream"),
        ("qk_nope_head_dim", "without position"),
        ("num_experts_per_tok", "each token is sent to"),
    ):
        assert name in problems
        assert meaning in problems


@pytest.mark.parametrize(
    ("name", "changes", "numbers"),
    [
        ("Qwen/Qwen3-8B", {"num_key_value_heads": 5}, ("32", "5")),
        ("Qwen/Qwen3-30B-A3B", {"num_experts_per_tok": 200}, ("200", "128")),
        ("openai/gpt-oss-20b", {"layer_types": ["full_attention"] * 3}, ("3 entries", "24")),
        ("openai/gpt-oss-20b", {"layer_types": ["mamba"] * 24}, ("'mamba'",)),
        ("mistralai/Mistral-7B-v0.1", {"hidden_size": 4097}, ("4097", "32")),
        ("Qwen/Qwen3-8B", {"hidden_size": "wide"}, ('"wide"',)),
        ("Qwen/Qwen3-8B", {"num_hidden_layers": 0}, ("0",)),
        ("Qwen/Qwen3-8B", {"num_hidden_layers": 10**9}, ("num_hidden_layers", "16,384")),
        ("Qwen/Qwen3-8B", {"vocab_size": 1e300}, ("vocab_size",)),
        ("zai-org/GLM-5.2", {"indexer_types": ["shared"] * 78}, ("first layer",)),
        ("zai-org/GLM-5.2", {"layer_types": ["linear_attention"] * 78}, ("'linear_attention'",)),
        ("deepseek-ai/DeepSeek-V4-Flash", {"compress_ratios": [7] * 43}, ("7",)),
        ("deepseek-ai/DeepSeek-V4-Flash", {"compress_ratios": [4] * 40}, ("40 entries", "43")),
        ("deepseek-ai/DeepSeek-V3", {"mlp_layer_types": ["sparse"] * 60}, ("60 entries", "61")),
        ("Qwen/Qwen3-8B", {"hybrid_override_pattern": "M-M*"}, ("state-space",)),
    ],
)
def test_a_contradiction_is_refused_with_its_numbers(
    name: str, changes: dict[str, Any], numbers: tuple[str, ...]
) -> None:
    with pytest.raises(ModelConfigError) as caught:
        load_model_config(_config(name, **changes))
    assert all(number in str(caught.value) for number in numbers)


def test_whether_embeddings_are_tied_is_never_guessed_for_an_unseen_model() -> None:
    config = _without(_config("meta-llama/Llama-3.1-8B", model_type="brand_new"), "tie_word_embeddings")
    with pytest.raises(ModelConfigError, match="tie_word_embeddings"):
        load_model_config(config)


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(0, 9)),
)


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(sorted(_PUBLISHED)),
    data=st.data(),
)
def test_a_broken_configuration_is_planned_or_refused_and_nothing_else(
    name: str, data: st.DataObject
) -> None:
    config = _config(name)
    config = dict(config.get("text_config", config))
    names = data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=4))
    config |= {field: data.draw(_VALUES) for field in names}
    try:
        model: ModelDescription | None = load_model_config(config)
    except ModelConfigError as error:
        model, problems = None, error.problems
    assert problems if model is None else parameters(model).total > 0
