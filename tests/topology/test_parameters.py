"""Parameters counted from a configuration are those of the model that transformers builds from it."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from art_topology.models import load_model_config, parameters

_PUBLISHED = json.loads(
    (Path(__file__).parents[2] / "packages/art-topology/tests/published_models.json").read_text()
)
_SEEDS = range(8)
_EXPERT_WEIGHTS = ("experts.gate_up_proj", "experts.down_proj")


def _built(config: dict[str, Any]) -> PreTrainedModel:
    values = dict(config.get("text_config", config))
    model_type = values.pop("model_type")
    built = CONFIG_MAPPING["deepseek_v3" if model_type == "kimi_k2" else model_type](**values)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(built)


def _count(model: PreTrainedModel) -> int:
    return sum(weight.numel() for weight in model.parameters())


def _active(model: PreTrainedModel, topk: int) -> int:
    """Every weight, of routed experts only those of ``topk``."""
    total = 0
    for name, weight in model.named_parameters():
        routed = any(part in name for part in _EXPERT_WEIGHTS) and "shared" not in name
        total += weight.numel() // weight.shape[0] * topk if routed else weight.numel()
    return total


@pytest.mark.parametrize("entry", _PUBLISHED, ids=lambda entry: entry["name"])
def test_the_parameters_of_a_published_model_are_those_that_transformers_builds(entry: Any) -> None:
    model = _built(entry["config"])
    text = entry["config"].get("text_config", entry["config"])
    topk = text.get("num_experts_per_tok") or text.get("top_k_experts") or 0
    counted = parameters(load_model_config(entry["config"]))

    assert counted.total == _count(model) == entry["parameters"]
    assert counted.active == _active(model, topk)


def _llama(pick: random.Random) -> dict[str, Any]:
    return {"attention_bias": pick.random() < 0.5, "mlp_bias": pick.random() < 0.5, **_heads(pick)}


def _heads(pick: random.Random) -> dict[str, Any]:
    kv = pick.choice([1, 2, 4])
    return {
        "num_key_value_heads": kv,
        "num_attention_heads": kv * pick.choice([1, 2, 3]),
        "head_dim": 8 * pick.randint(1, 4),
    }


def _qwen3(pick: random.Random) -> dict[str, Any]:
    return {**_heads(pick), "attention_bias": pick.random() < 0.5}


def _moe(pick: random.Random, name: str = "num_experts") -> dict[str, Any]:
    experts = pick.randint(2, 9)
    return {
        name: experts,
        "num_experts_per_tok": pick.randint(1, experts),
        "moe_intermediate_size": 8 * pick.randint(1, 5),
    }


def _qwen3_moe(pick: random.Random) -> dict[str, Any]:
    return {
        **_qwen3(pick),
        **_moe(pick),
        "decoder_sparse_step": pick.choice([1, 2]),
        "mlp_only_layers": pick.choice([[], [1]]),
    }


def _qwen2_moe(pick: random.Random) -> dict[str, Any]:
    heads = _heads(pick)
    return {
        **heads,
        **_moe(pick),
        "qkv_bias": pick.random() < 0.5,
        "hidden_size": 16 * heads["num_attention_heads"],
        "head_dim": 16,
        "shared_expert_intermediate_size": 24,
    }


def _linear(pick: random.Random) -> dict[str, Any]:
    heads = pick.choice([1, 2, 4])
    return {
        "linear_num_key_heads": heads,
        "linear_num_value_heads": heads * pick.choice([1, 2]),
        "linear_key_head_dim": 8 * pick.randint(1, 3),
        "linear_value_head_dim": 8 * pick.randint(1, 3),
        "linear_conv_kernel_dim": pick.choice([2, 4]),
        "full_attention_interval": pick.choice([2, 3, 4]),
    }


def _qwen3_5(pick: random.Random) -> dict[str, Any]:
    return {**_heads(pick), **_linear(pick)}


def _qwen3_5_moe(pick: random.Random) -> dict[str, Any]:
    return {**_qwen3_5(pick), **_moe(pick), "shared_expert_intermediate_size": 8 * pick.randint(1, 4)}


def _gemma4(pick: random.Random) -> dict[str, Any]:
    return {
        **_heads(pick),
        "global_head_dim": 8 * pick.randint(1, 6),
        "attention_k_eq_v": (shared := pick.random() < 0.5),
        "num_global_key_value_heads": 1 if shared else None,
        "num_kv_shared_layers": pick.choice([0, 1, 2]),
        "use_double_wide_mlp": pick.random() < 0.5,
        "hidden_size_per_layer_input": pick.choice([0, 8]),
        "vocab_size_per_layer_input": 96,
        "layer_types": [pick.choice(["sliding_attention", "full_attention"]) for _ in range(3)]
        + ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 7,
    }


def _gemma4_moe(pick: random.Random) -> dict[str, Any]:
    experts = pick.randint(2, 9)
    return {
        **_gemma4(pick),
        "enable_moe_block": True,
        "num_experts": experts,
        "top_k_experts": pick.randint(1, experts),
        "moe_intermediate_size": 8 * pick.randint(1, 5),
    }


def _gpt_oss(pick: random.Random) -> dict[str, Any]:
    return {**_heads(pick), "num_local_experts": 4, "num_experts_per_tok": 2}


def _mixtral(pick: random.Random) -> dict[str, Any]:
    return {**_heads(pick), "num_local_experts": pick.randint(2, 6), "num_experts_per_tok": 2}


def _latent(pick: random.Random) -> dict[str, Any]:
    heads = pick.choice([2, 4])
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": 8 * pick.randint(1, 4),
        "kv_lora_rank": 8 * pick.randint(1, 4),
        "qk_nope_head_dim": 8 * pick.randint(1, 3),
        "qk_rope_head_dim": 8,
        "v_head_dim": 8 * pick.randint(1, 3),
        "attention_bias": pick.random() < 0.5,
        "first_k_dense_replace": pick.randint(0, 3),
        "n_shared_experts": pick.randint(1, 2),
        "n_group": 1,
        "topk_group": 1,
        **_moe(pick, "n_routed_experts"),
    }


def _deepseek(pick: random.Random) -> dict[str, Any]:
    values = _latent(pick)
    return {**values, "q_lora_rank": pick.choice([None, values["q_lora_rank"]])}


def _sparse(pick: random.Random) -> dict[str, Any]:
    return {**_latent(pick), "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}


def _glm_moe_dsa(pick: random.Random) -> dict[str, Any]:
    return {
        **_sparse(pick),
        "indexer_types": ["full"] + [pick.choice(["full", "shared"]) for _ in range(4)],
    }


def _glm4_moe(pick: random.Random) -> dict[str, Any]:
    values = _latent(pick)
    shared = ("first_k_dense_replace", "n_shared_experts", "n_group", "topk_group", "attention_bias")
    return {
        **_heads(pick),
        **_moe(pick, "n_routed_experts"),
        **{name: values[name] for name in shared},
        "use_qk_norm": pick.random() < 0.5,
    }


def _deepseek_v4(pick: random.Random) -> dict[str, Any]:
    kinds = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
    return {
        **_moe(pick, "n_routed_experts"),
        "num_attention_heads": 4,
        "head_dim": 16 * pick.randint(1, 2),
        "q_lora_rank": 8 * pick.randint(1, 4),
        "o_groups": pick.choice([1, 2, 4]),
        "o_lora_rank": 8,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_topk": 4,
        "hc_mult": pick.choice([2, 4]),
        "sliding_window": 8,
        "compress_rates": {
            "compressed_sparse_attention": pick.choice([2, 4]),
            "heavily_compressed_attention": pick.choice([8, 16]),
        },
        "layer_types": [pick.choice(kinds) for _ in range(5)],
    }


_FAMILIES: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _heads,
    "mixtral": _mixtral,
    "qwen2": lambda pick: {"num_attention_heads": 4, "num_key_value_heads": pick.choice([1, 2, 4])},
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": lambda pick: {**_qwen3_5_moe(pick), "decoder_sparse_step": pick.choice([1, 2])},
    "qwen3_5_text": _qwen3_5,
    "qwen3_5_moe_text": _qwen3_5_moe,
    "gemma4_text": _gemma4,
    "gemma4_text with experts": _gemma4_moe,
    "gpt_oss": _gpt_oss,
    "glm4_moe": _glm4_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "deepseek_v32": _sparse,
    "deepseek_v4": _deepseek_v4,
    "glm_moe_dsa": _glm_moe_dsa,
    "glm4_moe_lite": _latent,
}


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("family", _FAMILIES)
def test_the_parameters_of_a_random_model_of_each_family_are_those_that_transformers_builds(
    family: str, seed: int
) -> None:
    pick = random.Random(f"{family} {seed}")
    values = {
        "model_type": family.split()[0],
        "vocab_size": 96,
        "hidden_size": 48 * pick.randint(1, 3),
        "intermediate_size": 8 * pick.randint(2, 9),
        "num_hidden_layers": 5,
        "tie_word_embeddings": pick.random() < 0.5,
        "pad_token_id": 0,
    } | _FAMILIES[family](pick)
    model = _built(values)
    counted = parameters(load_model_config(json.loads(model.config.to_json_string())))

    assert counted.total == _count(model)
    topk = values.get("num_experts_per_tok") or values.get("top_k_experts") or 0
    assert counted.active == _active(model, topk)
