"""Who listens where in a compiled topology."""

import msgspec

from art_topology.cluster import EndpointSpec
from art_topology.compiled import RuntimeTopology


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


def listeners(topology: RuntimeTopology) -> tuple[Listener, ...]:
    """Everything that listens in ``topology``, except what Monarch and the engines open among themselves."""
    found = [
        Listener(
            host_id=host.host_id, endpoint=EndpointSpec(host=host.address, port=port), purpose="reserved port"
        )
        for host in topology.hosts
        for port in host.reserved_ports
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
        host_id = service.members[0].host_id
        found.append(Listener(host_id=host_id, endpoint=service.leader, purpose=f"API of {service.name}"))
        if service.rendezvous is not None:
            purpose = f"rendezvous of {service.name}"
            found.append(Listener(host_id=host_id, endpoint=service.rendezvous, purpose=purpose))
    return tuple(found)
