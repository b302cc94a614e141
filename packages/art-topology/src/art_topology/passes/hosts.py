"""Hosts: names, node order, addresses, GPUs, and which host is the controller's."""

from collections import Counter

import msgspec

from art_topology.addresses import canonical, is_loopback, is_wildcard, malformation
from art_topology.cluster import ClusterSpec, HostSpec
from art_topology.passes.findings import Findings, listed


class HostTable(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the hosts.

    ``indices`` leads from a host id that is unique to its index in ``ClusterSpec.hosts``. ``node_ranks`` are
    by index, None where the order is in doubt.
    """

    cluster: ClusterSpec
    indices: dict[str, int]
    ids_are_unique: bool
    node_ranks: tuple[int, ...] | None

    def get(self, host_id: str) -> HostSpec | None:
        """The host of this id, None if there is none or more than one."""
        index = self.indices.get(host_id)
        return None if index is None else self.cluster.hosts[index]

    @property
    def spans_hosts(self) -> bool:
        """Whether there is more than one host."""
        return len(self.cluster.hosts) > 1

    @property
    def in_node_order(self) -> tuple[HostSpec, ...]:
        """All hosts by node rank. Only for a cluster without errors."""
        ranks = self.node_ranks or range(len(self.cluster.hosts))
        return tuple(
            host for _, host in sorted(zip(ranks, self.cluster.hosts, strict=True), key=lambda pair: pair[0])
        )


def check_hosts(cluster: ClusterSpec, findings: Findings) -> HostTable:
    """Checks the cluster by itself."""
    seen = Counter(host.host_id for host in cluster.hosts)
    _check_ids(cluster, findings)
    table = HostTable(
        cluster=cluster,
        indices={host.host_id: i for i, host in enumerate(cluster.hosts) if seen[host.host_id] == 1},
        ids_are_unique=len(seen) == len(cluster.hosts),
        node_ranks=_check_node_ranks(cluster, findings),
    )
    _check_addresses(cluster, findings)
    _check_gpus(cluster, findings)
    _check_controller(table, findings)
    return table


def _check_ids(cluster: ClusterSpec, findings: Findings) -> None:
    first: dict[str, int] = {}
    for i, host in enumerate(cluster.hosts):
        if host.host_id in first:
            findings.error(
                "ART-T101",
                f"cluster.hosts[{i}].host_id",
                f"a second host has the id {host.host_id!r}",
                "give every host an id of its own",
                [f"cluster.hosts[{first[host.host_id]}].host_id"],
            )
        first.setdefault(host.host_id, i)


def _check_node_ranks(cluster: ClusterSpec, findings: Findings) -> tuple[int, ...] | None:
    count = len(cluster.hosts)
    ranks = tuple(i if host.node_rank is None else host.node_rank for i, host in enumerate(cluster.hosts))
    missing = sorted(set(range(count)) - set(ranks))
    if not missing:
        return ranks
    wrong = [i for i, rank in enumerate(ranks) if rank >= count or rank in ranks[:i]]
    findings.error(
        "ART-T102",
        f"cluster.hosts[{wrong[0]}].node_rank",
        f"the node ranks of {count} hosts are 0 to {count - 1}, but {_ranks(missing)} missing, and "
        f"{_ranks([ranks[i] for i in wrong])} repeated or too large",
        "number the hosts without gap, or leave node_rank out everywhere to number them in their order",
        [f"cluster.hosts[{i}].node_rank" for i in wrong[1:]],
    )
    return None


def _ranks(ranks: list[int]) -> str:
    return f"{listed(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def _check_addresses(cluster: ClusterSpec, findings: Findings) -> None:
    first: dict[str, int] = {}
    for i, host in enumerate(cluster.hosts):
        path = f"cluster.hosts[{i}].address"
        if why := malformation(host.address):
            findings.error(
                "ART-T105",
                path,
                f"the address {host.address!r} of host {host.host_id!r} {why}",
                "give an IPv4 address, an IPv6 address without brackets, or a host name",
            )
        elif is_wildcard(host.address):
            findings.error(
                "ART-T106",
                path,
                f"the address {host.address} of host {host.host_id!r} stands for all interfaces "
                "and cannot be dialed",
                "give the address by which other hosts reach this one",
            )
        elif len(cluster.hosts) > 1 and is_loopback(host.address):
            findings.error(
                "ART-T106",
                path,
                f"the address {host.address} of host {host.host_id!r} is loopback, but the cluster has "
                f"{len(cluster.hosts)} hosts",
                "give the address by which other hosts reach this one",
            )
        elif (address := canonical(host.address)) in first:
            other = cluster.hosts[first[address]]
            findings.error(
                "ART-T103",
                path,
                f"hosts {other.host_id!r} and {host.host_id!r} have the same address {address}",
                "give every host its own address; one machine is one host",
                [f"cluster.hosts[{first[address]}].address"],
            )
        else:
            first[address] = i


def _check_gpus(cluster: ClusterSpec, findings: Findings) -> None:
    for i, host in enumerate(cluster.hosts):
        repeated = [gpu for gpu, count in Counter(host.gpus).items() if count > 1]
        if repeated:
            findings.error(
                "ART-T107",
                f"cluster.hosts[{i}].gpus",
                f"host {host.host_id!r} lists {listed(repeated)} more than once",
                "list every GPU once",
            )
        elif len({type(gpu) for gpu in host.gpus}) > 1:
            findings.error(
                "ART-T107",
                f"cluster.hosts[{i}].gpus",
                f"host {host.host_id!r} lists GPUs by index and by UUID, so that one could be listed twice",
                "name all GPUs of a host in the same way",
            )


def _check_controller(table: HostTable, findings: Findings) -> None:
    wanted = table.cluster.controller_host_id
    if wanted is None or not table.ids_are_unique or wanted in table.indices:
        return
    findings.error(
        "ART-T104",
        "cluster.controller_host_id",
        f"there is no host {wanted!r} for the controller",
        f"name one of {listed(list(table.indices))}, or leave it out for the first",
    )
