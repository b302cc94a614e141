"""Fills in the defaults of a topology that passed every check, and gives each process its place."""

from collections.abc import Sequence

from msgspec.structs import replace

from art_topology.cluster import CpuPlacement, EndpointSpec, GpuPlacement, HostSpec
from art_topology.compiled import (
    CompiledHost,
    CompiledMember,
    CompiledService,
    CompiledTrainer,
    CpuDevice,
    GpuDevice,
    RuntimeTopology,
    TrainerHost,
)
from art_topology.diagnostics import Diagnostic
from art_topology.fingerprint import fingerprint
from art_topology.passes.hosts import HostTable
from art_topology.passes.pipeline import virtual_stages
from art_topology.passes.trainer_division import divides_tokens
from art_topology.ports import worker_ports
from art_topology.ranks import RankLayout
from art_topology.serving import ModelServiceSpec
from art_topology.spec import GpuId
from art_topology.trainer import TrainerMeshSpec


class _Devices:
    """Gives out CPU slots of each host in ascending order. Hosts that are alike share their tuples, so that
    the cost does not grow with the number of GPUs and slots."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}
        self._cpus: dict[tuple[int, int], tuple[CpuDevice, ...]] = {}
        self._gpus: dict[tuple[GpuId, ...], tuple[GpuDevice, ...]] = {}
        self._free: dict[tuple[int, int], tuple[int, ...]] = {}

    def take(self, placement: GpuPlacement | CpuPlacement) -> tuple[CpuDevice, ...] | tuple[GpuDevice, ...]:
        if isinstance(placement, GpuPlacement):
            found = self._gpus.get(placement.gpus)
            if found is None:
                found = self._gpus[placement.gpus] = tuple(GpuDevice(gpu) for gpu in placement.gpus)
            return found
        first = self._taken.get(placement.host_id, 0)
        self._taken[placement.host_id] = first + placement.slots
        span = (first, first + placement.slots)
        if span not in self._cpus:
            self._cpus[span] = tuple(CpuDevice(slot) for slot in range(*span))
        return self._cpus[span]

    def free(self, host: HostSpec) -> tuple[int, ...]:
        span = (self._taken.get(host.host_id, 0), host.cpu_slots)
        if span not in self._free:
            self._free[span] = tuple(range(*span))
        return self._free[span]


def assemble(
    table: HostTable,
    trainer: TrainerMeshSpec | None,
    layout: RankLayout | None,
    services: Sequence[ModelServiceSpec],
    warnings: tuple[Diagnostic, ...],
) -> RuntimeTopology:
    """Builds the compiled topology. Only for input without errors."""
    cluster = table.cluster
    addresses = {
        host.host_id: address.canonical for host, address in zip(cluster.hosts, table.addresses, strict=True)
    }
    devices = _Devices()
    compiled_trainer = None
    if trainer is not None and layout is not None:
        compiled_trainer = _trainer(trainer, layout, addresses, devices)
    compiled_services = tuple(_service(service, addresses, devices) for service in services)
    hosts = tuple(
        CompiledHost(
            host_id=host.host_id,
            node_rank=node_rank,
            address=addresses[host.host_id],
            cpu_slots=host.cpu_slots,
            free_cpu_slots=devices.free(host),
            gpus=host.gpus,
            reserved_ports=tuple(sorted(host.reserved_ports)),
            gpu_model=host.gpu_model,
        )
        for node_rank, host in enumerate(cluster.hosts[index] for index in table.in_node_order)
    )
    topology = RuntimeTopology(
        hosts=hosts,
        controller_host_id=cluster.controller_host_id or hosts[0].host_id,
        startup_timeout_s=cluster.startup_timeout_s,
        rpc_timeout_s=cluster.rpc_timeout_s,
        trainer=compiled_trainer,
        services=compiled_services,
        nccl_transport=cluster.nccl_transport,
        nixl_transport=cluster.nixl_transport,
        worker_ports=worker_ports(cluster),
        warnings=warnings,
    )
    return replace(topology, fingerprint=fingerprint(topology))


def _trainer(
    spec: TrainerMeshSpec, layout: RankLayout, addresses: dict[str, str], devices: _Devices
) -> CompiledTrainer:
    hosts = []
    first_rank = 0
    for placement in spec.placements:
        placed = devices.take(placement)
        hosts.append(TrainerHost(host_id=placement.host_id, first_rank=first_rank, devices=placed))
        first_rank += len(placed)
    stages = virtual_stages(spec.parallel)
    vpp = stages if stages != 1 else None
    group = (spec.parallel.vpp_microbatch_group_size or spec.parallel.pp) if vpp else None
    return CompiledTrainer(
        parallel=replace(
            spec.parallel,
            vpp=vpp,
            vpp_microbatch_group_size=group,
            sequence_parallel=divides_tokens(spec.parallel),
        ),
        layout=layout,
        hosts=tuple(hosts),
        rendezvous=spec.rendezvous or EndpointSpec(host=addresses[hosts[0].host_id]),
    )


def _service(spec: ModelServiceSpec, addresses: dict[str, str], devices: _Devices) -> CompiledService:
    members = tuple(
        CompiledMember(
            member_index=i,
            host_id=member.host_id,
            address=addresses[member.host_id],
            devices=devices.take(member.placement),
        )
        for i, member in enumerate(spec.members)
    )
    leader = spec.leader or EndpointSpec(host=members[0].address)
    rendezvous = spec.rendezvous
    if rendezvous is None and len(members) > 1:
        rendezvous = EndpointSpec(host=members[0].address)
    return CompiledService(
        spec=replace(spec, leader=leader, rendezvous=rendezvous),
        members=members,
        leader=leader,
        rendezvous=rendezvous,
    )
