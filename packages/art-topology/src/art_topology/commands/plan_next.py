"""What other clusters would do: what would work where no layout can run (other rows, more GPUs, or larger
ones), and how well fewer GPUs would be used; found by short searches."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from art_topology.cluster import ClusterSpec
from art_topology.commands.plan_inputs import made_up
from art_topology.commands.sources import CommandError
from art_topology.hardware import Machine
from art_topology.planner import plan
from art_topology.spec import SpecError
from art_topology.summary import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from art_topology.commands.plan_inputs import Asked
    from art_topology.planner import Plan, PlanReport
    from art_topology.workload import WorkloadSpec

MOST_GPUS = 4096
"""Up to so many GPUs it is tried whether more would do."""
MOST_S = 5.0
"""After so many seconds no further search begins."""
MOST_FEWER_S = 2.0
"""After so many seconds no further search on fewer GPUs begins."""
_FEW_HOSTS = 4
_BETTER = 1.02
"""By so much a score has to be larger to be worth a line."""
_LEAST_MARGIN = 0.01
"""A margin of memory that is tried where a larger one leaves nothing."""
_LONG = "ART-T902"
"""Of a sequence that no row holds."""
_LONGEST_ROW = 1 << 24


def next_steps(problem: Asked, report: PlanReport, trainer_gpus: int | None = None) -> tuple[str, ...]:
    """One sentence for each change with which something can run; one that says what was tried if there is
    none. Each changes one thing, the row's length first where sequences do not fit into it."""
    deadline = perf_counter() + MOST_S
    told: list[str] = []
    workload = problem.workload
    if any(found.code == _LONG for found in report.rejected):
        length = 1 << (workload.prompt_tokens + workload.completion_tokens - 1).bit_length()
        if workload.packed_sequence_length < length <= _LONGEST_ROW:
            workload = msgspec.structs.replace(workload, packed_sequence_length=length)
            told.append(
                f"sequences of {problem.workload.prompt_tokens:,} + {problem.workload.completion_tokens:,} "
                f"tokens need longer rows: --packed-length {length}"
            )
            if _runs(problem, problem.cluster, problem.machine_name, workload):
                return tuple(told)
    else:
        told += _without(problem, trainer_gpus)
        if told:
            return tuple(told)
    also = " with that" if told else ""
    gpus = problem.gpus
    for gpus, cluster in _larger(problem):
        if perf_counter() > deadline:
            break
        if _runs(problem, cluster, problem.machine_name, workload):
            kind = problem.machine.gpu.name
            hosts = counted(len(cluster.hosts), "host")
            told.append(f"{gpus:,} x {kind} ({hosts}) are enough{also}; the number was doubled until it ran")
            break
    for machine in _roomier(problem):
        if perf_counter() > deadline:
            break
        found = _made_up(machine, problem.gpus, None)
        if found is not None and _runs(problem, found, machine.name, workload):
            room = f"{machine.gpu.memory_bytes / 2**30:,.1f} GiB each"
            told.append(f"{problem.gpus:,} x {machine.gpu.name} ({room}) are enough{also}")
            break
    if not told:
        told.append(
            f"neither up to {gpus:,} x {problem.machine.gpu.name} nor as many larger GPUs help, as far as "
            f"was searched in {MOST_S:.0f} s: change the model or the workload as the reasons say"
        )
    return tuple(told)


def on_fewer(problem: Asked, report: PlanReport) -> Plan | None:
    """The plan with the highest score among the best ones on half the hosts, a quarter and so on, and then on
    half the GPUs of one; of at most four hosts, on every number. None where that is not better."""
    deadline, best = perf_counter() + MOST_FEWER_S, None
    for cluster in _smaller(problem.cluster):
        if perf_counter() > deadline:
            break
        found = _plans(problem, cluster, problem.machine_name, problem.workload)
        if not found:
            break
        if best is None or found[0].used_score > best.used_score:
            best = found[0]
    first = report.ranked[0]
    return best if best is not None and best.used_score > first.used_score * _BETTER else None


def _smaller(cluster: ClusterSpec) -> Iterator[ClusterSpec]:
    count = len(cluster.hosts)
    while count > 1:
        count = count - 1 if count <= _FEW_HOSTS else count // 2
        yield msgspec.structs.replace(cluster, hosts=cluster.hosts[:count])
    host = cluster.hosts[0]
    gpus = len(host.gpus) // 2
    while gpus > 1:
        yield msgspec.structs.replace(cluster, hosts=(msgspec.structs.replace(host, gpus=host.gpus[:gpus]),))
        gpus //= 2


def _without(problem: Asked, trainer_gpus: int | None) -> list[str]:
    """What was asked for that keeps the same GPUs from running anything."""
    replaced = msgspec.structs.replace
    tries = []
    if trainer_gpus is not None:
        tries.append((problem, f"without --trainer-gpus {trainer_gpus:,}"))
    if problem.recompute is not None or problem.offload is not None:
        workload = replaced(problem.workload, recompute="none", recompute_layers=None, offload=())
        free = replaced(problem, workload=workload, recompute=None, offload=None)
        tries.append((free, "with the recomputation and offload that the search finds"))
    if problem.memory_margin > _LEAST_MARGIN:
        small = replaced(problem, memory_margin=_LEAST_MARGIN)
        tries.append((small, f"with --memory-margin {_LEAST_MARGIN}, though tightly"))
    return [
        f"{how}, the same GPUs run it"
        for asked, how in tries
        if _runs(asked, asked.cluster, asked.machine_name, asked.workload)
    ]


def _larger(problem: Asked) -> Iterator[tuple[int, ClusterSpec]]:
    """The cluster with twice the GPUs, four times, and so on: hosts are filled first."""
    gpus = problem.gpus
    while gpus * 2 <= MOST_GPUS:
        gpus *= 2
        if found := _made_up(problem.machine, gpus, len(problem.cluster.hosts[0].gpus)):
            yield gpus, found


def _made_up(machine: Machine, gpus: int, per_host: int | None) -> ClusterSpec | None:
    """So many GPUs, on full hosts where that is possible; None where hosts would not be equal."""
    for each in (None, per_host):
        try:
            return made_up(machine, gpus, each)
        except CommandError:
            continue
    return None


def _roomier(problem: Asked) -> list[Machine]:
    """One machine for each GPU with more memory, the smallest first."""
    table, room = problem.hardware, problem.machine.gpu.memory_bytes
    gpus = {node.gpu: table.machine(name) for name, node in reversed(table.nodes.items())}
    found = [machine for machine in gpus.values() if machine.gpu.memory_bytes > room]
    return sorted(found, key=lambda machine: machine.gpu.memory_bytes)


def _runs(problem: Asked, cluster: ClusterSpec, machine: str, workload: WorkloadSpec) -> bool:
    return bool(_plans(problem, cluster, machine, workload))


def _plans(problem: Asked, cluster: ClusterSpec, machine: str, workload: WorkloadSpec) -> tuple[Plan, ...]:
    """The best plan, if there is any."""
    try:
        report = plan(
            model=problem.model,
            cluster=cluster,
            workload=workload,
            hardware=problem.hardware,
            machine=machine,
            limit=1,
            recompute=problem.recompute,
            offload=problem.offload,
            memory_margin=problem.memory_margin,
            service_weights=problem.service_weights,
        )
    except SpecError:
        return ()  # such as a single GPU, which is no cluster for trainer and service
    return report.ranked
