"""The physical side: hosts, what they offer, and how they reach each other."""

from typing import Annotated

import msgspec

from art_topology.spec import MOST_SLOTS, GpuId, Name, Port, Seconds, Spec


class UnresolvedPortError(ValueError):
    """An endpoint with port 0 was to be written as a URL before the listening host chose its port."""


class EndpointSpec(Spec, frozen=True, kw_only=True):
    """Where something listens.

    Args:
        host: An IP address (an IPv6 literal without brackets) or a host name.
        port: The TCP port; 0 leaves it to the host that listens, which reports what it chose.
    """

    host: Annotated[str, msgspec.Meta(min_length=1)]
    port: Port = 0

    def with_port(self, port: int) -> "EndpointSpec":
        """The same host with the port that was chosen.

        Raises:
            SpecError: the port is not in 0 to 65,535.
        """
        return EndpointSpec(host=self.host, port=port)

    def authority(self) -> str:
        """``host:port``, with an IPv6 literal in brackets (RFC 3986, section 3.2.2).

        Raises:
            UnresolvedPortError: the port is still 0.
        """
        if self.port == 0:
            raise UnresolvedPortError(
                f"endpoint {self.host} has port 0, to be chosen by the host that listens; "
                "use with_port() with the port it reported"
            )
        if ":" not in self.host:
            return f"{self.host}:{self.port}"
        # The zone of a scoped address is set apart by %25 (RFC 6874).
        return f"[{self.host.replace('%', '%25')}]:{self.port}"

    def url(self, path: str = "", *, scheme: str = "http") -> str:
        """``scheme://host:port/path``, or without a path ``scheme://host:port``.

        Raises:
            UnresolvedPortError: the port is still 0.
        """
        suffix = f"/{path.lstrip('/')}" if path else ""
        return f"{scheme}://{self.authority()}{suffix}"


class NcclTransportSpec(Spec, frozen=True, kw_only=True):
    """The network that NCCL must use between hosts, instead of falling back to TCP sockets.

    Args:
        net_name: The name under which the network registers with NCCL, one word ("IB" covers InfiniBand and
            RoCE; a plugin has its own). Set the environment variable ``NCCL_NET`` to it on every host.
    """

    net_name: str


class NixlTransportSpec(Spec, frozen=True, kw_only=True):
    """NIXL for what crosses hosts outside collectives, such as experts dispatched between hosts.

    Args:
        metadata_store: An etcd that somebody else runs; without it one belongs on the controller's host.
    """

    metadata_store: EndpointSpec | None = None


class HostSpec(Spec, frozen=True, kw_only=True):
    """One machine.

    Args:
        host_id: Its name in this topology.
        address: IP address (IPv6 without brackets) or host name by which the other hosts reach it.
        node_rank: Its place in the cluster, from 0; by default its position in ``ClusterSpec.hosts``.
        cpu_slots: How many CPU processes may be placed on it: rollout workers, CPU trainer ranks, CPU model
            workers. At most 65,536.
        gpus: Its GPUs, by index or by UUID.
        gpu_model: What all of them are, such as "H200": a name in the planner's table of hardware. With it
            the compiler checks their memory as well.
        reserved_ports: Ports that something else on it uses.
    """

    host_id: Name
    address: Annotated[str, msgspec.Meta(min_length=1)]
    node_rank: Annotated[int, msgspec.Meta(ge=0)] | None = None
    cpu_slots: Annotated[int, msgspec.Meta(ge=0, le=MOST_SLOTS)] = 0
    gpus: tuple[GpuId, ...] = ()
    gpu_model: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | None = None
    reserved_ports: tuple[Annotated[int, msgspec.Meta(ge=1, le=65535)], ...] = ()


class ClusterSpec(Spec, frozen=True, kw_only=True):
    """The machines of one run.

    Args:
        hosts: At least one.
        controller_host_id: Where the controller runs, any host; by default the one with node rank 0.
        startup_timeout_s: Limit for bringing up the workers of the whole cluster, in seconds, at most a week.
        rpc_timeout_s: Limit for one control message, in seconds, at most a week.
        nccl_transport: Required as soon as a GPU workload spans hosts.
        nixl_transport: Required as soon as expert parallelism spans hosts.
        worker_port: On which the Monarch worker of every host listens, if it is the same everywhere
            (``art-monarch``'s ``--port``, 22222 by default).
        skypilot: Whether SkyPilot launches the hosts: the port after ``worker_port`` then is that of the
            job's lifecycle.
    """

    hosts: Annotated[tuple[HostSpec, ...], msgspec.Meta(min_length=1)]
    controller_host_id: Name | None = None
    startup_timeout_s: Seconds = 90.0
    rpc_timeout_s: Seconds = 30.0
    nccl_transport: NcclTransportSpec | None = None
    nixl_transport: NixlTransportSpec | None = None
    worker_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    skypilot: bool = False


class GpuPlacement(Spec, frozen=True, kw_only=True, tag_field="device", tag="gpu"):
    """One process for each of these GPUs of a host, in this order.

    Args:
        host_id: A host of the cluster.
        gpus: At least one of its GPUs, named as the host names them.
    """

    host_id: Name
    gpus: Annotated[tuple[GpuId, ...], msgspec.Meta(min_length=1)]

    @property
    def process_count(self) -> int:
        """How many processes it places."""
        return len(self.gpus)


class CpuPlacement(Spec, frozen=True, kw_only=True, tag_field="device", tag="cpu"):
    """Processes on CPU slots of a host.

    Args:
        host_id: A host of the cluster.
        slots: How many processes, each on a slot of its own.
    """

    host_id: Name
    slots: Annotated[int, msgspec.Meta(ge=1, le=MOST_SLOTS)] = 1

    @property
    def process_count(self) -> int:
        """How many processes it places."""
        return self.slots


type Placement = GpuPlacement | CpuPlacement
"""Where the processes of a workload run on one host. In files the key ``device`` ("gpu" or "cpu") says
which."""
