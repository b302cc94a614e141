"""FLOPs and cached bytes against brute force, closed forms and published figures."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology.models import ModelDescription, flops_per_token, load_model_config, parameters
from art_topology.models.spans import mean_capped
from art_topology.workload import WorkloadSpec

_PUBLISHED = {
    entry["name"]: entry["config"]
    for entry in json.loads((Path(__file__).parent / "published_models.json").read_text())
}


def _model(name: str) -> ModelDescription:
    return load_model_config(_PUBLISHED[name])


def _lora(**changes: object) -> WorkloadSpec:
    values = {
        "packed_sequence_length": 4096,
        "groups_per_step": 1,
        "group_size": 1,
        "prompt_tokens": 8,
        "completion_tokens": 8,
        "lora_rank": 8,
    }
    return WorkloadSpec(**(values | changes))


@settings(deadline=None)
@given(length=st.integers(1, 400), cap=st.none() | st.integers(1, 300), step=st.integers(1, 20))
def test_keys_attended_to_are_the_mean_over_all_positions(length: int, cap: int | None, step: int) -> None:
    seen = [position // step for position in range(1, length + 1)]
    kept = seen if cap is None else [min(keys, cap) for keys in seen]
    assert mean_capped(length, cap, step) == pytest.approx(sum(kept) / length, rel=1e-12, abs=1e-12)


def test_training_costs_six_flops_per_weight_and_attention_on_top() -> None:
    model = _model("meta-llama/Llama-3.1-8B")
    counted = parameters(model)
    weights = counted.total - counted.embedding - counted.norms
    # 32 layers, 2 products of (context + 1) / 2 keys and 4,096 features, 2 FLOPs each; backward twice that.
    attention = 3 * 32 * 2 * 2 * 4096 * (8192 + 1) / 2
    assert flops_per_token(model, 8192).total_flops == 6 * weights + attention


def test_llama_3_405b_trained_with_3_8e25_flops() -> None:
    """arXiv 2407.21783: 15.6T tokens with 3.8e25 FLOPs (6 per weight and token), context 8,192."""
    flops = flops_per_token(_model("meta-llama/Llama-3.1-405B"), 8192).total_flops * 15.6e12
    assert flops == pytest.approx(3.8e25, rel=0.06)


def test_lora_costs_four_flops_per_frozen_weight_and_six_per_adapter_weight() -> None:
    model = _model("meta-llama/Llama-3.1-8B")
    counted = parameters(model)
    frozen = counted.total - counted.embedding - counted.norms
    adapters = 32 * 8 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    flops = flops_per_token(model, 1, _lora())
    core = flops.part("attention core")
    assert core is not None
    assert flops.total_flops - core.forward_flops - core.backward_flops == 4 * frozen + 6 * adapters


def test_only_what_is_targeted_has_adapters() -> None:
    model = _model("Qwen/Qwen3-30B-A3B")
    attention = flops_per_token(model, 1, _lora(lora_targets=("attention",))).part("adapters")
    everything = flops_per_token(model, 1, _lora()).part("adapters")
    assert attention is not None
    assert everything is not None
    assert attention.forward_flops == 2 * 48 * 8 * (2 * (2048 + 4096) + 2 * (2048 + 512))
    experts = 2 * 48 * 8 * 8 * 3 * (2048 + 768)
    assert everything.forward_flops == attention.forward_flops + experts


def test_a_window_bounds_the_core_and_sparse_attention_its_top_k() -> None:
    windowed = _model("mistralai/Mistral-7B-v0.1").layers[0].attention
    assert windowed.core_flops_at(100_000) == windowed.core_flops_at(4096)
    sparse = _model("zai-org/GLM-5.2").layers[3].attention
    assert sparse.core_flops_at(100_000) == sparse.core_flops_at(2048)
    linear = _model("Qwen/Qwen3-Next-80B-A3B-Instruct").layers[0].attention
    assert linear.core_flops(100) == linear.core_flops(100_000)


def test_the_indexer_scores_all_keys_but_is_not_differentiated() -> None:
    part = flops_per_token(_model("deepseek-ai/DeepSeek-V3.2-Exp"), 4095).part("indexer")
    assert part is not None
    scores = 61 * 2 * 64 * (128 + 1) * 2048
    projections = 61 * 2 * (1536 * 64 * 128 + 7168 * 128 + 7168 * 64)
    assert part.forward_flops == scores + projections
    assert part.backward_flops == 0


def test_every_part_says_where_it_comes_from() -> None:
    for name in _PUBLISHED:
        for part in flops_per_token(_model(name), 4096, _lora()).parts:
            assert part.why
            assert "\n" not in part.why


@pytest.mark.parametrize(
    ("name", "layer", "tp", "expected"),
    [
        ("meta-llama/Llama-3.1-8B", 0, 1, 4096),
        ("meta-llama/Llama-3.1-8B", 0, 4, 1024),
        ("meta-llama/Llama-3.1-8B", 0, 16, 512),
        ("openai/gpt-oss-20b", 0, 1, 2048),
        ("deepseek-ai/DeepSeek-V3", 0, 8, 1152),
        ("zai-org/GLM-5.2", 0, 8, 1152 + 132),
        ("zai-org/GLM-5.2", 4, 8, 1152),
    ],
)
def test_cached_bytes_per_token_are_vllms(name: str, layer: int, tp: int, expected: int) -> None:
    """Recorded from vLLM 0.32: ``page_size_bytes / block_size`` of FullAttentionSpec(8 or 2 heads of 128),
    SlidingWindowSpec(8 heads of 64), MLAAttentionSpec(576, bfloat16) and MLAAttentionSpec(132, uint8)."""
    assert _model(name).layers[layer].kv_bytes_per_token(2, tp) == expected


@pytest.mark.parametrize(("tp", "expected"), [(1, 1_097_728), (2, 548_864), (4, 274_432)])
def test_the_state_of_linear_attention_is_vllms(tp: int, expected: int) -> None:
    """Recorded from vLLM 0.32: MambaSpec of gated_delta_net_state_shape(tp, 16, 32, 128, 128, 4) in
    bfloat16."""
    attention = _model("Qwen/Qwen3-Next-80B-A3B-Instruct").layers[0].attention
    assert attention.state_bytes(2, tp) == expected
    assert attention.kv_bytes_per_token(2, tp) == 0


def test_deepseek_v3_caches_70_kilobytes_per_token() -> None:
    """arXiv 2505.09343, table 1: 70.272 KB for DeepSeek-V3, 516.096 for Llama-3.1 405B, in BF16."""
    assert _model("deepseek-ai/DeepSeek-V3").kv_bytes_per_token(2) == 70_272
    assert _model("meta-llama/Llama-3.1-405B").kv_bytes_per_token(2) == 516_096
