"""Device memory of a vLLM service's workers."""

from art_topology.memory.parts import ServiceMemory
from art_topology.models.description import ModelDescription
from art_topology.serving import VllmParallelSpec
from art_topology.workload import WorkloadSpec


def service_memory(
    model: ModelDescription,
    parallel: VllmParallelSpec,
    workload: WorkloadSpec,
    gpu_memory_bytes: int,
    utilization: float = 0.9,
) -> ServiceMemory:
    """What a service's fullest worker holds, and how many sequences of the workload's lengths fit at once.

    Args:
        model: What is served.
        parallel: How it is divided.
        workload: Lengths, dtype, adapters.
        gpu_memory_bytes: Memory of one GPU.
        utilization: Share of it that the service may use.
    """
    raise NotImplementedError
