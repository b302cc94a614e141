"""The planner: its results against brute force, the compiler and the clock."""

import re
from functools import partial
from itertools import product
from math import inf
from time import process_time

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_topology import (
    ClusterSpec,
    MegatronTopologyConfig,
    SpecError,
    VllmParallelSpec,
    compile_topology,
    homogeneous_cluster,
)
from art_topology.cost import Calibration
from art_topology.hardware import default_hardware
from art_topology.models import ModelDescription
from art_topology.planner import Plan, PlannedLayout, PlanReport, RejectedLayout, Split, explain_layout, plan
from art_topology.planner.fit import _apart
from art_topology.planner.problem import (
    HOST_MEMORY_FRACTION,
    MEMORY_MARGIN,
    OFFLOADS,
    SAVINGS,
    host_counts,
)
from art_topology.planner.trainers import LEAST_TOKENS, STAGES, VIRTUAL_STAGES
from art_topology.stages import StageError, StageLayout, stages_of
from art_topology.workload import Recompute, WorkloadSpec

replace = msgspec.structs.replace


def cluster_of(hosts: int, gpus: int, model: str = "H100") -> ClusterSpec:
    cluster = homogeneous_cluster(
        [f"10.0.{i // 250}.{i % 250 + 1}" for i in range(hosts)], cpu_slots=4, gpus_per_host=gpus
    )
    return replace(cluster, hosts=tuple(replace(host, gpu_model=model) for host in cluster.hosts))


def all_splits(hosts: int, gpus: int) -> list[Split]:
    whole = [
        Split(trainer_hosts=t, trainer_gpus_per_host=gpus, service_hosts=s, service_gpus_per_host=gpus)
        for t, s in product(range(1, hosts), repeat=2)
        if t + s <= hosts
    ]
    shared = [
        Split(
            trainer_hosts=hosts,
            trainer_gpus_per_host=t,
            service_hosts=hosts,
            service_gpus_per_host=s,
            shared=True,
        )
        for t, s in product(range(1, gpus), repeat=2)
        if t + s <= gpus
    ]
    return whole + shared


def trainer_configs(model: ModelDescription, world: int, length: int) -> list[MegatronTopologyConfig]:
    sizes = [n for n in range(1, world + 1) if world % n == 0]
    found = []
    for tp, cp, pp, ep, vpp in product(sizes, sizes, sizes, sizes, VIRTUAL_STAGES):
        if pp not in STAGES or (pp == 1 and vpp > 1) or pp * vpp > len(model.layers):
            continue
        if world % (tp * cp * pp) or cp > max(1, length // LEAST_TOKENS):
            continue
        for etp in {1, tp}:
            if (world // pp) % (ep * etp):
                continue
            virtual, text = vpp if vpp > 1 else None, None
            try:
                StageLayout.uniform(len(model.layers), pp, virtual)
            except StageError:
                text = StageLayout.balanced(len(model.layers), pp, virtual).to_layout_string()
            config = MegatronTopologyConfig(
                tp=tp, cp=cp, pp=pp, vpp=virtual, ep=ep, etp=etp, pipeline_layout=text
            )
            found.append(config)
    return found


def services(workers: int) -> list[VllmParallelSpec]:
    sizes = [n for n in (1, 2, 4, 8, 16) if workers % n == 0]
    return [
        VllmParallelSpec(tp=tp, pp=pp, dp=workers // (tp * pp), expert_parallel=experts)
        for tp, pp, experts in product(sizes, sizes, (False, True))
        if workers % (tp * pp) == 0
    ]


def brute_force(
    model: ModelDescription, cluster: ClusterSpec, workload: WorkloadSpec
) -> list[tuple[float, int, float]]:
    """Step, GPUs and sum of training and rollouts of every layout that can run, best first: each side of each
    is asked for by itself, with the fastest recomputation of the first offload with which one fits."""
    overhead = Calibration().loop_overhead_s
    results = []
    for split in all_splits(len(cluster.hosts), len(cluster.hosts[0].gpus)):
        served = {}
        for parallel in services(split.service_gpus):
            found = explain(_layout(split, MegatronTopologyConfig(), parallel), model, cluster, workload)
            if isinstance(found, Plan):
                served[parallel] = found.cost.rollout.rollout_s
        if not served:
            continue
        usable, trained = next(iter(served)), []
        for trainer in trainer_configs(model, split.trainer_gpus, workload.packed_sequence_length):
            for offload in OFFLOADS:
                best = inf
                for recompute in ("none", "selective", "full"):
                    layout = replace(_layout(split, trainer, usable), recompute=recompute, offload=offload)
                    found = explain(layout, model, cluster, workload)
                    if isinstance(found, Plan):
                        best = min(best, found.cost.trainer.step_s)
                if best < inf:
                    trained.append(best + overhead)
                    break
        pairs = product(trained, served.values())
        gpus_used = split.trainer_gpus + split.service_gpus
        results += [(max(train_s, rollout_s), gpus_used, train_s + rollout_s) for train_s, rollout_s in pairs]
    return sorted(results)


def _layout(split: Split, trainer: MegatronTopologyConfig, service: VllmParallelSpec) -> PlannedLayout:
    return PlannedLayout(
        split=split, trainer=trainer, service=service, recompute="full", offload=OFFLOADS[-1]
    )


def explain(
    layout: PlannedLayout, model: ModelDescription, cluster: ClusterSpec, workload: WorkloadSpec
) -> Plan | RejectedLayout:
    return explain_layout(layout, model=model, cluster=cluster, workload=workload)


def keys(report: PlanReport) -> list[tuple[float, int, float]]:
    overhead = Calibration().loop_overhead_s
    return [
        (
            max(p.cost.trainer.step_s + overhead, p.cost.rollout.rollout_s),
            p.used_gpus,
            p.cost.trainer.step_s + overhead + p.cost.rollout.rollout_s,
        )
        for p in report.ranked
    ]


@pytest.mark.parametrize(
    ("hosts", "gpus", "gpu", "which", "changes"),
    [
        (1, 4, "H100", "dense", {"groups_per_step": 12}),
        (1, 3, "L40S", "dense", {"groups_per_step": 24}),
        (1, 4, "H100", "dense", {"lora_rank": None, "groups_per_step": 8}),
        (2, 2, "H100", "moe", {"groups_per_step": 16}),
        (3, 2, "H200", "moe", {"groups_per_step": 8}),
    ],
)
def test_the_best_layouts_are_those_of_brute_force(
    request: pytest.FixtureRequest,
    rollouts: WorkloadSpec,
    hosts: int,
    gpus: int,
    gpu: str,
    which: str,
    changes: dict[str, object],
) -> None:
    model: ModelDescription = request.getfixturevalue(which)
    model = replace(model, layers=model.layers[:12])
    if which == "moe":
        model = replace(model, layers=model.layers[:8])
    cluster, workload = cluster_of(hosts, gpus, gpu), replace(rollouts, **changes)
    expected = brute_force(model, cluster, workload)
    report = plan(model=model, cluster=cluster, workload=workload, limit=100_000)
    assert len(report.ranked) == len(expected) > 0
    for (step_s, used, sum_s), (wanted_step_s, wanted, wanted_sum_s) in zip(
        keys(report), expected, strict=True
    ):
        assert step_s == pytest.approx(wanted_step_s)
        assert used == wanted
        assert sum_s == pytest.approx(wanted_sum_s)
    first = plan(model=model, cluster=cluster, workload=workload, limit=3)
    assert first.ranked == report.ranked[:3]


def test_every_result_is_what_the_planner_says_of_its_layout(
    moe: ModelDescription, rollouts: WorkloadSpec
) -> None:
    cluster = cluster_of(2, 8)
    report = plan(model=moe, cluster=cluster, workload=rollouts, limit=30)
    for found in report.ranked:
        explained = explain(found.layout, moe, cluster, rollouts)
        assert isinstance(explained, Plan)
        assert explained.cost == found.cost
        assert explained.trainer_memory.total_bytes == found.trainer_memory.total_bytes
        assert explained.service_memory == found.service_memory
    scores = [found.score for found in report.ranked]
    assert scores == sorted(scores, reverse=True)


def test_equal_ranks_stand_for_each_other(moe: ModelDescription, rollouts: WorkloadSpec) -> None:
    """The planner asks for the memory of one rank of each kind; all of them need no more."""
    report = plan(model=moe, cluster=cluster_of(4, 8), workload=rollouts, limit=200)
    piped = [found for found in report.ranked if found.layout.trainer.pp > 1]
    assert piped
    for found in piped[:20]:
        trainer = found.layout.trainer
        explained = explain(found.layout, moe, cluster_of(4, 8), rollouts)
        assert isinstance(explained, Plan)
        assert explained.trainer_memory.total_bytes == found.trainer_memory.total_bytes, trainer


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.sampled_from(["dense", "moe"]),
    hosts=st.integers(1, 6),
    gpus=st.sampled_from([2, 3, 4, 8]),
    gpu=st.sampled_from(["H100", "B300", "A100-40GB", "L40S"]),
    groups=st.integers(1, 100),
    group_size=st.integers(1, 16),
    prompt=st.integers(1, 4000),
    completion=st.integers(1, 8000),
    rank=st.sampled_from([None, 1, 24, 256]),
    power=st.integers(14, 17),
)
def test_every_result_compiles_without_a_diagnostic(
    request: pytest.FixtureRequest,
    which: str,
    hosts: int,
    gpus: int,
    gpu: str,
    groups: int,
    group_size: int,
    prompt: int,
    completion: int,
    rank: int | None,
    power: int,
) -> None:
    model: ModelDescription = request.getfixturevalue(which)
    workload = WorkloadSpec(
        packed_sequence_length=1 << power,
        groups_per_step=groups,
        group_size=group_size,
        prompt_tokens=prompt,
        completion_tokens=completion,
        lora_rank=rank,
    )
    cluster = cluster_of(hosts, gpus, gpu)
    report = plan(model=model, cluster=cluster, workload=workload, limit=12)
    assert report.ranked or report.rejected
    for found in report.ranked:
        spec = found.topology(cluster, base_model="some/model")
        compiled = compile_topology(
            cluster=spec.cluster,
            trainer=spec.trainer,
            services=spec.services,
            model=model,
            workload=spec.workload,
        )
        assert compiled.warnings == (), found.layout.name
        assert compiled.trainer is not None
        assert compiled.trainer.layout.dp == found.layout.dp
        assert len(compiled.services[0].members) == found.layout.split.service_hosts


@pytest.mark.parametrize(("which", "gpu"), [("dense", "H100"), ("moe", "H100"), ("moe", "B300")])
def test_a_thousand_gpus_take_seconds(request: pytest.FixtureRequest, which: str, gpu: str) -> None:
    """In processor time, so that it holds on a machine with other work too."""
    workload = WorkloadSpec(
        packed_sequence_length=131_072,
        groups_per_step=256,
        group_size=16,
        prompt_tokens=2048,
        completion_tokens=8064,
        lora_rank=16,
    )
    started = process_time()
    report = plan(model=request.getfixturevalue(which), cluster=cluster_of(128, 8, gpu), workload=workload)
    assert process_time() - started < 5
    assert len(report.ranked) == 20
    assert report.searched > 5_000


def test_what_cannot_run_has_a_reason(moe: ModelDescription, rollouts: WorkloadSpec) -> None:
    report = plan(model=moe, cluster=cluster_of(1, 8, "RTX-4090"), workload=replace(rollouts, lora_rank=None))
    assert {entry.side for entry in report.rejected} == {"trainer", "service"}
    for entry in report.rejected:
        assert entry.count >= 1
        assert entry.example.code == entry.code
        assert any(character.isdigit() for character in entry.example.reason)
    counts = [entry.count for entry in report.rejected]
    assert counts == sorted(counts, reverse=True)


def test_memory_is_refused_with_its_numbers(dense: ModelDescription, rollouts: WorkloadSpec) -> None:
    cluster = cluster_of(1, 2, "RTX-4090")
    split = Split(
        trainer_hosts=1, trainer_gpus_per_host=1, service_hosts=1, service_gpus_per_host=1, shared=True
    )
    layout = PlannedLayout(split=split, trainer=MegatronTopologyConfig(), service=VllmParallelSpec())
    found = explain(layout, dense, cluster, replace(rollouts, completion_tokens=15_000))
    assert isinstance(found, RejectedLayout)
    assert found.code == "trainer-memory"
    assert "of the 24.0 GiB of a RTX-4090" in found.reason
    offloaded = replace(layout, offload=("weights", "activations"), recompute="full")
    other = explain(offloaded, replace(dense, layers=dense.layers * 20), cluster, rollouts)
    assert isinstance(other, RejectedLayout)
    assert other.code in ("service-memory", "host-memory")


@pytest.mark.parametrize(
    ("trainer", "service", "code"),
    [
        (MegatronTopologyConfig(tp=3), VllmParallelSpec(dp=4), "ART-T305"),
        (MegatronTopologyConfig(ep=2), VllmParallelSpec(dp=4), "ART-T806"),
        (MegatronTopologyConfig(pp=4, vpp=9), VllmParallelSpec(dp=4), "ART-T809"),
        (MegatronTopologyConfig(), VllmParallelSpec(tp=3), "ART-T404"),
        (MegatronTopologyConfig(), VllmParallelSpec(dp=4, expert_parallel=True), "ART-T806"),
    ],
)
def test_any_layout_may_be_asked_for(
    dense: ModelDescription,
    rollouts: WorkloadSpec,
    trainer: MegatronTopologyConfig,
    service: VllmParallelSpec,
    code: str,
) -> None:
    split = Split(
        trainer_hosts=1, trainer_gpus_per_host=4, service_hosts=1, service_gpus_per_host=4, shared=True
    )
    layout = PlannedLayout(split=split, trainer=trainer, service=service)
    found = explain(layout, dense, cluster_of(1, 8), rollouts)
    assert isinstance(found, RejectedLayout)
    assert found.code == code


def test_a_split_that_the_cluster_has_not_is_refused(dense: ModelDescription, rollouts: WorkloadSpec) -> None:
    split = Split(trainer_hosts=2, trainer_gpus_per_host=8, service_hosts=1, service_gpus_per_host=8)
    layout = PlannedLayout(split=split, trainer=MegatronTopologyConfig(), service=VllmParallelSpec(dp=8))
    found = explain(layout, dense, cluster_of(2, 8), rollouts)
    assert isinstance(found, RejectedLayout)
    assert (found.code, found.reason[:7]) == ("split", "3 hosts")


def test_offload_comes_after_recomputation(dense: ModelDescription, rollouts: WorkloadSpec) -> None:
    """Where some recomputation fits without offload, no plan offloads."""
    report = plan(model=dense, cluster=cluster_of(1, 8), workload=rollouts, limit=50)
    assert all(found.layout.offload == () for found in report.ranked)
    given = plan(
        model=dense,
        cluster=cluster_of(1, 8),
        workload=replace(rollouts, recompute="full", offload=("optimizer",)),
        limit=5,
        search_savings=False,
    )
    assert {(found.layout.recompute, found.layout.offload) for found in given.ranked} == {
        ("full", ("optimizer",))
    }


def test_the_number_of_trainer_gpus_can_be_given(dense: ModelDescription, rollouts: WorkloadSpec) -> None:
    report = plan(model=dense, cluster=cluster_of(3, 8), workload=rollouts, trainer_gpus=16, limit=8)
    assert report.ranked
    assert {found.layout.trainer_gpus for found in report.ranked} == {16}
    with pytest.raises(SpecError, match="no division of 3 x 8 GPUs gives the trainer 17 of them"):
        plan(model=dense, cluster=cluster_of(3, 8), workload=rollouts, trainer_gpus=17)
    with pytest.raises(SpecError, match="no division of 1 x 1 GPUs gives trainer and service GPUs"):
        plan(model=dense, cluster=cluster_of(1, 1), workload=rollouts)


def test_clusters_that_cannot_be_planned_are_refused(dense: ModelDescription, rollouts: WorkloadSpec) -> None:
    def refused(cluster: ClusterSpec, message: str) -> None:
        with pytest.raises(SpecError, match=message):
            plan(model=dense, cluster=cluster, workload=rollouts)

    good = cluster_of(2, 8)
    first, second = good.hosts
    refused(cluster_of(2, 0), "equally many GPUs")
    refused(replace(good, hosts=(first, replace(second, gpus=(0, 1)))), r"these have \[2, 8\]")
    refused(replace(good, hosts=(first, replace(second, gpu_model="B300"))), "B300, H100")
    refused(replace(good, hosts=(first, replace(second, gpu_model=None))), "H100, None|None, H100")
    refused(cluster_of(2, 8, "H300"), "no GPU 'H300'")
    refused(cluster_of(2, 9), "hosts have 9 GPUs, but a DGX-H100 has 8")
    named = plan(model=dense, cluster=cluster_of(1, 8, "H300"), workload=rollouts, machine="H200", limit=1)
    assert named.ranked


def test_a_workload_that_no_row_holds_has_no_plan(dense: ModelDescription, rollouts: WorkloadSpec) -> None:
    report = plan(model=dense, cluster=cluster_of(1, 8), workload=replace(rollouts, completion_tokens=20_000))
    assert report.ranked == ()
    assert any(entry.code == "ART-T902" for entry in report.rejected)


def test_names_say_what_a_layout_is() -> None:
    layout = PlannedLayout(
        split=Split(trainer_hosts=2, trainer_gpus_per_host=8, service_hosts=1, service_gpus_per_host=8),
        trainer=MegatronTopologyConfig(cp=8, ep=8),
        service=VllmParallelSpec(tp=8),
        recompute="full",
        offload=("optimizer",),
    )
    assert layout.name == "16 x CP8/EP8/DP2, recompute full, offload optimizer + 8 x TP8"


def test_few_numbers_of_hosts_are_tried_on_large_clusters() -> None:
    assert host_counts(5) == (1, 2, 3, 4)
    assert host_counts(9) == tuple(range(1, 9))
    many = host_counts(128)
    assert len(many) < 50
    assert {1, 2, 4, 8, 16, 32, 64, 96, 112, 120, 127} <= set(many)
    assert all(128 - count in many for count in many)
    assert SAVINGS[0] == ("none", ())
    assert 0 < HOST_MEMORY_FRACTION < 1 - MEMORY_MARGIN < 1


def test_the_layout_of_a_plan_is_the_layout_that_was_costed(
    dense: ModelDescription, rollouts: WorkloadSpec
) -> None:
    report = plan(model=dense, cluster=cluster_of(2, 8), workload=rollouts, limit=200)
    for found in report.ranked[::20]:
        stages = stages_of(found.layout.trainer, len(dense.layers))
        assert stages.pp == found.layout.trainer.pp
        assert found.cost.trainer.gpus == found.layout.trainer_gpus
        assert found.cost.rollout.gpus == found.layout.service_gpus
        assert found.workload.recompute == found.layout.recompute


def test_at_the_same_speed_fewer_gpus_come_first(moe: ModelDescription, rollouts: WorkloadSpec) -> None:
    report = plan(model=moe, cluster=cluster_of(8, 8), workload=rollouts, limit=200)
    paces: dict[float, list[int]] = {}
    for found in report.ranked:
        paces.setdefault(found.cost.step_s, []).append(found.used_gpus)
        assert found.used_gpus + found.unused_gpus == 64
        assert found.used_score == pytest.approx(found.score * 64 / found.used_gpus)
    assert any(len(set(used)) > 1 for used in paces.values())
    for used in paces.values():
        assert used == sorted(used)


def test_what_the_workload_says_is_kept(dense: ModelDescription, rollouts: WorkloadSpec) -> None:
    cluster = cluster_of(1, 8)

    def tried(workload: WorkloadSpec, recompute: Recompute | None = None) -> set[tuple[str, tuple[str, ...]]]:
        report = plan(model=dense, cluster=cluster, workload=workload, limit=500, recompute=recompute)
        return {(found.layout.recompute, found.layout.offload) for found in report.ranked}

    assert {recompute for recompute, _ in tried(replace(rollouts, recompute="selective"))} == {"selective"}
    assert tried(replace(rollouts, offload=("activations",)), recompute="full") == {
        ("full", ("activations",))
    }
    assert {offload for _, offload in tried(replace(rollouts, offload=("optimizer",)))} == {("optimizer",)}
    assert {recompute for recompute, _ in tried(replace(rollouts, recompute="full"), recompute="none")} == {
        "none"
    }
    layers = plan(
        model=dense,
        cluster=cluster,
        workload=replace(rollouts, recompute="full", recompute_layers=2),
        limit=3,
    )
    assert {found.workload.recompute_layers for found in layers.ranked} == {2}


def test_a_margin_of_memory_is_kept_free(moe: ModelDescription, rollouts: WorkloadSpec) -> None:
    cluster, memory = cluster_of(1, 8), default_hardware().machine("H100").gpu.memory_bytes

    asked = partial(plan, model=moe, cluster=cluster, workload=rollouts, limit=500)

    def fullest(report: PlanReport) -> float:
        return max(each.trainer_memory.total_bytes for each in report.ranked) / memory

    assert fullest(asked(memory_margin=0.5)) <= 0.5 < fullest(asked()) <= 1 - MEMORY_MARGIN
    for wrong in (-0.1, 1.0, float("nan")):
        with pytest.raises(SpecError, match="share of memory kept free"):
            asked(memory_margin=wrong)


def test_slices_of_gpus_are_not_planned(dense: ModelDescription, rollouts: WorkloadSpec) -> None:
    cluster = cluster_of(1, 2)
    slices = tuple(f"MIG-0000000{n}-1111-2222-3333-444444444444" for n in range(2))
    sliced = replace(cluster, hosts=(replace(cluster.hosts[0], gpus=slices),))
    with pytest.raises(SpecError, match=r"2 MIG slices, such as MIG-00000000.* whole GPUs"):
        plan(model=dense, cluster=sliced, workload=rollouts)


def test_sequences_beyond_the_context_are_refused(dense: ModelDescription, rollouts: WorkloadSpec) -> None:
    longest = dense.max_position_embeddings
    assert longest is not None
    workload = replace(rollouts, completion_tokens=longest, packed_sequence_length=1 << 20)
    with pytest.raises(SpecError, match=f"= {longest + 512:,} tokens are longer .* {longest:,} "):
        plan(model=dense, cluster=cluster_of(1, 2), workload=workload)
    fits = plan(
        model=replace(dense, max_position_embeddings=None),
        cluster=cluster_of(8, 8),
        workload=workload,
        limit=1,
    )
    assert fits.ranked or fits.rejected


def test_the_example_of_too_little_memory_lacks_least(moe: ModelDescription, rollouts: WorkloadSpec) -> None:
    cluster, workload = cluster_of(1, 8, "RTX-4090"), replace(rollouts, lora_rank=None)
    report = plan(model=moe, cluster=cluster, workload=workload)
    (refused,) = [found for found in report.rejected if found.code == "trainer-memory"]
    least = float(refused.example.reason.split("at least ")[1].split(" GiB")[0])
    wider = plan(model=moe, cluster=cluster, workload=workload, recompute="none", offload=())
    (other,) = [found for found in wider.rejected if found.code == "trainer-memory"]
    assert least <= float(other.example.reason.split("at least ")[1].split(" GiB")[0])


def test_nixl_is_written_only_for_experts_on_several_hosts(
    dense: ModelDescription, rollouts: WorkloadSpec
) -> None:
    cluster = cluster_of(4, 8)
    best = plan(model=dense, cluster=cluster, workload=rollouts, limit=1, trainer_gpus=16).ranked[0]
    assert best.topology(cluster, base_model="some/model").cluster.nixl_transport is None


def test_no_reason_names_a_need_that_is_below_what_there_is(dense: ModelDescription) -> None:
    workload = WorkloadSpec(
        packed_sequence_length=65_536,
        groups_per_step=32,
        group_size=16,
        prompt_tokens=1024,
        completion_tokens=4096,
        lora_rank=16,
    )
    large = replace(dense, layers=dense.layers[:1] * 160)
    report = plan(model=large, cluster=cluster_of(8, 8, "RTX-4090"), workload=workload, limit=1000)
    reasons = {each.code: each.example.reason for each in report.rejected}
    need, room = re.findall(r"([\d,.]+)(?: GiB with| of the)", reasons["trainer-memory"])[:2]
    assert float(need.replace(",", "")) > float(room.replace(",", ""))


def test_two_numbers_are_written_apart() -> None:
    assert _apart(134.81, 134.76) == ("134.81", "134.76")
    assert _apart(200.0, 134.76) == ("200.0", "134.8")
