"""Device memory of a trainer's ranks."""

from art_topology.memory.parts import MemoryEstimate
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
) -> MemoryEstimate:
    """Peak device memory of a rank, part by part.

    Args:
        model: What is trained.
        layout: How it is divided.
        stages: Which layers lie on which stage.
        workload: Row length, dtype, adapters, recomputation, offload.
        pp_rank: The pipeline stage; by default the one that needs most.
    """
    raise NotImplementedError
