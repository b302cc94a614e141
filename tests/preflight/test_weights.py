"""Weights that do not belong to config.json are refused, with names and shapes, before anything is made.

Models are written by transformers, and what their weights should be is read from its modules.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from art_testing.tiny_model import make_tiny_llama, make_tiny_qwen3
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

import art
from art.checks import demo_checks, failures
from art.checks.weights import expected_shapes, model_checks
from art_trainer.models import describe_model, read_config

MAKERS: dict[str, Callable[..., Path]] = {
    "llama": make_tiny_llama,
    "llama-untied": lambda folder: make_tiny_llama(folder, tied=False),
    "qwen3": make_tiny_qwen3,
    "qwen3-untied": lambda folder: make_tiny_qwen3(folder, tied=False, head_dim=32),
}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    top = tmp_path_factory.mktemp("models")
    return {name: make(top / name) for name, make in MAKERS.items()}


@pytest.fixture
def model(made: dict[str, Path], tmp_path: Path) -> Path:
    """A tied Llama to spoil."""
    return shutil.copytree(made["llama"], tmp_path / "model")


def edit(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def problems(folder: Path) -> dict[str, str]:
    return {check.name: check.found for check in failures(model_checks(folder))}


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_expected_is_what_transformers_has(made: dict[str, Path], name: str) -> None:
    with torch.device("meta"):
        known = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(made[name]))
    parameters = {key: tuple(value.shape) for key, value in known.named_parameters()}
    assert expected_shapes(describe_model(read_config(str(made[name])))) == parameters
    assert problems(made[name]) == {}


def test_a_config_of_a_wider_model_is_refused_with_both_shapes(model: Path) -> None:
    edit(model, intermediate_size=512)
    assert problems(model)["weights"].startswith(
        f"{model}: model.layers.0.mlp.gate_proj.weight is of another shape: F32 [256, 128] in "
        "model.safetensors, config.json says [512, 128]; so are 5 more: "
    )


def test_a_config_of_a_deeper_model_is_refused(model: Path) -> None:
    edit(model, num_hidden_layers=3, layer_types=None)
    assert "model.layers.2.input_layernorm.weight is missing" in problems(model)["weights"]


def test_a_config_of_a_shallower_model_is_refused(model: Path) -> None:
    edit(model, num_hidden_layers=1, layer_types=None)
    assert "model.layers.1." in problems(model)["weights"]
    assert "is not expected" in problems(model)["weights"]


def test_a_config_that_unties_the_embedding_is_refused(model: Path) -> None:
    edit(model, tie_word_embeddings=False)
    assert "lm_head.weight is missing" in problems(model)["weights"]


def test_an_output_that_a_tied_model_stores_too_does_not_matter(model: Path) -> None:
    def store(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    rewrite(model, store)
    assert problems(model) == {}


def test_quantized_weights_are_refused(model: Path) -> None:
    def quantize(tensors: dict[str, torch.Tensor]) -> None:
        name = "model.layers.0.mlp.up_proj.weight"
        tensors[name] = tensors[name].to(torch.int8)

    rewrite(model, quantize)
    assert (
        "model.layers.0.mlp.up_proj.weight is of a dtype that is not trained: I8"
        in problems(model)["weights"]
    )


def test_shards_are_read_by_their_index(model: Path) -> None:
    known = AutoModelForCausalLM.from_pretrained(model)
    (model / "model.safetensors").unlink()
    known.save_pretrained(model, max_shard_size="300KB")
    shards = sorted(model.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert problems(model) == {}
    shards[-1].unlink()
    assert f"1 are not there: {shards[-1].name}" in problems(model)["weights"]


def test_a_config_without_the_kind_of_model_is_refused(model: Path) -> None:
    edit(model, model_type=None)
    assert "has no model_type" in problems(model)["model family"]


@pytest.mark.parametrize("value", ["many", 1.5, [1], {"a": 1}, True, -4, 10**30])
@pytest.mark.parametrize("name", ["num_key_value_heads", "head_dim", "rope_parameters", "layer_types"])
def test_a_value_of_a_wrong_kind_is_no_traceback(model: Path, name: str, value: object) -> None:
    edit(model, **{name: value})
    assert problems(model).keys() <= {"model family", "weights"}


async def test_a_backend_refuses_them_before_anything_starts(model: Path, tmp_path: Path) -> None:
    edit(model, intermediate_size=512)
    trained = art.TrainableModel(name="m", project="p", base_model=str(model))
    async with art.MegatronBackend(run_dir=tmp_path / "run") as backend:
        with pytest.raises(art.PreflightError, match=r"weights: .* is of another shape"):
            await trained.register(backend)
    assert not (tmp_path / "run").exists()


def test_the_demo_refuses_them_with_everything_else_that_is_wrong(model: Path) -> None:
    edit(model, intermediate_size=512)
    (model / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    names = {check.name for check in failures(demo_checks(model=model))}
    assert {"weights", "prompts"} <= names
