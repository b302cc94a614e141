"""Other programs than ART's trainer: what each fact of their software adds to a step."""

from typing import Any

import msgspec
import pytest

from art_topology.cost import Calibration, StepCost, TrainerProgram, trainer_step_cost
from art_topology.hardware import Machine
from art_topology.models import ModelDescription, MoeShape
from art_topology.ranks import RankLayout
from art_topology.stages import StageLayout
from art_topology.workload import WorkloadSpec

replace = msgspec.structs.replace


def step(model: ModelDescription, workload: WorkloadSpec, machine: Machine, **facts: Any) -> StepCost:
    sizes = {"tp": facts.pop("tp", 1), "ep": facts.pop("ep", 1), "dp": facts.pop("dp", 1)}
    layout = RankLayout(cp=1, pp=1, etp=1, expert_dp=sizes["tp"] * sizes["dp"] // sizes["ep"], **sizes)
    calibration = facts.pop("calibration", None)
    return trainer_step_cost(
        model,
        layout,
        StageLayout.balanced(len(model.layers), 1),
        workload,
        machine,
        calibration=calibration,
        program=TrainerProgram(**facts),
    )


def seconds(cost: StepCost, name: str) -> float:
    return sum(part.exposed_s for part in cost.parts if part.name == name)


def test_the_default_is_arts_trainer(moe: ModelDescription, pretraining: WorkloadSpec, h100: Machine) -> None:
    layout = RankLayout(tp=1, cp=1, dp=8, pp=1, etp=1, ep=8, expert_dp=1)
    stages = StageLayout.balanced(len(moe.layers), 1)
    plain = trainer_step_cost(moe, layout, stages, pretraining, h100)
    assert plain == step(moe, pretraining, h100, dp=8, ep=8)


def test_without_sequence_parallelism_every_rank_computes_all_norms(
    dense: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    free = Calibration(launch_s=0)
    divided = step(dense, pretraining, h100, tp=8, calibration=free)
    whole = step(dense, pretraining, h100, tp=8, calibration=free, sequence_parallel=False)
    tokens = 8192 * 64 * (1 - 1 / 8)
    passes = tokens * 4096 * free.kernel_passes * 3 * len(dense.layers) * 2
    reached = h100.gpu.memory_bandwidth_bytes_per_s * free.memory_fraction
    gap = seconds(whole, "other kernels") - seconds(divided, "other kernels")
    assert gap == pytest.approx(passes / reached)
    assert seconds(whole, "matrix products") == seconds(divided, "matrix products")


def test_a_plain_exchange_sends_every_copy(
    moe: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    fused = step(moe, pretraining, h100, dp=64, ep=64)
    plain = step(moe, pretraining, h100, dp=64, ep=64, dispatcher="all_to_all")
    assert seconds(plain, "expert parallel") > 1.2 * seconds(fused, "expert parallel")
    rows = 8192 * 8 * 2048 * 2 * (64 - 8) / 64
    once = rows / (h100.scale_out.bandwidth_bytes_per_s * Calibration().network_fraction)
    calls = 4 * len(moe.layers)
    assert seconds(plain, "expert parallel") == pytest.approx(calls * once, rel=0.02)


def test_counts_that_the_host_waits_for_cost_every_pass(
    moe: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    values = Calibration(launch_s=0)
    fused = step(moe, pretraining, h100, dp=8, ep=8, calibration=values)
    plain = step(moe, pretraining, h100, dp=8, ep=8, calibration=values, dispatcher="all_to_all")
    assert seconds(fused, "kernel launches") == 0
    waits = 2 * values.counts_s * len(moe.layers) * 64 / 8
    assert seconds(plain, "kernel launches") == pytest.approx(waits)


def test_graphs_leave_fewer_launches(moe: ModelDescription, pretraining: WorkloadSpec, h100: Machine) -> None:
    short = replace(pretraining, packed_sequence_length=512, completion_tokens=511)
    none, router, attention = (
        step(moe, short, h100, dp=8, ep=8, cuda_graphs=graphs) for graphs in ("none", "router", "attention")
    )
    assert none.step_s > router.step_s > attention.step_s


def test_dispatch_behind_another_row_is_hidden_as_far_as_work_lasts(
    moe: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    within = step(moe, pretraining, h100, dp=8, ep=8)
    hidden = step(moe, pretraining, h100, dp=8, ep=8, expert_overlap=True)
    assert seconds(within, "expert parallel") > 0
    assert seconds(hidden, "expert parallel") == 0
    slow = replace(h100, scale_out=replace(h100.scale_out, bandwidth_bytes_per_s=1e9))
    assert seconds(step(moe, pretraining, slow, dp=64, ep=64, expert_overlap=True), "expert parallel") > 0


def test_biases_of_experts_cost_passes_over_routed_rows(
    moe: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    def with_bias(model: ModelDescription) -> ModelDescription:
        layers = []
        for layer in model.layers:
            assert isinstance(layer.mlp, MoeShape)
            layers.append(replace(layer, mlp=replace(layer.mlp, bias=True)))
        return replace(model, layers=tuple(layers))

    values = Calibration(launch_s=0)
    without = step(moe, pretraining, h100, dp=8, ep=8, calibration=values)
    biased = step(with_bias(moe), pretraining, h100, dp=8, ep=8, calibration=values)
    moved = 3 * values.bias_passes * 8192 * 8 * 2048 * 2 * len(moe.layers) * 64 / 8
    reached = h100.gpu.memory_bandwidth_bytes_per_s * values.memory_fraction
    gap = seconds(biased, "other kernels") - seconds(without, "other kernels")
    assert gap == pytest.approx(moved / reached)


def test_selective_recomputation_is_of_what_the_program_says(
    dense: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    selective = replace(pretraining, recompute="selective")
    core = step(dense, selective, h100)
    norms = step(dense, selective, h100, recomputed=("norms",))
    more = step(dense, selective, h100, recomputed=("norms", "activations"))
    attention = sum(part.total_s for part in core.parts if part.name == "recomputation")
    moved = 2 * 2 * 8192 * 64 * 4096 * 2 * len(dense.layers)
    reached = h100.gpu.memory_bandwidth_bytes_per_s * Calibration().memory_fraction
    assert seconds(norms, "recomputation") == pytest.approx(moved / reached)
    assert attention > seconds(more, "recomputation") > seconds(norms, "recomputation")


def test_gradients_in_half_precision_take_half_the_time(
    dense: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    def reduction(cost: StepCost) -> float:
        return sum(part.total_s for part in cost.parts if part.name == "gradient reduction")

    whole = reduction(step(dense, pretraining, h100, dp=64))
    half = reduction(step(dense, pretraining, h100, dp=64, gradient_bytes=2))
    assert half == pytest.approx(whole / 2, rel=0.02)
