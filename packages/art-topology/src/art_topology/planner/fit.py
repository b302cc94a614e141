"""Whether a trainer's rank fits, and the plan of what does."""

from art_topology.cost import loop_cost
from art_topology.cost.trainer_costs import TrainerCosts
from art_topology.cost.trainer_step import explained
from art_topology.memory import MemoryEstimate
from art_topology.planner.problem import Problem
from art_topology.planner.results import Plan, PlannedLayout
from art_topology.planner.services import Served
from art_topology.ranks import RankLayout
from art_topology.stages import StageLayout


def no_room(problem: Problem, estimate: MemoryEstimate, ranks_per_host: int) -> tuple[str, str] | None:
    """Why ranks with these needs do not fit; a code and a sentence, None if they do."""
    if estimate.total_bytes > problem.memory_limit_bytes:
        return "trainer-memory", too_large(problem, estimate.total_bytes)
    if estimate.host_bytes * ranks_per_host > problem.host_limit_bytes:
        return "host-memory", _too_much_offload(problem, estimate, ranks_per_host)
    return None


def too_large(problem: Problem, needed: float) -> str:
    """Why a rank does not fit into its GPU."""
    gib, gpu = 2**30, problem.machine.gpu
    need, room = _apart(needed / gib, problem.memory_limit_bytes / gib)
    how = "" if len(problem.savings) == 1 else " with every recomputation and offload"
    return (
        f"a rank needs at least {need} GiB{how}, and may fill {room} of the {gpu.memory_bytes / gib:,.1f} "
        f"GiB of a {gpu.name}"
    )


def _too_much_offload(problem: Problem, estimate: MemoryEstimate, ranks_per_host: int) -> str:
    gib, machine = 2**30, problem.machine
    need, room = _apart(estimate.host_bytes * ranks_per_host / gib, problem.host_limit_bytes / gib)
    return (
        f"{ranks_per_host} ranks of a host offload {estimate.host_bytes / gib:,.1f} GiB each, {need} in all, "
        f"and may fill {room} of the {(machine.host_memory_bytes or 0) / gib:,.1f} GiB of "
        f"a {machine.name}"
    )


def _apart(needed: float, room: float) -> tuple[str, str]:
    """Both numbers with as many digits as it takes to see that one is larger, at most six."""
    return next(
        told
        for digits in range(1, 7)
        if (told := (f"{needed:,.{digits}f}", f"{room:,.{digits}f}"))[0] != told[1] or digits == 6
    )


def plan_of(
    problem: Problem,
    layout: PlannedLayout,
    costs: TrainerCosts,
    ranks: RankLayout,
    stages: StageLayout,
    estimate: MemoryEstimate,
    served: Served,
) -> Plan:
    """A layout that fits, with all that is known of it."""
    return Plan(
        layout=layout,
        workload=costs.workload,
        trainer_memory=estimate,
        service_memory=served.memory,
        gpu_memory_utilization=problem.utilization,
        service_weights=problem.service_weights,
        cost=loop_cost(
            problem.model,
            problem.workload,
            problem.machine,
            explained(costs, ranks, stages),
            served.cost,
            provisioned_gpus=problem.gpus,
            calibration=problem.calibration,
        ),
    )
