"""Device memory against the formulas of the papers and a brute force of the schedules."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology.memory import (
    MemoryAssumptions,
    in_flight,
    rank_parameters,
    saved_tensors,
    service_memory,
    trainer_memory,
)
from art_topology.models import (
    DenseShape,
    GqaShape,
    LayerShape,
    ModelDescription,
    load_model_config,
    parameters,
)
from art_topology.ranks import RankLayout
from art_topology.serving import VllmParallelSpec
from art_topology.stages import StageLayout
from art_topology.workload import WorkloadSpec

_PUBLISHED = {
    entry["name"]: entry["config"]
    for entry in json.loads((Path(__file__).parent / "published_models.json").read_text())
}
_GIB = 2**30


def _model(name: str) -> ModelDescription:
    return load_model_config(_PUBLISHED[name])


def _layout(**sizes: int) -> RankLayout:
    chosen = {"tp": 1, "cp": 1, "dp": 1, "pp": 1, "etp": 1, "ep": 1} | sizes
    ranks = chosen["tp"] * chosen["cp"] * chosen["dp"]
    return RankLayout(**chosen, expert_dp=ranks // (chosen["etp"] * chosen["ep"]))


def _workload(**changes: Any) -> WorkloadSpec:
    values = {
        "packed_sequence_length": 8192,
        "groups_per_step": 64,
        "group_size": 8,
        "prompt_tokens": 512,
        "completion_tokens": 512,
    }
    return WorkloadSpec(**(values | changes))


def _gpt(hidden: int, heads: int) -> LayerShape:
    attention = GqaShape(
        hidden_size=hidden,
        query_heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        value_dim=hidden // heads,
    )
    mlp = DenseShape(hidden_size=hidden, inner_size=4 * hidden, gated=False)
    return LayerShape(hidden_size=hidden, attention=attention, mlp=mlp)


@pytest.mark.parametrize(
    ("hidden", "heads", "tp"),
    [(6144, 64, 8), (12288, 96, 8), (20480, 128, 8), (25600, 160, 8), (6144, 64, 1)],
)
def test_a_gpt_layer_keeps_what_korthikanti_et_al_count(hidden: int, heads: int, tp: int) -> None:
    """arXiv 2205.05198, equation 4 and table 3 (22B, 175B, 530B, 1T): s b h / t (34 + 5 a s / h) bytes."""
    length = 2048
    assumptions = MemoryAssumptions(score_bytes=5.0, mask_bytes=2.0)
    tensors = saved_tensors(
        _gpt(hidden, heads), _layout(tp=tp), _workload(packed_sequence_length=length), assumptions
    )
    assert sum(t.bytes for t in tensors) == (34 * length * hidden + 5 * heads * length**2) / tp

    selective = sum(t.bytes for t in tensors if not t.core)
    assert selective == 34 * length * hidden / tp


def test_weights_gradients_and_optimizer_are_18_bytes_or_6_and_12_divided() -> None:
    """Mixed precision with Adam (ZeRO, 1910.02054, and Megatron's distributed optimizer with float32
    gradients)."""
    model = _model("meta-llama/Llama-3.1-8B")
    count = parameters(model).total
    names = ("weights", "embedding and head", "gradients", "optimizer")
    stages = StageLayout.uniform(32, 1)

    whole = trainer_memory(model, _layout(dp=4), stages, _workload(distributed_optimizer=False))
    assert sum(whole.part(name).bytes for name in names) == 18 * count
    divided = trainer_memory(model, _layout(dp=2, cp=4), stages, _workload())
    assert sum(divided.part(name).bytes for name in names) == 6 * count + 12 * count / 8


def test_float32_has_no_master_copy() -> None:
    model = _model("Qwen/Qwen3-0.6B")
    estimate = trainer_memory(model, _layout(), StageLayout.uniform(28, 1), _workload(dtype="float32"))
    assert estimate.part("optimizer").bytes == 8 * parameters(model).total


def test_adapters_leave_the_base_without_gradients() -> None:
    model = _model("meta-llama/Llama-3.1-8B")
    estimate = trainer_memory(model, _layout(), StageLayout.uniform(32, 1), _workload(lora_rank=16))
    adapters = 32 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    assert estimate.part("adapters").bytes == 4 * adapters
    assert estimate.part("gradients").bytes == 4 * adapters
    assert estimate.part("optimizer").bytes == 8 * adapters


def test_expert_weights_follow_ep_and_their_optimizer_expert_dp() -> None:
    model = _model("Qwen/Qwen3-30B-A3B")
    layout = _layout(dp=8, ep=4)
    estimate = trainer_memory(model, layout, StageLayout.uniform(48, 1), _workload())
    experts = parameters(model).routed_experts // 4
    assert estimate.part("weights of experts").bytes == 2 * experts
    assert estimate.part("optimizer of experts").bytes == 12 * experts / 2


def test_tied_embeddings_lie_on_both_ends_of_a_pipeline() -> None:
    model = _model("Qwen/Qwen3-0.6B")
    stages = StageLayout.uniform(28, 4)
    held = [rank_parameters(model, _layout(pp=4), stages, _workload(), rank) for rank in range(4)]
    table = 151936 * 1024
    assert [part.ends for part in held] == [table, 0, 0, table + 1024]
    assert sum(part.base for part in held) == parameters(model).total + table


def test_uneven_stages_hold_what_they_say_and_the_fullest_is_returned() -> None:
    model = _model("meta-llama/Llama-3.1-8B")
    stages = StageLayout.balanced(32, 3)
    layout = _layout(pp=3)
    totals = [
        trainer_memory(model, layout, stages, _workload(), pp_rank=rank).total_bytes for rank in range(3)
    ]
    worst = trainer_memory(model, layout, stages, _workload())
    assert worst.total_bytes == max(totals)
    assert worst.pp_rank == totals.index(max(totals))


def _brute_force(pp: int, vpp: int, rank: int, microbatches: int, group: int) -> int:
    """Chunks in flight at the peak, walking Megatron's order of one rank."""
    if vpp == 1:
        return min(pp - rank, microbatches)
    warmup = min(microbatches * vpp, 2 * (pp - rank - 1) + (vpp - 1) * group)
    steps = ["F"] * warmup + ["F", "B"] * (microbatches * vpp - warmup)
    held = peak = 0
    for step in steps:
        held += 1 if step == "F" else -1
        peak = max(peak, held)
    return peak


@settings(deadline=None)
@given(pp=st.integers(2, 8), vpp=st.integers(1, 4), rounds=st.integers(1, 4), rank=st.integers(0, 7))
def test_microbatches_in_flight_are_those_of_the_schedule(pp: int, vpp: int, rounds: int, rank: int) -> None:
    microbatches, rank = rounds * pp, rank % pp
    states = in_flight(pp, vpp, rank, microbatches, pp)
    assert max(sum(state) for state in states) == _brute_force(pp, vpp, rank, microbatches, pp)
    for state in states:
        assert len(state) == vpp
        assert min(state) >= 0


def test_interleaving_keeps_the_share_more_that_korthikanti_et_al_give() -> None:
    """2205.05198, section 4.2.3: the first stage keeps L (1 + (p - 1) / (p m)) layers' worth, m virtual
    stages."""
    for pp, vpp in ((4, 2), (8, 3)):
        (state, *_) = in_flight(pp, vpp, 0, 8 * pp, pp)
        assert sum(state) / vpp == pytest.approx(pp * (1 + (pp - 1) / (pp * vpp)))


def test_full_recomputation_keeps_the_inputs_of_layers_and_one_layer_whole() -> None:
    model = _model("meta-llama/Llama-3.1-8B")
    stages = StageLayout.uniform(32, 1)
    full = trainer_memory(model, _layout(cp=2), stages, _workload(recompute="full"))
    none = trainer_memory(model, _layout(cp=2), stages, _workload())
    end = 2 * 4096 * 4096 * 2
    assert full.part("activations").bytes == 32 * 4096 * 4096 * 2 + end
    assert full.part("recomputed layer").bytes == (none.part("activations").bytes - end) / 32

    some = (
        trainer_memory(model, _layout(cp=2), stages, _workload(recompute="full", recompute_layers=8))
        .part("activations")
        .bytes
    )
    assert some == (8 * full.part("activations").bytes + 24 * none.part("activations").bytes) / 32


def test_sequence_and_context_parallelism_divide_activations() -> None:
    model = _model("meta-llama/Llama-3.1-8B")
    stages = StageLayout.uniform(32, 1)
    one = trainer_memory(model, _layout(), stages, _workload()).part("activations").bytes
    for sizes in ({"tp": 4}, {"cp": 4}, {"tp": 2, "cp": 2}):
        assert (
            trainer_memory(model, _layout(**sizes), stages, _workload()).part("activations").bytes == one / 4
        )


def test_without_sequence_parallelism_a_rank_keeps_all_tokens_between_divided_matrices() -> None:
    model, stages = _model("meta-llama/Llama-3.1-8B"), StageLayout.uniform(32, 1)
    plain = msgspec.structs.replace(MemoryAssumptions(), sequence_parallel=False)
    divided, whole = (
        trainer_memory(model, _layout(tp=4), stages, _workload(), assumptions=assumptions)
        for assumptions in (MemoryAssumptions(), plain)
    )
    # In 16 bit: inputs of two norms, of attention and the feed-forward layer; of the last norm and the head.
    kept = (4 * 32 + 2) * 8192 * 4096 * 2
    assert whole.part("activations").bytes - divided.part("activations").bytes == kept * 3 / 4


def test_workspaces_are_two_of_32_mib_and_four_more_for_experts() -> None:
    for name, layers, count in (("meta-llama/Llama-3.1-8B", 32, 2), ("Qwen/Qwen3-30B-A3B", 48, 6)):
        estimate = trainer_memory(_model(name), _layout(), StageLayout.uniform(layers, 1), _workload())
        assert estimate.part("workspaces").bytes == count * 32 * 2**20


def test_offload_moves_bytes_to_the_host() -> None:
    model = _model("meta-llama/Llama-3.1-8B")
    stages = StageLayout.uniform(32, 1)
    plain = trainer_memory(model, _layout(), stages, _workload())
    moved = trainer_memory(
        model, _layout(), stages, _workload(offload=("optimizer", "activations", "weights"))
    )
    kept = {part.name: part.bytes for part in moved.host_parts}
    assert kept["optimizer"] == plain.part("optimizer").bytes
    assert kept["activations"] == plain.part("activations").bytes
    assert kept["weights"] == plain.part("weights").bytes
    assert moved.part("weights").bytes == pytest.approx(plain.part("weights").bytes / 16, rel=1e-6)
    assert moved.total_bytes < plain.total_bytes


@pytest.mark.parametrize("name", _PUBLISHED)
def test_every_part_says_where_it_comes_from(name: str) -> None:
    model = _model(name)
    layout = _layout(tp=2, cp=2, dp=2, pp=2, ep=4 if model.experts else 1)
    stages = StageLayout.balanced(len(model.layers), 2)
    workload = _workload(lora_rank=16, lora_targets=("attention", "mlp", "experts", "output"))
    estimate = trainer_memory(model, layout, stages, workload)
    service = service_memory(model, VllmParallelSpec(tp=2), workload, 141 * 10**9)
    for part in (*estimate.parts, *service.parts):
        assert part.bytes > 0
        assert part.why
        assert "\n" not in part.why
    assert estimate.total_bytes == sum(part.bytes for part in estimate.parts)


def test_stages_of_another_model_are_refused_with_the_numbers() -> None:
    model = _model("Qwen/Qwen3-0.6B")
    with pytest.raises(ValueError, match=r"30 layers, the model has 28"):
        trainer_memory(model, _layout(), StageLayout.uniform(30, 1), _workload())
    with pytest.raises(ValueError, match=r"pp=2, the layout has pp=1"):
        trainer_memory(model, _layout(), StageLayout.uniform(28, 2), _workload())


def test_assumptions_are_named_and_can_be_changed() -> None:
    model = _model("Qwen/Qwen3-0.6B")
    free = msgspec.structs.replace(
        MemoryAssumptions(), cuda_context_bytes=0, nccl_bytes=0, nccl_all_to_all_bytes=0, allocator_share=0.0
    )
    stages = StageLayout.uniform(28, 1)
    usual = trainer_memory(model, _layout(dp=2), stages, _workload())
    bare = trainer_memory(model, _layout(dp=2), stages, _workload(), assumptions=free)
    names = ("CUDA context", "NCCL buffers", "allocator")
    assert usual.total_bytes - bare.total_bytes == sum(usual.part(name).bytes for name in names)


def test_glm_5_2_fits_two_b300_nodes_in_the_layouts_that_were_measured_on_them() -> None:
    """CP8/EP8/DP2, CP16/EP16 and PP2/VPP3 ran on sixteen B300 (288 GB each) with LoRA at long rows."""
    model = _model("zai-org/GLM-5.2")
    workload = _workload(packed_sequence_length=131072, lora_rank=16, recompute="full")
    layouts = [
        (_layout(cp=8, dp=2, ep=8), StageLayout.uniform(78, 1)),
        (_layout(cp=16, ep=16), StageLayout.uniform(78, 1)),
        (_layout(cp=8, pp=2, ep=8), StageLayout.uniform(78, 2, 3)),
    ]
    for layout, stages in layouts:
        assert trainer_memory(model, layout, stages, workload).total_bytes < 288e9
    crowded = trainer_memory(model, _layout(cp=4, dp=4, ep=4), StageLayout.uniform(78, 1), workload)
    assert crowded.total_bytes > 288e9


def test_a_service_has_room_for_the_cache_that_vllm_reports() -> None:
    """vLLM pull request 10511: Llama-3-8B on H100, 79.22 GiB at 0.9: weights 14.96 GiB, 53.29 GiB for the
    cache."""
    memory = service_memory(
        _model("meta-llama/Llama-3.1-8B"), VllmParallelSpec(), _workload(), int(79.22 * _GIB), 0.9
    )
    assert memory.weight_bytes / _GIB == pytest.approx(14.96, abs=0.005)
    assert memory.kv_budget_bytes / _GIB == pytest.approx(53.29, rel=0.05)
    assert memory.kv_bytes_per_token == 131_072
    assert memory.max_concurrent_sequences == memory.kv_budget_bytes // (1024 * 131_072)


def test_workers_share_heads_experts_and_stages() -> None:
    model = _model("Qwen/Qwen3-235B-A22B")
    memory = {
        (tp, pp, dp, ep): service_memory(
            model, VllmParallelSpec(tp=tp, pp=pp, dp=dp, expert_parallel=ep), _workload(), 288 * 10**9
        )
        for tp, pp, dp, ep in ((4, 1, 1, False), (8, 1, 1, False), (4, 1, 2, True), (4, 2, 1, False))
    }
    # Four KV heads: eight workers hold each of them twice.
    assert memory[8, 1, 1, False].kv_bytes_per_token == memory[4, 1, 1, False].kv_bytes_per_token
    assert memory[4, 2, 1, False].kv_bytes_per_token == memory[4, 1, 1, False].kv_bytes_per_token / 2
    experts = 2 * parameters(model).routed_experts
    saved = memory[4, 1, 1, False].weight_bytes - memory[4, 1, 2, True].weight_bytes
    assert saved == experts / 4 - experts / 8


def test_windows_and_states_do_not_grow_with_the_context() -> None:
    def bytes_of(name: str, completion: int) -> float:
        workload = _workload(prompt_tokens=4096, completion_tokens=completion)
        return service_memory(_model(name), VllmParallelSpec(), workload, 288 * 10**9).kv_bytes_per_sequence

    grown = bytes_of("openai/gpt-oss-20b", 8192) - bytes_of("openai/gpt-oss-20b", 4096)
    assert grown == 4096 * 12 * 2048
    name = "Qwen/Qwen3-Next-80B-A3B-Instruct"
    assert bytes_of(name, 8192) - bytes_of(name, 4096) == 4096 * 12 * 2048
    assert bytes_of(name, 4096) == 8192 * 12 * 2048 + 36 * 1_097_728


def test_a_service_that_does_not_fit_says_so() -> None:
    memory = service_memory(
        _model("deepseek-ai/DeepSeek-V3"), VllmParallelSpec(tp=8), _workload(), 80 * 10**9
    )
    assert not memory.fits
    assert memory.kv_budget_bytes < 0
