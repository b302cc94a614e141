"""The compiler's rules on the division of a model against megatron-core's own checks.

Whatever ``TransformerConfig`` and ``PipelineParallelLayerLayout`` refuse of the fields that a topology has,
the compiler refuses; and what it lets through of these, they accept. Where the compiler is stricter, the
reason is written here.
"""

import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology import (
    CpuPlacement,
    MegatronTopologyConfig,
    TopologyError,
    TrainerMeshSpec,
    compile_topology,
    local_cluster,
)
from art_topology.models import load_model_config


@pytest.fixture(scope="module")
def transformer_config() -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig


@st.composite
def divisions(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, int]]:
    small = st.sampled_from((1, 1, 2, 3, 4, 6, 8))
    pp = draw(st.sampled_from((1, 2, 2, 3, 4)))
    tp = draw(small)
    parallel: dict[str, Any] = {"tp": tp, "pp": pp, "cp": draw(st.sampled_from((1, 2))), "ep": draw(small)}
    parallel["sequence_parallel"] = draw(st.sampled_from((None, None, True, False)))
    parallel["vpp"] = draw(st.sampled_from((None, None, 2, 3)))
    kind = draw(st.sampled_from(("even", "even", "ends", "accounts", "mixed", "layout")))
    some = st.sampled_from((None, 1, 2, 3, 4, 6))
    if kind in ("ends", "mixed"):
        parallel["num_layers_in_first_pipeline_stage"] = draw(some)
        parallel["num_layers_in_last_pipeline_stage"] = draw(some)
    if kind in ("accounts", "mixed"):
        parallel["account_for_embedding_in_pipeline_split"] = draw(st.booleans())
        parallel["account_for_loss_in_pipeline_split"] = draw(st.booleans())
    if kind == "layout":
        stages = ["t" * draw(st.integers(0, 3)) for _ in range(draw(st.integers(1, 8)))]
        parallel["pipeline_layout"] = "E" + "|".join(stages) + "L"
    heads = draw(st.sampled_from((4, 6, 8, 12, 24)))
    model = {
        "layers": draw(st.sampled_from((4, 6, 8, 10, 12, 16))),
        "heads": heads,
        "kv_heads": draw(st.sampled_from([d for d in range(1, heads + 1) if heads % d == 0])),
        "experts": draw(st.sampled_from((0, 4, 6, 8))),
    }
    return parallel, model


def refused_by_us(parallel: dict[str, Any], model: dict[str, int]) -> set[str]:
    """The codes about stages, heads, experts and tokens; the ranks are as many as divide well."""
    spec = MegatronTopologyConfig(**parallel)
    world = spec.tp * spec.cp * spec.pp * spec.ep
    config = {
        "model_type": "qwen3_moe" if model["experts"] else "qwen3",
        "hidden_size": 48,
        "num_hidden_layers": model["layers"],
        "num_attention_heads": model["heads"],
        "num_key_value_heads": model["kv_heads"],
        "head_dim": 8,
        "intermediate_size": 48,
        "vocab_size": 480,
        "max_position_embeddings": 4096,
        **({"num_experts": model["experts"], "num_experts_per_tok": 2} if model["experts"] else {}),
        **({"moe_intermediate_size": 48} if model["experts"] else {}),
    }
    try:
        compile_topology(
            cluster=local_cluster(cpu_slots=world + 1),
            trainer=TrainerMeshSpec(placements=[CpuPlacement(host_id="local", slots=world)], parallel=spec),
            model=load_model_config(config),
        )
    except TopologyError as error:
        return {found.code for found in error.diagnostics if found.severity == "error"}
    return set()


def refused_by_megatron(config: Any, parallel: dict[str, Any], model: dict[str, int]) -> str | None:
    import torch

    tp = parallel["tp"]
    given_sp = parallel["sequence_parallel"]
    fields: dict[str, Any] = {
        "num_layers": model["layers"],
        "hidden_size": 48,
        "kv_channels": 8,
        "num_attention_heads": model["heads"],
        "num_query_groups": model["kv_heads"],
        "num_moe_experts": model["experts"] or None,
        "moe_ffn_hidden_size": 48 if model["experts"] else None,
        "add_bias_linear": False,
        "tensor_model_parallel_size": tp,
        "context_parallel_size": parallel["cp"],
        "expert_model_parallel_size": parallel["ep"],
        "expert_tensor_parallel_size": 1,
        "pipeline_model_parallel_size": parallel["pp"],
        "virtual_pipeline_model_parallel_size": parallel["vpp"],
        "pipeline_dtype": torch.float32,
        "sequence_parallel": tp > 1 if given_sp is None else given_sp,
        "pipeline_model_parallel_layout": parallel.get("pipeline_layout"),
        **{key: value for key, value in parallel.items() if key.startswith(("num_layers", "account"))},
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config(**fields)
    except (AssertionError, ValueError, ZeroDivisionError, NotImplementedError) as error:
        return str(error)
    return None


STRICTER = {
    "ART-T307",  # refused by parallel_state.initialize_model_parallel
    "ART-T311",  # refused by MoELayer in the first training step; TransformerConfig only warns
    "ART-T804",  # refused by the layers
    "ART-T805",  # refused by VocabParallelEmbedding
    "ART-T806",  # expert tensor parallelism without experts
    "ART-T807",  # refused by MoELayer
    "ART-T809",  # an even division is checked when the layers are built (get_num_layers_to_build)
    "ART-T314",  # with pp=1 both ends leave -1 stages between them, which megatron-core divides by
    "ART-T312",  # the embedding or loss where megatron-core builds it elsewhere
}


@settings(deadline=None, max_examples=1500)
@given(division=divisions())
def test_what_megatron_refuses_is_refused_and_what_we_accept_is_accepted(
    transformer_config: Any, division: tuple[dict[str, Any], dict[str, int]]
) -> None:
    parallel, model = division
    ours = refused_by_us(parallel, model)
    theirs = refused_by_megatron(transformer_config, parallel, model)
    if theirs is not None:
        assert ours, f"megatron-core refuses it: {theirs}"
    else:
        assert ours <= STRICTER
