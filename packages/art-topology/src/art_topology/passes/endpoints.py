"""Endpoints: whether those who dial them can reach them."""

from collections.abc import Iterator, Sequence

import msgspec

from art_topology.addresses import Address, mended, read_address
from art_topology.cluster import EndpointSpec
from art_topology.passes.findings import Findings
from art_topology.passes.hosts import HostTable
from art_topology.ports import VLLM_DATA_PARALLEL_PORTS
from art_topology.serving import ModelServiceSpec
from art_topology.trainer import TrainerMeshSpec

ETCD_PORT = 2379
"""Where etcd listens for clients unless it is told otherwise."""


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint that the input spells out.

    ``host_id`` is the host that listens, None where it is unknown; ``is_dialed_from_afar`` says whether other
    hosts connect; ``is_ours`` whether ART starts the listener, so that it can choose a port; ``port_count``
    how many ports from the given one on it takes.
    """

    path: str
    purpose: str
    endpoint: EndpointSpec
    host_id: str | None
    is_dialed_from_afar: bool
    is_ours: bool = True
    port_count: int = 1


def endpoint_roles(
    table: HostTable, trainer: TrainerMeshSpec | None, services: Sequence[ModelServiceSpec]
) -> Iterator[Role]:
    """Every endpoint that the input spells out."""
    nixl = table.cluster.nixl_transport
    if nixl is not None and nixl.metadata_store is not None:
        store = nixl.metadata_store
        on = table.by_address.get(read_address(store.host).canonical, [])
        yield Role(
            path="cluster.nixl_transport.metadata_store",
            purpose="the NIXL metadata store",
            endpoint=store,
            host_id=table.cluster.hosts[on[0]].host_id if len(on) == 1 else None,
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
                port_count=VLLM_DATA_PARALLEL_PORTS if service.parallel.dp > 1 else 1,
            )


def check_endpoints(
    table: HostTable,
    trainer: TrainerMeshSpec | None,
    services: Sequence[ModelServiceSpec],
    findings: Findings,
) -> list[Role]:
    """Checks every endpoint by itself; returns those whose host is the one that listens."""
    return [role for role in endpoint_roles(table, trainer, services) if _is_reachable(role, table, findings)]


def _is_reachable(role: Role, table: HostTable, findings: Findings) -> bool:
    """Reports at most one thing that is wrong with the endpoint's host, and a port that is missing."""
    if not role.is_ours and role.endpoint.port == 0:
        findings.report(
            "ART-T505",
            f"{role.path}.port",
            f"{role.purpose} is run elsewhere, so nobody here can choose its port",
            f"give the port it listens on (etcd's is {ETCD_PORT}), or leave the endpoint out so that the "
            "controller starts one",
            suggestion=(f"{role.path}.port", ETCD_PORT),
        )
    path, address = f"{role.path}.host", read_address(role.endpoint.host)
    index = table.indices.get(role.host_id) if role.host_id is not None else None
    own = table.addresses[index] if index is not None else None
    if own is not None and own.canonical == address.canonical:
        return True
    better = _better(own, address, table)
    hint = "give the address that others dial" + (f", {better}" if better is not None else "")
    suggestion = (path, better) if better is not None else None
    why = (
        address.malformation
        or ("stands for all interfaces and cannot be dialed" if address.is_wildcard else None)
        or (f"is {address.no_host}" if address.no_host and not address.is_loopback else None)
    )
    if why:
        findings.report(
            "ART-T502",
            path,
            f"the host {address.text!r} of {role.purpose} {why}",
            hint,
            suggestion=suggestion,
        )
        return False
    if address.is_loopback:
        if not role.is_dialed_from_afar:
            return True
        findings.report(
            "ART-T501",
            path,
            f"{role.purpose} is on loopback ({address.text}), but other hosts connect to it",
            hint,
            suggestion=suggestion,
        )
        return False
    owners = table.by_address.get(address.canonical, [])
    if role.is_ours and index is not None and own is not None and owners:
        host, other = table.cluster.hosts[index], table.cluster.hosts[owners[0]]
        findings.report(
            "ART-T503",
            path,
            f"{role.purpose} is opened by host {host.host_id!r} ({own.text}), but {address.text} is host "
            f"{other.host_id!r}",
            f"use {own.text}, or leave the endpoint out",
            [f"cluster.hosts[{owners[0]}].address"],
            (path, own.text),
        )
        return False
    return True


def _better(own: Address | None, address: Address, table: HostTable) -> str | None:
    """The address of the host that listens, or what a malformed one was meant to be, if it can be dialed."""
    if own is not None and _can_be_dialed(own, table):
        return own.text
    text = mended(address.text) if address.malformation is not None else None
    return text if text is not None and _can_be_dialed(read_address(text), table) else None


def _can_be_dialed(address: Address, table: HostTable) -> bool:
    if address.malformation is not None or address.is_wildcard:
        return False
    return not table.spans_hosts if address.is_loopback else address.no_host is None
