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
    """A GPU of a host, by index or UUID."""

    gpu: GpuId


type Device = CpuDevice | GpuDevice


class CompiledHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host with what it offers and what is left of it.

    ``free_cpu_slots`` are the slots that neither trainer nor services take: rollout workers run on these.
    """

    host_id: str
    node_rank: int
    address: str
    cpu_slots: int
    free_cpu_slots: tuple[int, ...]
    gpus: tuple[GpuId, ...]
    reserved_ports: tuple[int, ...]


class TrainerRank(msgspec.Struct, frozen=True, kw_only=True):
    """One trainer process. ``local_rank`` counts the trainer's processes on its host."""

    rank: int
    host_id: str
    local_rank: int
    device: CpuDevice | GpuDevice


class TrainerHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host's consecutive ranks: ``first_rank`` and one more for each further device."""

    host_id: str
    first_rank: int
    devices: tuple[CpuDevice | GpuDevice, ...]


class CompiledTrainer(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's ranks and how the model is divided among them.

    ``hosts`` stand in node order, all with ``ranks_per_host`` ranks. ``rendezvous.port`` is 0 unless it was
    given.
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
    """One host's share of a service. Member 0 leads; ``member_index`` is vLLM's node rank."""

    member_index: int
    host_id: str
    address: str
    devices: tuple[CpuDevice | GpuDevice, ...]


class CompiledService(msgspec.Struct, frozen=True, kw_only=True):
    """One vLLM deployment with its places.

    ``spec`` is what the user wrote with its endpoints filled in. ``leader`` is where the API listens;
    ``rendezvous`` where the leader waits for the other members, None with a single member. Their ports are 0
    unless they were given.
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

    ``fingerprint`` is a SHA-256 over everything else but ``warnings``: equal for inputs that mean the same.
    """

    hosts: tuple[CompiledHost, ...]
    controller_host_id: str
    startup_timeout_s: float
    rpc_timeout_s: float
    trainer: CompiledTrainer | None = None
    services: tuple[CompiledService, ...] = ()
    nccl_transport: NcclTransportSpec | None = None
    nixl_transport: NixlTransportSpec | None = None
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
