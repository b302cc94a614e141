"""Placement: which processes get which GPU or CPU slot of which host."""

from collections.abc import Sequence

import msgspec

from art_topology.cluster import CpuPlacement, GpuPlacement
from art_topology.passes.findings import Findings, listed
from art_topology.passes.hosts import HostTable
from art_topology.serving import ModelServiceSpec
from art_topology.spec import GpuId
from art_topology.trainer import TrainerMeshSpec


class PlacedPart(msgspec.Struct, frozen=True):
    """A placement and its path in the input."""

    path: str
    placement: GpuPlacement | CpuPlacement


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer or one service, as placement sees it."""

    label: str
    path: str
    parts: tuple[PlacedPart, ...]

    @property
    def host_ids(self) -> frozenset[str]:
        """The hosts it names."""
        return frozenset(part.placement.host_id for part in self.parts)

    @property
    def device_kinds(self) -> frozenset[type]:
        """The kinds of placement it has; one unless ART-T205 was reported."""
        return frozenset(type(part.placement) for part in self.parts)


def workloads_of(
    trainer: TrainerMeshSpec | None, services: Sequence[ModelServiceSpec]
) -> tuple[Workload, ...]:
    """Everything that has placements, the trainer first."""
    found = []
    if trainer is not None:
        parts = tuple(PlacedPart(f"trainer.placements[{i}]", p) for i, p in enumerate(trainer.placements))
        found.append(Workload(label="the trainer", path="trainer.placements", parts=parts))
    for k, service in enumerate(services):
        parts = tuple(
            PlacedPart(f"services[{k}].members[{i}].placement", member.placement)
            for i, member in enumerate(service.members)
        )
        label = f"service {service.name!r}"
        found.append(Workload(label=label, path=f"services[{k}].members", parts=parts))
    return tuple(found)


def check_placements(table: HostTable, workloads: Sequence[Workload], findings: Findings) -> None:
    """Checks all placements against the hosts and against each other."""
    for workload in workloads:
        _check_hosts_exist(table, workload, findings)
        _check_one_kind(workload, findings)
    _check_gpus(table, workloads, findings)
    _check_cpu_slots(table, workloads, findings)


def _check_hosts_exist(table: HostTable, workload: Workload, findings: Findings) -> None:
    if not table.ids_are_unique:
        return
    for part in workload.parts:
        if part.placement.host_id not in table.indices:
            findings.error(
                "ART-T201",
                f"{part.path}.host_id",
                f"{workload.label} is placed on host {part.placement.host_id!r}, which is not in the cluster",
                f"name one of {listed(list(table.indices))}, or add the host to cluster.hosts",
            )


def _check_one_kind(workload: Workload, findings: Findings) -> None:
    if len(workload.device_kinds) < 2:
        return
    odd = next(
        part for part in workload.parts if type(part.placement) is not type(workload.parts[0].placement)
    )
    findings.error(
        "ART-T205",
        odd.path,
        f"{workload.label} has processes on GPUs and processes on CPU slots",
        "place all of them on GPUs or all of them on CPU slots",
        [workload.parts[0].path],
    )


def _check_gpus(table: HostTable, workloads: Sequence[Workload], findings: Findings) -> None:
    owners: dict[tuple[str, GpuId], tuple[Workload, PlacedPart]] = {}
    for workload in workloads:
        for part in workload.parts:
            host = table.get(part.placement.host_id)
            if host is None or isinstance(part.placement, CpuPlacement):
                continue
            unknown = [gpu for gpu in part.placement.gpus if gpu not in host.gpus]
            if unknown:
                findings.error(
                    "ART-T202",
                    f"{part.path}.gpus",
                    f"host {host.host_id!r} has no GPU {listed(unknown)}; it has "
                    f"{listed(host.gpus) if host.gpus else 'none'}",
                    f"use GPUs that host {host.host_id!r} lists, by the same index or UUID",
                    [f"cluster.hosts[{table.indices[host.host_id]}].gpus"],
                )
            _claim_gpus(
                workload, part, [g for g in part.placement.gpus if g not in unknown], owners, findings
            )


def _claim_gpus(
    workload: Workload,
    part: PlacedPart,
    gpus: Sequence[GpuId],
    owners: dict[tuple[str, GpuId], tuple[Workload, PlacedPart]],
    findings: Findings,
) -> None:
    host_id = part.placement.host_id
    taken: dict[str, tuple[Workload, list[GpuId]]] = {}
    for gpu in gpus:
        if (host_id, gpu) in owners:
            owner, owner_part = owners[host_id, gpu]
            taken.setdefault(owner_part.path, (owner, []))[1].append(gpu)
        else:
            owners[host_id, gpu] = (workload, part)
    for owner_path, (owner, shared) in taken.items():
        noun = "GPU" if len(shared) == 1 else "GPUs"
        findings.error(
            "ART-T203",
            f"{part.path}.gpus",
            f"{noun} {listed(shared)} of host {host_id!r} would run a process of {owner.label} and one of "
            f"{workload.label}"
            if owner is not workload
            else f"{noun} {listed(shared)} of host {host_id!r} would run two processes of {workload.label}",
            "give every process a GPU of its own",
            [f"{owner_path}.gpus"] if owner_path != part.path else [],
        )


def _check_cpu_slots(table: HostTable, workloads: Sequence[Workload], findings: Findings) -> None:
    wanted: dict[str, int] = {}
    paths: dict[str, list[str]] = {}
    for part in (part for workload in workloads for part in workload.parts):
        if isinstance(part.placement, CpuPlacement):
            host_id = part.placement.host_id
            wanted[host_id] = wanted.get(host_id, 0) + part.placement.slots
            paths.setdefault(host_id, []).append(f"{part.path}.slots")
    for host_id, slots in wanted.items():
        host = table.get(host_id)
        if host is not None and slots > host.cpu_slots:
            findings.error(
                "ART-T204",
                f"cluster.hosts[{table.indices[host_id]}].cpu_slots",
                f"host {host_id!r} has {host.cpu_slots} CPU slots, but {slots} are placed on it",
                "raise cpu_slots of the host, or place fewer processes on it",
                paths[host_id],
            )
    offered = sum(host.cpu_slots for host in table.cluster.hosts)
    if workloads and not findings.has_errors and sum(wanted.values()) == offered:
        findings.warning(
            "ART-T206",
            "cluster.hosts",
            f"trainer and services take all {offered} CPU slots of the cluster: rollout workers have no place"
            if offered
            else "no host of the cluster has a CPU slot: rollout workers have no place",
            "raise cpu_slots if programs run rollouts in worker processes",
        )
