"""NCCL and NIXL: what must be said before anything crosses hosts."""

from collections.abc import Collection, Sequence

from art_topology.cluster import ClusterSpec, GpuPlacement
from art_topology.passes.findings import Findings
from art_topology.passes.trainer import TrainerFacts
from art_topology.passes.workloads import Workload
from art_topology.serving import ModelServiceSpec
from art_topology.trainer import TrainerMeshSpec

_NIXL_HINT = "set nixl_transport = {} in cluster"


def check_nccl(cluster: ClusterSpec, workloads: Sequence[Workload], findings: Findings) -> None:
    """Checks the network that NCCL is told to use."""
    if cluster.nccl_transport is not None:
        _check_net_name(cluster.nccl_transport.net_name, findings)
        return
    spanning = [
        workload
        for workload in workloads
        if workload.device_kinds == {GpuPlacement} and len(workload.host_ids) > 1
    ]
    if spanning:
        labels = " and ".join(f"{workload.label} ({len(workload.host_ids)} hosts)" for workload in spanning)
        findings.report(
            "ART-T601",
            "cluster.nccl_transport",
            f"GPU processes of {labels} talk across hosts, but no NCCL network is named",
            'name the network as it registers with NCCL, such as nccl_transport = { net_name = "IB" }, and '
            "set NCCL_NET to the same name on every host",
            [workload.path for workload in spanning],
            ("cluster.nccl_transport", {"net_name": "IB"}),
        )


def _check_net_name(name: str, findings: Findings) -> None:
    path = "cluster.nccl_transport.net_name"
    word = "".join(name.split())
    better = word if word and word.lower() != "socket" else "IB"
    hint = f'use the name under which the network registers with NCCL, such as "{better}"'
    if word.lower() == "socket":
        message = f"the NCCL network {name!r} is the slow fallback over TCP"
        findings.report("ART-T602", path, message, hint, suggestion=(path, better))
    elif not name or any(character.isspace() for character in name):
        what = "has white space in it" if name else "is empty"
        message = f"the name {name!r} of the NCCL network {what}"
        findings.report("ART-T603", path, message, hint, suggestion=(path, better))


def check_nixl(
    cluster: ClusterSpec,
    trainer: TrainerMeshSpec | None,
    facts: TrainerFacts,
    services: Sequence[ModelServiceSpec],
    settled: Collection[int],
    findings: Findings,
) -> None:
    """Checks that experts which are dispatched between hosts have NIXL to travel by."""
    if cluster.nixl_transport is not None:
        return
    layout = facts.expert_layout
    if trainer is not None and layout is not None:
        per_host = trainer.placements[0].process_count
        if layout.crosses_hosts("ep", per_host):
            block = layout.etp * layout.ep
            findings.report(
                "ART-T701",
                "trainer.parallel.ep",
                f"hosts of {per_host} ranks do not hold whole expert groups of etp*ep = "
                f"{layout.etp}*{layout.ep} = {block}: plain collectives would carry tokens between hosts",
                f"{_NIXL_HINT}, or choose etp*ep so that it divides {per_host}",
                suggestion=("cluster.nixl_transport", {}),
            )
    for k, service in enumerate(services):
        if k in settled and _experts_cross_hosts(service):
            parallel = service.parallel
            findings.report(
                "ART-T701",
                f"services[{k}].parallel.expert_parallel",
                f"service {service.name!r} divides experts among tp*dp = {parallel.tp}*{parallel.dp} workers "
                f"on several of its {len(service.members)} hosts: plain collectives would carry tokens "
                "between them",
                f"{_NIXL_HINT}, or keep the experts of a stage on one host by pp",
                suggestion=("cluster.nixl_transport", {}),
            )


def _experts_cross_hosts(service: ModelServiceSpec) -> bool:
    """Whether the workers of some pipeline stage are on two hosts.

    vLLM numbers workers tp fastest, then pp, then dp.
    """
    parallel = service.parallel
    if not parallel.expert_parallel:
        return False
    per_host = service.members[0].placement.process_count
    reach = (parallel.dp - 1) * parallel.pp * parallel.tp + parallel.tp - 1
    first_workers = (stage * parallel.tp for stage in range(parallel.pp))
    return any(first // per_host != (first + reach) // per_host for first in first_workers)
