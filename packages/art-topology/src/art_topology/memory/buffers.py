"""What comes and goes (logits, buffers of communication, gradients of activations), and what the runtime
takes."""

import math

from art_topology.memory.activations import routed_tokens, saved_tensors
from art_topology.memory.assumptions import MemoryAssumptions
from art_topology.memory.parts import MemoryPart
from art_topology.memory.weights import stage_layers
from art_topology.models.attention import GqaShape, MlaShape
from art_topology.models.compressed import CompressedAttentionShape
from art_topology.models.description import LayerShape, ModelDescription
from art_topology.models.mlp import MoeShape
from art_topology.ranks import RankLayout
from art_topology.stages import StageLayout
from art_topology.workload import WorkloadSpec


def buffer_parts(
    model: ModelDescription,
    layout: RankLayout,
    stages: StageLayout,
    workload: WorkloadSpec,
    pp_rank: int,
    assumptions: MemoryAssumptions,
) -> list[MemoryPart]:
    """Logits, gradients of activations, and buffers of tensor, context, expert and pipeline parallelism."""
    layers = tuple(stage_layers(model, stages, pp_rank))
    found = [_workspace(layers, layout, workload, assumptions)]
    if any(stage.loss for stage in stages.rank(pp_rank)):
        found.append(_logits(model, layout, workload, assumptions))
    size, length = workload.dtype_bytes, workload.packed_sequence_length
    tokens = math.ceil(length / layout.cp)
    sequence = math.ceil(tokens / layout.tp) if assumptions.sequence_parallel else tokens
    hidden = model.hidden_size
    if layout.tp > 1:
        why = f"2 * {tokens:,} tokens * {hidden:,} * {size} bytes: gathered input and its gradient"
        found.append(MemoryPart(name="tensor-parallel buffers", bytes=2 * tokens * hidden * size, why=why))
    if layout.cp > 1:
        width = max((_key_width(layer, layout.tp) for layer in layers), default=0)
        why = f"2 * {length:,} tokens * {width:,} * {size} bytes: keys and values of a row, gradients"
        found.append(MemoryPart(name="context-parallel buffers", bytes=2 * length * width * size, why=why))
    if layout.ep * layout.etp > 1:
        found.append(_dispatch(layers, layout, workload, assumptions))
    if layout.pp > 1:
        width = hidden * model.streams
        why = f"4 * {sequence:,} tokens * {width:,} * {size} bytes: sent and received, both directions"
        found.append(MemoryPart(name="pipeline buffers", bytes=4 * sequence * width * size, why=why))
    return found


def overhead_parts(
    layout: RankLayout, assumptions: MemoryAssumptions, dynamic_bytes: int, *, experts: bool
) -> list[MemoryPart]:
    """CUDA context, NCCL's buffers, and what the allocator holds beyond the tensors in it."""
    groups = {
        "tp": layout.tp,
        "cp": layout.cp,
        "dp": layout.dp,
        "pp": layout.pp,
        "ep": layout.ep,
        "etp": layout.etp,
        "expert dp": layout.expert_dp,
    }
    names = [name for name, size in groups.items() if size > 1]
    nccl = len(names) * assumptions.nccl_bytes
    nccl += assumptions.nccl_all_to_all_bytes if layout.ep > 1 else 0
    share = assumptions.allocator_share
    workspace = assumptions.workspace_bytes + (assumptions.grouped_workspace_bytes if experts else 0)
    return [
        MemoryPart(
            name="workspaces",
            bytes=workspace,
            why="assumed: cuBLAS and Transformer Engine"
            + (", grouped products of experts" if experts else ""),
        ),
        MemoryPart(
            name="CUDA context", bytes=assumptions.cuda_context_bytes, why="assumed: context and kernels"
        ),
        MemoryPart(
            name="NCCL buffers",
            bytes=min(nccl, assumptions.nccl_most_bytes),
            why=f"assumed: {len(names)} communicators ({', '.join(names) or 'none'}) * "
            f"{assumptions.nccl_bytes / 2**20:.0f} MiB"
            + (", and those of all-to-all" if layout.ep > 1 else "")
            + f", at most {assumptions.nccl_most_bytes / 2**30:.0f} GiB",
        ),
        MemoryPart(
            name="allocator",
            bytes=round(share * dynamic_bytes),
            why=f"assumed: {share:.0%} of activations and buffers ({dynamic_bytes / 2**20:,.0f} MiB)",
        ),
    ]


def _workspace(
    layers: tuple[LayerShape, ...],
    layout: RankLayout,
    workload: WorkloadSpec,
    assumptions: MemoryAssumptions,
) -> MemoryPart:
    """Gradients of activations: the largest tensor of a layer, and what it is computed from."""
    largest, name = 0, "no tensor"
    for layer in layers:
        for tensor in saved_tensors(layer, layout, workload, assumptions):
            if tensor.bytes > largest and not tensor.core:
                largest, name = tensor.bytes, tensor.name
    return MemoryPart(
        name="gradients of activations",
        bytes=2 * largest,
        why=f"2 * {largest / 2**20:,.1f} MiB: gradient of the largest tensor ({name}) and of its neighbour",
    )


def _logits(
    model: ModelDescription, layout: RankLayout, workload: WorkloadSpec, assumptions: MemoryAssumptions
) -> MemoryPart:
    tokens = min(assumptions.logit_chunk_tokens, math.ceil(workload.packed_sequence_length / layout.cp))
    vocabulary = math.ceil(model.vocab_size / layout.tp)
    size = assumptions.logit_copies_bytes + workload.dtype_bytes
    return MemoryPart(
        name="logits",
        bytes=tokens * vocabulary * size,
        why=f"{tokens:,} tokens at a time * {vocabulary:,} of the vocabulary * {size} bytes (logits, in "
        "float32, and gradients)",
    )


def _dispatch(
    layers: tuple[LayerShape, ...],
    layout: RankLayout,
    workload: WorkloadSpec,
    assumptions: MemoryAssumptions,
) -> MemoryPart:
    tokens, hidden = 0, 0
    for layer in layers:
        if isinstance(layer.mlp, MoeShape):
            count = routed_tokens(layout, workload, assumptions, layer.mlp)
            tokens, hidden = max(tokens, count), layer.hidden_size
    size = workload.dtype_bytes
    return MemoryPart(
        name="expert-parallel buffers",
        bytes=2 * tokens * hidden * size,
        why=f"2 * {tokens:,} routed tokens * {hidden:,} * {size} bytes: sent and received",
    )


def _key_width(layer: LayerShape, tp: int) -> int:
    """Features of keys and values of one token, which context parallelism gathers."""
    shape = layer.attention
    if isinstance(shape, GqaShape):
        return math.ceil(shape.kv_heads / tp) * (shape.head_dim + shape.value_dim)
    if isinstance(shape, MlaShape):
        if shape.topk is not None:
            return shape.kv_rank + shape.rope_dim
        return math.ceil(shape.heads / tp) * (shape.nope_dim + shape.rope_dim + shape.value_dim)
    if isinstance(shape, CompressedAttentionShape):
        return shape.head_dim
    return 0
