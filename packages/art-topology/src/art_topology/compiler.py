"""The compiler: specifications in, a runnable topology or everything that is wrong with it out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from art_topology.assemble import assemble
from art_topology.cluster import ClusterSpec
from art_topology.compiled import RuntimeTopology
from art_topology.diagnostics import TopologyError
from art_topology.passes.endpoints import check_endpoints
from art_topology.passes.findings import Findings
from art_topology.passes.gpu_models import check_gpu_models
from art_topology.passes.gpus import check_host_gpus
from art_topology.passes.hosts import check_hosts
from art_topology.passes.memory import check_memory
from art_topology.passes.model_facts import facts_of
from art_topology.passes.placement import check_leftovers, check_placements
from art_topology.passes.ports import check_ports
from art_topology.passes.served_weights import check_served_weights
from art_topology.passes.services import ServedModel, check_services
from art_topology.passes.trainer import TrainerFacts, check_trainer
from art_topology.passes.transports import check_nccl, check_nixl
from art_topology.passes.workloads import named_gpus, workloads_of
from art_topology.serving import ModelServiceSpec
from art_topology.trainer import TrainerMeshSpec

if TYPE_CHECKING:
    from art_topology.hardware import HardwareTable
    from art_topology.models import ModelDescription
    from art_topology.workload import WorkloadSpec


def compile_topology(
    *,
    cluster: ClusterSpec,
    trainer: TrainerMeshSpec | None = None,
    services: Iterable[ModelServiceSpec] = (),
    model: ModelDescription | None = None,
    workload: WorkloadSpec | None = None,
    model_name: str | None = None,
    hardware: HardwareTable | None = None,
) -> RuntimeTopology:
    """Checks everything that can be known without hardware and gives every process its place.

    Args:
        cluster: The hosts.
        trainer: The trainer's ranks, if the program trains.
        services: The model services, in any number.
        model: What is trained and served; with it, layers, heads, experts and the vocabulary are checked
            against the parallelism.
        workload: What a step computes; with it, its lengths are checked against the parallelism.
        model_name: ``base_model`` of the services that serve ``model``; by default that of all services, if
            they have one in common. The others are checked without it.
        hardware: The GPUs that ``gpu_model`` of a host may name; by default the package's table.

    Returns:
        The frozen topology; ``warnings`` on it are what is worth a second look.

    Raises:
        TopologyError: something is wrong. It holds every diagnostic, not only the first.
    """
    services = tuple(services)
    facts = facts_of(model) if model is not None else None
    findings = Findings()
    workloads = workloads_of(trainer, services)
    named = (name for workload in workloads for name in workload.named_hosts)
    table = check_hosts(cluster, findings, named, hardware)
    meant = check_host_gpus(table, findings, named_gpus(table, workloads))
    check_placements(table, workloads, findings, meant)
    ranks = TrainerFacts()
    if trainer is not None:
        ranks = check_trainer(trainer, table, facts, workload, findings)
    served = ServedModel(facts, workload, model_name, services, model)
    settled = check_services(services, table, served, findings)
    check_served_weights(services, served, model, findings)
    check_ports(table, check_endpoints(table, trainer, services, findings), findings)
    check_nccl(cluster, workloads, findings)
    check_nixl(cluster, trainer, ranks, services, settled, findings)
    check_gpu_models(table, trainer, findings)
    if any(host.gpu_model is not None for host in cluster.hosts):
        check_memory(trainer, services, table, ranks, served, model, findings)
    check_leftovers(table, workloads, findings)
    if findings.has_errors:
        raise TopologyError(findings.diagnostics)
    return assemble(table, trainer, ranks.layout, services, findings.diagnostics)
