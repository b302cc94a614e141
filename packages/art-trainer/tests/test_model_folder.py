"""Model folders that do not fit are refused with the reason; machines that do not suffice too."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from art_topology import MegatronTopologyConfig
from art_trainer import (
    LoraSpec,
    ModelLoadError,
    PreflightError,
    TrainerRuntimeSpec,
    UnsupportedModelError,
    platform,
)
from art_trainer.model import TrainableModel
from art_trainer.models import describe_model, read_config
from art_trainer.preflight import check_machine, estimate_memory


@pytest.fixture
def folder(tiny_llama, tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(tiny_llama, copy)
    return copy


def load(folder):
    return TrainableModel(describe_model(read_config(str(folder))), torch.float32, LoraSpec(), str(folder))


def change(folder, edit):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)


def test_a_missing_tensor_is_named(folder):
    change(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(
        ModelLoadError, match=r"1 tensors missing from the folder: model.layers.1.mlp.up_proj.weight"
    ):
        load(folder)


def test_an_unexpected_tensor_is_named(folder):
    change(folder, lambda tensors: tensors.update({"model.layers.9.bias": torch.ones(3)}))
    with pytest.raises(ModelLoadError, match=r"1 unexpected tensors in the folder: model.layers.9.bias"):
        load(folder)


def test_a_wrong_shape_is_named(folder):
    name = "model.layers.0.self_attn.k_proj.weight"
    change(folder, lambda tensors: tensors.update({name: torch.ones(8, 36)}))
    with pytest.raises(
        ModelLoadError, match=r"k_proj.weight has shape \(8, 36\); config.json says \(16, 36\)"
    ):
        load(folder)
    change(folder, lambda tensors: tensors.update({name: torch.ones(16, 35)}))
    with pytest.raises(ModelLoadError, match=r"\(16, 35\); config.json says \(16, 36\)"):
        load(folder)


def test_a_tied_model_may_store_its_output_projection(folder):
    change(
        folder,
        lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}),
    )
    assert load(folder).output_weight.shape == (96, 36)


def test_a_folder_without_weights_or_config(folder, tmp_path):
    (folder / "model.safetensors").write_bytes(b"\xff" * 16)
    with pytest.raises(ModelLoadError, match="is not a safetensors file"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="no safetensors weights"):
        load(folder)
    with pytest.raises(ModelLoadError, match=r"config.json does not exist"):
        read_config(str(tmp_path))
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="is not JSON"):
        read_config(str(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            r"\['GPT2LMHeadModel'\]; this version trains LlamaForCausalLM",
        ),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope type is 'yarn'"),
    ],
)
def test_what_the_handler_does_not_cover_is_refused(tiny_llama, changes, message):
    with pytest.raises(UnsupportedModelError, match=message):
        describe_model({**read_config(tiny_llama), **changes})
    with pytest.raises(UnsupportedModelError, match="lacks rms_norm_eps"):
        describe_model({k: v for k, v in read_config(tiny_llama).items() if k != "rms_norm_eps"})


def test_the_rotary_base_may_stand_where_older_configs_have_it(tiny_llama):
    config = read_config(tiny_llama)
    old = {k: v for k, v in config.items() if k != "rope_parameters"} | {"rope_theta": 500.0}
    new = {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    frequencies = [describe_model(c).inverse_frequencies for c in (old, new, config)]
    assert torch.equal(frequencies[0], frequencies[1])
    assert not torch.equal(frequencies[0], frequencies[2])


def spec(path, **changes):
    return TrainerRuntimeSpec(**{"model_path": path, "packed_sequence_length": 64, **changes})


def test_preflight_names_what_does_not_suffice(tiny_llama, monkeypatch):
    description = describe_model(read_config(tiny_llama))
    processors = platform.processor_count()
    with pytest.raises(PreflightError, match=f"may run on {processors} processors"):
        check_machine(spec(tiny_llama, threads=processors + 1), description)
    with pytest.raises(PreflightError, match=r"one rank; the topology has \{'tp': 2\}"):
        check_machine(spec(tiny_llama, topology=MegatronTopologyConfig(tp=2)), description)
    with pytest.raises(PreflightError, match="lower packed_sequence_length or free memory"):
        check_machine(spec(tiny_llama, packed_sequence_length=1 << 40), description)
    assert check_machine(spec(tiny_llama), description).total > 0


def test_weights_are_counted_from_the_files(make_llama):
    path = make_llama(tied=False, seed=4, shard="20KB")
    stored = sum(t.numel() for f in Path(path).glob("*.safetensors") for t in load_file(f).values())
    description = describe_model(read_config(path))
    assert estimate_memory(spec(path), description).weights == 4 * stored
    assert estimate_memory(spec(path, dtype="bfloat16"), description).weights == 2 * stored


def test_available_memory_respects_the_cgroups_above(tmp_path, monkeypatch):
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, limit, used in ((inner, "max", 10), (inner.parent, "5000", 1000)):
        (folder / "memory.max").write_text(limit + "\n")
        (folder / "memory.current").write_text(f"{used}\n")
    monkeypatch.setattr(platform, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(platform, "own_cgroup", lambda: "/outer/inner")
    assert platform.available_bytes() == 4000


PROBE = """
import os, sys, torch
before = {name: getattr(torch.cuda, name) for name in ("current_device", "synchronize", "current_stream")}
empty, tensor = torch.empty, torch.Tensor.cuda
from art_trainer.model import TrainableModel
from art_trainer.models import describe_model, read_config
from art_trainer.specs import LoraSpec
path = sys.argv[1]
model = TrainableModel(describe_model(read_config(path)), torch.float32, LoraSpec(), path)
assert all(getattr(torch.cuda, name) is value for name, value in before.items())
assert torch.empty is empty and torch.Tensor.cuda is tensor
assert not torch.distributed.is_initialized()
links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
opened = [os.readlink(link) for link in links if os.path.islink(link)]
assert not [target for target in opened if target.startswith("socket:")], opened
assert "transformers" not in sys.modules
print("fine")
"""


def test_building_a_model_patches_nothing_of_torch_and_opens_no_socket(tiny_llama):
    result = subprocess.run(
        [sys.executable, "-c", PROBE, tiny_llama], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.stdout.strip() == "fine", result.stderr
    assert "DEPRECATED" not in result.stderr


def test_the_config_file_stays_as_it_was(folder):
    before = (folder / "config.json").read_text()
    load(folder)
    assert (folder / "config.json").read_text() == before
    assert json.loads(before)["architectures"] == ["LlamaForCausalLM"]
