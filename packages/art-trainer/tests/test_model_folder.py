"""Model folders that do not fit are refused with the reason; machines that do not suffice too."""

import json
import re
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
from art_trainer.rows import make_row


@pytest.fixture
def folder(tiny_model, tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(tiny_model, copy)
    return copy


def load(folder):
    return TrainableModel(describe_model(read_config(str(folder))), torch.float32, LoraSpec(), str(folder))


def change(folder, edit):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)


def test_a_missing_tensor_is_named(folder, family):
    names = ["model.layers.1.mlp.up_proj.weight"]
    names += ["model.layers.2.self_attn.k_norm.weight"] if family == "qwen3" else []
    for name in names:
        change(folder, lambda tensors, name=name: tensors.pop(name))
    with pytest.raises(
        ModelLoadError, match=f"{len(names)} tensors missing from the folder: {', '.join(names)}"
    ):
        load(folder)


def test_an_unexpected_tensor_is_named(folder):
    name = "model.layers.0.self_attn.q_proj.bias"
    change(folder, lambda tensors: tensors.update({name: torch.ones(48)}))
    with pytest.raises(ModelLoadError, match=f"1 unexpected tensors in the folder: {name}"):
        load(folder)


def test_a_norm_of_another_width_is_named(make_model, tmp_path):
    folder = Path(shutil.copytree(make_model("qwen3"), tmp_path / "model"))
    name = "model.layers.0.self_attn.q_norm.weight"
    change(folder, lambda tensors: tensors.update({name: torch.ones(36)}))
    with pytest.raises(ModelLoadError, match=r"q_norm.weight has shape \(36,\); config.json says \(8,\)"):
        load(folder)


def test_the_weights_of_another_family_are_refused(make_model, tiny_llama, tmp_path):
    folder = Path(shutil.copytree(make_model("qwen3"), tmp_path / "model"))
    shutil.copy(Path(tiny_llama, "config.json"), folder)
    with pytest.raises(ModelLoadError, match=r"6 unexpected tensors in the folder: .*k_norm.*q_norm"):
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


COVERED = "this version trains LlamaForCausalLM, Qwen3ForCausalLM"
REFUSED = [
    ({"architectures": ["GPT2LMHeadModel"]}, rf"\['GPT2LMHeadModel'\]; {COVERED}"),
    ({"architectures": None}, rf"\[\]; {COVERED}"),
    ({"attention_bias": True}, "attention_bias is True; the {family} handler covers False"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; the {family} handler covers 'silu'"),
    ({"is_causal": False}, "is_causal is False"),
    ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is {{'quant_method': 'fp8'}}"),
    ({"num_key_value_heads": 4}, "num_attention_heads is 6, no multiple of num_key_value_heads, which is 4"),
    ({"head_dim": 7}, "the width of a head is 7"),
    ({"hidden_size": 0}, "hidden_size is 0; it has to be a positive integer"),
    ({"vocab_size": "96"}, "vocab_size is '96'; it has to be a positive integer"),
    ({"rms_norm_eps": None}, "lacks rms_norm_eps"),
    (
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        r"1 of 3 layers have attention that is not full .* the {family} handler covers full attention",
    ),
    ({"layer_types": ["full_attention"]}, "layer_types has 1 entries; num_hidden_layers is 3"),
    (
        {"layer_types": None, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
        "2 of 3 layers have attention that is not full",
    ),
    (
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}},
        "rope type is 'yarn'; .*'default' and 'l",
    ),
    (
        {"rope_parameters": None, "rope_scaling": {"type": "linear"}, "rope_theta": 1e4},
        "rope type is 'linear'",
    ),
    (
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8}},
        "'llama3' needs low_freq_f",
    ),
    (
        {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [4]}},
        "parameters mrope_section are not covered",
    ),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
]
OF_ONE_FAMILY = [
    ("llama", {"mlp_bias": True}, "mlp_bias is True; the Llama 3 handler covers False"),
    ("qwen3", {"head_dim": None, "num_key_value_heads": None}, "lacks head_dim, num_key_value_heads"),
    ("qwen3", {"dual_chunk_attention_config": {"chunk_size": 8}}, "dual_chunk_attention_config is {'chunk_"),
    ("qwen3", {"rope_parameters": {"rope_type": "default"}}, "no rope_theta, and programs differ"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_no_handler_covers_is_refused(tiny_model, family, changes, message):
    config = read_config(tiny_model)
    assert describe_model(config).options["num_layers"] == 3
    named = message.format(family={"llama": "Llama 3", "qwen3": "Qwen 3"}[family])
    with pytest.raises(UnsupportedModelError, match=named):
        describe_model({**config, **changes})


@pytest.mark.parametrize(("of_family", "changes", "message"), OF_ONE_FAMILY)
def test_what_one_handler_does_not_cover_is_refused(make_model, of_family, changes, message):
    with pytest.raises(UnsupportedModelError, match=re.escape(message)):
        describe_model({**read_config(make_model(of_family)), **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": None},
        {"layer_types": None, "use_sliding_window": True, "sliding_window": None},
        {"layer_types": None, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3},
        {"layer_types": None, "use_sliding_window": False, "sliding_window": 16, "max_window_layers": 0},
    ],
)
def test_windows_that_no_layer_uses_are_no_windows(make_model, changes):
    """As transformers derives it from the same config."""
    from transformers import Qwen3Config

    config = {**read_config(make_model("qwen3")), **changes}
    assert set(Qwen3Config(**config).layer_types) == {"full_attention"}
    assert describe_model(config).options["num_layers"] == 3


@pytest.mark.parametrize("rope", [None, "llama3"])
def test_rotary_frequencies_equal_those_of_transformers(family, make_model, llama3_rope, rope):
    from transformers import AutoModelForCausalLM

    path = make_model(family, rope=llama3_rope if rope else {"rope_type": "default", "rope_theta": 5e5})
    theirs = AutoModelForCausalLM.from_pretrained(path).model.rotary_emb
    assert theirs.attention_scaling == 1.0
    torch.testing.assert_close(describe_model(read_config(path)).rope.inverse_frequencies(), theirs.inv_freq)


def test_the_rotary_base_may_stand_where_older_configs_have_it(tiny_model):
    config = read_config(tiny_model)
    old = {k: v for k, v in config.items() if k != "rope_parameters"} | {"rope_theta": 500.0}
    new = {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    frequencies = [describe_model(c).rope.inverse_frequencies() for c in (old, new, config)]
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
        check_machine(spec(tiny_llama, packed_sequence_length=1 << 24), description)
    assert check_machine(spec(tiny_llama), description).total > 0


def test_weights_are_counted_from_the_files(family, make_model):
    path = make_model(family, tied=False, seed=4, shard="20KB")
    stored = sum(t.numel() for f in Path(path).glob("*.safetensors") for t in load_file(f).values())
    description = describe_model(read_config(path))
    assert estimate_memory(spec(path), description).weights == 4 * stored
    assert estimate_memory(spec(path, dtype="bfloat16"), description).weights == 2 * stored


def test_activations_are_estimated_from_what_autograd_keeps(tiny_model, completions, pack_chains):
    """Distinct storages that a forward pass keeps, parameters aside."""
    model = load(tiny_model)
    row = make_row(pack_chains(completions()))
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    constant = {p.untyped_storage().data_ptr() for p in model.module.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.hidden_states(row)
    counted = sum(storage.nbytes() for address, storage in kept.items() if address not in constant)
    estimate = estimate_memory(
        spec(tiny_model, packed_sequence_length=len(row.token_ids)), describe_model(read_config(tiny_model))
    )
    # The estimate allows 1.5 times the sizes for the allocator; the adapter's own results are in the count.
    assert 0.6 * estimate.activations < counted < 0.8 * estimate.activations


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
    assert json.loads(before)["architectures"]


def test_a_config_is_described_without_loading_torch(tiny_model: str) -> None:
    program = (
        "import sys; from art_trainer.models import describe_model, read_config; "
        "print(describe_model(read_config(sys.argv[1])).options['num_layers'], 'torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, tiny_model], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.split() == ["3", "False"]
