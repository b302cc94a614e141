"""Trajectories and groups: what failed is kept as a failure and is never a reward."""

import asyncio

import pytest
from openai.types.chat.chat_completion import Choice

import art
from art.errors import ArtError, GatherError
from art.trajectories import gathering_group_id
from art_dataplane import RolloutError


def choice(content: str) -> Choice:
    return Choice.model_validate(
        {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": content}}
    )


def trajectory(reward: float = 1.0) -> art.Trajectory:
    return art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "Say yes."}, choice("yes")], reward=reward
    )


def test_messages_give_each_choice_as_an_assistant_message() -> None:
    assert trajectory().messages() == [
        {"role": "user", "content": "Say yes."},
        {"role": "assistant", "content": "yes"},
    ]


def test_a_choice_is_kept_as_the_object_it_is_and_survives_json() -> None:
    kept = choice("yes")
    made = art.Trajectory(messages_and_choices=[kept], reward=0.5)
    assert made.messages_and_choices[0] is kept
    again = art.Trajectory.model_validate_json(made.model_dump_json())
    assert isinstance(again.messages_and_choices[0], Choice)
    assert again.messages() == made.messages()


def test_something_else_than_a_message_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"messages_and_choices\[1\] is str.*choices\[0\]"):
        art.Trajectory(messages_and_choices=[{"role": "user", "content": "x"}, "yes"], reward=0.0)  # type: ignore[list-item]


def test_finish_and_track_duration_add_metrics() -> None:
    made = trajectory()
    with made.track_duration("env"):
        pass
    assert made.finish() is made
    assert made.metrics["duration"] == made.duration_s
    assert made.metrics["env_duration"] >= 0


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


def test_any_sequence_of_messages_is_taken_and_kept_as_a_list() -> None:
    messages: art.Messages = [{"role": "user", "content": "x"}]
    for given in (messages, tuple(messages)):
        made = art.Trajectory(messages_and_choices=given, reward=0.0)
        assert made.messages_and_choices == messages
        assert isinstance(made.messages_and_choices, list)
        made.messages_and_choices.append(choice("yes"))
    assert len(messages) == 1
    assert art.History(messages_and_choices=tuple(messages)).messages() == messages


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

    with pytest.raises(ArtError, match=r"a rollout returned int; expected an art.Trajectory"):
        await art.TrajectoryGroup([wrong()])  # type: ignore[list-item]


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

    with pytest.raises(GatherError, match=r"1 of 1 rollouts failed; max_exceptions=0.*server gone") as caught:
        await art.gather_trajectory_groups([art.TrajectoryGroup([waits()]), art.TrajectoryGroup([fails()])])
    assert isinstance(caught.value.__cause__, ValueError)
    assert cancelled.is_set()


async def test_gather_allows_as_many_failures_as_it_is_told() -> None:
    async def fails() -> art.Trajectory:
        raise ValueError("x")

    def groups() -> list[art.TrajectoryGroup]:
        return [art.TrajectoryGroup([fails(), trajectory()]) for _ in range(2)]

    allowed = await art.gather_trajectory_groups(groups(), max_exceptions=2)
    assert [len(group.exceptions) for group in allowed] == [1, 1]
    assert await art.gather_trajectory_groups(groups(), max_exceptions=0.5)
    with pytest.raises(GatherError, match=r"2 of 4 rollouts failed; max_exceptions=0.4"):
        await art.gather_trajectory_groups(groups(), max_exceptions=0.4)


async def test_after_each_replaces_or_drops_a_group() -> None:
    async def keep_good(group: art.TrajectoryGroup) -> art.TrajectoryGroup | None:
        return group if group.trajectories[0].reward else None

    groups = [art.TrajectoryGroup([trajectory(reward)]) for reward in (0.0, 1.0)]
    kept = await art.gather_trajectory_groups(groups, after_each=keep_good)
    assert [group.trajectories[0].reward for group in kept] == [1.0]
