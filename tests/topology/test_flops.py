"""FLOPs counted from a configuration are those that torch counts while transformers' model runs.

The eager attention of transformers computes every score of a row of S tokens, also those that the mask hides;
so the core of attention is compared at S visible tokens for each query. That a causal, windowed or sparse
core attends to fewer is arithmetic, checked in the package's own tests against a brute force.
"""

from typing import Any

import msgspec
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from art_topology.models import ModelDescription, flops_per_token, load_model_config
from art_topology.workload import WorkloadSpec

_TOKENS = 24
_SMALL = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
_GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_SPARSE_LAYERS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_LATENT = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    **_SPARSE_LAYERS,
}
_MODELS: dict[str, dict[str, Any]] = {
    "llama": _GROUPED,
    "mixtral": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen3": _GROUPED,
    "qwen3_moe": {**_GROUPED, **_EXPERTS},
    "qwen2_moe": {**_GROUPED, "head_dim": 12, **_EXPERTS, "shared_expert_intermediate_size": 40},
    "gpt_oss": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "glm4_moe": {**_GROUPED, **_SPARSE_LAYERS},
    "deepseek_v3": _LATENT,
    "deepseek_v2": {**_LATENT, "q_lora_rank": None},
    "gemma4_text": {
        **_GROUPED,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 96,
        "num_kv_shared_layers": 1,
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
}


def _built(model_type: str) -> tuple[PreTrainedModel, ModelDescription]:
    return _built_of(model_type, _MODELS[model_type])


def _built_of(model_type: str, values: dict[str, Any]) -> tuple[PreTrainedModel, ModelDescription]:
    config = CONFIG_MAPPING[model_type](**{**_SMALL, **values})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    return model, load_model_config(config.to_dict())


def _measured(model: torch.nn.Module, *, backward: bool) -> int:
    tokens = torch.arange(_TOKENS)[None] % 96
    with FlopCounterMode(display=False) as counter:
        logits = model(input_ids=tokens, use_cache=False).logits
        if backward:
            logits.sum().backward()
    return counter.get_total_flops()


def _unmasked(model: ModelDescription) -> ModelDescription:
    """The model without windows: eager attention computes what the mask hides."""
    layers = tuple(
        msgspec.structs.replace(layer, attention=msgspec.structs.replace(layer.attention, window=None))
        if getattr(layer.attention, "window", None)
        else layer
        for layer in model.layers
    )
    return msgspec.structs.replace(model, layers=layers)


def _cores(model: ModelDescription, *, at: int) -> float:
    """The core of attention of all layers when every query sees ``at`` keys, expanded as in training."""
    return sum(layer.attention.core_flops(2 * at - 1) for layer in _unmasked(model).layers)


def _parts(model: ModelDescription, workload: WorkloadSpec | None = None) -> tuple[float, float]:
    """Forward and backward FLOPs per token without the core of attention."""
    parts = [part for part in flops_per_token(model, 1, workload).parts if part.name != "attention core"]
    return sum(part.forward_flops for part in parts), sum(part.backward_flops for part in parts)


@pytest.mark.parametrize("model_type", _MODELS)
def test_the_forward_flops_are_those_that_torch_counts(model_type: str) -> None:
    model, description = _built(model_type)
    with torch.no_grad():
        measured = _measured(model, backward=False)

    expected = _TOKENS * (_parts(description)[0] + _cores(description, at=_TOKENS))
    assert measured == expected


@pytest.mark.parametrize("model_type", _MODELS)
def test_the_flops_of_training_all_weights_are_those_that_torch_counts(model_type: str) -> None:
    model, description = _built(model_type)
    measured = _measured(model, backward=True)

    forward, backward = _parts(description)
    expected = _TOKENS * (forward + backward + 3 * _cores(description, at=_TOKENS))
    assert measured == expected


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_lora_saves_the_weight_gradients_of_frozen_matrices(model_type: str) -> None:
    model, description = _built(model_type)
    model.enable_input_require_grads()
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=targets))
    workload = WorkloadSpec(
        packed_sequence_length=_TOKENS,
        groups_per_step=1,
        group_size=1,
        prompt_tokens=8,
        completion_tokens=16,
        lora_rank=4,
    )
    measured = _measured(adapted, backward=True)

    forward, backward = _parts(description, workload)
    expected = _TOKENS * (forward + backward + 3 * _cores(description, at=_TOKENS))
    assert measured == expected


def test_the_flops_of_an_indexer_are_those_that_torch_counts() -> None:
    """transformers masks what sparse attention leaves out, so that its core is that of latent attention."""
    sparse = {**_LATENT, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}
    model, description = _built_of("glm_moe_dsa", sparse)
    with torch.no_grad():
        measured = _measured(model, backward=False)

    attention = [layer.attention for layer in description.layers]
    dense = [msgspec.structs.replace(shape, topk=None, indexer=None) for shape in attention]
    scores = sum(shape.indexer.score_flops(_TOKENS) for shape in attention)
    cores = sum(shape.core_flops(2 * _TOKENS - 1) for shape in dense)
    linear = sum(matrix.forward_flops for layer in description.layers for matrix in layer.matrices())
    head = 2 * 48 * 96
    assert measured == _TOKENS * (linear + head + scores + cores)


def test_the_flops_of_a_gated_delta_net_are_those_that_torch_counts() -> None:
    """torch does not count the triangular solve within a chunk; it counts the convolution of its padding."""
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16}
    linear |= {"linear_value_head_dim": 24, "linear_conv_kernel_dim": 4}
    kinds = {"layer_types": ["linear_attention"] * 3}
    model, description = _built_of("qwen3_5_text", {**_GROUPED, **linear, **kinds})
    tokens, chunk = 128, 64
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(tokens)[None] % 96, use_cache=False)
    counts = {str(kind): value for kind, value in counter.get_flop_counts()["Global"].items()}

    convolution = 3 * 2 * 4 * (2 * 2 * 16 + 4 * 24)
    solve = 3 * 4 * (chunk * chunk / 3 + 2 * chunk * (16 + 24))
    core = sum(layer.attention.core_flops(tokens) for layer in description.layers)
    assert counts["aten.convolution"] == (tokens + 3) * convolution
    assert counts["aten.bmm"] == pytest.approx(tokens * (core - convolution - solve), rel=1e-12)
    assert counts["aten.mm"] == tokens * _parts(description)[0]
