"""A compiled topology in one line."""

from __future__ import annotations

from art_topology.compiled import CompiledService, CompiledTrainer, RuntimeTopology

__all__ = ["counted", "gpu_count", "service_place", "summary", "trainer_axes"]


def summary(topology: RuntimeTopology) -> str:
    """Such as "2 hosts with 16 GPUs, 8 trainer ranks TP2/DP4, service policy on 8 GPUs TP8"."""
    gpus, hosts = gpu_count(topology), counted(len(topology.hosts), "host")
    told = [f"{hosts} with {counted(gpus, 'GPU')}" if gpus else f"{hosts} without GPUs"]
    if topology.trainer is not None:
        ranks = counted(topology.trainer.world_size, "trainer rank")
        told.append(f"{ranks} {trainer_axes(topology.trainer)}".rstrip())
    told += [f"service {service.name} on {service_place(service)}" for service in topology.services[:3]]
    if len(topology.services) > 3:
        told.append(f"{len(topology.services) - 3} more services")
    return ", ".join(told)


def counted(count: int, noun: str) -> str:
    """Such as "1 host" and "1,024 hosts"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def gpu_count(topology: RuntimeTopology) -> int:
    """GPUs of all hosts."""
    return sum(len(host.gpus) for host in topology.hosts)


def trainer_axes(trainer: CompiledTrainer) -> str:
    """Such as "TP2/CP4/EP8/DP2"; empty for one rank."""
    layout, vpp = trainer.layout, trainer.parallel.vpp or 1
    dense = (("TP", layout.tp), ("CP", layout.cp))
    expert = (("EP", layout.ep), ("ETP", layout.etp))
    return _axes((*dense, *expert, ("PP", layout.pp), ("VPP", vpp), ("DP", layout.dp)))


def service_place(service: CompiledService) -> str:
    """Such as "8 GPUs TP2/DP4 EP", or "1 CPU slot"."""
    parallel = service.parallel
    devices = counted(parallel.world_size, "GPU" if service.device_kind == "gpu" else "CPU slot")
    axes = _axes((("TP", parallel.tp), ("PP", parallel.pp), ("DP", parallel.dp)))
    return f"{devices} {axes}{' EP' if parallel.expert_parallel else ''}" if axes else devices


def _axes(axes: tuple[tuple[str, int], ...]) -> str:
    return "/".join(f"{name}{size}" for name, size in axes if size > 1)
