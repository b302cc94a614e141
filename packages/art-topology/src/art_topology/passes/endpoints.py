"""Endpoints and ports: everything that listens, where, and whether those who dial it can reach it."""

from collections.abc import Iterator, Sequence

import msgspec

from art_topology.addresses import canonical, is_loopback, is_wildcard, malformation
from art_topology.cluster import EndpointSpec
from art_topology.passes.findings import Findings
from art_topology.passes.hosts import HostTable
from art_topology.serving import ModelServiceSpec
from art_topology.trainer import TrainerMeshSpec


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint that the input spells out.

    ``host_id`` is the host that listens, None where it is unknown; ``is_dialed_from_afar`` says whether other
    hosts connect; ``is_ours`` whether ART starts the listener, so that it can choose a port.
    """

    path: str
    purpose: str
    endpoint: EndpointSpec
    host_id: str | None
    is_dialed_from_afar: bool
    is_ours: bool = True


def endpoint_roles(
    table: HostTable, trainer: TrainerMeshSpec | None, services: Sequence[ModelServiceSpec]
) -> Iterator[Role]:
    """Every endpoint that the input spells out."""
    nixl = table.cluster.nixl_transport
    if nixl is not None and nixl.metadata_store is not None:
        store = nixl.metadata_store
        address = canonical(store.host)
        on = [host.host_id for host in table.cluster.hosts if canonical(host.address) == address]
        yield Role(
            path="cluster.nixl_transport.metadata_store",
            purpose="the NIXL metadata store",
            endpoint=store,
            host_id=on[0] if len(on) == 1 else None,
            is_dialed_from_afar=table.spans_hosts,
            is_ours=False,
        )
    if trainer is not None and trainer.rendezvous is not None:
        yield Role(
            path="trainer.rendezvous",
            purpose="the rendezvous of the trainer",
            endpoint=trainer.rendezvous,
            host_id=trainer.placements[0].host_id,
            is_dialed_from_afar=len({placement.host_id for placement in trainer.placements}) > 1,
        )
    for k, service in enumerate(services):
        host_id = service.members[0].host_id
        if service.leader is not None:
            yield Role(
                path=f"services[{k}].leader",
                purpose=f"the API of service {service.name!r}",
                endpoint=service.leader,
                host_id=host_id,
                is_dialed_from_afar=table.spans_hosts,
            )
        if service.rendezvous is not None:
            yield Role(
                path=f"services[{k}].rendezvous",
                purpose=f"the rendezvous of service {service.name!r}",
                endpoint=service.rendezvous,
                host_id=host_id,
                is_dialed_from_afar=len({member.host_id for member in service.members}) > 1,
            )


def check_endpoints(
    table: HostTable,
    trainer: TrainerMeshSpec | None,
    services: Sequence[ModelServiceSpec],
    findings: Findings,
) -> None:
    """Checks every endpoint by itself, then the ports of each host against each other."""
    listeners: dict[tuple[str, int], tuple[str, str]] = {}
    reserved = {(host.host_id, port) for host in table.cluster.hosts for port in host.reserved_ports}
    for i, host in enumerate(table.cluster.hosts):
        for k, port in enumerate(host.reserved_ports):
            path = f"cluster.hosts[{i}].reserved_ports[{k}]"
            _claim_port(host.host_id, port, path, "a reserved port", listeners, findings)
    for role in endpoint_roles(table, trainer, services):
        if not _is_reachable(role, table, findings):
            continue
        port = role.endpoint.port
        if role.host_id is None or role.host_id not in table.indices or port == 0:
            continue
        # A port that is reserved may well be reserved for what others run there.
        if role.is_ours or (role.host_id, port) not in reserved:
            _claim_port(role.host_id, port, f"{role.path}.port", role.purpose, listeners, findings)


def _is_reachable(role: Role, table: HostTable, findings: Findings) -> bool:
    """Reports at most one thing that is wrong with the endpoint's host, and a port that is missing."""
    if not role.is_ours and role.endpoint.port == 0:
        findings.error(
            "ART-T505",
            f"{role.path}.port",
            f"{role.purpose} is run elsewhere, so nobody here can choose its port",
            "give the port it listens on, or leave the endpoint out so that the controller starts one",
        )
    path, address = f"{role.path}.host", role.endpoint.host
    host = table.get(role.host_id) if role.host_id is not None else None
    if host is not None and canonical(host.address) == canonical(address):
        return True
    if (why := malformation(address)) or is_wildcard(address):
        why = why or "stands for all interfaces and cannot be dialed"
        hint = "give the address that others dial"
        findings.error("ART-T502", path, f"the host {address!r} of {role.purpose} {why}", hint)
        return False
    if is_loopback(address):
        if not role.is_dialed_from_afar:
            return True
        findings.error(
            "ART-T501",
            path,
            f"{role.purpose} is on loopback ({address}), but other hosts connect to it",
            "give the address of the host that listens"
            + (f", {host.address}" if host is not None and not is_loopback(host.address) else ""),
        )
        return False
    owners = [
        i for i, other in enumerate(table.cluster.hosts) if canonical(other.address) == canonical(address)
    ]
    if role.is_ours and host is not None and owners:
        other = table.cluster.hosts[owners[0]]
        findings.error(
            "ART-T503",
            path,
            f"{role.purpose} is opened by host {host.host_id!r} ({host.address}), but {address} is host "
            f"{other.host_id!r}",
            f"use {host.address}, or leave the endpoint out",
            [f"cluster.hosts[{owners[0]}].address"],
        )
        return False
    return True


def _claim_port(
    host_id: str,
    port: int,
    path: str,
    purpose: str,
    listeners: dict[tuple[str, int], tuple[str, str]],
    findings: Findings,
) -> None:
    if (host_id, port) not in listeners:
        listeners[host_id, port] = (path, purpose)
        return
    other_path, other_purpose = listeners[host_id, port]
    findings.error(
        "ART-T504",
        path,
        f"port {port} of host {host_id!r} is both {other_purpose} and {purpose}",
        "give each a port of its own, or 0 to let the host choose",
        [other_path],
    )
