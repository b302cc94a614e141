"""The cost of rollouts, and of the loop that joins them with training."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_topology.cost import Calibration, loop_cost, rollout_cost, trainer_step_cost
from art_topology.cost.loop import published_weights
from art_topology.hardware import Machine
from art_topology.memory import service_memory
from art_topology.models import ModelDescription, parameters
from art_topology.ranks import RankLayout
from art_topology.serving import VllmParallelSpec
from art_topology.stages import StageLayout
from art_topology.workload import WorkloadSpec

replace = msgspec.structs.replace


def test_one_sequence_waits_for_the_weights(
    dense: ModelDescription, rollouts: WorkloadSpec, h100: Machine
) -> None:
    workload = replace(rollouts, lora_rank=None, concurrent_requests=1)
    cost = rollout_cost(dense, VllmParallelSpec(), workload, h100)
    counts = parameters(dense)
    read = (counts.attention + counts.dense_mlp + counts.output) * 2 / (3.35e12 * 0.85)
    weights = next(part for part in cost.parts if part.name == "weights")
    steps = workload.completions_per_step * workload.completion_tokens
    assert weights.total_s == pytest.approx(steps * read, rel=1e-3)
    assert cost.concurrent_sequences == 1
    assert cost.tokens_per_s == pytest.approx(1 / cost.decode_step_s, rel=0.01)


def test_parts_add_up_and_say_why(moe: ModelDescription, rollouts: WorkloadSpec, h100: Machine) -> None:
    parallel = VllmParallelSpec(tp=2, pp=2, dp=2, expert_parallel=True)
    cost = rollout_cost(moe, parallel, rollouts, h100)
    assert sum(part.exposed_s for part in cost.parts) == pytest.approx(cost.rollout_s)
    assert all(part.why and "\n" not in part.why for part in cost.parts)
    assert {"expert parallel", "tensor parallel", "pipeline sends"} <= {part.name for part in cost.parts}


def test_the_cache_bounds_how_many_run(
    dense: ModelDescription, rollouts: WorkloadSpec, h100: Machine
) -> None:
    workload = replace(rollouts, groups_per_step=512, completion_tokens=15_000)
    memory = service_memory(dense, VllmParallelSpec(), workload, h100.gpu.memory_bytes)
    cost = rollout_cost(dense, VllmParallelSpec(), workload, h100)
    assert cost.concurrent_sequences == memory.max_concurrent_sequences < workload.completions_per_step


def test_what_does_not_fit_is_refused(moe: ModelDescription, rollouts: WorkloadSpec, h100: Machine) -> None:
    small = replace(h100, gpu=replace(h100.gpu, memory_bytes=24 * 2**30))
    with pytest.raises(ValueError, match=r"no sequence of 2,048 tokens fits on H100-SXM with tp=1"):
        rollout_cost(moe, VllmParallelSpec(), rollouts, small)


@pytest.mark.parametrize("sequences", [1, 32])
def test_a_step_reads_the_experts_that_its_tokens_go_to(
    moe: ModelDescription, rollouts: WorkloadSpec, h100: Machine, sequences: int
) -> None:
    workload = replace(rollouts, lora_rank=None, concurrent_requests=sequences)
    cost = rollout_cost(moe, VllmParallelSpec(), workload, h100)
    counts = parameters(moe)
    touched = 1 - (1 - 8 / 128) ** sequences
    read = counts.attention + counts.router + counts.output + touched * counts.routed_experts
    weights = next(part for part in cost.parts if part.name == "weights")
    steps = workload.completions_per_step / sequences * workload.completion_tokens
    assert weights.total_s == pytest.approx(steps * read * 2 / (3.35e12 * 0.85), rel=1e-3)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2, 4]),
    factor=st.floats(1, 8),
    requests=st.integers(1, 256),
)
def test_better_hardware_and_more_requests_are_never_slower(
    dense: ModelDescription,
    rollouts: WorkloadSpec,
    h100: Machine,
    tp: int,
    dp: int,
    factor: float,
    requests: int,
) -> None:
    parallel = VllmParallelSpec(tp=tp, dp=dp)
    workload = replace(rollouts, concurrent_requests=requests)
    base = rollout_cost(dense, parallel, workload, h100)
    gpu = h100.gpu
    wider = replace(gpu, memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s * factor)
    assert rollout_cost(dense, parallel, workload, replace(h100, gpu=wider)).rollout_s <= base.rollout_s
    more = replace(rollouts, concurrent_requests=min(256, requests * 2))
    assert rollout_cost(dense, parallel, more, h100).rollout_s <= base.rollout_s * (1 + 1e-9)


def test_the_slower_side_sets_the_pace(
    dense: ModelDescription, rollouts: WorkloadSpec, h100: Machine
) -> None:
    layout = RankLayout(tp=1, cp=1, dp=4, pp=1, etp=1, ep=1, expert_dp=4)
    trainer = trainer_step_cost(dense, layout, StageLayout.uniform(32, 1), rollouts, h100)
    rollout = rollout_cost(dense, VllmParallelSpec(dp=4), rollouts, h100)
    overhead = Calibration().loop_overhead_s
    loop = loop_cost(dense, rollouts, h100, trainer, rollout)
    assert loop.step_s == pytest.approx(max(trainer.step_s + overhead, rollout.rollout_s))
    assert loop.publication.exposed_s == 0
    assert loop.gpus == 8
    assert loop.score == pytest.approx(rollouts.completions_per_step * 1536 / loop.step_s / 8)
    idle = loop_cost(dense, rollouts, h100, trainer, rollout, provisioned_gpus=16)
    assert idle.score == pytest.approx(loop.score / 2)
    slow = replace(h100, scale_out=replace(h100.scale_out, bandwidth_bytes_per_s=1e6))
    held = loop_cost(dense, rollouts, slow, trainer, rollout)
    assert held.step_s == pytest.approx(held.publication.total_s)
    assert ("trainer sets" in loop.why) == (trainer.step_s + overhead >= rollout.rollout_s)


def test_adapters_are_all_that_is_published(dense: ModelDescription, rollouts: WorkloadSpec) -> None:
    widths = 4096 + 4096, 4096 + 1024, 4096 + 1024, 4096 + 4096, *(3 * (4096 + 14336,))
    assert published_weights(dense, rollouts) == 32 * 16 * sum(widths)
    assert published_weights(dense, replace(rollouts, lora_rank=None)) == parameters(dense).total


def test_a_publication_that_takes_longest_is_said_to_set_the_pace(
    dense: ModelDescription, rollouts: WorkloadSpec, h100: Machine
) -> None:
    layout = RankLayout(tp=1, cp=1, dp=4, pp=1, etp=1, ep=1, expert_dp=4)
    trainer = trainer_step_cost(dense, layout, StageLayout.uniform(32, 1), rollouts, h100)
    rollout = rollout_cost(dense, VllmParallelSpec(dp=4), rollouts, h100)
    slow = replace(h100, scale_out=replace(h100.scale_out, bandwidth_bytes_per_s=1e6))
    held = loop_cost(dense, rollouts, slow, trainer, rollout)
    assert "publication" in held.why
    assert "the rollouts set" not in held.why
    faster = min(trainer.step_s + Calibration().loop_overhead_s, rollout.rollout_s)
    assert held.idle_s == pytest.approx(held.step_s - faster)
