"""Numbers of one training step, by name: what rewards there were and how they were packed."""

import math

import msgspec

from art.trajectory_groups import TrajectoryGroup
from art_dataplane import PackingResult


def reward_metrics(groups: list[TrajectoryGroup]) -> dict[str, float]:
    """Mean and deviation of the rewards, and how many rollouts there were and failed."""
    rewards = [item.reward for group in groups for item in group if item.reward is not None]
    failed = sum(len(group.exceptions) for group in groups)
    mean = math.fsum(rewards) / len(rewards)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return {
        "reward": mean,
        "reward_std": deviation,
        "groups": float(len(groups)),
        "trajectories": float(len(rewards)),
        "failed_rollouts": float(failed),
    }


def packing_metrics(packed: PackingResult) -> dict[str, float]:
    """Counts of the batch, the seconds of each stage of packing and the batch's bytes."""
    counts = {name: float(value) for name, value in msgspec.structs.asdict(packed.counts).items()}
    timing = {f"pack_{name}": float(value) for name, value in msgspec.structs.asdict(packed.timing).items()}
    size = packed.ref.byte_count if packed.ref is not None else 0
    return {**counts, **timing, "batch_bytes": float(size)}
