"""The weights that a rank is said to hold are those of the megatron-core model that is built for that rank.

torch's fake process groups let one process stand at any rank of any layout.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

from art_topology.memory import rank_parameters
from art_topology.models import load_model_config
from art_topology.ranks import RankLayout
from art_topology.stages import StageLayout
from art_topology.workload import WorkloadSpec

_WORKLOAD = WorkloadSpec(
    packed_sequence_length=64, groups_per_step=1, group_size=1, prompt_tokens=8, completion_tokens=16
)
_COMMON = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
_DENSE = {
    **_COMMON,
    "model_type": "llama",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "tie_word_embeddings": False,
}
_QWEN3 = {**_DENSE, "model_type": "qwen3", "tie_word_embeddings": True}
_MOE = {
    **_QWEN3,
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "tie_word_embeddings": False,
}
_LATENT = {
    **_COMMON,
    "model_type": "deepseek_v3",
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_shared_experts": 1,
    "first_k_dense_replace": 0,
    "tie_word_embeddings": False,
}
_CONFIGS = {"llama": _DENSE, "qwen3": _QWEN3, "qwen3_moe": _MOE, "deepseek_v3": _LATENT}

_LAYOUTS = {
    "llama": [(1, 1, 1, 1), (2, 1, 1, 1), (4, 1, 1, 1), (2, 2, 1, 1), (1, 4, 1, 1)],
    "qwen3": [(1, 1, 1, 1), (4, 1, 1, 1), (2, 2, 1, 1), (1, 4, 1, 1)],
    "qwen3_moe": [(1, 1, 4, 1), (2, 1, 2, 2), (2, 2, 4, 1), (4, 1, 2, 1)],
    "deepseek_v3": [(1, 1, 4, 1), (2, 1, 2, 2), (2, 2, 4, 1), (4, 1, 8, 1)],
}
"""tp, pp, ep, etp of each."""


@pytest.fixture
def stand_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Initialises megatron-core's groups for one rank; they are gone after the test."""
    from megatron.core import parallel_state, tensor_parallel

    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)

    def initialise(rank: int, world: int, tp: int, pp: int, ep: int, etp: int) -> None:
        distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=etp,
            create_gloo_process_groups=False,
        )
        tensor_parallel.random.initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)

    yield initialise
    parallel_state.destroy_model_parallel()
    distributed.destroy_process_group()


class _Core(torch.nn.Module):
    """A core of attention: megatron-core's local one does not take latent attention's head sizes."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


def _weights(model: torch.nn.Module, tp: int) -> int:
    """Weights of the model. The local spec divides latent down-projections, which Transformer Engine's (the
    one that trains on GPUs) has on every rank."""
    return sum(
        weight.numel() * (tp if name.endswith(("q_down_proj.weight", "kv_down_proj.weight")) else 1)
        for name, weight in model.named_parameters()
    )


def _options(config: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {
        "num_layers": config["num_hidden_layers"],
        "hidden_size": config["hidden_size"],
        "ffn_hidden_size": config["intermediate_size"],
        "num_attention_heads": config["num_attention_heads"],
        "add_bias_linear": False,
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "normalization": "RMSNorm",
        "use_cpu_initialization": True,
        "bias_activation_fusion": False,
    }
    if "num_experts" in config or "n_routed_experts" in config:
        options |= {
            "num_moe_experts": config.get("num_experts") or config["n_routed_experts"],
            "moe_router_topk": config["num_experts_per_tok"],
            "moe_ffn_hidden_size": config["moe_intermediate_size"],
            "moe_token_dispatcher_type": "allgather",
            "moe_router_load_balancing_type": "none",
        }
    if "n_shared_experts" in config:
        options["moe_shared_expert_intermediate_size"] = (
            config["n_shared_experts"] * config["moe_intermediate_size"]
        )
    if "kv_lora_rank" in config:
        options |= {
            "q_lora_rank": config["q_lora_rank"],
            "kv_lora_rank": config["kv_lora_rank"],
            "qk_head_dim": config["qk_nope_head_dim"],
            "qk_pos_emb_head_dim": config["qk_rope_head_dim"],
            "v_head_dim": config["v_head_dim"],
            "qk_layernorm": True,
            "rope_type": "rope",
        }
    else:
        options |= {
            "num_query_groups": config["num_key_value_heads"],
            "kv_channels": config["head_dim"],
            "qk_layernorm": config["model_type"].startswith("qwen3"),
        }
    return options


def _built(config: dict[str, Any], tp: int, pp: int, ep: int, etp: int, pp_rank: int) -> torch.nn.Module:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    latent = "kv_lora_rank" in config
    options = _options(config) | {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": etp,
        "pipeline_dtype": torch.float32,
    }
    kind = MLATransformerConfig if latent else TransformerConfig
    spec = get_gpt_layer_local_spec(
        num_experts=options.get("num_moe_experts"),
        moe_grouped_gemm=False,
        qk_layernorm=options["qk_layernorm"],
        multi_latent_attention=latent,
        normalization="RMSNorm",
    )
    if latent:
        attention = spec.submodules.self_attention
        inner = dataclasses.replace(attention.submodules, core_attention=_Core)
        layer = dataclasses.replace(
            spec.submodules, self_attention=dataclasses.replace(attention, submodules=inner)
        )
        spec = dataclasses.replace(spec, submodules=layer)
    return GPTModel(
        kind(**options),
        spec,
        vocab_size=config["vocab_size"],
        max_sequence_length=64,
        position_embedding_type="rope",
        pre_process=pp_rank == 0,
        post_process=pp_rank == pp - 1,
        share_embeddings_and_output_weights=config["tie_word_embeddings"],
    )


@pytest.mark.parametrize(
    ("name", "layout", "pp_rank"),
    [
        (name, layout, pp_rank)
        for name, layouts in _LAYOUTS.items()
        for layout in layouts
        for pp_rank in range(layout[1])
    ],
)
def test_the_weights_of_a_rank_are_those_that_megatron_builds(
    name: str, layout: tuple[int, int, int, int], pp_rank: int, stand_at: Callable[..., None]
) -> None:
    tp, pp, ep, etp = layout
    config = _CONFIGS[name]
    per_stage = max(tp, ep * etp)
    stand_at(pp_rank * per_stage, pp * per_stage, tp, pp, ep, etp)
    built = _weights(_built(config, tp, pp, ep, etp, pp_rank), tp)

    ranks = RankLayout(
        tp=tp, cp=1, dp=per_stage // tp, pp=pp, etp=etp, ep=ep, expert_dp=per_stage // (ep * etp)
    )
    stages = StageLayout.uniform(config["num_hidden_layers"], pp)
    counted = rank_parameters(load_model_config(config), ranks, stages, _WORKLOAD, pp_rank)
    assert counted.base == built
