"""Weights, gradients and optimizer states of a rank: what stays from step to step."""

import math

from art_topology.memory.assumptions import MemoryAssumptions
from art_topology.memory.parts import MemoryPart
from art_topology.memory.weights import RankParameters
from art_topology.ranks import RankLayout
from art_topology.workload import WorkloadSpec

_MOMENT_BYTES = 8
"""Adam's two moments, float32."""


def state_parts(
    held: RankParameters,
    layout: RankLayout,
    workload: WorkloadSpec,
    assumptions: MemoryAssumptions,
    layers: int,
) -> tuple[tuple[MemoryPart, ...], tuple[MemoryPart, ...]]:
    """What lies on the device, and what offload moves to the host.

    Args:
        held: The weights of the rank.
        layout: How many ranks hold the same weights.
        workload: dtype, adapters, distributed optimizer, offload.
        assumptions: Bytes of gradients and adapters.
        layers: Layers of the rank; offloaded weights of two of them are on the device at a time.
    """
    device, host = _weights(held, workload, layers)
    if workload.lora_rank is None:
        trained, expert_trained, weight_bytes = held.dense + held.ends, held.experts, workload.dtype_bytes
        gradient = assumptions.gradient_bytes
    else:
        trained, expert_trained = held.adapters, held.expert_adapters
        weight_bytes, gradient = assumptions.adapter_bytes, 4
        device += _counted("adapters", trained + expert_trained, weight_bytes, "weights of adapters")
    device += _counted("gradients", trained, gradient, "gradients")
    device += _counted("gradients of experts", expert_trained, gradient, "gradients of experts")
    master = 4 if weight_bytes < 4 else 0
    shares = (layout.dp * layout.cp, layout.expert_dp) if workload.distributed_optimizer else (1, 1)
    optimizer = [
        *_optimizer("optimizer", trained, master, shares[0], "dp * cp"),
        *_optimizer("optimizer of experts", expert_trained, master, shares[1], "expert dp"),
    ]
    if "optimizer" in workload.offload:
        host += optimizer
    else:
        device += optimizer
    return tuple(device), tuple(host)


def _weights(
    held: RankParameters, workload: WorkloadSpec, layers: int
) -> tuple[list[MemoryPart], list[MemoryPart]]:
    size = workload.dtype_bytes
    parts = [
        *_counted("weights", held.dense, size, "weights of layers"),
        *_counted("weights of experts", held.experts, size, "weights of experts"),
    ]
    ends = _counted("embedding and head", held.ends, size, "weights of embedding and vocabulary head")
    if "weights" not in workload.offload or layers <= 2:
        return [*parts, *ends], []
    kept = [
        MemoryPart(
            name=part.name,
            bytes=math.ceil(part.bytes * 2 / layers),
            why=f"2 of {layers} layers at a time: {part.why} * 2 / {layers}",
        )
        for part in parts
    ]
    return [*kept, *ends], parts


def _counted(name: str, count: int, size: int, what: str) -> list[MemoryPart]:
    if count == 0:
        return []
    return [MemoryPart(name=name, bytes=count * size, why=f"{count:,} {what} * {size} bytes")]


def _optimizer(name: str, count: int, master: int, share: int, who: str) -> list[MemoryPart]:
    if count == 0:
        return []
    size = _MOMENT_BYTES + master
    kinds = "master copy and two moments" if master else "two moments"
    why = f"{count:,} weights * {size} bytes ({kinds})"
    if share > 1:
        why += f" / {share} ({who})"
    return [MemoryPart(name=name, bytes=math.ceil(count / share) * size, why=why)]
