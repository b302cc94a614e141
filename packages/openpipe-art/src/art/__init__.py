"""ART: a native multi-node reinforcement-learning runtime for language models.

``import art`` is cheap and has no effect: it starts nothing, sets no environment variable and loads neither
torch nor monarch nor transformers. Every public name is loaded on first use.
"""

TYPE_CHECKING = False  # as typing's, whose import would take most of the time that this one takes
if TYPE_CHECKING:
    from typing import Any

    from art.backend import MegatronBackend
    from art.checks.prompts import PromptLengths, check_prompt_lengths
    from art.errors import (
        ArtError,
        ConfigError,
        GatherError,
        PreflightError,
        PromptLengthError,
        RecordError,
        RolloutFailed,
        SettingError,
        TrajectoryError,
    )
    from art.gather import gather_trajectory_groups
    from art.megatron_config import (
        MegatronRuntimeConfig,
        get_megatron_runtime_config,
        init_megatron_runtime_config,
    )
    from art.messages import Messages, MessagesAndChoices, Tools
    from art.model import Backend, TrainableModel
    from art.train_config import TrainConfig, TrainResult
    from art.trajectories import History, Trajectory, TrajectoryHandle
    from art.trajectory_groups import TrajectoryGroup
    from art_topology import MegatronTopologyConfig

__version__ = "0.1.0"

_HOME = {
    "ArtError": "art.errors",
    "Backend": "art.model",
    "ConfigError": "art.errors",
    "GatherError": "art.errors",
    "History": "art.trajectories",
    "MegatronBackend": "art.backend",
    "MegatronRuntimeConfig": "art.megatron_config",
    "MegatronTopologyConfig": "art_topology",
    "Messages": "art.messages",
    "MessagesAndChoices": "art.messages",
    "PreflightError": "art.errors",
    "PromptLengthError": "art.errors",
    "PromptLengths": "art.checks.prompts",
    "RecordError": "art.errors",
    "RolloutFailed": "art.errors",
    "SettingError": "art.errors",
    "Tools": "art.messages",
    "TrainConfig": "art.train_config",
    "TrainResult": "art.train_config",
    "TrainableModel": "art.model",
    "Trajectory": "art.trajectories",
    "TrajectoryError": "art.errors",
    "TrajectoryGroup": "art.trajectory_groups",
    "TrajectoryHandle": "art.trajectories",
    "check_prompt_lengths": "art.checks.prompts",
    "gather_trajectory_groups": "art.gather",
    "get_megatron_runtime_config": "art.megatron_config",
    "init_megatron_runtime_config": "art.megatron_config",
}

__all__ = [
    "ArtError",
    "Backend",
    "ConfigError",
    "GatherError",
    "History",
    "MegatronBackend",
    "MegatronRuntimeConfig",
    "MegatronTopologyConfig",
    "Messages",
    "MessagesAndChoices",
    "PreflightError",
    "PromptLengthError",
    "PromptLengths",
    "RecordError",
    "RolloutFailed",
    "SettingError",
    "Tools",
    "TrainConfig",
    "TrainResult",
    "TrainableModel",
    "Trajectory",
    "TrajectoryError",
    "TrajectoryGroup",
    "TrajectoryHandle",
    "check_prompt_lengths",
    "gather_trajectory_groups",
    "get_megatron_runtime_config",
    "init_megatron_runtime_config",
]


def __getattr__(name: str) -> "Any":
    import importlib

    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'art' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        from art.checks.packages import missing_extra

        raise missing_extra(f"art.{name}", error) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
