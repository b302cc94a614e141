"""Ports: everything that listens on a host, against each other."""

from collections.abc import Sequence

from art_topology.passes.endpoints import Role
from art_topology.passes.findings import Findings
from art_topology.passes.hosts import HostTable
from art_topology.ports import DEFAULT_WORKER_PORT, worker_ports

_LAST_PORT = 65535


def check_ports(table: HostTable, roles: Sequence[Role], findings: Findings) -> None:
    """Checks the ports of each host.

    Args:
        table: The hosts.
        roles: The endpoints that are on the host that listens.
        findings: Takes the diagnostics.
    """
    _check_worker_ports(table, findings)
    _check_reserved(table, findings)
    taken: dict[tuple[str, int], tuple[str, str]] = {}
    for role in roles:
        _check_role(table, role, taken, findings)


def _check_worker_ports(table: HostTable, findings: Findings) -> None:
    if max(worker_ports(table.cluster), default=0) > _LAST_PORT:
        path = "cluster.worker_port"
        findings.report(
            "ART-T506",
            path,
            f"SkyPilot's lifecycle port follows the Monarch worker's, but {_LAST_PORT} is the last port",
            f"use a smaller worker_port, such as {DEFAULT_WORKER_PORT}",
            suggestion=(path, DEFAULT_WORKER_PORT),
        )


def _check_reserved(table: HostTable, findings: Findings) -> None:
    for i, host in enumerate(table.cluster.hosts):
        if len(set(host.reserved_ports)) == len(host.reserved_ports):
            continue
        first: dict[int, int] = {}
        path = f"cluster.hosts[{i}].reserved_ports"
        for k, port in enumerate(host.reserved_ports):
            if first.setdefault(port, k) != k:
                findings.report(
                    "ART-T504",
                    f"{path}[{k}]",
                    f"port {port} of host {host.host_id!r} is reserved twice",
                    "reserve it once",
                    [f"{path}[{first[port]}]"],
                    (path, sorted(set(host.reserved_ports))),
                )


def _check_role(
    table: HostTable, role: Role, taken: dict[tuple[str, int], tuple[str, str]], findings: Findings
) -> None:
    index = table.indices.get(role.host_id) if role.host_id is not None else None
    port, path = role.endpoint.port, f"{role.path}.port"
    if role.host_id is None or index is None or port == 0:
        return
    last = port + role.port_count - 1
    if last > _LAST_PORT:
        findings.report(
            "ART-T506",
            path,
            f"{role.purpose} takes {role.port_count} ports from {port} on (vLLM's data-parallel processes "
            f"meet there), but {_LAST_PORT} is the last port",
            f"use at most {_LAST_PORT + 1 - role.port_count}, or 0 to let the host choose",
            suggestion=(path, 0),
        )
        return
    host = table.cluster.hosts[index]
    for number in range(port, last + 1):
        rival: tuple[str, str] | None = taken.setdefault((role.host_id, number), (path, role.purpose))
        if rival == (path, role.purpose):
            rival = None
            if number in worker_ports(table.cluster):
                what = "SkyPilot's lifecycle" if number != _worker(table) else "the Monarch worker"
                rival = ("cluster.worker_port", f"{what} (on every host)")
            # A port that is reserved may well be reserved for what others run there.
            elif role.is_ours and number in host.reserved_ports:
                place = host.reserved_ports.index(number)
                rival = (f"cluster.hosts[{index}].reserved_ports[{place}]", "a reserved port")
        if rival is not None:
            follows = f" (port {number - port + 1} of {role.port_count})" if number != port else ""
            findings.report(
                "ART-T504",
                path,
                f"port {number} of host {host.host_id!r} is both {rival[1]} and {role.purpose}{follows}",
                "give each a port of its own" + (", or 0 to let the host choose" if role.is_ours else ""),
                [rival[0]],
                (path, 0) if role.is_ours else None,
            )
            return


def _worker(table: HostTable) -> int:
    return worker_ports(table.cluster)[0]
