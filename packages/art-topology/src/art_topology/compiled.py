"""What compiles: a topology in which every default is filled in and every process has its place.

All of it is frozen and travels as MessagePack. Hosts stand in node order, ranks and workers in rank order.
"""

import msgspec

from art_topology.cluster import EndpointSpec, NcclTransportSpec, NixlTransportSpec
from art_topology.diagnostics import Diagnostic
from art_topology.ranks import RankLayout
from art_topology.serving import ModelServiceSpec, VllmParallelSpec
from art_topology.spec import GpuId
from art_topology.trainer import MegatronTopologyConfig


class CpuDevice(msgspec.Struct, frozen=True, tag_field="device", tag="cpu"):
    """A CPU slot of a host, counted from 0."""

    slot: int


class GpuDevice(msgspec.Struct, frozen=True, tag_field="device", tag="gpu"):
    """A GPU of a host, by index (as the driver counts) or UUID."""

    gpu: GpuId


type Device = CpuDevice | GpuDevice
"""What one process runs on. Encoded, the key ``device`` ("cpu" or "gpu") says which."""


class CompiledHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host with what it offers and what is left of it.

    Args:
        host_id: Its name.
        node_rank: Its place in the cluster, from 0.
        address: IP address or lower-case host name, in canonical form.
        cpu_slots: How many CPU processes may be placed on it.
        free_cpu_slots: The slots, counted from 0, that neither trainer nor services take: rollout workers run
            on these.
        gpus: Its GPUs, whether taken or not.
        reserved_ports: Ports that something else on it uses, ascending.
        gpu_model: What its GPUs are, if that was said.
    """

    host_id: str
    node_rank: int
    address: str
    cpu_slots: int
    free_cpu_slots: tuple[int, ...]
    gpus: tuple[GpuId, ...]
    reserved_ports: tuple[int, ...]
    gpu_model: str | None = None


class TrainerRank(msgspec.Struct, frozen=True, kw_only=True):
    """One trainer process.

    Args:
        rank: Its number among all ranks, from 0.
        host_id: The host it runs on.
        local_rank: Its number among the trainer's processes on this host, from 0.
        device: What it runs on.
    """

    rank: int
    host_id: str
    local_rank: int
    device: CpuDevice | GpuDevice


class TrainerHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host's consecutive ranks.

    Args:
        host_id: The host.
        first_rank: The rank of the first device; each further device has the next.
        devices: What the ranks run on, one device each.
    """

    host_id: str
    first_rank: int
    devices: tuple[CpuDevice | GpuDevice, ...]


class CompiledTrainer(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's ranks and how the model is divided among them.

    Args:
        parallel: As specified, with ``vpp`` None instead of 1 and otherwise filled in, as
            ``vpp_microbatch_group_size`` and ``sequence_parallel`` are.
        layout: The sizes of all axes, data parallelism included.
        hosts: In node order, all with ``ranks_per_host`` ranks.
        rendezvous: Where rank 0 listens for the others; port 0 unless one was given.
    """

    parallel: MegatronTopologyConfig
    layout: RankLayout
    hosts: tuple[TrainerHost, ...]
    rendezvous: EndpointSpec

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.layout.world_size

    @property
    def ranks_per_host(self) -> int:
        """How many ranks each host has."""
        return len(self.hosts[0].devices)

    @property
    def device_kind(self) -> str:
        """What all ranks run on: "cpu" or "gpu"."""
        return "cpu" if isinstance(self.hosts[0].devices[0], CpuDevice) else "gpu"

    @property
    def ranks(self) -> tuple[TrainerRank, ...]:
        """All ranks, in rank order; built anew on each access."""
        return tuple(self.rank(rank) for rank in range(self.world_size))

    def rank(self, rank: int) -> TrainerRank:
        """One rank's place.

        Raises:
            IndexError: there is no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank {rank} of a trainer with {self.world_size} ranks")
        node, local_rank = divmod(rank, self.ranks_per_host)
        host = self.hosts[node]
        return TrainerRank(
            rank=rank, host_id=host.host_id, local_rank=local_rank, device=host.devices[local_rank]
        )


class CompiledMember(msgspec.Struct, frozen=True, kw_only=True):
    """One host's share of a service.

    Args:
        member_index: Its number, vLLM's node rank; member 0 leads.
        host_id: The host it runs on.
        address: The host's address, in canonical form.
        devices: What its workers run on, one device each.
    """

    member_index: int
    host_id: str
    address: str
    devices: tuple[CpuDevice | GpuDevice, ...]


class CompiledService(msgspec.Struct, frozen=True, kw_only=True):
    """One vLLM deployment with its places. Ports are 0 unless they were given.

    Args:
        spec: What the user wrote, with its endpoints filled in.
        members: Its members, the leader first.
        leader: Where the API listens.
        rendezvous: Where the leader waits for the other members; with a single member None unless it was
            given.
    """

    spec: ModelServiceSpec
    members: tuple[CompiledMember, ...]
    leader: EndpointSpec
    rendezvous: EndpointSpec | None

    @property
    def name(self) -> str:
        """How programs ask for it."""
        return self.spec.name

    @property
    def parallel(self) -> VllmParallelSpec:
        """How vLLM divides the model."""
        return self.spec.parallel

    @property
    def device_kind(self) -> str:
        """What all workers run on: "cpu" or "gpu"."""
        return "cpu" if isinstance(self.members[0].devices[0], CpuDevice) else "gpu"


class RuntimeTopology(msgspec.Struct, frozen=True, kw_only=True):
    """A topology that passed every check that needs no hardware.

    Args:
        hosts: In node order.
        controller_host_id: The host that runs the controller.
        startup_timeout_s: Limit for bringing up the workers of the whole cluster, in seconds.
        rpc_timeout_s: Limit for one control message, in seconds.
        trainer: The trainer's ranks; None when the program does not train.
        services: The model services, as they were given.
        nccl_transport: The network of NCCL, if one was named.
        nixl_transport: The settings of NIXL, if it is used.
        worker_ports: Of the Monarch worker and, under SkyPilot, of the job's lifecycle, on every host; empty
            if they are unknown.
        warnings: What is worth a second look.
        fingerprint: SHA-256, in hex, over everything else but ``warnings``: equal for inputs that mean the
            same.
    """

    hosts: tuple[CompiledHost, ...]
    controller_host_id: str
    startup_timeout_s: float
    rpc_timeout_s: float
    trainer: CompiledTrainer | None = None
    services: tuple[CompiledService, ...] = ()
    nccl_transport: NcclTransportSpec | None = None
    nixl_transport: NixlTransportSpec | None = None
    worker_ports: tuple[int, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    fingerprint: str = ""

    @property
    def controller(self) -> CompiledHost:
        """The host that runs the controller."""
        return self.host(self.controller_host_id)

    def host(self, host_id: str) -> CompiledHost:
        """The host of this name.

        Raises:
            KeyError: there is none.
        """
        for host in self.hosts:
            if host.host_id == host_id:
                return host
        raise KeyError(f"no host {host_id!r}; there are {', '.join(host.host_id for host in self.hosts)}")

    def service(self, name: str) -> CompiledService:
        """The service of this name.

        Raises:
            KeyError: there is none.
        """
        for service in self.services:
            if service.name == name:
                return service
        known = ", ".join(service.name for service in self.services) or "none"
        raise KeyError(f"no model service {name!r}; there are: {known}")
