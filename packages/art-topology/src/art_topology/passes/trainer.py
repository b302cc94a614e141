"""The trainer's rank order and the division of its ranks by the parallel axes."""

from collections import Counter
from itertools import pairwise
from math import prod

import msgspec
from msgspec.structs import replace

from art_topology.passes.findings import Findings, listed
from art_topology.passes.hosts import HostTable
from art_topology.ranks import RankLayout
from art_topology.trainer import MegatronTopologyConfig, TrainerMeshSpec


class TrainerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is settled about the trainer: its layout, and the expert side even where the other is wrong.

    ``expert_layout`` has tp and cp 1.
    """

    layout: RankLayout | None = None
    expert_layout: RankLayout | None = None


def check_trainer(spec: TrainerMeshSpec, table: HostTable, findings: Findings) -> TrainerFacts:
    """Checks the mesh."""
    _check_virtual_stages(spec.parallel, findings)
    if _repeats_a_host(spec, findings):
        return TrainerFacts()
    _check_order(spec, table, findings)
    if _is_unequal(spec, findings):
        return TrainerFacts()
    return _divide(spec, findings)


def _check_virtual_stages(parallel: MegatronTopologyConfig, findings: Findings) -> None:
    vpp, group = parallel.vpp or 1, parallel.vpp_microbatch_group_size
    if vpp > 1 and parallel.pp == 1:
        findings.error(
            "ART-T307",
            "trainer.parallel.vpp",
            f"vpp={vpp} interleaves pipeline stages, but pp=1 has only one",
            "set pp above 1, or leave vpp out",
        )
    elif group is not None and vpp == 1:
        findings.error(
            "ART-T308",
            "trainer.parallel.vpp_microbatch_group_size",
            f"vpp_microbatch_group_size={group} has no meaning without virtual stages (vpp={parallel.vpp})",
            "set vpp above 1, or leave vpp_microbatch_group_size out",
        )
    elif group is not None and group < parallel.pp:
        findings.error(
            "ART-T308",
            "trainer.parallel.vpp_microbatch_group_size",
            f"vpp_microbatch_group_size={group} is below pp={parallel.pp}: the pipeline would run dry",
            f"use at least {parallel.pp}, or leave it out for {parallel.pp}",
        )


def _repeats_a_host(spec: TrainerMeshSpec, findings: Findings) -> bool:
    first: dict[str, int] = {}
    repeated = False
    for i, placement in enumerate(spec.placements):
        if placement.host_id in first:
            repeated = True
            findings.error(
                "ART-T301",
                f"trainer.placements[{i}].host_id",
                f"host {placement.host_id!r} has two trainer placements; the ranks of a host are consecutive",
                "merge them into one placement",
                [f"trainer.placements[{first[placement.host_id]}].host_id"],
            )
        first.setdefault(placement.host_id, i)
    return repeated


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
            ordered = [host_id for _, host_id, _ in sorted(known, key=lambda entry: entry[2])]
            findings.error(
                "ART-T303",
                f"trainer.placements[{i}]",
                f"host {host!r} (node rank {node}) comes after "
                f"host {host_before!r} (node rank {node_before})",
                f"list the placements in node order: {listed(ordered)}",
                [f"trainer.placements[{before}]"],
            )
            return


def _is_unequal(spec: TrainerMeshSpec, findings: Findings) -> bool:
    counts = [placement.process_count for placement in spec.placements]
    usual = Counter(counts).most_common(1)[0][0]
    odd = [i for i, count in enumerate(counts) if count != usual]
    if not odd:
        return False
    usual_host = spec.placements[counts.index(usual)].host_id
    findings.error(
        "ART-T302",
        f"trainer.placements[{odd[0]}]",
        f"host {spec.placements[odd[0]].host_id!r} has {counts[odd[0]]} trainer ranks "
        f"and host {usual_host!r} has {usual}",
        "place equally many ranks on every host",
        [f"trainer.placements[{i}]" for i in [*odd[1:], counts.index(usual)]],
    )
    return True


def _divide(spec: TrainerMeshSpec, findings: Findings) -> TrainerFacts:
    parallel = spec.parallel
    world = sum(placement.process_count for placement in spec.placements)
    if world % parallel.pp:
        findings.error(
            "ART-T304",
            "trainer.parallel.pp",
            f"{world} trainer ranks cannot be divided into pp={parallel.pp} pipeline stages",
            f"use a multiple of {parallel.pp} ranks, or another pp",
        )
        return TrainerFacts()
    stage = world // parallel.pp
    dense = _check_division("ART-T305", parallel, stage, ("tp", "cp"), findings)
    if not _check_division("ART-T306", parallel, stage, ("etp", "ep"), findings):
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
    if not dense:
        return TrainerFacts(expert_layout=expert_layout)
    dp = stage // (parallel.tp * parallel.cp)
    layout = replace(expert_layout, tp=parallel.tp, cp=parallel.cp, dp=dp)
    return TrainerFacts(layout=layout, expert_layout=expert_layout)


def _check_division(
    code: str, parallel: MegatronTopologyConfig, stage: int, axes: tuple[str, str], findings: Findings
) -> bool:
    sizes = [int(getattr(parallel, axis)) for axis in axes]
    unit = prod(sizes)
    if stage % unit == 0:
        return True
    widest = axes[sizes.index(max(sizes))]
    ranks = (
        f"{stage} trainer ranks" if parallel.pp == 1 else f"the {stage} ranks of each of {parallel.pp} stages"
    )
    findings.error(
        code,
        f"trainer.parallel.{widest}",
        f"{ranks} cannot be divided into groups of {axes[0]}*{axes[1]} = {sizes[0]}*{sizes[1]} = {unit}",
        f"use a multiple of {unit * parallel.pp} ranks in all, or smaller {axes[0]} and {axes[1]}",
    )
    return False
