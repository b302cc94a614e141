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
from art_topology.passes.hosts import check_hosts
from art_topology.passes.placement import check_placements, workloads_of
from art_topology.passes.services import check_services
from art_topology.passes.trainer import TrainerFacts, check_trainer
from art_topology.passes.transports import check_nccl, check_nixl
from art_topology.serving import ModelServiceSpec
from art_topology.trainer import TrainerMeshSpec

if TYPE_CHECKING:
    from art_topology.models import ModelDescription
    from art_topology.workload import WorkloadSpec


def compile_topology(
    *,
    cluster: ClusterSpec,
    trainer: TrainerMeshSpec | None = None,
    services: Iterable[ModelServiceSpec] = (),
    model: ModelDescription | None = None,
    workload: WorkloadSpec | None = None,
) -> RuntimeTopology:
    """Checks everything that can be known without hardware and gives every process its place.

    Args:
        cluster: The hosts.
        trainer: The trainer's ranks, if the program trains.
        services: The model services, in any number.
        model: What is trained and served; with it, layers, heads, experts and the vocabulary are checked
            against the parallelism.
        workload: What a step computes; with it, its lengths are checked against the parallelism.

    Returns:
        The frozen topology; ``warnings`` on it are what is worth a second look.

    Raises:
        TopologyError: something is wrong. It holds every diagnostic, not only the first.
    """
    services = tuple(services)
    findings = Findings()
    table = check_hosts(cluster, findings)
    workloads = workloads_of(trainer, services)
    check_placements(table, workloads, findings)
    facts = TrainerFacts() if trainer is None else check_trainer(trainer, table, findings)
    settled = check_services(services, findings)
    check_endpoints(table, trainer, services, findings)
    check_nccl(cluster, workloads, findings)
    check_nixl(cluster, trainer, facts, services, settled, findings)
    if findings.has_errors:
        raise TopologyError(findings.diagnostics)
    return assemble(table, trainer, facts.layout, services, findings.diagnostics)
