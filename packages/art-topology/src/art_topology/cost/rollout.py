"""The time of the rollouts of one training step on a vLLM service."""

from art_topology.cost.calibration import Calibration
from art_topology.cost.parts import RolloutCost
from art_topology.hardware import Machine
from art_topology.models import ModelDescription
from art_topology.serving import VllmParallelSpec
from art_topology.workload import WorkloadSpec


def rollout_cost(
    model: ModelDescription,
    parallel: VllmParallelSpec,
    workload: WorkloadSpec,
    machine: Machine,
    *,
    workers_per_host: int | None = None,
    gpu_memory_utilization: float = 0.9,
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
        calibration: Other constants than the defaults.
    """
    raise NotImplementedError
