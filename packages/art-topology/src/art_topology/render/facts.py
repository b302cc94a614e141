"""What there is to draw: for each host its devices, for each device who runs on it, in which groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from art_topology.compiled import CompiledHost, CpuDevice, GpuDevice, RuntimeTopology
from art_topology.ranks import GroupFamily, RankLayout
from art_topology.render.palette import FAMILIES
from art_topology.stages import StageError, StageLayout, known_stages

if TYPE_CHECKING:
    from art_topology.models import ModelDescription
    from art_topology.serving import VllmParallelSpec

_EXPERT = frozenset({"ep", "etp"})


class Bar(msgspec.Struct, frozen=True):
    """That a device is in group ``group`` of a family, of the trainer ("") or of a service."""

    family: GroupFamily
    group: int
    owner: str = ""


class Worker(msgspec.Struct, frozen=True):
    """A service's worker: the service's place among all, the worker's number, whether its member leads."""

    service: int
    name: str
    number: int
    leads: bool


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One device.

    Args:
        device: What it is, such as "GPU 3"; a UUID cut short.
        name: The same with the whole UUID.
        rank: The trainer's rank on it.
        stage: The layers of that rank, or its stage; empty without pipeline parallelism.
        stage_short: The number of the stage, where there is no room for all runs of layers.
        workers: Workers of services on it.
        bars: Groups that its rank, or else its worker, is in.
    """

    device: str
    name: str = ""
    rank: int | None = None
    stage: str = ""
    stage_short: str = ""
    workers: tuple[Worker, ...] = ()
    bars: tuple[Bar, ...] = ()

    @property
    def is_free(self) -> bool:
        """Whether nothing runs on it."""
        return self.rank is None and not self.workers


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One host.

    Args:
        host: As compiled.
        cells: All its GPUs, and the CPU slots that are taken by trainer and services.
        controller: Whether the controller runs on it.
        leads: Names of the services whose API is on it.
    """

    host: CompiledHost
    cells: tuple[Cell, ...]
    controller: bool
    leads: tuple[str, ...]

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for hosts that look alike but for numbers."""
        return (
            len(self.host.gpus),
            self.host.gpu_model,
            tuple(
                (cell.rank is not None, tuple(worker.service for worker in cell.workers))
                for cell in self.cells
            ),
        )


class Facts:
    """Everything to draw of one topology."""

    def __init__(self, topology: RuntimeTopology, model: ModelDescription | None = None) -> None:
        self.topology = topology
        self._stages = _stages(topology, model)
        self._ranks: dict[str, dict[GpuDevice | CpuDevice, int]] = {}
        if topology.trainer is not None:
            for host in topology.trainer.hosts:
                numbered = enumerate(host.devices, start=host.first_rank)
                self._ranks[host.host_id] = {device: rank for rank, device in numbered}
        self._workers: dict[str, dict[GpuDevice | CpuDevice, list[Worker]]] = {}
        self._leads: dict[str, list[str]] = {}
        for place, service in enumerate(topology.services):
            number = 0
            self._leads.setdefault(service.members[0].host_id, []).append(service.name)
            for index, member in enumerate(service.members):
                held = self._workers.setdefault(member.host_id, {})
                for device in member.devices:
                    held.setdefault(device, []).append(Worker(place, service.name, number, index == 0))
                    number += 1

    def host(self, node_rank: int) -> HostFacts:
        """What is on one host."""
        host = self.topology.hosts[node_rank]
        devices: list[GpuDevice | CpuDevice] = [GpuDevice(gpu) for gpu in host.gpus]
        taken = {*self._ranks.get(host.host_id, ()), *self._workers.get(host.host_id, ())}
        devices += [CpuDevice(slot) for slot in sorted(d.slot for d in taken if isinstance(d, CpuDevice))]
        return HostFacts(
            host=host,
            cells=tuple(self._cell(host.host_id, device) for device in devices),
            controller=host.host_id == self.topology.controller_host_id,
            leads=tuple(self._leads.get(host.host_id, ())),
        )

    def _cell(self, host_id: str, device: GpuDevice | CpuDevice) -> Cell:
        rank = self._ranks.get(host_id, {}).get(device)
        workers = tuple(self._workers.get(host_id, {}).get(device, ()))
        bars: tuple[Bar, ...] = ()
        if rank is not None and self.topology.trainer is not None:
            bars = _trainer_bars(self.topology.trainer.layout, rank)
        elif workers:
            service = self.topology.services[workers[0].service]
            bars = _service_bars(service.parallel, workers[0].number, service.name)
        if isinstance(device, CpuDevice):
            name = label = f"CPU slot {device.slot}"
        else:
            name, label = (
                str(device.gpu) if isinstance(device.gpu, str) else _gpu(device.gpu),
                _gpu(device.gpu),
            )
        stage, stage_short = self._stage(rank) if rank is not None else ("", "")
        return Cell(
            device=label,
            name=name,
            rank=rank,
            stage=stage,
            stage_short=stage_short,
            workers=workers,
            bars=bars,
        )

    def _stage(self, rank: int) -> tuple[str, str]:
        """The layers of a rank, run by run, and its stage."""
        trainer = self.topology.trainer
        if trainer is None or trainer.layout.pp == 1:
            return "", ""
        number = trainer.layout.coordinate(rank).pp
        stage = f"stage {number}"
        if self._stages is None:
            return stage, stage
        runs = [run.layers for run in self._stages.rank(number) if run.layer_count]
        shown = [f"{run[0]}\N{EN DASH}{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
        if not shown:
            return stage, stage
        return f"layers {', '.join(shown)}", stage


def _gpu(gpu: int | str) -> str:
    """The index, or of a UUID the kind and the last digits: those by which UUIDs can be told apart."""
    if isinstance(gpu, int):
        return f"GPU {gpu}"
    kind, _, rest = gpu.partition("-")
    return f"{kind} \N{HORIZONTAL ELLIPSIS}{rest[-6:]}" if len(rest) > 12 else gpu


def _stages(topology: RuntimeTopology, model: ModelDescription | None) -> StageLayout | None:
    if topology.trainer is None:
        return None
    try:
        return known_stages(topology.trainer.parallel, model)
    except StageError:
        return None  # a model that was not checked with the topology: the picture names stages, not layers


def drawn_families(topology: RuntimeTopology) -> tuple[GroupFamily, ...]:
    """The families that have groups of more than one, of the trainer or of a service."""
    sizes = dict.fromkeys(FAMILIES, 1)
    if topology.trainer is not None:
        for family in FAMILIES:
            sizes[family] = getattr(topology.trainer.layout, family)
    for service in topology.services:
        for family, size in _service_sizes(service.parallel).items():
            sizes[family] = max(sizes[family], size)
    return tuple(family for family, size in sizes.items() if size > 1)


def _trainer_bars(layout: RankLayout, rank: int) -> tuple[Bar, ...]:
    return tuple(
        Bar(family, group_number(layout, family, rank)) for family in FAMILIES if getattr(layout, family) > 1
    )


def group_number(layout: RankLayout, family: GroupFamily, rank: int) -> int:
    """The number of a rank's group among those of the family, by first rank."""
    axes = layout.expert_axes if family in _EXPERT else layout.dense_axes
    number, weight = 0, 1
    for axis in axes:
        if axis.name != family:
            number += rank // axis.stride % axis.size * weight
            weight *= axis.size
    return number


def _service_sizes(parallel: VllmParallelSpec) -> dict[GroupFamily, int]:
    sizes: dict[GroupFamily, int] = {"tp": parallel.tp, "pp": parallel.pp, "dp": parallel.dp}
    if parallel.expert_parallel:
        sizes["ep"] = parallel.tp * parallel.dp
    return sizes


def _service_bars(parallel: VllmParallelSpec, worker: int, owner: str) -> tuple[Bar, ...]:
    """vLLM numbers its workers tp fastest, then pp, then dp."""
    tp, pp = parallel.tp, parallel.pp
    numbers = {
        "tp": worker // tp,
        "ep": worker // tp % pp,
        "pp": worker // (tp * pp) * tp + worker % tp,
        "dp": worker % (tp * pp),
    }
    sizes = _service_sizes(parallel)
    return tuple(Bar(family, numbers[family], owner) for family in FAMILIES if sizes.get(family, 1) > 1)
