"""The service's side of the search: its divisions, what is wrong with them, their memory and their speed."""

from itertools import product
from math import ceil

import msgspec

from art_topology.cost import RolloutCost, rollout_cost
from art_topology.memory import ServiceMemory, service_memory
from art_topology.passes.service_division import Crew, service_faults
from art_topology.planner.problem import Problem
from art_topology.serving import VllmParallelSpec

_MOST = 16
"""Widest tensor parallelism and most stages that are tried."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A division of the service that fits, with its memory and cost."""

    hosts: int
    per_host: int
    parallel: VllmParallelSpec
    memory: ServiceMemory
    cost: RolloutCost

    @property
    def gpus(self) -> int:
        """GPUs of the service."""
        return self.hosts * self.per_host

    @property
    def rollout_s(self) -> float:
        """The time of the rollouts of a step."""
        return self.cost.rollout_s


class ServiceRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """A division of the service that cannot run, and why; with how many bytes it lacks, where it is that."""

    parallel: VllmParallelSpec
    code: str
    reason: str
    lacks_bytes: float = 0


def service_divisions(problem: Problem, workers: int) -> list[VllmParallelSpec]:
    """Every division of so many workers, tp and pp being powers of two up to 16; with and without
    expert parallelism where there are experts."""
    sizes = [1 << power for power in range(_MOST.bit_length()) if workers % (1 << power) == 0]
    found = []
    for tp, pp in product(sizes, sizes):
        if workers % (tp * pp) == 0:
            for expert_parallel in (False, True) if problem.facts.experts else (False,):
                dp = workers // (tp * pp)
                found.append(VllmParallelSpec(tp=tp, pp=pp, dp=dp, expert_parallel=expert_parallel))
    return found


def serve(problem: Problem, hosts: int, per_host: int, parallel: VllmParallelSpec) -> Served | ServiceRefusal:
    """What one division comes to, or why it cannot run."""

    def refused(code: str, reason: str, lacks_bytes: float = 0) -> ServiceRefusal:
        return ServiceRefusal(parallel=parallel, code=code, reason=reason, lacks_bytes=lacks_bytes)

    crew = Crew(
        name="policy",
        path="services[0].parallel",
        workers=hosts * per_host,
        per_member=per_host,
        members=hosts,
        on_gpus=True,
    )
    faults = service_faults(parallel, crew, problem.served_facts)
    if faults:
        return refused(faults[0].code, faults[0].message)
    requests = ceil(problem.workload.requests_in_flight / parallel.dp)
    memory = service_memory(
        problem.served,
        parallel,
        problem.workload,
        problem.machine.gpu.memory_bytes,
        problem.utilization,
        max_num_seqs=min(requests, 1024),
    )
    if not memory.fits:
        gib, length = 2**30, problem.workload.prompt_tokens + problem.workload.completion_tokens
        return refused(
            "service-memory",
            f"weights of {memory.weight_bytes / gib:.1f} GiB and all else leave "
            f"{max(0, memory.kv_budget_bytes) / gib:.1f} of {problem.machine.gpu.memory_bytes / gib:.1f} GiB "
            f"for the KV cache; one sequence of {length:,} tokens needs "
            f"{memory.kv_bytes_per_sequence / gib:.1f} GiB",
            memory.kv_bytes_per_sequence - memory.kv_budget_bytes,
        )
    cost = rollout_cost(
        problem.served,
        parallel,
        problem.workload,
        problem.machine,
        workers_per_host=per_host,
        concurrent_sequences=memory.max_concurrent_sequences,
        calibration=problem.calibration,
    )
    return Served(hosts=hosts, per_host=per_host, parallel=parallel, memory=memory, cost=cost)
