"""Sizes are read from the model's own files, and files that are not what they seem are named."""

import json

import pytest

from art.checks.model_facts import folder_problem, read_model_facts
from art.errors import ConfigError


def test_the_parameters_are_those_of_the_weight_files(bare_model):
    facts = read_model_facts(bare_model)
    assert facts.parameters == 134_515_008
    assert facts.file_bytes > 4 * 134_515_008
    assert (facts.layers, facts.hidden, facts.kv_heads, facts.head_dim) == (30, 576, 3, 64)
    assert facts.max_positions == 8192


def test_an_adapter_has_as_many_numbers_as_the_trainer_counts(bare_model):
    """`art demo` says 2.44 M of them trained, at rank 8; a generation's adapter file has 9.8 MB."""
    assert read_model_facts(bare_model).adapter_parameters(8) == 2_442_240


def test_keys_and_values_of_a_token(bare_model):
    heads = [[0.0] * 64 for _ in range(3)]
    numbers = sum(len(head) for _layer in range(30) for _kind in ("keys", "values") for head in heads)
    assert read_model_facts(bare_model).kv_bytes_per_token == 4 * numbers


def test_several_files_are_added_up(model_folder, write_weights):
    folder = model_folder(parameters=10)
    write_weights(folder / "model-2.safetensors", {"a": [2, 3], "b": [4], "scalar": []})
    assert read_model_facts(folder).parameters == 10 + 6 + 4 + 1


def test_defaults_of_older_configs(bare_model):
    config = json.loads((bare_model / "config.json").read_text())
    del config["head_dim"], config["num_key_value_heads"], config["max_position_embeddings"]
    (bare_model / "config.json").write_text(json.dumps(config))
    facts = read_model_facts(bare_model)
    assert (facts.head_dim, facts.kv_heads, facts.max_positions) == (64, 9, None)


def test_a_config_with_a_text_part_is_read_there(bare_model):
    config = json.loads((bare_model / "config.json").read_text())
    (bare_model / "config.json").write_text(json.dumps({"text_config": config}))
    assert read_model_facts(bare_model).hidden == 576


@pytest.mark.parametrize(
    ("scaling", "scaled"),
    [({"rope_type": "llama3"}, False), ({"type": "yarn", "factor": 4.0}, True), (None, False)],
)
def test_stretched_positions_are_noticed(bare_model, scaling, scaled):
    config = json.loads((bare_model / "config.json").read_text()) | {"rope_scaling": scaling}
    (bare_model / "config.json").write_text(json.dumps(config))
    assert read_model_facts(bare_model).positions_scaled is scaled


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_folder_says_what_it_lacks(bare_model, name):
    (bare_model / name).unlink()
    shown = "*.safetensors" if name.endswith("safetensors") else name
    assert f"has no {shown}" in (folder_problem(bare_model) or "")
    with pytest.raises(ConfigError, match="base_model"):
        read_model_facts(bare_model)


def test_a_name_is_no_folder(tmp_path):
    assert "is no folder" in (folder_problem(tmp_path / "org" / "name") or "")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        b"\xff" * 64,
        b"\x02" + b"\x00" * 7 + b"{",
        b"\x02" + b"\x00" * 7 + b"[]",
        b"<html>oops</html>",
    ],
)
def test_weights_that_are_none_are_named(bare_model, content):
    (bare_model / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.safetensors is no safetensors file"):
        read_model_facts(bare_model)


def test_weights_that_are_cut_short_are_named(bare_model):
    path = bare_model / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(ConfigError, match="cut short"):
        read_model_facts(bare_model)


@pytest.mark.parametrize("value", ["null", "-1", '"many"', "0"])
def test_a_config_without_a_size_is_named(bare_model, value):
    config = json.loads((bare_model / "config.json").read_text()) | {"hidden_size": json.loads(value)}
    (bare_model / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="has no usable hidden_size"):
        read_model_facts(bare_model)


@pytest.mark.parametrize("text", ["", "{", "[]", "nonsense"])
def test_a_config_that_is_no_json_object_is_named(bare_model, text):
    (bare_model / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        read_model_facts(bare_model)
