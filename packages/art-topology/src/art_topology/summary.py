"""A compiled topology in one line."""

from __future__ import annotations

from art_topology.compiled import CompiledService, CompiledTrainer, RuntimeTopology

__all__ = ["service_axes", "summary", "trainer_axes"]


def summary(topology: RuntimeTopology) -> str:
    """Such as "2 hosts with 16 GPUs, 8 trainer ranks TP2/DP4, service policy on 8 GPUs TP8"."""
    gpus = sum(len(host.gpus) for host in topology.hosts)
    hosts = f"{len(topology.hosts):,} host{'s' * (len(topology.hosts) != 1)}"
    told = [f"{hosts} with {gpus:,} GPU{'s' * (gpus != 1)}" if gpus else f"{hosts} without GPUs"]
    if topology.trainer is not None:
        world, axes = topology.trainer.world_size, trainer_axes(topology.trainer)
        told.append(f"{world:,} trainer rank{'s' * (world != 1)}{f' {axes}' if axes else ''}")
    for service in topology.services[:3]:
        workers, axes = service.parallel.world_size, service_axes(service)
        noun = "GPU" if service.device_kind == "gpu" else "CPU slot"
        where = f"{workers:,} {noun}{'s' * (workers != 1)}"
        told.append(f"service {service.name} on {where}{f' {axes}' if axes else ''}")
    if len(topology.services) > 3:
        told.append(f"{len(topology.services) - 3} more services")
    return ", ".join(told)


def trainer_axes(trainer: CompiledTrainer) -> str:
    """Such as "TP2/CP4/EP8/DP2"; empty for one rank."""
    layout, vpp = trainer.layout, trainer.parallel.vpp or 1
    dense = (("TP", layout.tp), ("CP", layout.cp))
    expert = (("EP", layout.ep), ("ETP", layout.etp))
    return _axes((*dense, *expert, ("PP", layout.pp), ("VPP", vpp), ("DP", layout.dp)))


def service_axes(service: CompiledService) -> str:
    """Such as "TP8" or "TP2/DP4 EP"; empty for one worker."""
    parallel = service.parallel
    axes = _axes((("TP", parallel.tp), ("PP", parallel.pp), ("DP", parallel.dp)))
    return f"{axes} EP" if axes and parallel.expert_parallel else axes


def _axes(axes: tuple[tuple[str, int], ...]) -> str:
    return "/".join(f"{name}{size}" for name, size in axes if size > 1)
