"""Weight files are read by their headers; what is not whole is named with its numbers."""

import json
import os

import pytest

from art.checks.model_files import INDEX, read_weights, weight_files
from art.errors import ConfigError

SHAPES = {"a": [2, 3], "b": [4], "scalar": []}


@pytest.fixture
def sharded(tmp_path, write_weights):
    """Two files and their index."""
    write_weights(tmp_path / "one.safetensors", {"a": [2, 3]})
    write_weights(tmp_path / "two.safetensors", {"b": [4]}, dtype="BF16")
    write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    return tmp_path


def write_index(folder, weight_map) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_names_shapes_and_dtypes_are_those_that_safetensors_reads(tmp_path):
    """The file is written by the safetensors library."""
    import numpy as np
    from safetensors.numpy import save_file

    arrays = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.float16), "empty": np.zeros((0, 5))}
    save_file(arrays, tmp_path / "model.safetensors")
    found = read_weights(tmp_path)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in found.items()} == {
        "a": ((2, 3), "F32"),
        "b": ((4,), "F16"),
        "empty": ((0, 5), "F64"),
    }
    assert sum(tensor.count for tensor in found.values()) == 10


def test_without_an_index_all_files_count(tmp_path, write_weights):
    write_weights(tmp_path / "one.safetensors", SHAPES)
    write_weights(tmp_path / "two.safetensors", {"c": [7]})
    assert sorted(read_weights(tmp_path)) == ["a", "b", "c", "scalar"]


def test_with_an_index_only_its_files_count(sharded, write_weights):
    write_weights(sharded / "consolidated.safetensors", {"a": [9, 9]})
    assert [path.name for path in weight_files(sharded)] == ["one.safetensors", "two.safetensors"]
    assert {name: tensor.shape for name, tensor in read_weights(sharded).items()} == {"a": (2, 3), "b": (4,)}


def test_files_that_the_index_names_and_are_not_there_are_named(sharded):
    (sharded / "two.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"names 2 files, of which 1 are not there: two\.safetensors"):
        read_weights(sharded)


@pytest.mark.parametrize("weight_map", [{"a": "two.safetensors"}, {"c": "one.safetensors"}])
def test_an_index_that_is_of_other_files_is_refused(sharded, weight_map):
    write_index(sharded, {"a": "one.safetensors", "b": "two.safetensors"} | weight_map)
    with pytest.raises(ConfigError, match="which does not hold it"):
        read_weights(sharded)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {"a": 1}}', "\xff"])
def test_an_index_that_is_none_is_named(sharded, text):
    (sharded / INDEX).write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"index\.json cannot be read"):
        read_weights(sharded)


def test_a_name_in_two_files_is_refused(tmp_path, write_weights):
    write_weights(tmp_path / "one.safetensors", {"a": [1]})
    write_weights(tmp_path / "two.safetensors", {"a": [1]})
    with pytest.raises(ConfigError, match=r"a is in two files: one\.safetensors and two\.safetensors"):
        read_weights(tmp_path)


@pytest.mark.parametrize(("change", "how"), [(-1, "cut short"), (-9, "cut short"), (1, "too long")])
def test_a_file_of_another_length_is_refused_with_both(tmp_path, write_weights, change, how):
    path = tmp_path / "model.safetensors"
    write_weights(path, SHAPES)
    whole = path.stat().st_size
    os.truncate(path, whole + change)
    with pytest.raises(ConfigError, match=f"{how}: {whole + change} bytes, its header asks for {whole}"):
        read_weights(tmp_path)


@pytest.mark.parametrize("entry", [{"shape": [3]}, {"data_offsets": [4, 12]}, {"data_offsets": [0, 4]}])
def test_a_header_that_contradicts_itself_is_refused(tmp_path, entry):
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ConfigError, match=r"is damaged: a, F32"):
        read_weights(tmp_path)
