"""The time of a training step, of rollouts and of the loop that joins them.

Every time is a closed form: arithmetic against a roofline, communication by alpha-beta on the link it
crosses. The few global constants are in :mod:`art_topology.cost.calibration`, each with its source; none
belongs to a model, a layout or a measurement.
"""

from art_topology.cost.calibration import Calibration
from art_topology.cost.loop import loop_cost
from art_topology.cost.parts import CostPart, LoopCost, RolloutCost, StepCost
from art_topology.cost.program import TrainerProgram
from art_topology.cost.rollout import rollout_cost
from art_topology.cost.trainer_step import trainer_step_cost

__all__ = [
    "Calibration",
    "CostPart",
    "LoopCost",
    "RolloutCost",
    "StepCost",
    "TrainerProgram",
    "loop_cost",
    "rollout_cost",
    "trainer_step_cost",
]
