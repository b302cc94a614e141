"""Collectives by alpha-beta on the links they cross.

A group has ``size`` ranks, ``local`` of them within each domain of the scale-up link (a host, or a rack of
NVL72); which, the strides of the rank layout say. A ring crosses the scale-up link at each step within a
domain and the network between domains, where the ``local`` members of a domain share the load of their
network adapters. The slower of the two sets the pace.
"""

from math import ceil, comb, floor, gcd, log2

import msgspec

from art_topology.cost.calibration import Calibration
from art_topology.hardware import Machine


class Group(msgspec.Struct, frozen=True):
    """How a process group lies on the domains: ``size`` ranks, ``local`` of them in each domain."""

    size: int
    local: int

    @property
    def domains(self) -> int:
        """How many domains it spans."""
        return ceil(self.size / self.local)

    @property
    def crosses(self) -> bool:
        """Whether it leaves a domain."""
        return self.local < self.size


def place(size: int, stride: int, domain: int) -> Group:
    """The group of ``size`` ranks ``stride`` apart, with ``domain`` consecutive ranks in each domain.

    Where groups do not tile the domains, some group is cut more often than others; that one is described.
    """
    aligned = gcd(domain, size * stride)
    return Group(size, min(size, max(1, aligned // stride)))


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """The links as the cost model sees them.

    Args:
        up_bytes_per_s: What collectives reach on the scale-up link, per GPU and direction.
        up_s: Latency of one step on it.
        out_bytes_per_s: Likewise for the network.
        out_s: Latency of one step on it.
        host_bytes_per_s: What copies to and from host memory reach, per GPU and direction.
        start_s: Start of a collective.
        small_latency: Latency of NCCL's protocol for small messages, as a fraction of the other's.
        small_rate: Likewise its rate.
        domain: Consecutive ranks that the scale-up link joins.
    """

    up_bytes_per_s: float
    up_s: float
    out_bytes_per_s: float
    out_s: float
    host_bytes_per_s: float
    start_s: float
    small_latency: float
    small_rate: float
    domain: int

    def gather_s(self, group: Group, total_bytes: float) -> float:
        """All-gather of shards that are ``total_bytes`` together, by a ring; a reduce-scatter takes as
        long."""
        if group.size == 1:
            return 0.0
        passed = total_bytes * (group.size - 1) / group.size
        pace = passed / self.up_bytes_per_s if group.local > 1 else 0.0
        latency = (group.size - group.domains) * self.up_s
        if group.crosses:
            pace = max(pace, passed / (self.out_bytes_per_s * group.local))
            latency += (group.domains - 1) * self.out_s
        return self.start_s + self._better(latency, pace)

    def _better(self, latency_s: float, pace_s: float) -> float:
        """The protocol for large messages, or the one for small ones."""
        return min(latency_s + pace_s, latency_s * self.small_latency + pace_s / self.small_rate)

    def reduce_s(self, group: Group, total_bytes: float) -> float:
        """All-reduce of ``total_bytes`` on every rank: the better of two passes of a ring and a tree of
        domains.

        The tree moves as many bytes, with a latency that grows with the logarithm of the domains.
        """
        if group.size == 1:
            return 0.0
        ring = 2 * self.gather_s(group, total_bytes) - self.start_s
        if not group.crosses:
            return ring
        pace = 2 * total_bytes / min(self.up_bytes_per_s, self.out_bytes_per_s * group.local)
        latency = 2 * (group.local - 1) * self.up_s + 2 * ceil(log2(group.domains)) * self.out_s
        return min(ring, self.start_s + self._better(latency, pace))

    def exchange_s(self, group: Group, up_bytes: float, out_bytes: float) -> float:
        """All-to-all in which a rank sends ``up_bytes`` within its domain and ``out_bytes`` out of it."""
        if group.size == 1:
            return 0.0
        latency = self.out_s if group.crosses else self.up_s
        pace = max(up_bytes / self.up_bytes_per_s, out_bytes / self.out_bytes_per_s)
        return self.start_s + self._better(latency, pace)

    def send_s(self, crosses: bool, total_bytes: float) -> float:
        """One message to another rank."""
        if crosses:
            return self.out_s + total_bytes / self.out_bytes_per_s
        return self.up_s + total_bytes / self.up_bytes_per_s


def dispatch_copies(group: Group, experts: int, topk: int) -> tuple[float, float]:
    """Copies of a token that hierarchical dispatch sends: through the scale-up link, and through the network.

    A token crosses the network once for each remote domain in which one of its experts is, and the scale-up
    link once for each rank that has one, its own excepted; with experts chosen uniformly without repetition
    the chance that a share of the experts has none is a ratio of binomials. This is what DeepEP and HybridEP
    do.
    """
    if group.size == 1:
        return 0.0, 0.0
    per_rank = experts / group.size
    ranks = (group.size - 1) * _hit(experts, per_rank, topk)
    if not group.crosses:
        return ranks, 0.0
    remote = (group.domains - 1) * _hit(experts, per_rank * group.local, topk)
    return (ranks if group.local > 1 else 0.0), remote


def _hit(experts: int, held: float, topk: int) -> float:
    """Chance that at least one of ``topk`` different experts is among the ``held``."""
    without = max(0, experts - round(held))
    return 1.0 - comb(without, topk) / comb(experts, topk)


def network(machine: Machine, ranks_per_host: int, calibration: Calibration) -> Network:
    """The links of a machine with ``ranks_per_host`` of its GPUs in use on each host.

    Where the scale-up link joins hosts of a rack (18 in an NVL72), jobs get segments of a power of two of
    them.
    """
    hosts = machine.scale_up_gpus // machine.gpus_per_host
    if hosts > 1:
        domain = ranks_per_host * 2 ** floor(log2(hosts))
    else:
        domain = min(ranks_per_host, machine.scale_up_gpus)
    fractions = {
        "nvlink": calibration.nvlink_fraction,
        "pcie": calibration.host_fraction,
        "network": calibration.network_fraction,
        "host": calibration.host_fraction,
    }
    up, out, host = machine.scale_up, machine.scale_out, machine.host_link
    return Network(
        up_bytes_per_s=up.bandwidth_bytes_per_s * fractions[up.kind],
        up_s=up.latency_s,
        out_bytes_per_s=out.bandwidth_bytes_per_s * fractions[out.kind],
        out_s=out.latency_s,
        host_bytes_per_s=host.bandwidth_bytes_per_s * fractions[host.kind],
        start_s=calibration.collective_s,
        small_latency=calibration.small_message_latency,
        small_rate=calibration.small_message_rate,
        domain=domain,
    )
