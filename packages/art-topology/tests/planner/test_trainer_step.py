"""The cost of a training step: closed forms, limits, and what always holds."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_topology.cost import Calibration, StepCost, trainer_step_cost
from art_topology.cost.calibration import everywhere
from art_topology.hardware import LinkModel, Machine
from art_topology.models import ModelDescription, flops_per_token
from art_topology.ranks import RankLayout
from art_topology.stages import StageLayout
from art_topology.workload import WorkloadSpec

replace = msgspec.structs.replace
COMMUNICATION = (
    "tensor parallel",
    "context parallel",
    "expert parallel",
    "pipeline sends",
    "gradient reduction",
)
property_test = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def ranks(*, tp: int = 1, cp: int = 1, dp: int = 1, pp: int = 1, ep: int = 1, etp: int = 1) -> RankLayout:
    return RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, etp=etp, ep=ep, expert_dp=tp * cp * dp // (ep * etp))


def step(
    model: ModelDescription, layout: RankLayout, workload: WorkloadSpec, machine: Machine, **options: Any
) -> StepCost:
    vpp = options.pop("vpp", None)
    stages = StageLayout.balanced(len(model.layers), layout.pp, vpp)
    return trainer_step_cost(model, layout, stages, workload, machine, **options)


def with_links(machine: Machine, factor: float, latency: float = 1.0) -> Machine:
    def scaled(link: LinkModel) -> LinkModel:
        return replace(
            link,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor,
            latency_s=link.latency_s * latency,
        )

    return replace(machine, scale_up=scaled(machine.scale_up), scale_out=scaled(machine.scale_out))


def names(cost: StepCost) -> set[str]:
    return {part.name for part in cost.parts}


def test_one_gpu_has_no_collectives(
    dense: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    cost = step(dense, ranks(), pretraining, h100, ranks_per_host=1)
    assert not names(cost) & {*COMMUNICATION, "pipeline bubble", "weight gathering"}


def test_parts_add_up_and_say_why(moe: ModelDescription, rollouts: WorkloadSpec, h100: Machine) -> None:
    workload = replace(rollouts, recompute="full", offload=("optimizer", "activations"))
    cost = step(moe, ranks(tp=2, cp=2, dp=2, pp=2, ep=4), workload, h100)
    assert sum(part.exposed_s for part in cost.parts) == pytest.approx(cost.step_s)
    assert all(part.why and "\n" not in part.why for part in cost.parts)
    assert all(0 <= part.hidden_s <= part.total_s for part in cost.parts)
    assert set(COMMUNICATION) <= names(cost)
    assert cost.part("expert parallel").why.count("NVLink4") == 1
    with pytest.raises(KeyError):
        cost.part("what")


def test_a_perfect_machine_takes_the_flops_over_the_peak(
    dense: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    perfect = Calibration(
        matmul_fraction=everywhere(1),
        attention_forward_fraction=everywhere(1),
        attention_backward_fraction=everywhere(1.25),
        kernel_s=0,
        product_depth=0,
        launch_s=0,
        kernel_passes=0,
        optimizer_bytes=0,
    )
    fast = replace(h100, gpu=replace(h100.gpu, memory_bandwidth_bytes_per_s=1e30))
    cost = step(dense, ranks(), pretraining, fast, ranks_per_host=1, calibration=perfect)
    flops = flops_per_token(dense, 8192, pretraining).total_flops * 8192 * 64
    assert cost.useful_flops == pytest.approx(flops)
    assert cost.step_s == pytest.approx(flops / h100.gpu.flops("bfloat16"))
    assert cost.mfu == pytest.approx(1)


def test_useful_flops_are_those_of_the_model_with_adapters(
    moe: ModelDescription, rollouts: WorkloadSpec, h100: Machine
) -> None:
    workload = replace(rollouts, group_size=1, prompt_sharing=False)
    cost = step(moe, ranks(), workload, h100)
    expected = flops_per_token(moe, 2048, workload).total_flops * workload.physical_tokens_per_step
    assert cost.useful_flops == pytest.approx(expected)


def test_shared_prompts_are_seen_by_every_completion(
    dense: ModelDescription, rollouts: WorkloadSpec, h100: Machine
) -> None:
    """Attention of prompts once and of completions after their prompt is all there is, shared or not."""
    apart = step(dense, ranks(), replace(rollouts, prompt_sharing=False), h100)
    shared = step(dense, ranks(), rollouts, h100)
    prompts = rollouts.groups_per_step * (rollouts.group_size - 1) * rollouts.prompt_tokens
    saved = flops_per_token(dense, rollouts.prompt_tokens, rollouts).total_flops * prompts
    assert apart.useful_flops - shared.useful_flops == pytest.approx(saved)
    assert apart.logical_tokens == shared.logical_tokens == apart.physical_tokens
    assert shared.physical_tokens == apart.physical_tokens - prompts


def test_infinite_links_make_communication_nothing_but_its_start(
    moe: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    layout = ranks(tp=2, cp=2, dp=4, pp=2, ep=8)
    free = with_links(h100, 1e15, latency=0)
    cost = step(moe, layout, pretraining, free, calibration=Calibration(collective_s=0))
    assert sum(part.total_s for part in cost.parts if part.name in COMMUNICATION) < 1e-6


def test_twice_the_tokens_take_twice_the_products(
    dense: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    calibration = Calibration(kernel_s=0, launch_s=0, product_depth=0)
    twice = replace(pretraining, groups_per_step=2 * pretraining.groups_per_step)
    longer = replace(pretraining, packed_sequence_length=16384, completion_tokens=16383)
    costs = [
        step(dense, ranks(), workload, h100, calibration=calibration)
        for workload in (pretraining, twice, longer)
    ]
    once, again, long = (cost.part("matrix products").total_s for cost in costs)
    assert again == pytest.approx(2 * once)
    assert long == pytest.approx(2 * once)
    attention = [cost.part("attention").total_s for cost in costs]
    assert attention[1] == pytest.approx(2 * attention[0])
    assert attention[2] == pytest.approx(4 * attention[0], rel=0.01)


def test_data_parallel_ranks_divide_the_rows(
    dense: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    one, eight = (step(dense, ranks(dp=dp), pretraining, h100) for dp in (1, 8))
    assert one.part("matrix products").total_s == pytest.approx(8 * eight.part("matrix products").total_s)
    assert "unequal rows" not in names(eight)


def test_adapters_are_all_that_is_synchronized(
    dense: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    layout = ranks(dp=16)
    full = step(dense, layout, pretraining, h100).part("gradient reduction")
    adapters = step(dense, layout, replace(pretraining, lora_rank=8), h100).part("gradient reduction")
    widths = 4096 + 4096, 4096 + 1024, 4096 + 1024, 4096 + 4096, *(3 * (4096 + 14336,))
    assert f"{32 * 8 * sum(widths):,} weights" in adapters.why
    assert adapters.total_s < full.total_s / 50


def test_recomputation_grows_with_what_is_recomputed(
    moe: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    layout = ranks(ep=8, dp=8)
    times = [
        step(moe, layout, replace(pretraining, recompute=recompute), h100).step_s
        for recompute in ("none", "selective", "full")
    ]
    assert times == sorted(times)
    full = step(moe, layout, replace(pretraining, recompute="full"), h100)
    forward = step(moe, layout, pretraining, h100)
    assert full.part("recomputation").total_s < forward.step_s / 2
    some = replace(pretraining, recompute="full", recompute_layers=12)
    part = step(moe, layout, some, h100).part("recomputation").total_s
    assert part == pytest.approx(full.part("recomputation").total_s / 4)


def test_virtual_stages_shrink_the_bubble(
    dense: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    layout = ranks(tp=2, pp=4)
    plain, virtual = (step(dense, layout, pretraining, h100, vpp=vpp) for vpp in (None, 4))
    assert virtual.part("pipeline bubble").total_s < plain.part("pipeline bubble").total_s / 2


def test_experts_between_hosts_cost_more_than_within(
    moe: ModelDescription, rollouts: WorkloadSpec, h100: Machine
) -> None:
    within = step(moe, ranks(cp=8, ep=8), rollouts, h100)
    between = step(moe, ranks(cp=8, ep=8), rollouts, h100, ranks_per_host=4)
    assert between.part("expert parallel").total_s > within.part("expert parallel").total_s
    assert between.part("matrix products") == within.part("matrix products")
    assert "InfiniBand-NDR" in between.part("expert parallel").why


def test_copies_hide_behind_work_as_far_as_it_lasts(
    dense: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    workload = replace(pretraining, offload=("weights",))
    part = step(dense, ranks(), workload, h100).part("offload copies")
    assert part.hidden_s == pytest.approx(0.8 * part.total_s)
    slow = replace(h100, host_link=replace(h100.host_link, bandwidth_bytes_per_s=1e9))
    starved = step(dense, ranks(), workload, slow)
    work = starved.step_s - starved.part("offload copies").exposed_s
    assert starved.part("offload copies").hidden_s == pytest.approx(work, rel=0.01)


def test_stages_of_another_model_are_refused(
    dense: ModelDescription, pretraining: WorkloadSpec, h100: Machine
) -> None:
    with pytest.raises(ValueError, match="31 layers on pp=1 ranks do not belong"):
        trainer_step_cost(dense, ranks(), StageLayout.uniform(31, 1), pretraining, h100)


divided = st.builds(
    lambda tp, cp, dp, pp: ranks(tp=tp, cp=cp, dp=dp, pp=pp),
    tp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
)


@property_test
@given(layout=divided, factor=st.floats(1, 8))
def test_better_hardware_is_never_slower(
    dense: ModelDescription, rollouts: WorkloadSpec, h100: Machine, layout: RankLayout, factor: float
) -> None:
    base = step(dense, layout, rollouts, h100).step_s
    gpu = h100.gpu
    faster = replace(gpu, peak_flops={name: peak * factor for name, peak in gpu.peak_flops.items()})
    wider = replace(gpu, memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s * factor)
    for better in (replace(h100, gpu=faster), replace(h100, gpu=wider), with_links(h100, factor)):
        assert step(dense, layout, rollouts, better).step_s <= base * (1 + 1e-9)


@property_test
@given(layout=divided, groups=st.integers(1, 64), more=st.integers(0, 64))
def test_more_work_never_takes_less(
    dense: ModelDescription,
    rollouts: WorkloadSpec,
    h100: Machine,
    layout: RankLayout,
    groups: int,
    more: int,
) -> None:
    little, much = (
        step(dense, layout, replace(rollouts, groups_per_step=count), h100).step_s
        for count in (8 * groups, 8 * (groups + more))
    )
    assert little <= much * (1 + 1e-9)


@property_test
@given(layout=divided, rank=st.sampled_from([None, 8, 64]))
def test_utilization_stays_below_what_products_reach(
    dense: ModelDescription, pretraining: WorkloadSpec, h100: Machine, layout: RankLayout, rank: int | None
) -> None:
    cost = step(dense, layout, replace(pretraining, lora_rank=rank), h100)
    assert 0 < cost.mfu < Calibration().matmul_fraction.hopper
    assert cost.flops_per_gpu == pytest.approx(cost.mfu * h100.gpu.flops("bfloat16"))
