"""Device memory of a trainer's ranks.

Sources: Rajbhandari et al., "ZeRO" (1910.02054) for weights, gradients and optimizer states; Korthikanti et
al. (2205.05198) for activations; Megatron-LM's schedules for microbatches in flight. What they leave open
stands in :class:`MemoryAssumptions`.
"""

import math

from art_topology.memory.assumptions import MemoryAssumptions
from art_topology.memory.buffers import buffer_parts, overhead_parts
from art_topology.memory.kept import activation_parts
from art_topology.memory.parts import MemoryEstimate
from art_topology.memory.states import state_parts
from art_topology.memory.weights import check_layers, rank_parameters
from art_topology.models.description import ModelDescription
from art_topology.ranks import RankLayout
from art_topology.stages import StageLayout
from art_topology.workload import WorkloadSpec


def trainer_memory(
    model: ModelDescription,
    layout: RankLayout,
    stages: StageLayout,
    workload: WorkloadSpec,
    *,
    pp_rank: int | None = None,
    vpp_group: int | None = None,
    assumptions: MemoryAssumptions | None = None,
) -> MemoryEstimate:
    """Peak device memory of a rank, part by part.

    Ranks of one pipeline stage differ by rounding only; the fullest is meant.

    Args:
        model: What is trained.
        layout: How it is divided.
        stages: Which layers lie on which stage.
        workload: Row length, dtype, adapters, recomputation, offload.
        pp_rank: The pipeline stage; by default the one that needs most.
        vpp_group: Microbatches that run at a time for one virtual stage; by default ``pp``.
        assumptions: What is taken for granted; by default :class:`MemoryAssumptions`.

    Raises:
        ValueError: layout, stages and model do not fit each other.
    """
    check_layers(model, stages)
    if stages.pp != layout.pp:
        raise ValueError(f"the stages are for pp={stages.pp}, the layout has pp={layout.pp}")
    assume = assumptions or MemoryAssumptions()
    ranks = range(layout.pp) if pp_rank is None else (pp_rank,)
    estimates = [_estimate(model, layout, stages, workload, rank, vpp_group, assume) for rank in ranks]
    return max(estimates, key=lambda estimate: estimate.total_bytes)


def _estimate(
    model: ModelDescription,
    layout: RankLayout,
    stages: StageLayout,
    workload: WorkloadSpec,
    pp_rank: int,
    vpp_group: int | None,
    assumptions: MemoryAssumptions,
) -> MemoryEstimate:
    held = rank_parameters(
        model, layout, stages, workload, pp_rank, vocab_multiple=assumptions.vocab_multiple
    )
    microbatches = max(1, math.ceil(workload.rows_per_step / layout.dp))
    layers = len(stages.layers_of(pp_rank)) + sum(stage.mtp_layers for stage in stages.rank(pp_rank))
    device, host = state_parts(held, layout, workload, assumptions, layers)
    kept, kept_on_host = activation_parts(
        model, layout, stages, workload, pp_rank, microbatches, vpp_group or layout.pp, assumptions
    )
    dynamic = [*kept, *buffer_parts(model, layout, stages, workload, pp_rank, assumptions)]
    experts = model.experts is not None
    fixed = overhead_parts(layout, assumptions, sum(part.bytes for part in dynamic), experts=experts)
    parts = tuple(part for part in (*device, *dynamic, *fixed) if part.bytes)
    return MemoryEstimate(parts=parts, pp_rank=pp_rank, host_parts=(*host, *kept_on_host))
