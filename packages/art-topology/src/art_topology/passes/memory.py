"""Whether model and workload fit the memory of the GPUs that the hosts say they have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice, product
from typing import TYPE_CHECKING

import msgspec

from art_topology.cluster import GpuPlacement
from art_topology.gpus import is_slice
from art_topology.passes.faults import divisors, written
from art_topology.passes.findings import Findings, Suggestion
from art_topology.passes.hosts import HostTable
from art_topology.passes.model_facts import ModelFacts
from art_topology.passes.pipeline import PATH, stages_for
from art_topology.passes.trainer import TrainerFacts, layout_of
from art_topology.passes.trainer_division import Mesh, trainer_faults
from art_topology.trainer import MegatronTopologyConfig, TrainerMeshSpec
from art_topology.workload import Offload

if TYPE_CHECKING:
    from art_topology.hardware import GpuModel
    from art_topology.memory import MemoryEstimate, MemoryPart
    from art_topology.models import ModelDescription
    from art_topology.passes.services import ServedModel
    from art_topology.serving import ModelServiceSpec, VllmParallelSpec
    from art_topology.workload import WorkloadSpec

REFUSED = 1.15
"""Above this share of a GPU it does not fit: the estimate errs by less (docs/planner-accuracy.md)."""
TIGHT = 0.96
"""Above this share it may not fit; ``plan`` leaves as much free unless it is told otherwise."""
_OFFLOADS: tuple[tuple[Offload, ...], ...] = (
    ("optimizer",),
    ("optimizer", "activations"),
    ("optimizer", "activations", "weights"),
)
"""What is moved to the host, the least first."""
_MOST_OFFLOADED = 64
"""Layouts that are tried with each of them."""
_MOST_LAYOUTS = 2000
_GIB = 2**30


def gpu_of(placements: Iterable[object], table: HostTable) -> GpuModel | None:
    """The GPU with least memory among those that are used; None unless all are known and whole."""
    found = []
    for placement in placements:
        if not isinstance(placement, GpuPlacement) or any(map(is_slice, placement.gpus)):
            return None
        host = table.get(placement.host_id)
        gpu = table.gpu_model(host.gpu_model) if host is not None and host.gpu_model is not None else None
        if gpu is None:
            return None
        found.append(gpu)
    return min(found, key=lambda gpu: gpu.memory_bytes, default=None)


def check_memory(
    trainer: TrainerMeshSpec | None,
    services: Sequence[ModelServiceSpec],
    table: HostTable,
    ranks: TrainerFacts,
    served: ServedModel,
    model: ModelDescription | None,
    findings: Findings,
) -> None:
    """Checks what has no errors yet."""
    facts, workload = served.facts, served.workload
    if (
        trainer is not None
        and model is not None
        and facts is not None
        and workload is not None
        and not findings.has_errors_at("trainer", "workload", "model")
    ):
        _check_trainer(trainer, table, ranks, model, facts, workload, findings)
    for k, service in enumerate(services):
        if not findings.has_errors_at(f"services[{k}]", "workload", "model"):
            about = model if served.is_by(service) else None
            _check_service(service, k, table, served, about, findings)


def _check_trainer(
    spec: TrainerMeshSpec,
    table: HostTable,
    ranks: TrainerFacts,
    model: ModelDescription,
    facts: ModelFacts,
    workload: WorkloadSpec,
    findings: Findings,
) -> None:
    """Compares the fullest rank's memory with that of its GPU. Only for a trainer without errors."""
    gpu = gpu_of(spec.placements, table)
    if gpu is None or ranks.layout is None:
        return
    world, first = ranks.layout.world_size, spec.placements[0]
    mesh = Mesh(world=world, per_host=first.process_count, on_gpus=True)

    def needed(parallel: MegatronTopologyConfig, step: WorkloadSpec) -> MemoryEstimate:
        from art_topology.memory import trainer_memory

        layout = layout_of(parallel, world)
        if layout is None:
            raise ValueError(f"{world} ranks do not make the layout")
        stages = stages_for(parallel, facts)
        group = parallel.vpp_microbatch_group_size
        return trainer_memory(model, layout, stages, step, vpp_group=group)

    try:
        most = needed(spec.parallel, workload)
    except ValueError:
        return  # what does not divide has been reported, or is a shape that the planner does not estimate
    share = most.total_bytes / gpu.memory_bytes
    if share <= TIGHT:
        return

    told = {fault.code for fault in trainer_faults(spec.parallel, mesh, facts, workload)}

    def fits(parallel: MegatronTopologyConfig, step: WorkloadSpec) -> bool:
        if {fault.code for fault in trainer_faults(parallel, mesh, facts, step)} - told:
            return False
        try:
            return needed(parallel, step).total_bytes <= TIGHT * gpu.memory_bytes
        except ValueError:
            return False

    hint, suggestion = _way_out(spec.parallel, workload, mesh, fits)
    where = "" if spec.parallel.pp == 1 else f" of stage {most.pp_rank}"
    findings.report(
        "ART-T909" if share > REFUSED else "ART-T910",
        PATH,
        f"a trainer rank{where} needs about {_gib(most.total_bytes)} GiB, but {_with_article(gpu.name)} has "
        f"{_gib(gpu.memory_bytes)} ({share:.0%}): {_largest(most.parts)}",
        hint,
        ["model", "workload"],
        suggestion,
    )


def _way_out(
    parallel: MegatronTopologyConfig,
    workload: WorkloadSpec,
    mesh: Mesh,
    fits: Callable[[MegatronTopologyConfig, WorkloadSpec], bool],
) -> tuple[str, Suggestion]:
    full = msgspec.structs.replace(workload, recompute="full", recompute_layers=None)
    if workload.recompute != "full" and workload.recompute_layers is None and fits(parallel, full):
        return 'recompute whole layers: recompute = "full" in [workload]', ("workload.recompute", "full")
    for step, more in ((workload, ""), (full, ' and recompute = "full" in [workload]')):
        for changed in islice(_layouts(parallel, mesh), _MOST_LAYOUTS):
            if fits(changed, step):
                suggestion = None if more else (PATH, written(changed))
                return f"use {_words(changed)}{more}", suggestion
        if full == workload:
            break
    for offload in _OFFLOADS:
        moved = msgspec.structs.replace(full, offload=offload)
        told = f"offload = [{', '.join(f'"{name}"' for name in offload)}]"
        if workload.recompute == "full" and fits(parallel, moved):
            return f"use {told} in [workload]", ("workload.offload", list(offload))
        told = f'{told} and recompute = "full" in [workload]'
        for changed in (parallel, *islice(_layouts(parallel, mesh), _MOST_OFFLOADED)):
            if fits(changed, moved):
                return f"use {told}" + (f", and {_words(changed)}" if changed != parallel else ""), None
    return (
        "no layout of these GPUs that was tried fits, with recomputation and offload neither: take more "
        "GPUs, or adapters (lora_rank)",
        None,
    )


def _layouts(parallel: MegatronTopologyConfig, mesh: Mesh) -> Iterable[MegatronTopologyConfig]:
    """Divisions of the ranks, those nearest to the given one first."""
    world = mesh.world or 1
    sizes = divisors(world)
    if world > 65_536 or len(sizes) > 40:
        sizes = [size for size in sizes if size & (size - 1) == 0]
    tps = [size for size in divisors(mesh.per_host) if size <= 16]
    wanted = (parallel.tp, parallel.cp, parallel.pp, parallel.ep)
    found = sorted(
        (
            (tp, cp, pp, ep)
            for tp, pp, cp in product(tps, sizes, sizes)
            if world % (tp * pp * cp) == 0
            for ep in {parallel.ep, *((min(8, world // pp), world // pp) if parallel.ep > 1 else ())}
        ),
        key=lambda axes: (
            sum(a != b for a, b in zip(axes, wanted, strict=True)),
            sum(max(a, b) / min(a, b) for a, b in zip(axes, wanted, strict=True)),
            axes,
        ),
    )
    for tp, cp, pp, ep in found:
        changed = msgspec.structs.replace(parallel, tp=tp, cp=cp, pp=pp, ep=ep)
        if tp == 1 and parallel.sequence_parallel:
            changed = msgspec.structs.replace(changed, sequence_parallel=None)
        if pp != parallel.pp:
            changed = msgspec.structs.replace(
                changed,
                vpp=None,
                vpp_microbatch_group_size=None,
                pipeline_layout=None,
                account_for_embedding_in_pipeline_split=False,
                account_for_loss_in_pipeline_split=False,
                num_layers_in_first_pipeline_stage=None,
                num_layers_in_last_pipeline_stage=None,
            )
        yield changed


def _words(parallel: MegatronTopologyConfig) -> str:
    axes = [f"{name}={getattr(parallel, name)}" for name in ("tp", "cp", "ep", "etp", "pp")]
    kept = [axis for axis in axes if not axis.endswith("=1")] or ["tp=1"]
    return ", ".join(kept) + (f", vpp={parallel.vpp}" if parallel.vpp else "")


def _check_service(
    service: ModelServiceSpec,
    k: int,
    table: HostTable,
    served: ServedModel,
    model: ModelDescription | None,
    findings: Findings,
) -> None:
    """Compares what a worker holds with what it may use of its GPU. Only for a service without errors."""
    gpu = gpu_of([member.placement for member in service.members], table)
    if gpu is None:
        return
    cache, path = service.kv_cache_bytes, f"services[{k}]"
    without_cache: tuple[str, Suggestion] = (
        "leave kv_cache_bytes out: vLLM takes what the weights leave",
        (f"{path}.kv_cache_bytes", None),
    )
    if cache is not None and cache > gpu.memory_bytes:
        findings.report(
            "ART-T911",
            f"{path}.kv_cache_bytes",
            f"service {service.name!r} reserves {_gib(cache)} GiB on each GPU for its KV cache, but "
            f"{_with_article(gpu.name)} has {_gib(gpu.memory_bytes)}",
            hint=without_cache[0],
            suggestion=without_cache[1],
        )
        return
    if model is None or served.workload is None:
        return
    from art_topology.memory import service_memory

    kind = service.dtype
    workload = served.workload if kind == "auto" else msgspec.structs.replace(served.workload, dtype=kind)

    def needed(parallel: VllmParallelSpec) -> tuple[int, tuple[MemoryPart, ...]]:
        estimate = service_memory(
            model.with_weights(service.weights),
            parallel,
            workload,
            gpu.memory_bytes,
            service.gpu_memory_utilization,
            max_loras=service.max_loras,
            max_num_seqs=service.max_num_seqs,
        )
        held = tuple(part for part in estimate.parts if part.name != "KV cache")
        sequence = round(estimate.kv_bytes_per_sequence)
        return sum(part.bytes for part in held) + max(sequence, cache or 0), held

    total, held = needed(service.parallel)
    used = gpu.memory_bytes * (1 if cache is not None else service.gpu_memory_utilization)
    share = total / used
    if share <= (1 if cache is None else TIGHT):  # the service's share leaves some memory free already
        return
    reserved = "the KV cache" if cache is not None else "the KV cache of one sequence"
    allowed = "" if cache is not None else f" at gpu_memory_utilization = {service.gpu_memory_utilization:g}"
    hint, suggestion = (
        without_cache
        if cache is not None
        else _wider(service, k, lambda parallel: needed(parallel)[0] <= TIGHT * used)
    )
    findings.report(
        "ART-T911" if share > REFUSED else "ART-T912",
        f"{path}.kv_cache_bytes" if cache is not None else f"{path}.parallel",
        f"a worker of service {service.name!r} needs about {_gib(total)} GiB with {reserved}, but may use "
        f"{_gib(used)} of {_with_article(gpu.name)}{allowed}: {_largest(held)}",
        hint,
        ["model", "workload"],
        suggestion,
    )


def _wider(
    service: ModelServiceSpec, k: int, fits: Callable[[VllmParallelSpec], bool]
) -> tuple[str, Suggestion]:
    parallel, each = service.parallel, service.members[0].placement.process_count
    for tp in divisors(parallel.world_size):
        if tp <= parallel.tp or tp > each or (parallel.tp * parallel.dp) % tp:
            continue
        wider = msgspec.structs.replace(parallel, tp=tp, dp=parallel.tp * parallel.dp // tp)
        if fits(wider):
            return (
                f"use tp={tp} and dp={wider.dp}",
                (f"services[{k}].parallel", written(wider)),
            )
    return "divide it among more GPUs (tp, pp), or serve shorter sequences or fewer adapters", None


def _largest(parts: Sequence[MemoryPart]) -> str:
    most = sorted(parts, key=lambda part: -part.bytes)[:3]
    return ", ".join(f"{part.name} {_gib(part.bytes)}" for part in most)


def _gib(count: float) -> str:
    value = count / _GIB
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _with_article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEFHILMNORSX' else 'a'} {name}"
