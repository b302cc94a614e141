"""Ready-made clusters: this machine alone, or several machines that are all alike."""

from collections.abc import Iterable

from art_topology.cluster import ClusterSpec, HostSpec, NcclTransportSpec, NixlTransportSpec


def local_cluster(
    *,
    cpu_slots: int,
    gpus: Iterable[int | str] = (),
    gpu_model: str | None = None,
    startup_timeout_s: float = 90.0,
    rpc_timeout_s: float = 30.0,
) -> ClusterSpec:
    """One host named "local" on 127.0.0.1.

    Args:
        cpu_slots: How many CPU processes may be placed: rollout workers, CPU trainer ranks, CPU model
            workers.
        gpus: GPUs to use, by index or UUID.
        gpu_model: What they are, such as "H200".
        startup_timeout_s: Limit for bringing up the workers, in seconds.
        rpc_timeout_s: Limit for one control message, in seconds.

    Raises:
        SpecError: a value has the wrong type or is out of range.
    """
    host = HostSpec(
        host_id="local",
        address="127.0.0.1",
        cpu_slots=cpu_slots,
        gpus=tuple(gpus),
        gpu_model=gpu_model,
    )
    return ClusterSpec(hosts=(host,), startup_timeout_s=startup_timeout_s, rpc_timeout_s=rpc_timeout_s)


def homogeneous_cluster(
    addresses: Iterable[str],
    *,
    cpu_slots: int,
    gpus_per_host: int = 0,
    gpu_model: str | None = None,
    startup_timeout_s: float = 90.0,
    rpc_timeout_s: float = 30.0,
    nccl_transport: NcclTransportSpec | None = None,
    nixl_transport: NixlTransportSpec | None = None,
    reserved_ports: Iterable[int] = (),
    worker_port: int | None = None,
    skypilot: bool = False,
) -> ClusterSpec:
    """Hosts "host-0", "host-1" ... in the node order of ``addresses``, all with the same slots, GPUs and
    ports.

    Args:
        addresses: IP address or name of each host, by which the others reach it.
        cpu_slots: How many CPU processes may be placed on each host.
        gpus_per_host: How many GPUs each host has; they get the indices from 0 on.
        gpu_model: What they are, such as "H200".
        startup_timeout_s: Limit for bringing up the workers of the whole cluster, in seconds.
        rpc_timeout_s: Limit for one control message, in seconds.
        nccl_transport: Required as soon as a GPU workload spans hosts.
        nixl_transport: Required as soon as expert parallelism spans hosts.
        reserved_ports: Ports that something else uses on every host.
        worker_port: On which the Monarch worker of every host listens.
        skypilot: Whether SkyPilot launches the hosts.

    Raises:
        SpecError: a value has the wrong type or is out of range, or there is no address.
    """
    ports = tuple(reserved_ports)
    gpus = tuple(range(gpus_per_host))
    hosts = tuple(
        HostSpec(
            host_id=f"host-{rank}",
            address=address,
            node_rank=rank,
            cpu_slots=cpu_slots,
            gpus=gpus,
            gpu_model=gpu_model,
            reserved_ports=ports,
        )
        for rank, address in enumerate(addresses)
    )
    return ClusterSpec(
        hosts=hosts,
        startup_timeout_s=startup_timeout_s,
        rpc_timeout_s=rpc_timeout_s,
        nccl_transport=nccl_transport,
        nixl_transport=nixl_transport,
        worker_port=worker_port,
        skypilot=skypilot,
    )
