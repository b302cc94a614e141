"""What the planner thinks of one layout."""

from art_topology.cluster import ClusterSpec
from art_topology.cost import Calibration
from art_topology.cost.trainer_costs import TrainerCosts, with_savings
from art_topology.hardware import HardwareTable
from art_topology.memory import trainer_memory
from art_topology.models import ModelDescription
from art_topology.passes.trainer_division import Mesh, trainer_faults
from art_topology.planner.fit import no_room, plan_of
from art_topology.planner.problem import MEMORY_MARGIN, Problem, problem_of
from art_topology.planner.results import Plan, PlannedLayout, RejectedLayout
from art_topology.planner.services import Served, serve
from art_topology.ranks import RankLayout
from art_topology.serving import ServedWeights
from art_topology.stages import stages_of
from art_topology.workload import WorkloadSpec


def explain_layout(
    layout: PlannedLayout,
    *,
    model: ModelDescription,
    cluster: ClusterSpec,
    workload: WorkloadSpec,
    hardware: HardwareTable | None = None,
    machine: str | None = None,
    memory_margin: float = MEMORY_MARGIN,
    gpu_memory_utilization: float = 0.9,
    calibration: Calibration | None = None,
    service_weights: ServedWeights = "auto",
) -> Plan | RejectedLayout:
    """What :func:`~art_topology.planner.plan` thinks of one layout: all that is known of it, or the first
    reason why it cannot run. Layouts that the search does not go through may be asked for too.

    Args:
        layout: The layout; its recomputation and offload replace the workload's.
        model: The model, trained and served.
        cluster: The hosts.
        workload: The step and its rollouts.
        hardware: The table to look GPUs up in; by default the package's.
        machine: Name of a node or GPU in that table; by default what the hosts say (``gpu_model``).
        memory_margin: Share of each GPU's memory that the trainer leaves free.
        gpu_memory_utilization: Share of each GPU's memory that the service may use.
        calibration: Other constants of the costs than the defaults.
        service_weights: How the service's weights are stored; by default as the model's configuration says.

    Raises:
        SpecError: the hosts have no GPU or slices of GPUs, differ, or name none that is in the table; or the
            sequences are longer than the model's context.
    """
    problem = problem_of(
        model,
        cluster,
        with_savings(workload, layout.recompute, layout.offload),
        hardware=hardware,
        machine=machine,
        savings=((layout.recompute, layout.offload),),
        memory_margin=memory_margin,
        gpu_memory_utilization=gpu_memory_utilization,
        calibration=calibration,
        service_weights=service_weights,
    )
    refused = _split_fault(problem, layout) or _trainer_fault(problem, layout)
    if refused is not None:
        return RejectedLayout(layout=layout, code=refused[0], reason=refused[1])
    split = layout.split
    served = serve(problem, split.service_hosts, split.service_gpus_per_host, layout.service)
    if not isinstance(served, Served):
        return RejectedLayout(layout=layout, code=served.code, reason=served.reason)
    ranks, stages = _ranks(layout), stages_of(layout.trainer, len(model.layers))
    group = layout.trainer.vpp_microbatch_group_size
    estimate = trainer_memory(model, ranks, stages, problem.workload, vpp_group=group)
    refused = no_room(problem, estimate, split.trainer_gpus_per_host)
    if refused is not None:
        return RejectedLayout(layout=layout, code=refused[0], reason=refused[1])
    costs = TrainerCosts(
        model,
        problem.workload,
        problem.machine,
        ranks_per_host=split.trainer_gpus_per_host,
        calibration=problem.calibration,
    )
    return plan_of(problem, layout, costs, ranks, stages, estimate, served)


def _split_fault(problem: Problem, layout: PlannedLayout) -> tuple[str, str] | None:
    split, per_host = layout.split, problem.gpus_per_host
    sizes = (
        split.trainer_hosts,
        split.trainer_gpus_per_host,
        split.service_hosts,
        split.service_gpus_per_host,
    )
    hosts = max(split.trainer_hosts, split.service_hosts)
    wanted = split.trainer_gpus_per_host + split.service_gpus_per_host
    if not split.shared:
        hosts = split.trainer_hosts + split.service_hosts
        wanted = max(split.trainer_gpus_per_host, split.service_gpus_per_host)
    if min(sizes) < 1 or hosts > problem.hosts or wanted > per_host:
        return (
            "split",
            f"{hosts} hosts with {wanted} GPUs each are needed, at least one for trainer and service; "
            f"the cluster has {problem.hosts} with {per_host}",
        )
    return None


def _trainer_fault(problem: Problem, layout: PlannedLayout) -> tuple[str, str] | None:
    """What the compiler would say of the trainer first."""
    mesh = Mesh(world=layout.trainer_gpus, per_host=layout.split.trainer_gpus_per_host, on_gpus=True)
    faults = trainer_faults(layout.trainer, mesh, problem.facts, problem.workload)
    return (faults[0].code, faults[0].message) if faults else None


def _ranks(layout: PlannedLayout) -> RankLayout:
    trainer = layout.trainer
    stage = layout.trainer_gpus // trainer.pp
    return RankLayout(
        tp=trainer.tp,
        cp=trainer.cp,
        dp=stage // (trainer.tp * trainer.cp),
        pp=trainer.pp,
        etp=trainer.etp,
        ep=trainer.ep,
        expert_dp=stage // (trainer.etp * trainer.ep),
    )
