"""The trainer's rank order and the division of its ranks by the parallel axes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from art_topology.cluster import CpuPlacement, GpuPlacement
from art_topology.gpus import gpu_key
from art_topology.passes.faults import report_faults
from art_topology.passes.findings import Findings, Suggestion, listed
from art_topology.passes.hosts import HostTable
from art_topology.passes.model_facts import ModelFacts
from art_topology.passes.pipeline import PATH
from art_topology.passes.trainer_division import Mesh, trainer_candidates, trainer_faults
from art_topology.ranks import RankLayout
from art_topology.trainer import MegatronTopologyConfig, TrainerMeshSpec

if TYPE_CHECKING:
    from art_topology.workload import WorkloadSpec


class TrainerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is settled about the trainer: its layout, and the expert side even where the other is wrong.

    ``expert_layout`` has tp and cp 1.
    """

    layout: RankLayout | None = None
    expert_layout: RankLayout | None = None


def check_trainer(
    spec: TrainerMeshSpec,
    table: HostTable,
    facts: ModelFacts | None,
    workload: WorkloadSpec | None,
    findings: Findings,
) -> TrainerFacts:
    """Checks the mesh."""
    repeats = _repeats_a_host(spec, findings)
    if not repeats:
        _check_order(spec, table, findings)
    settled = not repeats and not _is_unequal(spec, table, findings)
    settled = settled and not any(overfull(placement, table) for placement in spec.placements)
    world = sum(placement.process_count for placement in spec.placements) if settled else None
    first = spec.placements[0]
    mesh = Mesh(world=world, per_host=first.process_count, on_gpus=isinstance(first, GpuPlacement))
    report_faults(
        spec.parallel,
        PATH,
        lambda parallel: trainer_faults(parallel, mesh, facts, workload),
        lambda parallel, name: trainer_candidates(parallel, name, mesh, facts),
        findings,
    )
    return TrainerFacts() if world is None else _layouts(spec.parallel, world)


def layout_of(parallel: MegatronTopologyConfig, world: int) -> RankLayout | None:
    """The layout of so many ranks; None if the axes do not divide them."""
    return _layouts(parallel, world).layout


def _layouts(parallel: MegatronTopologyConfig, world: int) -> TrainerFacts:
    stage, rest = divmod(world, parallel.pp)
    if rest or stage % (parallel.etp * parallel.ep):
        return TrainerFacts()
    expert_layout = RankLayout(
        tp=1,
        cp=1,
        dp=stage,
        pp=parallel.pp,
        etp=parallel.etp,
        ep=parallel.ep,
        expert_dp=stage // (parallel.etp * parallel.ep),
    )
    dp, rest = divmod(stage, parallel.tp * parallel.cp)
    if rest:
        return TrainerFacts(expert_layout=expert_layout)
    layout = replace(expert_layout, tp=parallel.tp, cp=parallel.cp, dp=dp)
    return TrainerFacts(layout=layout, expert_layout=expert_layout)


def _repeats_a_host(spec: TrainerMeshSpec, findings: Findings) -> bool:
    first: dict[str, int] = {}
    repeated: list[int] = []
    for i, placement in enumerate(spec.placements):
        if first.setdefault(placement.host_id, i) != i:
            repeated.append(i)
    merged = _merged(spec) if repeated else None
    for i in repeated:
        host_id = spec.placements[i].host_id
        findings.report(
            "ART-T301",
            f"trainer.placements[{i}].host_id",
            f"host {host_id!r} has two trainer placements; the ranks of a host are consecutive",
            "merge them into one placement",
            [f"trainer.placements[{first[host_id]}].host_id"],
            merged,
        )
    return bool(repeated)


def _merged(spec: TrainerMeshSpec) -> Suggestion:
    """One placement per host; None where GPUs and CPU slots of a host would be merged."""
    kept: dict[str, GpuPlacement | CpuPlacement] = {}
    for placement in spec.placements:
        before = kept.get(placement.host_id)
        if before is None:
            kept[placement.host_id] = placement
        elif isinstance(before, GpuPlacement) and isinstance(placement, GpuPlacement):
            kept[placement.host_id] = replace(before, gpus=before.gpus + placement.gpus)
        elif isinstance(before, CpuPlacement) and isinstance(placement, CpuPlacement):
            kept[placement.host_id] = replace(before, slots=before.slots + placement.slots)
        else:
            return None
    return "trainer.placements", [_written(placement) for placement in kept.values()]


def _written(placement: GpuPlacement | CpuPlacement) -> Any:
    written = msgspec.to_builtins(placement)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in written.items()}


def _check_order(spec: TrainerMeshSpec, table: HostTable, findings: Findings) -> None:
    if table.node_ranks is None:
        return
    known = [
        (i, placement.host_id, table.node_ranks[table.indices[placement.host_id]])
        for i, placement in enumerate(spec.placements)
        if placement.host_id in table.indices
    ]
    for (before, host_before, node_before), (i, host, node) in pairwise(known):
        if node < node_before:
            in_order = sorted(known, key=lambda entry: entry[2])
            whole = len(known) == len(spec.placements)
            findings.report(
                "ART-T303",
                f"trainer.placements[{i}]",
                f"host {host!r} (node rank {node}) comes after "
                f"host {host_before!r} (node rank {node_before})",
                f"list the placements in node order: {listed([host_id for _, host_id, _ in in_order])}",
                [f"trainer.placements[{before}]"],
                ("trainer.placements", [_written(spec.placements[k]) for k, _, _ in in_order])
                if whole
                else None,
            )
            return


def _is_unequal(spec: TrainerMeshSpec, table: HostTable, findings: Findings) -> bool:
    counts = [placement.process_count for placement in spec.placements]
    usual = Counter(counts).most_common(1)[0][0]
    odd = [i for i, count in enumerate(counts) if count != usual]
    if not odd:
        return False
    placement, path = spec.placements[odd[0]], f"trainer.placements[{odd[0]}]"
    better = resized(path, placement, usual, table)
    findings.report(
        "ART-T302",
        path,
        f"host {placement.host_id!r} has {counts[odd[0]]} trainer ranks "
        f"and host {spec.placements[counts.index(usual)].host_id!r} has {usual}",
        f"place equally many ranks on every host: {so_many(usual, placement, table, better)}",
        [f"trainer.placements[{i}]" for i in [*odd[1:], counts.index(usual)]],
        better,
    )
    return True


def resized(path: str, placement: GpuPlacement | CpuPlacement, count: int, table: HostTable) -> Suggestion:
    """The placement with another number of processes on GPUs that its host has, each once; None if it has
    too few."""
    if isinstance(placement, CpuPlacement):
        return f"{path}.slots", count
    host = table.get(placement.host_id)
    if host is None:
        return None
    offered = {gpu_key(gpu): gpu for gpu in host.gpus}
    kept = {gpu_key(gpu): gpu for gpu in placement.gpus if gpu_key(gpu) in offered}
    gpus = [*kept.values(), *(gpu for key, gpu in offered.items() if key not in kept)][:count]
    return (f"{path}.gpus", gpus) if len(gpus) == count else None


def so_many(count: int, placement: GpuPlacement | CpuPlacement, table: HostTable, better: Suggestion) -> str:
    """How to have ``count`` processes at a placement; at most as many as its host has GPUs."""
    if better is not None:
        return f"{count} on this one, {better[0].rsplit('.', 1)[-1]} = {better[1]}"
    host = table.get(placement.host_id)
    if host is not None and isinstance(placement, GpuPlacement) and len(host.gpus) < count:
        return f"at most {len(host.gpus)}, as many as this one has GPUs, or another host in its place"
    return f"{count} on this one"


def overfull(placement: GpuPlacement | CpuPlacement, table: HostTable) -> bool:
    """Whether it asks for more CPU slots than its host has (ART-T204): how many are meant is in doubt."""
    host = table.get(placement.host_id)
    return isinstance(placement, CpuPlacement) and host is not None and placement.slots > host.cpu_slots
