"""What a program run by ``art-monarch`` is given."""

import msgspec

from art.distributed.host_meshes import LOOPBACK, HostMeshes
from art_topology import ClusterSpec, NcclTransportSpec, NixlTransportSpec, homogeneous_cluster


class ArtLaunchContext(msgspec.Struct, frozen=True):
    """The hosts of a launch, attached, for ``ArtRuntime.start``.

    Args:
        host_mesh: the hosts; the launcher closes them when the program ends.
        addresses: by which the hosts reach each other, in node order.
        arguments: what stands behind ``--`` on the command line, for the program, for example to be read by
            ``argparse.ArgumentParser("train.py").parse_args(launch.arguments)``.
    """

    host_mesh: HostMeshes
    addresses: tuple[str, ...] = (LOOPBACK,)
    arguments: tuple[str, ...] = ()

    @property
    def host_count(self) -> int:
        """How many hosts there are."""
        return len(self.host_mesh)

    def homogeneous_cluster(
        self,
        *,
        cpu_slots: int,
        gpus_per_host: int = 0,
        startup_timeout_s: float = 90.0,
        rpc_timeout_s: float = 30.0,
        nccl_transport: NcclTransportSpec | None = None,
        nixl_transport: NixlTransportSpec | None = None,
    ) -> ClusterSpec:
        """The cluster specification of these hosts, all alike.

        Args:
            cpu_slots: how many CPU processes may be placed on each host.
            gpus_per_host: GPUs of each host, used by index.
            startup_timeout_s: limit for bringing up the workers, in seconds.
            rpc_timeout_s: limit for one control message, in seconds.
            nccl_transport: required as soon as a GPU workload spans hosts.
            nixl_transport: required as soon as expert parallelism spans hosts.

        Raises:
            SpecError: a value has the wrong type or is out of range.
        """
        return homogeneous_cluster(
            self.addresses,
            cpu_slots=cpu_slots,
            gpus_per_host=gpus_per_host,
            startup_timeout_s=startup_timeout_s,
            rpc_timeout_s=rpc_timeout_s,
            nccl_transport=nccl_transport,
            nixl_transport=nixl_transport,
            reserved_ports=sorted(set(self.host_mesh.worker_ports)),
        )
