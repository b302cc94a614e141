"""Hosts: names, node order, addresses, and which host is the controller's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from art_topology.addresses import Address, mended, read_address
from art_topology.cluster import ClusterSpec, HostSpec
from art_topology.passes.findings import Findings, closest, free_name, listed

if TYPE_CHECKING:
    from art_topology.hardware import GpuModel, HardwareTable


class HostTable:
    """What is known of the hosts.

    Args:
        cluster: As given.
        addresses: Of the hosts, by index in ``ClusterSpec.hosts``.
        node_ranks: By index likewise; None where the order is in doubt.
        hardware: The table of GPUs; None for that of the package.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        addresses: tuple[Address, ...],
        node_ranks: tuple[int, ...] | None,
        hardware: HardwareTable | None = None,
    ) -> None:
        self.cluster = cluster
        self.hardware = hardware
        self._gpus: dict[str, GpuModel | None] = {}
        self.addresses = addresses
        self.node_ranks = node_ranks
        seen = Counter(host.host_id for host in cluster.hosts)
        self.ids_are_unique = len(seen) == len(cluster.hosts)
        self.indices = {host.host_id: i for i, host in enumerate(cluster.hosts) if seen[host.host_id] == 1}
        """From a host id that is unique to its index in ``ClusterSpec.hosts``."""

    def get(self, host_id: str) -> HostSpec | None:
        """The host of this id, None if there is none or more than one."""
        index = self.indices.get(host_id)
        return None if index is None else self.cluster.hosts[index]

    def gpu_model(self, name: str) -> GpuModel | None:
        """What the table of hardware knows of a ``gpu_model``; None if nothing."""
        from art_topology.passes.gpu_models import gpu_in, known_gpu

        if self.hardware is None:
            return known_gpu(name)
        if name not in self._gpus:
            self._gpus[name] = gpu_in(self.hardware, name)
        return self._gpus[name]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The unique host ids."""
        return tuple(self.indices)

    @cached_property
    def by_address(self) -> dict[str, list[int]]:
        """Indices of the hosts that have a canonical address."""
        found: dict[str, list[int]] = {}
        for i, address in enumerate(self.addresses):
            found.setdefault(address.canonical, []).append(i)
        return found

    @property
    def spans_hosts(self) -> bool:
        """Whether there is more than one host."""
        return len(self.cluster.hosts) > 1

    @property
    def in_node_order(self) -> tuple[int, ...]:
        """The indices of all hosts by node rank. Only for a cluster without errors."""
        ranks = self.node_ranks or range(len(self.cluster.hosts))
        return tuple(sorted(range(len(ranks)), key=ranks.__getitem__))


def check_hosts(
    cluster: ClusterSpec,
    findings: Findings,
    named: Iterable[str],
    hardware: HardwareTable | None = None,
) -> HostTable:
    """Checks the cluster by itself; ``named`` are the hosts that placements name, for what was meant."""
    _check_ids(cluster, findings, named)
    table = HostTable(
        cluster,
        tuple(read_address(host.address) for host in cluster.hosts),
        _check_node_ranks(cluster, findings),
        hardware,
    )
    _check_addresses(table, findings)
    _check_controller(table, findings)
    return table


def _check_ids(cluster: ClusterSpec, findings: Findings, named: Iterable[str]) -> None:
    first: dict[str, int] = {}
    taken: set[str] = set()
    meant: list[str] = []
    for i, host in enumerate(cluster.hosts):
        if host.host_id not in first:
            first[host.host_id] = i
            continue
        if not taken:
            taken = {host.host_id for host in cluster.hosts}
            meant = [name for name in dict.fromkeys(named) if name not in taken]
        free = meant.pop(0) if meant else free_name(host.host_id, i, taken)
        findings.report(
            "ART-T101",
            f"cluster.hosts[{i}].host_id",
            f"a second host has the id {host.host_id!r}",
            f"give every host an id of its own, such as {free!r}",
            [f"cluster.hosts[{first[host.host_id]}].host_id"],
            (f"cluster.hosts[{i}].host_id", free),
        )


def _check_node_ranks(cluster: ClusterSpec, findings: Findings) -> tuple[int, ...] | None:
    count = len(cluster.hosts)
    ranks = tuple(i if host.node_rank is None else host.node_rank for i, host in enumerate(cluster.hosts))
    missing = sorted(set(range(count)) - set(ranks))
    if not missing:
        return ranks
    wrong, seen = [], set()
    given = sorted(range(count), key=lambda i: cluster.hosts[i].node_rank is not None)
    for i in given:  # those that say theirs are wrong rather than those that have it by their place
        rank = ranks[i]
        if rank >= count or rank in seen:
            wrong.append(i)
        seen.add(rank)
    wrong.sort()
    path = f"cluster.hosts[{wrong[0]}].node_rank"
    findings.report(
        "ART-T102",
        path,
        f"the node ranks of {count} hosts are 0 to {count - 1}, but {_ranks(missing)} missing, and "
        f"{_ranks([ranks[i] for i in wrong])} repeated or too large",
        f"number the hosts without gap, this one {missing[0]}, or leave node_rank out everywhere to number "
        "them in their order",
        [f"cluster.hosts[{i}].node_rank" for i in wrong[1:]],
        (path, missing[0]),
    )
    return None


def _ranks(ranks: list[int]) -> str:
    return f"{listed(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def _check_addresses(table: HostTable, findings: Findings) -> None:
    first: dict[str, int] = {}
    hosts = table.cluster.hosts
    for i, (host, address) in enumerate(zip(hosts, table.addresses, strict=True)):
        path = f"cluster.hosts[{i}].address"
        subject = f"the address {host.address!r} of host {host.host_id!r}"
        if address.malformation is not None:
            better = _usable(mended(host.address), table)
            findings.report(
                "ART-T105",
                path,
                f"{subject} {address.malformation}",
                f"write {better!r}"
                if better is not None
                else "give an IPv4 address, an IPv6 address without brackets, or a host name",
                suggestion=(path, better) if better is not None else None,
            )
        elif address.is_wildcard:
            findings.report(
                "ART-T106",
                path,
                f"{subject} stands for all interfaces and cannot be dialed",
                "give the address by which other hosts reach this one",
            )
        elif len(hosts) > 1 and address.is_loopback:
            findings.report(
                "ART-T106",
                path,
                f"{subject} is loopback, but the cluster has {len(hosts)} hosts",
                "give the address by which other hosts reach this one",
            )
        elif address.no_host is not None and not address.is_loopback:
            findings.report(
                "ART-T110",
                path,
                f"{subject} is {address.no_host}",
                "give an address that stands for this host on every other one",
            )
        elif address.canonical in first:
            other = hosts[first[address.canonical]]
            findings.report(
                "ART-T103",
                path,
                f"hosts {other.host_id!r} and {host.host_id!r} have the same address {address.canonical}",
                "give every host its own address; one machine is one host",
                [f"cluster.hosts[{first[address.canonical]}].address"],
            )
        else:
            first[address.canonical] = i


def _usable(text: str | None, table: HostTable) -> str | None:
    """``text`` if it can be the address of one more host."""
    if text is None:
        return None
    address = read_address(text)
    if address.is_wildcard or address.no_host or (address.is_loopback and table.spans_hosts):
        return None
    return text if address.canonical not in table.by_address else None


def _check_controller(table: HostTable, findings: Findings) -> None:
    wanted = table.cluster.controller_host_id
    if wanted is None or not table.ids_are_unique or wanted in table.indices:
        return
    better = closest(wanted, table.names) or table.cluster.hosts[0].host_id
    findings.report(
        "ART-T104",
        "cluster.controller_host_id",
        f"there is no host {wanted!r} for the controller; there are {listed(table.names)}",
        f"name a host of the cluster, such as {better!r}, or leave it out for the first",
        suggestion=("cluster.controller_host_id", better),
    )
