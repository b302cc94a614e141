"""What an evaluation takes from its rollouts."""

import pytest

import art
from art.reporting.evaluations import gathered


async def nothing() -> None:
    return None


async def test_a_rollout_that_returns_nothing_is_told_as_such() -> None:
    arrived: list[object] = []
    with pytest.raises(art.TrajectoryError, match="a rollout of this evaluation returned None"):
        await gathered([nothing()], lambda *each: arrived.append(each))
    assert arrived == []
