"""What an evaluation takes from its rollouts."""

import pytest

import art
from art.reporting.evaluations import gathered
from art.trajectory_groups import trajectories_expected


async def nothing() -> None:
    return None


async def test_a_rollout_that_returns_nothing_is_told_as_such() -> None:
    arrived: list[object] = []
    with pytest.raises(art.TrajectoryError, match="a rollout of this evaluation returned None"):
        await gathered([nothing()], lambda *each: arrived.append(each))
    assert arrived == []


async def test_executors_are_told_that_trajectories_are_expected() -> None:
    async def rollout() -> art.Trajectory:
        return art.Trajectory(messages_and_choices=[], reward=float(trajectories_expected()))

    (item,) = await gathered([rollout()], lambda *_: None)
    assert item.reward == 1.0
    assert not trajectories_expected()
