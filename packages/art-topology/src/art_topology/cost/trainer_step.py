"""The time of one training step on a layout."""

from art_topology.cost.calibration import Calibration
from art_topology.cost.parts import StepCost
from art_topology.hardware import Machine
from art_topology.models import ModelDescription
from art_topology.ranks import RankLayout
from art_topology.stages import StageLayout
from art_topology.workload import WorkloadSpec


def trainer_step_cost(
    model: ModelDescription,
    layout: RankLayout,
    stages: StageLayout,
    workload: WorkloadSpec,
    machine: Machine,
    *,
    ranks_per_host: int | None = None,
    calibration: Calibration | None = None,
) -> StepCost:
    """Predicts one training step: ``workload.rows_per_step`` rows, each a microbatch of executed batch size one.

    Args:
        model: The model.
        layout: The trainer's rank layout.
        stages: Layers of each pipeline stage; its ``vpp`` is the number of virtual stages.
        workload: The step.
        machine: GPUs and links.
        ranks_per_host: Trainer ranks on each host, consecutive; by default all GPUs of a host.
        calibration: Other constants than the defaults.

    Raises:
        ValueError: the stages do not belong to the model or the layout.
    """
    raise NotImplementedError
