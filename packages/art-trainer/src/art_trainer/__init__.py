"""A warm Megatron-core trainer rank for reinforcement learning on language models.

These names are light: specs, events, errors and the channel's protocol. The rank itself is
:class:`art_trainer.rank.TrainerRank`; importing that module imports torch and megatron-core.
"""

from art_trainer.channel import RankChannel
from art_trainer.environment import rank_environment
from art_trainer.errors import (
    BatchError,
    DurabilityError,
    EventOrderError,
    ModelLoadError,
    PreflightError,
    RankStateError,
    ResumeError,
    SinkError,
    SnapshotPoolError,
    SpecError,
    TrainerError,
    UnsupportedModelError,
)
from art_trainer.events import (
    Accepted,
    Cancelled,
    Completed,
    EventSequence,
    Failed,
    Progress,
    SnapshotReady,
    TrainerEvent,
)
from art_trainer.specs import AdamWSpec, LoraSpec, RlTrainJob, TrainerRuntimeSpec, TrainingRunSpec, TrainJob

__all__ = [
    "Accepted",
    "AdamWSpec",
    "BatchError",
    "Cancelled",
    "Completed",
    "DurabilityError",
    "EventOrderError",
    "EventSequence",
    "Failed",
    "LoraSpec",
    "ModelLoadError",
    "PreflightError",
    "Progress",
    "RankChannel",
    "RankStateError",
    "ResumeError",
    "RlTrainJob",
    "SinkError",
    "SnapshotPoolError",
    "SnapshotReady",
    "SpecError",
    "TrainJob",
    "TrainerError",
    "TrainerEvent",
    "TrainerRuntimeSpec",
    "TrainingRunSpec",
    "UnsupportedModelError",
    "rank_environment",
]
