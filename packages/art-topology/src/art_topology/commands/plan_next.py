"""What other clusters would do: what would work where no layout can run (other rows, more GPUs, or larger
ones), and how well fewer GPUs would be used; found by short searches."""

from __future__ import annotations

from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from art_topology.cluster import ClusterSpec
from art_topology.commands.plan_inputs import made_up
from art_topology.commands.sources import CommandError
from art_topology.hardware import Machine
from art_topology.passes.findings import joined
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
    enough, tried = _enough(problem, workload, deadline)
    if enough is not None:
        gpus = sum(len(host.gpus) for host in enough.hosts)
        hosts = counted(len(enough.hosts), "host")
        fewest = f": the fewest of {_listed(tried)}, which were tried" if len(tried) > 1 else ""
        told.append(f"{gpus:,} x {problem.machine.gpu.name} ({hosts}) are enough{also}{fewest}")
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
            f"neither up to {max(tried, default=problem.gpus):,} x {problem.machine.gpu.name} nor as many "
            f"larger GPUs help, as far as was searched in {MOST_S:.0f} s: change the model or the workload "
            "as the reasons say"
        )
    return tuple(told)


def on_fewer(problem: Asked, report: PlanReport) -> Plan | None:
    """The plan with the highest score among the best ones on smaller clusters, whatever the size of this one:
    of so many hosts as are in :func:`sizes`, and of so many GPUs of one host, the smallest first. None where
    that is not better."""
    deadline, best = perf_counter() + MOST_FEWER_S, None
    for cluster in _smaller(problem.cluster):
        if perf_counter() > deadline:
            break
        found = _plans(problem, cluster, problem.machine_name, problem.workload)
        if found and (best is None or found[0].used_score > best.used_score):
            best = found[0]
    first = report.ranked[0]
    return best if best is not None and best.used_score > first.used_score * _BETTER else None


def sizes(most: int, *, between: int) -> Iterator[int]:
    """1, 2, 4, 8 and so on, and so many numbers ``between`` two of them, or all where there are fewer; below
    ``most``."""
    power = 1
    while power < most:
        steps = min(power, between + 1)
        yield from (size for k in range(steps) if (size := power + power * k // steps) < most)
        power *= 2


def _smaller(cluster: ClusterSpec) -> Iterator[ClusterSpec]:
    host = cluster.hosts[0]
    for gpus in sizes(len(host.gpus), between=1):
        if gpus > 1:
            part = msgspec.structs.replace(host, gpus=host.gpus[:gpus])
            yield msgspec.structs.replace(cluster, hosts=(part,))
    for count in sizes(len(cluster.hosts), between=1):
        yield msgspec.structs.replace(cluster, hosts=cluster.hosts[:count])


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


def _enough(
    problem: Asked, workload: WorkloadSpec, deadline: float
) -> tuple[ClusterSpec | None, tuple[int, ...]]:
    """The smallest larger cluster that runs it, and the numbers of GPUs that were tried: the powers of two,
    then what lies before the first of them that runs."""
    hosts = problem.machine.gpus_per_host
    ladder = [size for size in sizes(hosts, between=0) if size > 1]
    ladder += [hosts * size for size in sizes(MOST_GPUS // hosts + 1, between=3)]
    ladder = [gpus for gpus in ladder if gpus > problem.gpus]
    coarse = [gpus for gpus in ladder if gpus < hosts or (gpus // hosts).bit_count() == 1]
    tried: dict[int, ClusterSpec | None] = {}

    def runs(gpus: int) -> bool:
        found = _made_up(problem.machine, gpus, len(problem.cluster.hosts[0].gpus))
        runs = found is not None and _runs(problem, found, problem.machine_name, workload)
        tried[gpus] = found if runs else None
        return runs

    in_time = takewhile(lambda _: perf_counter() <= deadline, coarse)
    upper = next((gpus for gpus in in_time if runs(gpus)), None)
    if upper is not None:
        lower = max((gpus for gpus in tried if gpus != upper), default=problem.gpus)
        within = takewhile(lambda _: perf_counter() <= deadline, [g for g in ladder if lower < g < upper])
        upper = next((gpus for gpus in within if runs(gpus)), upper)
    return (tried[upper] if upper is not None else None), tuple(sorted(tried))


def _listed(numbers: tuple[int, ...]) -> str:
    return joined([f"{number:,}" for number in numbers])


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
