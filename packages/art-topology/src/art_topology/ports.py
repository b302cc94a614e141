"""Who listens where in a compiled topology."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from art_topology.cluster import ClusterSpec, EndpointSpec

if TYPE_CHECKING:
    from art_topology.compiled import CompiledService, RuntimeTopology

DEFAULT_WORKER_PORT = 22222
"""Of the Monarch worker, unless ``art-monarch`` is told otherwise."""

VLLM_DATA_PARALLEL_PORTS = 10
"""Consecutive ports that vLLM keeps for the data-parallel master, from its first on (``get_open_port``)."""


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """A socket that ART opens, or a port it stays away from.

    Args:
        host_id: The host that listens.
        endpoint: Where; port 0 is chosen by the host, which reports it back.
        purpose: What for, to be shown, such as "API of policy".
    """

    host_id: str
    endpoint: EndpointSpec
    purpose: str


def worker_ports(cluster: ClusterSpec) -> tuple[int, ...]:
    """The ports of the Monarch worker and, under SkyPilot, of the job's lifecycle, the same on every host;
    none if they are unknown."""
    if not cluster.skypilot:
        return () if cluster.worker_port is None else (cluster.worker_port,)
    first = DEFAULT_WORKER_PORT if cluster.worker_port is None else cluster.worker_port
    return (first, first + 1)


def listeners(topology: RuntimeTopology) -> tuple[Listener, ...]:
    """Everything that listens in ``topology``, except what Monarch and the engines open among themselves."""
    found = [
        Listener(host_id=host.host_id, endpoint=EndpointSpec(host=host.address, port=port), purpose=purpose)
        for host in topology.hosts
        for port, purpose in (
            *zip(topology.worker_ports, ("Monarch worker", "SkyPilot lifecycle"), strict=False),
            *((port, "reserved port") for port in host.reserved_ports if port not in topology.worker_ports),
        )
    ]
    nixl = topology.nixl_transport
    if nixl is not None and nixl.metadata_store is None:
        endpoint = EndpointSpec(host=topology.controller.address)
        found.append(
            Listener(host_id=topology.controller_host_id, endpoint=endpoint, purpose="NIXL metadata store")
        )
    if topology.trainer is not None:
        host_id = topology.trainer.hosts[0].host_id
        found.append(
            Listener(host_id=host_id, endpoint=topology.trainer.rendezvous, purpose="trainer rendezvous")
        )
    for service in topology.services:
        found += _of_service(service)
    return tuple(found)


def _of_service(service: CompiledService) -> list[Listener]:
    host_id = service.members[0].host_id
    found = [Listener(host_id=host_id, endpoint=service.leader, purpose=f"API of {service.name}")]
    if service.rendezvous is None:
        return found
    found.append(
        Listener(host_id=host_id, endpoint=service.rendezvous, purpose=f"rendezvous of {service.name}")
    )
    if service.parallel.dp > 1 and service.rendezvous.port:
        found += [
            Listener(
                host_id=host_id,
                endpoint=service.rendezvous.with_port(service.rendezvous.port + offset),
                purpose=f"data parallelism of {service.name}",
            )
            for offset in range(1, VLLM_DATA_PARALLEL_PORTS)
        ]
    return found
