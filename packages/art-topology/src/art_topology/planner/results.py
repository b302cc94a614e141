"""What the planner answers with."""

from typing import Literal

import msgspec

from art_topology.cluster import ClusterSpec
from art_topology.cost import LoopCost
from art_topology.files import TopologySpec
from art_topology.memory import MemoryEstimate, ServiceMemory
from art_topology.planner.topology import topology_of
from art_topology.serving import ServedWeights, VllmParallelSpec
from art_topology.trainer import MegatronTopologyConfig
from art_topology.workload import Offload, Recompute, WorkloadSpec


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """How the GPUs are divided between trainer and service. The trainer has the first hosts in node order.

    Args:
        trainer_hosts: Hosts of the trainer.
        trainer_gpus_per_host: Its GPUs on each of them, the first ones.
        service_hosts: Hosts of the service: those after the trainer's, or the same with ``shared``.
        service_gpus_per_host: Its GPUs on each of them, the last ones.
        shared: Each host has GPUs of both.
    """

    trainer_hosts: int
    trainer_gpus_per_host: int
    service_hosts: int
    service_gpus_per_host: int
    shared: bool = False

    @property
    def trainer_gpus(self) -> int:
        """GPUs of the trainer."""
        return self.trainer_hosts * self.trainer_gpus_per_host

    @property
    def service_gpus(self) -> int:
        """GPUs of the service."""
        return self.service_hosts * self.service_gpus_per_host


class PlannedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One layout that the search considers.

    Args:
        split: How the GPUs are divided.
        trainer: How Megatron divides the model.
        service: How vLLM divides the model.
        recompute: Activations that are computed again, in place of the workload's.
        offload: What lies in host memory, in place of the workload's.
    """

    split: Split
    trainer: MegatronTopologyConfig
    service: VllmParallelSpec
    recompute: Recompute = "none"
    offload: tuple[Offload, ...] = ()

    @property
    def trainer_gpus(self) -> int:
        """GPUs of the trainer."""
        return self.split.trainer_gpus

    @property
    def service_gpus(self) -> int:
        """GPUs of the service."""
        return self.split.service_gpus

    @property
    def dp(self) -> int:
        """Data-parallel ranks of the trainer."""
        return self.trainer_gpus // (self.trainer.tp * self.trainer.cp * self.trainer.pp)

    @property
    def name(self) -> str:
        """Such as "16 x CP8/EP8/DP2, recompute full + 8 x TP8"."""
        trainer, service = self.trainer, self.service
        axes = [("TP", trainer.tp), ("CP", trainer.cp), ("EP", trainer.ep), ("ETP", trainer.etp)]
        axes += [("PP", trainer.pp), ("VPP", trainer.vpp or 1), ("DP", self.dp)]
        served = [("TP", service.tp), ("PP", service.pp), ("DP", service.dp)]
        words = [f"{self.trainer_gpus} x {_axes(axes)}"]
        if self.recompute != "none":
            words[0] += f", recompute {self.recompute}"
        if self.offload:
            words[0] += f", offload {' and '.join(self.offload)}"
        words.append(f"{self.service_gpus} x {_axes(served)}" + (" EP" if service.expert_parallel else ""))
        return " + ".join(words)


def _axes(axes: list[tuple[str, int]]) -> str:
    return "/".join(f"{name}{size}" for name, size in axes if size > 1) or "one copy"


class RejectedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A layout that cannot run, and the first reason.

    Args:
        layout: The layout; an example for one side has the other side's simplest.
        code: The compiler's code where the compiler would refuse it, otherwise "trainer-memory",
            "service-memory", "host-memory" or "split".
        reason: A sentence with the numbers.
    """

    layout: PlannedLayout
    code: str
    reason: str


Side = Literal["trainer", "service"]
"""What a division is of."""


class RejectionCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many divisions of one side fail for one reason, with an example.

    Args:
        side: "trainer" or "service".
        code: As in :class:`RejectedLayout`.
        count: Divisions of that side, over all splits.
        example: Of layouts that memory keeps from running the one that lacks least, otherwise the first.
    """

    side: Side
    code: str
    count: int
    example: RejectedLayout


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One feasible layout with everything that is known of it.

    Args:
        layout: The layout.
        workload: The workload with the layout's recomputation and offload.
        trainer_memory: Of the trainer's fullest rank.
        service_memory: Of the service's fullest worker.
        cost: Of one step of the loop.
        gpu_memory_utilization: Share of each GPU's memory that the service may use.
        service_weights: How the service's weights are stored; ``auto``: as the model's configuration says.
    """

    layout: PlannedLayout
    workload: WorkloadSpec
    trainer_memory: MemoryEstimate
    service_memory: ServiceMemory
    cost: LoopCost
    gpu_memory_utilization: float = 0.9
    service_weights: ServedWeights = "auto"

    @property
    def score(self) -> float:
        """Accepted tokens per second per GPU of the cluster."""
        return self.cost.score

    @property
    def used_gpus(self) -> int:
        """GPUs of trainer and service; the cluster's others are unused."""
        return self.layout.trainer_gpus + self.layout.service_gpus

    @property
    def unused_gpus(self) -> int:
        """GPUs of the cluster that neither trainer nor service has."""
        return self.cost.gpus - self.used_gpus

    @property
    def used_score(self) -> float:
        """Accepted tokens per second per GPU that is used: the score on a cluster of just these."""
        return self.cost.accepted_tokens_per_s / self.used_gpus

    def topology(
        self, cluster: ClusterSpec, *, base_model: str, service_name: str = "policy"
    ) -> TopologySpec:
        """The specification of this plan on the cluster it was made for. It compiles without a diagnostic
        that the cluster itself does not already have, but for a warning where memory is tight. Transports
        that it needs are added where the cluster names none: NCCL over "IB", and NIXL with a managed store
        if experts are on several hosts.

        Args:
            cluster: The cluster of the search.
            base_model: Hugging Face name or folder of the model.
            service_name: Name of the service.
        """
        return topology_of(self, cluster, base_model, service_name)


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the search found.

    Args:
        ranked: The best feasible layouts, best first; the order is by ``score``, then by fewer used GPUs,
            then by the shorter sum of training and rollout.
        rejected: Divisions of one side that cannot run, by first reason, most frequent first.
        searched: Divisions of the trainer and of the service that were considered, over all splits.
        outranked: Those of the trainer that cannot be better than ``ranked`` by their arithmetic alone, so
            that their memory was not computed.
        duration_s: How long the search took, in seconds.
    """

    ranked: tuple[Plan, ...]
    rejected: tuple[RejectionCount, ...]
    searched: int
    outranked: int
    duration_s: float
