"""Groups: rollouts are awaited together, and what failed is kept as a failure."""

import asyncio
import gc
from typing import Any

import pytest

import art
from art.awaiting import must_be_awaited
from art.distributed import ActorDied, CallableError, PartFailed
from art.errors import ArtError, GatherError
from art.trajectory_groups import expecting_trajectories, gathering_group_id, trajectories_expected
from art_dataplane import RolloutError


def trajectory(reward: float = 1.0) -> art.Trajectory:
    return art.Trajectory(messages_and_choices=[{"role": "user", "content": "Say yes."}], reward=reward)


async def test_a_group_of_coroutines_runs_them_concurrently() -> None:
    started = asyncio.Event()

    async def first() -> art.Trajectory:
        await asyncio.wait_for(started.wait(), 5)
        return trajectory(0.25)

    async def second() -> art.Trajectory:
        started.set()
        return trajectory(0.75)

    group = art.TrajectoryGroup([first(), second()])
    assert group.pending == 2
    assert await group is group
    assert [item.reward for item in group] == [0.25, 0.75]
    assert group.exceptions == []


async def test_what_a_group_awaits_knows_the_group_and_nothing_else_does() -> None:
    seen: dict[str, list[str | None]] = {"a": [], "b": [], "task": []}

    async def notes(name: str) -> art.Trajectory:
        await asyncio.sleep(0)
        seen[name].append(gathering_group_id())
        return trajectory()

    early = asyncio.ensure_future(notes("task"))
    await art.gather_trajectory_groups(
        [art.TrajectoryGroup([notes("a"), notes("a")]), art.TrajectoryGroup([notes("b"), notes("b"), early])]
    )
    assert gathering_group_id() is None
    await art.TrajectoryGroup([notes("a")])
    assert gathering_group_id() is None
    first, second, third = seen["a"]
    assert first == second
    assert len({first, third, *seen["b"]}) == 3
    assert None not in seen["a"] + seen["b"]
    assert seen["task"] == [None]


async def test_a_failed_rollout_is_an_exception_of_its_group() -> None:
    async def fails() -> art.Trajectory:
        raise ValueError("no answer")

    group = await art.TrajectoryGroup([fails(), trajectory()])
    assert [item.reward for item in group] == [1.0]
    assert [str(error) for error in group.exceptions] == ["no answer"]
    (failure,) = group.failures()
    assert failure.kind == "builtins.ValueError"
    assert "no answer" in failure.traceback


async def test_a_handle_with_an_error_counts_as_failed() -> None:
    handle = art.TrajectoryHandle(
        None, {}, {}, error=RolloutError("ValueError", "broken", "Traceback ..."), worker="rollout worker 3"
    )
    good = art.TrajectoryHandle(0.5, {}, {})
    group = art.TrajectoryGroup([handle, good])
    assert group.trajectories == [good]
    (error,) = group.exceptions
    assert isinstance(error, art.RolloutFailed)
    assert "rollout worker 3" in str(error)
    assert "ValueError: broken" in str(error)
    with pytest.raises(art.RolloutFailed):
        handle.raise_for_error()


async def test_a_rollout_that_returns_something_else_is_an_error() -> None:
    async def wrong() -> int:
        return 3

    with pytest.raises(
        ArtError, match=r"rollout of this group returned the int 3; expected an art.Trajectory"
    ):
        await art.TrajectoryGroup([wrong()])  # type: ignore[list-item]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
async def test_a_rollout_that_returns_a_coroutine_is_asked_for_the_await() -> None:
    async def inner() -> art.Trajectory:
        return trajectory()

    async def outer() -> Any:
        return inner()

    with pytest.raises(
        art.TrajectoryError, match=r"inner\(\.\.\.\) that was not awaited \(did you forget `await`\?\)"
    ):
        await art.TrajectoryGroup([outer()])


def test_a_group_of_something_else_than_a_list_is_refused() -> None:
    with pytest.raises(art.TrajectoryError, match="takes a list of rollouts, not the Trajectory"):
        art.TrajectoryGroup(trajectory())  # type: ignore[arg-type]


async def test_cancelling_a_group_cancels_its_rollouts() -> None:
    waiting, cancelled = asyncio.Event(), asyncio.Event()

    async def waits() -> art.Trajectory:
        waiting.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return trajectory()

    task = asyncio.ensure_future(art.TrajectoryGroup([waits()]).resolve())
    await asyncio.wait_for(waiting.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()


async def test_gather_keeps_the_order_of_groups() -> None:
    async def after(delay: float, reward: float) -> art.Trajectory:
        await asyncio.sleep(delay)
        return trajectory(reward)

    groups = await art.gather_trajectory_groups(
        [art.TrajectoryGroup([after(0.05, 1.0)]), art.TrajectoryGroup([after(0.0, 2.0)])], pbar_desc="x"
    )
    assert [group.trajectories[0].reward for group in groups] == [1.0, 2.0]


async def test_gather_raises_the_first_failure_and_cancels_the_rest() -> None:
    cancelled = asyncio.Event()

    async def fails() -> art.Trajectory:
        raise ValueError("server gone")

    async def waits() -> art.Trajectory:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return trajectory()

    with pytest.raises(
        GatherError,
        match=r"^1 of 1 rollouts failed in 1 of 2 groups; max_exceptions=0 for all groups together\. "
        r"The first, in group 2: ValueError: server gone$",
    ) as caught:
        await art.gather_trajectory_groups([art.TrajectoryGroup([waits()]), art.TrajectoryGroup([fails()])])
    assert isinstance(caught.value.__cause__, ValueError)
    assert cancelled.is_set()


async def test_rollouts_whose_turn_never_came_are_given_up_without_a_word(
    recwarn: pytest.WarningsRecorder,
) -> None:
    started: list[str] = []

    @must_be_awaited
    async def rollout(name: str) -> art.Trajectory:
        started.append(name)
        return trajectory()

    early = asyncio.ensure_future(asyncio.sleep(60, trajectory()))
    gathering = asyncio.ensure_future(
        art.gather_trajectory_groups([art.TrajectoryGroup([rollout("a"), rollout("b"), early])])
    )
    gathering.cancel()  # before it began
    with pytest.raises(asyncio.CancelledError):
        await gathering
    group = art.TrajectoryGroup([rollout("c"), early])
    gathering = asyncio.ensure_future(art.gather_trajectory_groups([group]))
    await asyncio.sleep(0)
    gathering.cancel()  # its group has not begun
    with pytest.raises(asyncio.CancelledError):
        await gathering
    assert group.pending == 0
    assert early.cancelled() or early.cancelling()
    gc.collect()
    assert started == []
    assert [str(warning.message) for warning in recwarn.list] == []


async def test_gather_allows_as_many_failures_as_it_is_told() -> None:
    async def fails() -> art.Trajectory:
        raise ValueError("x")

    def groups() -> list[art.TrajectoryGroup]:
        return [art.TrajectoryGroup([fails(), trajectory()]) for _ in range(2)]

    allowed = await art.gather_trajectory_groups(groups(), max_exceptions=2)
    assert [len(group.exceptions) for group in allowed] == [1, 1]
    assert await art.gather_trajectory_groups(groups(), max_exceptions=0.5)
    with pytest.raises(GatherError, match=r"2 of 4 rollouts failed in all groups; max_exceptions=0.4 for"):
        await art.gather_trajectory_groups(groups(), max_exceptions=0.4)
    with pytest.raises(GatherError, match=r"2 of 4 rollouts failed in all groups; max_exceptions=1 for"):
        await art.gather_trajectory_groups(groups(), max_exceptions=1)
    assert await art.gather_trajectory_groups(groups(), max_exceptions=2.0)


@pytest.mark.parametrize("wrong", [-1, -0.1, 1.5, float("nan"), True, "1", None])
async def test_max_exceptions_is_a_count_or_a_share(wrong: Any) -> None:
    with pytest.raises(art.SettingError, match=r"max_exceptions is .*max_exceptions=2.*max_exceptions=0\.1"):
        await art.gather_trajectory_groups([], max_exceptions=wrong)


async def test_what_is_no_group_is_refused() -> None:
    with pytest.raises(
        art.TrajectoryError, match=r"groups\[1\] is the int 3; expected an art.TrajectoryGroup"
    ):
        await art.gather_trajectory_groups([art.TrajectoryGroup([]), 3])  # type: ignore[list-item]
    with pytest.raises(art.TrajectoryError, match=r"one TrajectoryGroup; pass \[group\]"):
        await art.gather_trajectory_groups(art.TrajectoryGroup([]))  # type: ignore[arg-type]

    async def no_group() -> Any:
        return [trajectory()]

    with pytest.raises(art.TrajectoryError, match=r"groups\[0\] gave the list"):
        await art.gather_trajectory_groups([no_group()])


@pytest.mark.parametrize(
    "error",
    [PartFailed("trainer 0 failed"), ActorDied("worker 1", "left"), CallableError("a lock cannot be sent")],
)
async def test_a_part_that_failed_is_no_failure_of_rollouts(error: Exception) -> None:
    cancelled = asyncio.Event()

    async def fails() -> art.Trajectory:
        raise error

    async def waits() -> art.Trajectory:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return trajectory()

    async with asyncio.timeout(10):
        with pytest.raises(type(error), match=str(error)):
            await art.gather_trajectory_groups([art.TrajectoryGroup([waits(), fails()])], max_exceptions=100)
    assert cancelled.is_set()


async def test_after_each_replaces_or_drops_a_group() -> None:
    async def keep_good(group: art.TrajectoryGroup) -> art.TrajectoryGroup | None:
        return group if group.trajectories[0].reward else None

    groups = [art.TrajectoryGroup([trajectory(reward)]) for reward in (0.0, 1.0)]
    kept = await art.gather_trajectory_groups(groups, after_each=keep_good)
    assert [group.trajectories[0].reward for group in kept] == [1.0]


async def test_tasks_of_an_evaluation_or_a_group_expect_trajectories() -> None:
    async def asked() -> bool:
        return trajectories_expected()

    found: list[bool] = []

    async def rollout() -> art.Trajectory:
        found.append(await asked())
        return trajectory()

    with expecting_trajectories():
        task = asyncio.ensure_future(asked())
    assert await task
    assert not await asked()
    await art.TrajectoryGroup([rollout()])
    assert found == [True]
