"""The planner: which layouts of trainer and service a cluster can run, and which is the fastest.

Every result says why it has the place it has, and every layout that is not among the results has a reason.
"""

import msgspec

from art_topology.cluster import ClusterSpec
from art_topology.cost import LoopCost
from art_topology.files import TopologySpec
from art_topology.hardware import HardwareTable
from art_topology.memory import MemoryEstimate, ServiceMemory
from art_topology.models import ModelDescription
from art_topology.serving import VllmParallelSpec
from art_topology.trainer import MegatronTopologyConfig
from art_topology.workload import WorkloadSpec

__all__ = ["Plan", "PlanReport", "PlannedLayout", "RejectedLayout", "RejectionCount", "explain_layout", "plan"]


class PlannedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A division of the cluster: what the search goes through.

    Args:
        trainer: How Megatron divides the model.
        trainer_gpus: GPUs of the trainer.
        service: How vLLM divides the model.
        service_gpus: GPUs of the service; ``service.world_size`` of them.
        recompute: Activations that are computed again; overrides the workload's.
        offload: What lies in host memory; overrides the workload's.
    """

    trainer: MegatronTopologyConfig
    trainer_gpus: int
    service: VllmParallelSpec
    service_gpus: int
    recompute: str
    offload: tuple[str, ...]


class RejectedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A layout that cannot run, and the first reason: a stable ``code`` and a sentence with the numbers."""

    layout: PlannedLayout
    code: str
    reason: str


class RejectionCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many layouts fail for one reason, with an example."""

    code: str
    count: int
    example: RejectedLayout


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One feasible layout with everything that is known of it."""

    layout: PlannedLayout
    trainer_memory: MemoryEstimate
    service_memory: ServiceMemory
    cost: LoopCost

    @property
    def score(self) -> float:
        """Accepted tokens per second per GPU."""
        return self.cost.score

    def topology(self, cluster: ClusterSpec, *, base_model: str, service_name: str = "policy") -> TopologySpec:
        """The specification of this plan on ``cluster``; it compiles without a diagnostic."""
        raise NotImplementedError


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the search found.

    Args:
        ranked: The best feasible layouts, best first.
        rejected: The others by first reason, most frequent first.
        searched: Layouts that were considered.
        feasible: Layouts that can run.
        duration_s: How long the search took, in seconds.
    """

    ranked: tuple[Plan, ...]
    rejected: tuple[RejectionCount, ...]
    searched: int
    feasible: int
    duration_s: float


def plan(
    *,
    model: ModelDescription,
    cluster: ClusterSpec,
    workload: WorkloadSpec,
    hardware: HardwareTable | None = None,
    machine: str | None = None,
    trainer_gpus: int | None = None,
    limit: int = 20,
) -> PlanReport:
    """Searches the layouts of trainer and service together.

    Args:
        model: The model, trained and served.
        cluster: The hosts; their GPUs are of one kind.
        workload: The step and its rollouts.
        hardware: The table to look GPUs up in; by default the package's.
        machine: Name of a node or GPU in that table; by default what the hosts say (``gpu_model``).
        trainer_gpus: GPUs for the trainer; by default the search decides.
        limit: How many results to return.

    Raises:
        SpecError: the hosts have no GPU, differ, or name none that is in the table.
    """
    raise NotImplementedError


def explain_layout(
    layout: PlannedLayout,
    *,
    model: ModelDescription,
    cluster: ClusterSpec,
    workload: WorkloadSpec,
    hardware: HardwareTable | None = None,
    machine: str | None = None,
) -> Plan | RejectedLayout:
    """What :func:`plan` thinks of one layout: its costs, or the first reason why it cannot run."""
    raise NotImplementedError
