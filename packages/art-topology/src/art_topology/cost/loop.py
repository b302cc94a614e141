"""The asynchronous loop: trainer and rollouts side by side."""

from art_topology.cost.calibration import Calibration
from art_topology.cost.parts import LoopCost, RolloutCost, StepCost
from art_topology.hardware import Machine
from art_topology.models import ModelDescription
from art_topology.workload import WorkloadSpec


def loop_cost(
    model: ModelDescription,
    workload: WorkloadSpec,
    machine: Machine,
    trainer: StepCost,
    rollout: RolloutCost,
    *,
    calibration: Calibration | None = None,
) -> LoopCost:
    """Joins a training step and its rollouts to one step of the asynchronous loop."""
    raise NotImplementedError
