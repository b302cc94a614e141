"""From a plan to the specification of a topology."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import msgspec

from art_topology.cluster import ClusterSpec, GpuPlacement, HostSpec, NcclTransportSpec, NixlTransportSpec
from art_topology.files import TopologySpec
from art_topology.passes.services import VLLM_LORA_RANKS
from art_topology.serving import ModelServiceMemberSpec, ModelServiceSpec
from art_topology.trainer import TrainerMeshSpec

if TYPE_CHECKING:
    from art_topology.planner.results import Plan

_NETWORK = "IB"


def hosts_in_order(cluster: ClusterSpec) -> tuple[HostSpec, ...]:
    """All hosts by node rank."""
    ranked = enumerate(cluster.hosts)
    return tuple(
        host for _, host in sorted(ranked, key=lambda p: p[0] if p[1].node_rank is None else p[1].node_rank)
    )


def _dispatches(plan: Plan) -> bool:
    """Whether tokens go to experts on other hosts, for which there has to be NIXL."""
    split, trainer = plan.layout.split, plan.layout.trainer
    trained = trainer.ep > 1 and split.trainer_gpus_per_host % (trainer.etp * trainer.ep) != 0
    served = plan.layout.service.expert_parallel and split.service_hosts > 1
    return trained or served


def topology_of(plan: Plan, cluster: ClusterSpec, base_model: str, service_name: str) -> TopologySpec:
    """See :meth:`~art_topology.planner.Plan.topology`."""
    split, hosts = plan.layout.split, hosts_in_order(cluster)
    trained = hosts[: split.trainer_hosts]
    first = 0 if split.shared else split.trainer_hosts
    served = hosts[first : first + split.service_hosts]
    trainer = TrainerMeshSpec(
        placements=tuple(
            GpuPlacement(host_id=host.host_id, gpus=host.gpus[: split.trainer_gpus_per_host])
            for host in trained
        ),
        parallel=plan.layout.trainer,
    )
    members = tuple(
        ModelServiceMemberSpec(
            placement=GpuPlacement(host_id=host.host_id, gpus=host.gpus[-split.service_gpus_per_host :])
        )
        for host in served
    )
    running = ceil(plan.cost.rollout.concurrent_sequences / plan.layout.service.dp)
    rank = plan.workload.lora_rank or 1
    service = ModelServiceSpec(
        name=service_name,
        base_model=base_model,
        members=members,
        parallel=plan.layout.service,
        max_num_seqs=max(1, running),
        gpu_memory_utilization=plan.gpu_memory_utilization,
        weights=plan.service_weights,
        max_lora_rank=min((size for size in VLLM_LORA_RANKS if size >= rank), default=VLLM_LORA_RANKS[-1]),
    )
    spans = max(len(trained), len(served)) > 1
    changes: dict[str, object] = {}
    if spans and cluster.nccl_transport is None:
        changes["nccl_transport"] = NcclTransportSpec(net_name=_NETWORK)
    if _dispatches(plan) and cluster.nixl_transport is None:
        changes["nixl_transport"] = NixlTransportSpec()
    return TopologySpec(
        cluster=msgspec.structs.replace(cluster, **changes) if changes else cluster,
        trainer=trainer,
        services=(service,),
        workload=plan.workload,
    )
