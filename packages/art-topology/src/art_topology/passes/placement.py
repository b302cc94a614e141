"""Placement: which processes get which GPU or CPU slot of which host."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from art_topology.cluster import CpuPlacement, GpuPlacement, HostSpec
from art_topology.gpus import gpu_key, is_slice
from art_topology.passes.findings import Findings, Suggestion, closest, listed
from art_topology.passes.hosts import HostTable
from art_topology.passes.workloads import Workload
from art_topology.spec import GpuId

_MOST_GUESSES = 20
"""Host names that are compared with those of the cluster: with many, another cluster is meant."""

type _Placed = tuple[Workload, int, GpuPlacement]
"""A placement, as a workload and an index."""


def check_placements(
    table: HostTable,
    workloads: Sequence[Workload],
    findings: Findings,
    meant: Mapping[str, tuple[GpuId, ...]],
) -> None:
    """Checks all placements against the hosts and against each other; ``meant`` are GPUs of hosts that stand
    there under another's index, which has been reported."""
    for workload in workloads:
        _check_hosts_exist(table, workload, findings)
        _check_one_kind(workload, findings)
        _check_slices(workload, findings)
    _check_gpus(table, workloads, findings, meant)
    _check_cpu_slots(table, workloads, findings)


def check_leftovers(table: HostTable, workloads: Sequence[Workload], findings: Findings) -> None:
    """Checks what is worth a second look only in a topology without errors."""
    if not workloads or findings.has_errors:
        return
    _check_free_slots(table, workloads, findings)
    taking_turns = [workload for workload in workloads if workload.takes_turns]
    if not taking_turns:
        return
    trained = {gpu for workload in workloads if workload.service is None for gpu in _gpus_of(workload)}
    for workload in taking_turns:
        if trained.isdisjoint(_gpus_of(workload)):
            path = f"services[{workload.service}].temporal_sharing"
            findings.report(
                "ART-T208",
                path,
                f"{workload.label} takes turns with the trainer, but shares no GPU with it",
                "leave temporal_sharing out, so that both run at the same time",
                suggestion=(path, False),
            )


def _gpus_of(workload: Workload) -> Iterator[tuple[str, GpuId]]:
    """Its GPUs, as host and key."""
    for placement in workload.placements:
        if isinstance(placement, GpuPlacement):
            yield from ((placement.host_id, gpu_key(gpu)) for gpu in placement.gpus)


def _check_hosts_exist(table: HostTable, workload: Workload, findings: Findings) -> None:
    if not table.ids_are_unique:
        return
    missing = 0
    for i, placement in enumerate(workload.placements):
        if placement.host_id in table.indices:
            continue
        missing += 1
        path = f"{workload.path_of(i)}.host_id"
        better = closest(placement.host_id, table.names) if missing <= _MOST_GUESSES else None
        findings.report(
            "ART-T201",
            path,
            f"{workload.label} is placed on host {placement.host_id!r}, which is not in the cluster",
            f"write {better!r}"
            if better is not None
            else f"name one of {listed(table.names)}, or add the host to cluster.hosts",
            suggestion=(path, better) if better is not None else None,
        )


def _check_one_kind(workload: Workload, findings: Findings) -> None:
    if len(workload.device_kinds) < 2:
        return
    first = type(workload.placements[0])
    odd = next(i for i, placement in enumerate(workload.placements) if type(placement) is not first)
    findings.report(
        "ART-T205",
        workload.path_of(odd),
        f"{workload.label} has processes on GPUs and processes on CPU slots",
        "place all of them on GPUs or all of them on CPU slots",
        [workload.path_of(0)],
    )


def _check_slices(workload: Workload, findings: Findings) -> None:
    if workload.process_count < 2:
        return
    for i, placement in enumerate(workload.placements):
        if isinstance(placement, GpuPlacement) and any(is_slice(gpu) for gpu in placement.gpus):
            findings.report(
                "ART-T207",
                f"{workload.path_of(i)}.gpus",
                f"{workload.label} has {workload.process_count} processes that communicate by NCCL, and some "
                "run on MIG slices, between which there is no peer-to-peer transport",
                "place it on whole GPUs, or make it one process",
            )
            return


def _check_gpus(
    table: HostTable,
    workloads: Sequence[Workload],
    findings: Findings,
    meant: Mapping[str, tuple[GpuId, ...]],
) -> None:
    by_host: dict[str, list[_Placed]] = {}
    for workload in workloads:
        for i, placement in enumerate(workload.placements):
            if isinstance(placement, GpuPlacement):
                by_host.setdefault(placement.host_id, []).append((workload, i, placement))
    for host_id, placed in by_host.items():
        host = table.get(host_id)
        if host is not None and not _is_plain(host, placed):
            _check_gpus_of(table, host, placed, findings, meant.get(host_id, ()))


def _is_plain(host: HostSpec, placed: list[_Placed]) -> bool:
    """Whether the host's GPUs are given out once, by a look that costs nothing for each GPU."""
    wanted: list[GpuId] = []
    for _, _, placement in placed:
        wanted += placement.gpus
    return len(set(wanted)) == len(wanted) and set(wanted) <= set(host.gpus)


def _check_gpus_of(
    table: HostTable, host: HostSpec, placed: list[_Placed], findings: Findings, meant: tuple[GpuId, ...]
) -> None:
    offered = {gpu_key(gpu) for gpu in (*host.gpus, *meant)}
    wanted = {gpu_key(gpu) for _, _, placement in placed for gpu in placement.gpus}
    free = [gpu for gpu in host.gpus if gpu_key(gpu) not in wanted]
    owners: dict[GpuId, list[tuple[Workload, int]]] = {}
    for workload, i, placement in placed:
        path = f"{workload.path_of(i)}.gpus"
        unknown = {k: gpu for k, gpu in enumerate(placement.gpus) if gpu_key(gpu) not in offered}
        if unknown:
            better = _replaced(path, placement, unknown.keys(), free)
            findings.report(
                "ART-T202",
                path,
                f"host {host.host_id!r} has no GPU {listed([*unknown.values()])}; it has "
                f"{listed(host.gpus) if host.gpus else 'none'}",
                f"use GPUs that host {host.host_id!r} lists, by the same index or UUID" + _instead(better),
                [f"cluster.hosts[{table.indices[host.host_id]}].gpus"],
                better,
            )
        _claim(workload, i, placement, offered, free, owners, findings, placed)


def _replaced(path: str, placement: GpuPlacement, places: Collection[int], free: list[GpuId]) -> Suggestion:
    """The placement with free GPUs at ``places``, if there are enough; they are not offered again."""
    if len(places) > len(free):
        return None
    fresh = iter(free[: len(places)])
    gpus = [next(fresh) if k in places else gpu for k, gpu in enumerate(placement.gpus)]
    del free[: len(places)]
    return path, gpus


def _instead(suggestion: Suggestion) -> str:
    return "" if suggestion is None else f", such as {suggestion[1]}"


def _claim(
    workload: Workload,
    index: int,
    placement: GpuPlacement,
    offered: set[GpuId],
    free: list[GpuId],
    owners: dict[GpuId, list[tuple[Workload, int]]],
    findings: Findings,
    placed: list[_Placed],
) -> None:
    taken: dict[tuple[Workload, int], list[int]] = {}
    for k, gpu in enumerate(placement.gpus):
        key = gpu_key(gpu)
        if key not in offered:
            continue
        holders = owners.setdefault(key, [])
        rival = next((holder for holder in holders if not holder[0].may_share(workload)), None)
        if rival is None:
            holders.append((workload, index))
        else:
            taken.setdefault(rival, []).append(k)
    path = f"{workload.path_of(index)}.gpus"
    for (owner, owner_index), places in taken.items():
        shared = [placement.gpus[k] for k in places]
        better = _replaced(path, placement, set(places), free) if len(taken) == 1 else None
        hint = "give every process a GPU of its own" + _instead(better)
        service = workload.service if owner.service is None else owner.service
        if better is None and _could_take_turns(owner, workload, shared, placed):
            better = (f"services[{service}].temporal_sharing", True)
            hint += ", or let service and trainer take turns: temporal_sharing = true"
        noun = "GPU" if len(shared) == 1 else "GPUs"
        who = (
            f"two processes of {workload.label}"
            if owner is workload
            else f"a process of {owner.label} and one of {workload.label}"
        )
        same = owner is workload and owner_index == index
        findings.report(
            "ART-T203",
            path,
            f"{noun} {listed(shared)} of host {placement.host_id!r} would run {who}",
            hint,
            [] if same else [f"{owner.path_of(owner_index)}.gpus"],
            better,
        )


def _could_take_turns(
    one: Workload, other: Workload, shared: Collection[GpuId], placed: list[_Placed]
) -> bool:
    """Whether nobody but one process of the trainer and one of a service wants each of these GPUs."""
    if (one.service is None) == (other.service is None):
        return False
    keys = {gpu_key(gpu) for gpu in shared}
    wanted = [
        (workload.service, gpu_key(gpu))
        for workload, _, placement in placed
        for gpu in placement.gpus
        if gpu_key(gpu) in keys
    ]
    return len(wanted) == 2 * len(keys) and {service for service, _ in wanted} == {one.service, other.service}


def _cpu_parts(workloads: Sequence[Workload]) -> Iterator[tuple[str, CpuPlacement]]:
    for workload in workloads:
        for i, placement in enumerate(workload.placements):
            if isinstance(placement, CpuPlacement):
                yield f"{workload.path_of(i)}.slots", placement


def _check_cpu_slots(table: HostTable, workloads: Sequence[Workload], findings: Findings) -> None:
    wanted: dict[str, int] = {}
    paths: dict[str, list[str]] = {}
    for path, placement in _cpu_parts(workloads):
        wanted[placement.host_id] = wanted.get(placement.host_id, 0) + placement.slots
        paths.setdefault(placement.host_id, []).append(path)
    for host_id, slots in wanted.items():
        host = table.get(host_id)
        if host is not None and slots > host.cpu_slots:
            path = f"cluster.hosts[{table.indices[host_id]}].cpu_slots"
            findings.report(
                "ART-T204",
                path,
                f"host {host_id!r} has {host.cpu_slots} CPU slots, but {slots} are placed on it",
                f"raise cpu_slots of the host to {slots}, or place fewer processes on it",
                paths[host_id],
                (path, slots),
            )


def _check_free_slots(table: HostTable, workloads: Sequence[Workload], findings: Findings) -> None:
    offered = sum(host.cpu_slots for host in table.cluster.hosts)
    if sum(placement.slots for _, placement in _cpu_parts(workloads)) < offered:
        return
    first = table.cluster.hosts[0]
    findings.report(
        "ART-T206",
        "cluster.hosts",
        f"trainer and services take all {offered} CPU slots of the cluster: rollout workers have no place"
        if offered
        else "no host of the cluster has a CPU slot: rollout workers have no place",
        f"raise cpu_slots if programs run rollouts in worker processes, such as to {first.cpu_slots + 1} on "
        f"host {first.host_id!r}",
        suggestion=("cluster.hosts[0].cpu_slots", first.cpu_slots + 1),
    )
