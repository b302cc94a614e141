"""Device memory of a vLLM service's workers, and how many sequences fit.

Bytes per token follow vLLM's own ``kv_cache_interface`` (AttentionSpec, MLAAttentionSpec, SlidingWindowSpec,
MambaSpec; version 0.32): heads of keys and values are divided among ``tp`` workers and at least one is on
each; latents are on every worker; a window keeps its tokens and a block (those of a prefill come on top for a
moment); a linear state is kept whole.

Weights are counted as the checkpoint has them: quantized numbers with their scales where the model says so.
Adapters, activations and the cache have the workload's dtype.
"""

import math
from collections import Counter

from art_topology.memory.assumptions import MemoryAssumptions
from art_topology.memory.parts import MemoryPart, ServiceMemory
from art_topology.models.description import LayerShape, ModelDescription
from art_topology.models.flops import adapted
from art_topology.models.matrices import Matrix
from art_topology.models.mlp import MoeShape
from art_topology.models.quantization import Formats
from art_topology.serving import VllmParallelSpec
from art_topology.workload import WorkloadSpec


def service_memory(
    model: ModelDescription,
    parallel: VllmParallelSpec,
    workload: WorkloadSpec,
    gpu_memory_bytes: int,
    utilization: float = 0.9,
    *,
    max_loras: int = 1,
    max_num_seqs: int = 256,
    assumptions: MemoryAssumptions | None = None,
) -> ServiceMemory:
    """What a service's fullest worker holds, and how many sequences of the workload's lengths fit at once.

    A sequence is a prompt and a completion of the workload's mean lengths, grown to its end, sharing nothing.

    Args:
        model: What is served.
        parallel: How it is divided.
        workload: Lengths, dtype, adapters.
        gpu_memory_bytes: Memory of one GPU, in bytes.
        utilization: Share of it that the service may use.
        max_loras: Adapters that can be active at once.
        max_num_seqs: Requests that run at once (they take logits in the profile run).
        assumptions: What is taken for granted; by default :class:`MemoryAssumptions`.
    """
    assume = assumptions or MemoryAssumptions()
    stages = [_stage_layers(model, parallel.pp, rank) for rank in range(parallel.pp)]
    weights = [_weights(model, parallel, workload, rank) for rank in range(parallel.pp)]
    adapters = [_adapters(parallel, workload, layers, max_loras) for layers in stages]
    length = workload.prompt_tokens + workload.completion_tokens
    fullest = max(range(parallel.pp), key=lambda rank: weights[rank].bytes + adapters[rank].bytes)
    kv_token = [_kv_token(layers, workload.dtype_bytes, parallel.tp) for layers in stages]
    sequence = [_sequence(layers, workload.dtype_bytes, parallel.tp, length, assume) for layers in stages]
    fixed = (
        weights[fullest],
        adapters[fullest],
        _activations(model, parallel, workload, max_num_seqs, assume),
        MemoryPart(name="CUDA graphs", bytes=assume.cuda_graph_bytes, why="assumed"),
        *_runtime(parallel, assume),
    )
    budget = int(gpu_memory_bytes * utilization) - sum(part.bytes for part in fixed)
    worst = max(sequence)
    fitting = max(0, int(budget // worst)) if worst else max_num_seqs
    kv = MemoryPart(
        name="KV cache",
        bytes=max(0, budget),
        why=f"{gpu_memory_bytes / 2**30:.1f} GiB * {utilization:g} - everything above",
    )
    return ServiceMemory(
        parts=tuple(part for part in (*fixed, kv) if part.bytes),
        weight_bytes=weights[fullest].bytes,
        kv_bytes_per_token=max(kv_token),
        kv_bytes_per_sequence=worst,
        kv_budget_bytes=budget,
        max_concurrent_sequences=fitting * parallel.dp,
    )


def _stage_layers(model: ModelDescription, pp: int, rank: int) -> Counter[LayerShape]:
    return Counter(model.layers[_stage(model, pp, rank)])


def _stage(model: ModelDescription, pp: int, rank: int) -> slice:
    """vLLM's division (``get_pp_indices``): what is left over goes to the stages before the last."""
    base, rest = divmod(len(model.layers), pp)
    counts = [base] * pp
    for index in range(2, rest + 2):
        counts[-index] += 1
    first = sum(counts[:rank])
    return slice(first, first + counts[rank])


def worker_share(matrix: Matrix, parallel: VllmParallelSpec) -> Matrix:
    """A worker's share: experts are divided among ``tp * dp`` workers, whole or each."""
    if matrix.part != "routed_experts":
        return matrix.local(parallel.tp)
    workers = parallel.tp * parallel.dp
    return matrix.local(1, workers) if parallel.expert_parallel else matrix.local(workers)


def _weights(
    model: ModelDescription,
    parallel: VllmParallelSpec,
    workload: WorkloadSpec,
    rank: int,
) -> MemoryPart:
    size, held = workload.dtype_bytes, _Held()
    for (layer, formats), times in Counter(model.stored_layers()[_stage(model, parallel.pp, rank)]).items():
        for matrix in layer.matrices():
            held.add(worker_share(matrix, parallel), formats, size, times)
        held.plain += times * sum(vector.local(parallel.tp) for vector in layer.vectors())
    first, last = rank == 0, rank == parallel.pp - 1
    if first:
        held.plain += sum(vector.local(parallel.tp) for vector in model.embedding_vectors())
        held.plain += sum(matrix.local(parallel.tp).parameter_count for matrix in model.embedding_matrices())
    if last:
        held.plain += sum(vector.local(parallel.tp) for vector in model.head_vectors())
        head = model.output_formats
        for matrix in model.head_matrices():
            if not (matrix.name == "output" and model.tied_embeddings and first):
                held.add(matrix.local(parallel.tp), head, size)
    return held.part(size)


class _Held:
    """Weights of a worker: how many have the dtype, and how many each quantized form, with their bytes."""

    def __init__(self) -> None:
        self.plain = 0
        self._quantized: dict[str, tuple[int, int]] = {}

    def add(self, matrix: Matrix, formats: Formats, dtype_bytes: int, times: int = 1) -> None:
        """Counts a worker's share of a matrix, so many times."""
        form = next((fmt for name, fmt in formats if name == matrix.name), None)
        if form is None:
            self.plain += times * matrix.parameter_count
            return
        biases = matrix.copies * matrix.outputs if matrix.bias else 0
        self.plain += times * biases
        count, size = self._quantized.get(form.told, (0, 0))
        numbers = count + times * (matrix.parameter_count - biases)
        self._quantized[form.told] = numbers, size + times * form.bytes_of(matrix)

    def part(self, dtype_bytes: int) -> MemoryPart:
        """Their memory."""
        told = [
            f"{count:,} weights as {name}, {8 * size / count:.3f} bits each with scales"
            for name, (count, size) in self._quantized.items()
        ]
        told.append(f"{self.plain:,} weights * {dtype_bytes} bytes")
        quantized = sum(size for _, size in self._quantized.values())
        return MemoryPart(name="weights", bytes=self.plain * dtype_bytes + quantized, why=" + ".join(told))


def _adapters(
    parallel: VllmParallelSpec, workload: WorkloadSpec, layers: Counter[LayerShape], max_loras: int
) -> MemoryPart:
    rank = workload.lora_rank
    count = 0
    if rank is not None:
        for layer, times in layers.items():
            count += times * sum(
                worker_share(matrix, parallel).adapter_parameter_count(rank)
                for matrix in layer.matrices()
                if adapted(matrix, workload)
            )
    size = workload.dtype_bytes
    why = f"{max_loras} slots * {count:,} weights of rank {rank} * {size} bytes"
    return MemoryPart(name="adapters", bytes=max_loras * count * size, why=why)


def _activations(
    model: ModelDescription,
    parallel: VllmParallelSpec,
    workload: WorkloadSpec,
    max_num_seqs: int,
    assumptions: MemoryAssumptions,
) -> MemoryPart:
    """The profile run: a full batch through the widest layer, then logits of as many requests as run at
    once."""
    width = max(_width(layer, parallel) for layer in set(model.layers))
    tokens, copies, size = (
        assumptions.service_batch_tokens,
        assumptions.service_activation_copies,
        workload.dtype_bytes,
    )
    batch = tokens * (width + copies * model.hidden_size * model.streams) * size
    logits = max_num_seqs * model.vocab_size * (4 * 2 + size)
    return MemoryPart(
        name="activations",
        bytes=round(max(batch, logits)),
        why=f"the larger of {tokens:,} tokens * ({width:,} + {copies:g} * {model.hidden_size:,}) * {size} "
        f"bytes and {max_num_seqs} requests * {model.vocab_size:,} * {8 + size} bytes of logits",
    )


def _width(layer: LayerShape, parallel: VllmParallelSpec) -> int:
    """Features of a token inside the wider half of a layer."""
    matrices = layer.matrices()
    attention = sum(m.local(parallel.tp).outputs for m in matrices if m.part in ("attention", "indexer"))
    dense = sum(
        m.local(parallel.tp).outputs
        for m in matrices
        if m.part in ("dense_mlp", "shared_experts") and m.divided == "columns"
    )
    routed = 0
    if isinstance(layer.mlp, MoeShape):
        share = 1 if parallel.expert_parallel else parallel.tp * parallel.dp
        spread = parallel.tp if parallel.expert_parallel else 1
        inner = math.ceil(layer.mlp.expert_size / share)
        routed = math.ceil(layer.mlp.topk * (3 * inner + layer.hidden_size) / spread)
    return max(attention, dense * 3 // 2 + routed)


def _runtime(parallel: VllmParallelSpec, assumptions: MemoryAssumptions) -> tuple[MemoryPart, ...]:
    groups = sum(size > 1 for size in (parallel.tp, parallel.pp, parallel.dp))
    nccl = groups * assumptions.nccl_bytes
    if parallel.expert_parallel and parallel.tp * parallel.dp > 1:
        nccl += assumptions.nccl_all_to_all_bytes if parallel.dp > 1 else 0
    context = MemoryPart(
        name="CUDA context", bytes=assumptions.cuda_context_bytes, why="assumed: context and kernels"
    )
    buffers = MemoryPart(
        name="NCCL buffers",
        bytes=min(nccl, assumptions.nccl_most_bytes),
        why=f"assumed: {groups} communicators * {assumptions.nccl_bytes / 2**20:.0f} MiB"
        + (", and those of all-to-all" if nccl > groups * assumptions.nccl_bytes else ""),
    )
    return context, buffers


def _kv_token(layers: Counter[LayerShape], dtype_bytes: int, tp: int) -> float:
    return sum(
        times * layer.attention.kv_bytes_per_token(dtype_bytes, tp)
        for layer, times in layers.items()
        if layer.attention.kv_window_tokens is None
    )


def _sequence(
    layers: Counter[LayerShape], dtype_bytes: int, tp: int, length: int, assumptions: MemoryAssumptions
) -> int:
    """Bytes that one sequence of ``length`` tokens takes, in whole blocks."""
    block = assumptions.block_tokens
    total = 0.0
    for layer, times in layers.items():
        shape = layer.attention
        tokens = math.ceil(length / block) * block
        if (window := shape.kv_window_tokens) is not None:
            tokens = min(tokens, (math.ceil(window / block) + 1) * block)
        total += times * (
            tokens * shape.kv_bytes_per_token(dtype_bytes, tp) + shape.state_bytes(dtype_bytes, tp)
        )
    return math.ceil(total)
