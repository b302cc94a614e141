"""What a program run by ``art-monarch`` is given."""

import shlex

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
        command: what started the program, without its arguments, for a shell in any folder:
            ``art-monarch local --program /home/me/train.py:main``; empty where that is not known.
    """

    host_mesh: HostMeshes
    addresses: tuple[str, ...] = (LOOPBACK,)
    arguments: tuple[str, ...] = ()
    command: str = ""

    @property
    def host_count(self) -> int:
        """How many hosts there are."""
        return len(self.host_mesh)

    def resume_command(self, folder: str, resume: str = "--resume") -> str | None:
        """What goes on with a run of this program, with the arguments of now, when the run's folder is put
        behind it; for :class:`art.reporting.RunReport`.

        ``launch.resume_command("--run-dir")`` is for example ``art-monarch local --program
        /home/me/train.py:main -- --steps 4 --resume --run-dir``.

        Args:
            folder: the program's option for the folder of a run.
            resume: its option, without a value, for going on.

        Returns:
            The command, quoted for a shell; None where it is not known what started the program.
        """
        if not self.command:
            return None
        kept: list[str] = []
        value = False
        for argument in self.arguments:
            if not value and argument != resume and argument.partition("=")[0] != folder:
                kept.append(argument)
            value = not value and argument == folder
        return f"{self.command} -- {shlex.join([*kept, resume, folder])}"

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
