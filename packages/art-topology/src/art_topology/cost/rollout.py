"""The time of the rollouts of one training step on a vLLM service.

Decoding is bound by memory: an engine step reads the weights once, and the keys and values of every running
sequence, and gains one token for each of them. What cannot be known here: how lengths scatter (means are all
there is), what the environment of a rollout does between requests, and speculative decoding. Quantized
weights are read as they are stored; the arithmetic with them is counted at the rate of the workload's dtype.
"""

from collections import Counter

import msgspec

from art_topology.cost.arithmetic import Processor, processor
from art_topology.cost.calibration import Calibration
from art_topology.cost.communication import Group, Network, dispatch_copies, network, place
from art_topology.cost.parts import CostPart, RolloutCost
from art_topology.hardware import Machine
from art_topology.memory import service_memory
from art_topology.memory.service import worker_share
from art_topology.models import AttentionShape, LayerShape, Matrix, MlaShape, ModelDescription, MoeShape
from art_topology.models.flops import adapted
from art_topology.models.quantization import Formats, stored_bytes
from art_topology.serving import VllmParallelSpec
from art_topology.workload import WorkloadSpec


class EngineStep(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one engine step of the whole pipeline, by what takes them.

    Args:
        weights_s: Reading weights, or multiplying with them where that takes longer.
        cache_s: Reading keys and values, or the arithmetic of attention where that takes longer.
        adapters_s: Adapters beside the weights.
        tp_s: All-reduces of tensor parallelism.
        ep_s: Dispatch and combine of expert parallelism.
        pp_s: Sends between stages.
        fixed_s: Scheduling, sampling, output, starts of kernels.
    """

    weights_s: float
    cache_s: float
    adapters_s: float
    tp_s: float
    ep_s: float
    pp_s: float
    fixed_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return float(sum(getattr(self, name) for name in self.__struct_fields__))


class Engine:
    """One service: its groups and rates."""

    def __init__(
        self,
        model: ModelDescription,
        parallel: VllmParallelSpec,
        workload: WorkloadSpec,
        machine: Machine,
        workers_per_host: int,
        calibration: Calibration,
    ) -> None:
        self.model, self.parallel, self.workload = model, parallel, workload
        self.calibration = calibration
        self.device: Processor = processor(machine.gpu, workload.dtype, workload.dtype_bytes, calibration)
        self.network: Network = network(machine, workers_per_host, calibration)
        self.tp_group: Group = place(parallel.tp, 1, self.network.domain)
        self.expert_workers = parallel.tp * parallel.dp
        self.expert_group: Group = _expert_group(parallel, self.network.domain)
        self.shapes = Counter(model.layers)
        self.stored = Counter(model.stored_layers())

    def step(self, sequences: float) -> EngineStep:
        """One step with ``sequences`` running on each data-parallel copy.

        With pipeline stages, the sequences are divided into as many batches, one in each stage; until all
        have gained a token each stage has worked through all batches, one after the other.
        """
        stages = self.parallel.pp
        batch = sequences / stages
        context = self.workload.prompt_tokens + self.workload.completion_tokens / 2
        weights = cache = adapters = tp = ep = 0.0
        for (shape, formats), count in self.stored.items():
            weights += count * self._weights_s(shape, formats, batch)
        for shape, count in self.shapes.items():
            cache += count * self._cache_s(shape.attention, batch, context)
            adapters += count * self._adapters_s(shape)
            tp += count * 2 * self._tp_s(batch)
            if isinstance(shape.mlp, MoeShape) and self.expert_workers > 1:
                ep += count * self._ep_s(shape.mlp, batch)
        heads = [matrix.local(self.parallel.tp) for matrix in self.model.head_matrices()]
        read = sum(self._read_bytes(matrix, self.model.output_formats) for matrix in heads)
        weights += self._longer_s(read, 2 * batch * sum(matrix.parameter_count for matrix in heads))
        launches = len(self.model.layers) * self.calibration.decode_launches_per_layer
        send = self.network.send_s(self.parallel.tp >= self.network.domain, self._volume(batch))
        return EngineStep(
            weights_s=weights,
            cache_s=cache,
            adapters_s=adapters,
            tp_s=tp,
            ep_s=ep,
            pp_s=(stages - 1) * send,
            fixed_s=self.calibration.decode_step_s * stages + launches * self.calibration.graph_launch_s,
        )

    def prefill_s(self, tokens: float) -> float:
        """Prefill of so many tokens on each data-parallel copy, all stages busy."""
        products = sum(
            count * matrix.forward_flops
            for shape, count in self.shapes.items()
            for matrix in shape.matrices()
        )
        core = sum(
            count
            * (
                shape.attention.core_flops(self.workload.prompt_tokens)
                + shape.attention.indexer_flops(self.workload.prompt_tokens)
            )
            for shape, count in self.shapes.items()
        )
        reached = self.device.matmul_flops * self.calibration.prefill_fraction
        return tokens * (products + core) / (reached * self.parallel.tp * self.parallel.pp)

    def _read_bytes(self, local: Matrix, formats: Formats) -> int:
        return stored_bytes(local, formats, self.device.dtype_bytes)

    def _weights_s(self, shape: LayerShape, formats: Formats, batch: float) -> float:
        read, flops = 0.0, 0.0
        for matrix in shape.matrices():
            local = worker_share(matrix, self.parallel)
            if matrix.part == "routed_experts" and isinstance(shape.mlp, MoeShape):
                tokens = batch * self.parallel.dp
                touched = 1 - (1 - shape.mlp.topk / shape.mlp.experts) ** tokens
                read += self._read_bytes(local, formats) * touched
                flops += 2 * tokens * matrix.active * matrix.inputs * matrix.outputs / self.expert_workers
            else:
                read += self._read_bytes(local, formats)
                flops += 2 * batch * local.active_parameter_count
        return self._longer_s(read, flops)

    def _longer_s(self, read_bytes: float, flops: float) -> float:
        """Reading so many bytes of weights, or the arithmetic with them where that takes longer."""
        return max(self.device.moved_s(read_bytes), flops / self.device.matmul_flops)

    def _cache_s(self, shape: AttentionShape, batch: float, context: float) -> float:
        """Bytes of the cache that a step reads, or attention's arithmetic. Sparse attention reads the
        selected keys and all keys of the indexer."""
        size, tp = self.device.dtype_bytes, self.parallel.tp
        window = shape.kv_window_tokens
        seen = context if window is None else min(context, window)
        read = seen * shape.kv_bytes_per_token(size, tp) + shape.state_bytes(size, tp)
        if isinstance(shape, MlaShape) and shape.topk is not None:
            latent = (shape.kv_rank + shape.rope_dim) * size
            index = shape.kv_bytes_per_token(size, tp) - latent
            read = min(context, shape.topk) * latent + context * index
        flops = shape.core_flops_at(context) / tp
        return batch * max(
            self.device.moved_s(read),
            flops / (self.device.peak_flops * self.calibration.decode_attention_fraction),
        )

    def _adapters_s(self, shape: LayerShape) -> float:
        rank = self.workload.lora_rank
        if rank is None:
            return 0.0
        count, kernels = 0, 0
        for matrix in shape.matrices():
            if adapted(matrix, self.workload):
                routed = matrix.part == "routed_experts"
                local = matrix.local(self.expert_workers if routed else self.parallel.tp)
                count += local.adapter_parameter_count(rank)
                kernels += 2
        starts = kernels * self.calibration.graph_launch_s
        return self.device.moved_s(count * self.device.dtype_bytes) + starts

    def _tp_s(self, batch: float) -> float:
        """All-reduce of a small message: every rank reads it from all others at once, or a ring."""
        group = self.tp_group
        if group.size == 1:
            return 0.0
        volume = self._volume(batch)
        if group.crosses:
            return self.network.reduce_s(group, volume)
        direct = self.network.up_s + (group.size - 1) * volume / self.network.up_bytes_per_s
        return self.calibration.decode_collective_s + min(direct, self.network.reduce_s(group, volume))

    def _ep_s(self, moe: MoeShape, batch: float) -> float:
        """Dispatch and combine where experts are divided; otherwise tokens of all copies are gathered."""
        group, volume = self.expert_group, self._volume(batch)
        if self.parallel.dp == 1:
            return 0.0
        if not self.parallel.expert_parallel:
            return 2 * self.network.gather_s(group, volume * self.parallel.dp)
        up, out = dispatch_copies(group, moe.experts, moe.topk)
        share = volume / self.parallel.tp
        return 2 * self.network.exchange_s(group, up * share, out * share)

    def _volume(self, batch: float) -> float:
        return batch * self.model.hidden_size * self.device.dtype_bytes


def rollout_cost(
    model: ModelDescription,
    parallel: VllmParallelSpec,
    workload: WorkloadSpec,
    machine: Machine,
    *,
    workers_per_host: int | None = None,
    gpu_memory_utilization: float = 0.9,
    concurrent_sequences: int | None = None,
    calibration: Calibration | None = None,
) -> RolloutCost:
    """Predicts the rollouts of one step: all completions of ``workload``, as many at once as fit in the KV
    cache.

    Args:
        model: The model.
        parallel: How vLLM divides it; ``dp`` copies share the requests.
        workload: The step.
        machine: GPUs and links.
        workers_per_host: Workers on each host; by default all GPUs of a host.
        gpu_memory_utilization: Share of each GPU's memory that vLLM may use.
        concurrent_sequences: Sequences that fit at once, over all copies; by default from
            :func:`~art_topology.memory.service_memory`.
        calibration: Other constants than the defaults.

    Raises:
        ValueError: not even one sequence fits.
        SpecError: the GPU has no arithmetic in the workload's dtype.
    """
    values = calibration or Calibration()
    fitting = concurrent_sequences
    if fitting is None:
        memory = service_memory(model, parallel, workload, machine.gpu.memory_bytes, gpu_memory_utilization)
        fitting = memory.max_concurrent_sequences
    if fitting < 1:
        raise ValueError(
            f"no sequence of {workload.prompt_tokens + workload.completion_tokens:,} tokens fits on "
            f"{machine.gpu.name} with tp={parallel.tp}, pp={parallel.pp}, dp={parallel.dp}"
        )
    engine = Engine(model, parallel, workload, machine, workers_per_host or machine.gpus_per_host, values)
    return _cost(engine, min(fitting, workload.requests_in_flight), fitting)


def _cost(engine: Engine, running: int, fitting: int) -> RolloutCost:
    workload, parallel = engine.workload, engine.parallel
    each = max(1.0, running / parallel.dp)
    step = engine.step(each)
    waves = max(1.0, workload.completions_per_step / (each * parallel.dp))
    steps = waves * workload.completion_tokens
    tokens = workload.completions_per_step * workload.completion_tokens
    copies = min(parallel.dp, workload.group_size) if workload.prompt_sharing else workload.group_size
    prompts = workload.groups_per_step * copies * workload.prompt_tokens
    prefill = engine.prefill_s(prompts / parallel.dp)
    head = f"{steps:,.0f} engine steps ({waves:.2f} waves of {workload.completion_tokens:,} tokens), each"
    known = engine.model.quantization
    form = f", {' and '.join(known.names)} with scales" if known is not None and known.names else ""
    batches = "" if parallel.pp == 1 else f" for {parallel.pp} batches, one in each stage"
    names = {
        "weights": (
            step.weights_s,
            f"weights read once from memory{form}, or multiplied with where that takes longer",
        ),
        "KV cache": (
            step.cache_s,
            f"keys and values of {each:.1f} sequences on each copy, at "
            f"{workload.prompt_tokens + workload.completion_tokens / 2:,.0f} tokens on the mean",
        ),
        "adapters": (step.adapters_s, f"adapters of rank {workload.lora_rank} beside the weights"),
        "tensor parallel": (step.tp_s, f"two all-reduces a layer over {parallel.tp} workers"),
        "expert parallel": (step.ep_s, f"dispatch and combine over {engine.expert_workers} workers"),
        "pipeline sends": (step.pp_s, f"hidden states between {parallel.pp} stages"),
        "scheduling": (step.fixed_s, "scheduling, sampling, output and starts of kernels"),
    }
    parts = [
        CostPart(
            name=name,
            total_s=steps * seconds,
            why=f"{head} {seconds * 1e3:.3f} ms{batches}: {why}",
        )
        for name, (seconds, why) in names.items()
    ]
    often = "once on every copy that gets one of its completions" if workload.prompt_sharing else "each time"
    parts.append(
        CostPart(
            name="prefill",
            total_s=prefill,
            why=f"{prompts:,} prompt tokens over {parallel.dp} copies, each prompt {often}, at "
            f"{engine.calibration.prefill_fraction:.0%} of what training's forward pass reaches",
        )
    )
    return RolloutCost(
        parts=tuple(part for part in parts if part.total_s > 0),
        rollout_s=steps * step.total_s + prefill,
        concurrent_sequences=each * parallel.dp,
        decode_step_s=step.total_s,
        completion_tokens=tokens,
        gpus=parallel.world_size,
    )


def _expert_group(parallel: VllmParallelSpec, domain: int) -> Group:
    """The workers that share the experts of a stage: vLLM numbers tp fastest, then pp, then dp."""
    if parallel.pp == 1:
        return place(parallel.tp * parallel.dp, 1, domain)
    copies = place(parallel.dp, parallel.tp * parallel.pp, domain)
    return Group(parallel.tp * parallel.dp, min(parallel.tp, domain) * copies.local)
