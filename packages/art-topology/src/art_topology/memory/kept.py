"""Activations of a rank: what its layers keep, times the microbatches in flight."""

import math
from collections import Counter

from art_topology.memory.activations import kept_bytes, saved_tensors
from art_topology.memory.assumptions import MemoryAssumptions
from art_topology.memory.parts import MemoryPart
from art_topology.memory.pipeline import in_flight
from art_topology.memory.weights import layers_of, stage_layers
from art_topology.models.description import ModelDescription
from art_topology.ranks import RankLayout
from art_topology.stages import Stage, StageLayout
from art_topology.workload import WorkloadSpec

_DEVICE_LAYERS = 2
"""Layers whose offloaded activations are on the device at a time: one in use, one on its way."""


def activation_parts(
    model: ModelDescription,
    layout: RankLayout,
    stages: StageLayout,
    workload: WorkloadSpec,
    pp_rank: int,
    microbatches: int,
    vpp_group: int,
    assumptions: MemoryAssumptions,
) -> tuple[list[MemoryPart], list[MemoryPart]]:
    """Activations on the device, and those that offload moves to the host."""
    held = stages.rank(pp_rank)
    sizes = [_stage_bytes(model, stage, layout, workload, assumptions) for stage in held]
    states = in_flight(layout.pp, len(held), pp_rank, microbatches, vpp_group)
    state = max(states, key=lambda counts: _total(counts, sizes))
    total = _total(state, sizes)
    layers = sum(stage.layer_count + stage.mtp_layers for stage in held)
    why = " + ".join(
        f"{count} microbatches * {size / 2**20:,.1f} MiB" for count, size in zip(state, sizes, strict=True)
    )
    why += f" ({layers} layers, rows of {workload.packed_sequence_length:,} tokens / cp {layout.cp} / tp "
    why += f"{layout.tp}, recompute {workload.recompute})"
    device: list[MemoryPart] = []
    host: list[MemoryPart] = []
    if "activations" in workload.offload and layers > _DEVICE_LAYERS:
        share = total // (sum(state) or 1) * _DEVICE_LAYERS * len(held) // layers
        device.append(
            MemoryPart(
                name="activations", bytes=share, why=f"{_DEVICE_LAYERS} of {layers} layers of a row at a time"
            )
        )
        host.append(MemoryPart(name="activations", bytes=total, why=why))
    else:
        device.append(MemoryPart(name="activations", bytes=total, why=why))
    if workload.recompute == "full":
        device.append(_recomputed(model, layout, stages, workload, pp_rank, assumptions))
    return device, host


def _total(counts: tuple[int, ...], sizes: list[int]) -> int:
    return sum(count * size for count, size in zip(counts, sizes, strict=True))


def _stage_bytes(
    model: ModelDescription,
    stage: Stage,
    layout: RankLayout,
    workload: WorkloadSpec,
    assumptions: MemoryAssumptions,
) -> int:
    """What one microbatch leaves in one virtual stage."""
    layers = layers_of(model, stage)
    recomputed = len(layers) if workload.recompute == "full" else 0
    if workload.recompute == "full" and workload.recompute_layers is not None:
        recomputed = min(recomputed, workload.recompute_layers)
    total = 0
    for chosen, full in ((layers[:recomputed], True), (layers[recomputed:], False)):
        for layer, count in Counter(chosen).items():
            total += count * kept_bytes(layer, layout, workload, assumptions, full)
    if stage.loss:
        tokens = math.ceil(workload.packed_sequence_length / layout.cp)
        if assumptions.sequence_parallel:
            tokens = math.ceil(tokens / layout.tp)
        total += 2 * tokens * model.hidden_size * workload.dtype_bytes
    return total


def _recomputed(
    model: ModelDescription,
    layout: RankLayout,
    stages: StageLayout,
    workload: WorkloadSpec,
    pp_rank: int,
    assumptions: MemoryAssumptions,
) -> MemoryPart:
    """One layer, whole: the backward pass computes it again before it goes through it."""
    sizes = [
        sum(tensor.bytes for tensor in saved_tensors(layer, layout, workload, assumptions))
        for layer in stage_layers(model, stages, pp_rank)
    ]
    return MemoryPart(
        name="recomputed layer",
        bytes=max(sizes, default=0),
        why="everything that the largest layer keeps of one row, while its backward pass runs",
    )
