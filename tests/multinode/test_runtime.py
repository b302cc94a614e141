"""Actors and rollouts on one host: typed calls, prompt news of death, records that stay with their owner."""

import asyncio
import importlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

import art
from art.distributed import (
    ActorDied,
    ActorTimeout,
    ArtRuntime,
    CallableError,
    CloseError,
    InstalledAsyncCallable,
    RemoteError,
    RuntimeFailure,
    StartupError,
    compile_topology,
    homogeneous_cluster,
    local_cluster,
)
from art_dataplane import Lease, read_records

USER_CODE = '''
import asyncio, os, time
from collections.abc import AsyncIterator

import msgspec
import numpy as np
from openai.types.chat.chat_completion import Choice

import art
from art.records import encode_choice_field
from art_dataplane import TokenRecord, VersionSpan


class Work(msgspec.Struct, frozen=True):
    numbers: np.ndarray
    factor: int


class Worker:
    """Does arithmetic, and everything that can go wrong."""

    def __init__(self, base: int) -> None:
        if base < 0:
            raise ValueError(f"base {base} is negative")
        self.base = base
        self.cancelled = 0

    async def scale(self, work: Work) -> Work:
        return Work(work.numbers * work.factor + self.base, work.factor)

    async def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    async def cpus(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))

    def block(self, seconds: float) -> int:
        time.sleep(seconds)
        return os.getpid()

    async def wait(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def cancelled_count(self) -> int:
        return self.cancelled

    async def leave(self, code: int) -> None:
        os._exit(code)

    async def steps(self, count: int) -> AsyncIterator[Work]:
        for number in range(count):
            yield Work(np.arange(number), number)


class Stuck:
    async def close(self) -> None:
        await asyncio.sleep(600)


def choice(prompt: list[int], completion: list[int]) -> Choice:
    record = TokenRecord(
        prompt_ids=np.array(prompt, np.int32),
        completion_ids=np.array(completion, np.int32),
        logprobs=np.full(len(completion), -0.5, np.float32),
        prompt_spans=(VersionSpan(0, len(prompt), 4),),
        completion_spans=(VersionSpan(0, len(completion), 4),),
    )
    return Choice.model_validate(
        {
            "finish_reason": "stop",
            "index": 0,
            "message": {"role": "assistant", "content": "yes"},
            "art": encode_choice_field(record),
        }
    )


async def rollout(model: art.TrainableModel, scenario: dict, config: dict | None) -> art.Trajectory:
    if scenario.get("fail"):
        raise LookupError(scenario["fail"])
    await asyncio.sleep(scenario.get("sleep", 0.0))
    length = scenario.get("length", 2)
    return art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "?"}, choice([1] * length, [7, 8])],
        reward=scenario.get("reward", 0.0),
        metrics={"turns": 1},
        metadata={"pid": os.getpid(), "model": model.name},
    )


async def other(model: art.TrainableModel, scenario: dict, config: None) -> art.Trajectory:
    raise AssertionError
'''
MODEL = art.TrainableModel(name="agent", project="p", base_model="b")


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's, importable here and by workers."""
    (tmp_path / "user_code.py").write_text(USER_CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "user_code", raising=False)
    return importlib.import_module("user_code")


@pytest.fixture
async def runtime(state_dir: Path, tmp_path: Path, user: ModuleType) -> AsyncIterator[ArtRuntime]:
    topology = compile_topology(cluster=local_cluster(cpu_slots=3))
    runtime = await ArtRuntime.start_local(topology, python_path=[tmp_path])
    yield runtime
    await runtime.close()


def running(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def freeze(pid: int) -> None:
    """Stops a process and waits until it stands."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_calls_are_typed_and_environment_is_set(runtime: ArtRuntime, user: Any) -> None:
    import numpy as np

    actor = await runtime.spawn_actor(
        "adder", user.Worker, 10, env={"OMP_NUM_THREADS": "7", "OMP_PROC_BIND": None}, cpus=[0]
    )
    result = await actor.call("scale", user.Work(np.arange(3), 2), deadline_s=10)
    assert isinstance(result, user.Work)
    assert result.numbers.tolist() == [10, 12, 14]
    assert await actor.call("environment", "OMP_NUM_THREADS", deadline_s=10) == "7"
    assert await actor.call("environment", "ART_RUN_ID", deadline_s=10) == runtime.run_id
    assert await actor.call("cpus", deadline_s=10) == [0]
    assert [item.factor async for item in actor.stream("steps", 3, deadline_s=10)] == [0, 1, 2]
    assert actor.role == f"adder (pid {actor.pid})"
    assert runtime.actors == {"adder": actor}
    with pytest.raises(RuntimeFailure, match=rf"runs already: adder \(pid {actor.pid}\)"):
        await runtime.spawn_actor("adder", user.Worker, 1)
    await runtime.stop_actor(actor)
    assert runtime.actors == {}
    again = await runtime.spawn_actor("adder", user.Worker, 1)
    assert again.pid != actor.pid


async def test_a_constructor_that_raises_is_told_with_its_traceback(runtime: ArtRuntime, user: Any) -> None:
    with pytest.raises(
        RemoteError, match=r"adder: start\(\) raised ValueError: base -1 is negative"
    ) as caught:
        await runtime.spawn_actor("adder", user.Worker, -1)
    assert 'raise ValueError(f"base {base} is negative")' in caught.value.traceback_text
    assert runtime.actors == {}


async def test_a_deadline_ends_the_call_and_cancels_the_method(runtime: ArtRuntime, user: Any) -> None:
    actor = await runtime.spawn_actor("slow", user.Worker, 0)
    with pytest.raises(ActorTimeout, match=r"slow \(pid \d+\) did not answer wait\(\) within 0.3 s"):
        await actor.call("wait", 60.0, deadline_s=0.3)
    running = asyncio.ensure_future(actor.call("wait", 60.0, deadline_s=60))
    await asyncio.wait([running], timeout=0.3)
    running.cancel()
    deadline = time.monotonic() + 10
    while await actor.call("cancelled_count", deadline_s=10) < 2:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_blocking_method_does_not_block_others_or_the_news_of_death(
    runtime: ArtRuntime, user: Any
) -> None:
    actor = await runtime.spawn_actor("busy", user.Worker, 0)
    blocked = asyncio.ensure_future(actor.call("block", 300.0, deadline_s=600))
    assert await actor.call("cancelled_count", deadline_s=10) == 0
    assert actor.pid is not None
    started = time.monotonic()
    os.kill(actor.pid, signal.SIGKILL)
    with pytest.raises(ActorDied) as caught:
        await blocked
    assert time.monotonic() - started < 3
    assert str(caught.value).startswith(f"busy (pid {actor.pid}) died: killed by SIGKILL (")
    with pytest.raises(ActorDied):
        await actor.call("cancelled_count", deadline_s=10)


async def test_an_actor_that_dies_while_idle_is_noticed(runtime: ArtRuntime, user: Any) -> None:
    actor = await runtime.spawn_actor("idle", user.Worker, 0)
    watching = asyncio.ensure_future(actor.wait_died())
    assert actor.pid is not None
    os.kill(actor.pid, signal.SIGSEGV)
    died = await asyncio.wait_for(watching, 5)
    assert died.cause == "killed by SIGSEGV"
    assert not actor.alive


async def test_an_actor_that_leaves_is_told_with_its_exit_code(runtime: ArtRuntime, user: Any) -> None:
    actor = await runtime.spawn_actor("leaving", user.Worker, 0)
    with pytest.raises(ActorDied, match=r"leaving \(pid \d+\) died: ended with exit code 7"):
        await actor.call("leave", 7, deadline_s=10)


async def test_a_stopped_process_is_a_timeout_not_a_hang(runtime: ArtRuntime, user: Any) -> None:
    actor = await runtime.spawn_actor("frozen", user.Worker, 0)
    assert actor.pid is not None
    freeze(actor.pid)
    with pytest.raises(ActorTimeout):
        await actor.call("cancelled_count", deadline_s=0.5)
    started = time.monotonic()
    with pytest.raises(CloseError) as caught:
        await runtime.close(deadline_s=6)
    assert f"frozen (pid {actor.pid}) did not answer close()" in str(caught.value)
    assert time.monotonic() - started < 9
    assert not running(actor.pid)


async def test_stopping_a_stopped_process_ends_it(runtime: ArtRuntime, user: Any) -> None:
    actor = await runtime.spawn_actor("frozen", user.Worker, 0)
    assert actor.pid is not None
    freeze(actor.pid)
    with pytest.raises(ActorTimeout):
        await runtime.stop_actor(actor, deadline_s=2.5)
    assert not running(actor.pid)


async def test_closing_goes_on_when_one_actor_does_not_close(runtime: ArtRuntime, user: Any) -> None:
    stuck = await runtime.spawn_actor("stuck", user.Stuck)
    fine = await runtime.spawn_actor("fine", user.Worker, 0)
    with pytest.raises(CloseError) as caught:
        await runtime.close(deadline_s=6)
    assert f"stuck (pid {stuck.pid}) did not answer close()" in str(caught.value)
    assert len(caught.value.exceptions) == 1
    for actor in (stuck, fine):
        assert actor.pid is not None
        assert not running(actor.pid)
    assert not runtime.temp_dir.exists()
    await runtime.close()
    with pytest.raises(RuntimeFailure, match="the runtime is closed"):
        await runtime.spawn_actor("late", user.Worker, 0)


async def test_runtimes_can_follow_each_other_in_one_process(runtime: ArtRuntime, user: Any) -> None:
    await runtime.close()
    topology = compile_topology(cluster=local_cluster(cpu_slots=1))
    async with await ArtRuntime.start_local(topology, python_path=[Path(user.__file__).parent]) as second:
        actor = await second.spawn_actor("adder", user.Worker, 5)
        assert await actor.call("cancelled_count", deadline_s=10) == 0
        assert second.run_id != runtime.run_id


async def test_the_topology_must_fit_the_hosts(runtime: ArtRuntime) -> None:
    two = compile_topology(cluster=homogeneous_cluster(["10.0.0.1", "10.0.0.2"], cpu_slots=1))
    with pytest.raises(StartupError, match="the topology has 2 hosts, the host mesh 1"):
        await ArtRuntime.start(runtime.hosts, two)
    with pytest.raises(StartupError, match="takes a topology of one host, this one has 2"):
        await ArtRuntime.start_local(two)


async def test_rollouts_return_values_concurrently_within_one_worker(runtime: ArtRuntime, user: Any) -> None:
    executor = runtime.rollout_executor(InstalledAsyncCallable.from_callable(user.rollout), target_workers=1)
    await executor.start()
    started = time.monotonic()
    played = await asyncio.gather(
        *(executor.run(0, user.rollout, MODEL, {"sleep": 0.5, "reward": n}, None) for n in range(8))
    )
    assert time.monotonic() - started < 3
    assert [trajectory.reward for trajectory in played] == list(range(8))
    assert {trajectory.metadata["pid"] for trajectory in played} == {executor.handles[0].pid}
    with pytest.raises(art.RolloutFailed, match="LookupError: nope") as caught:
        await executor.run(0, user.rollout, MODEL, {"fail": "nope"}, None)
    assert caught.value.where == executor.handles[0].role
    assert 'raise LookupError(scenario["fail"])' in caught.value.traceback_text
    with pytest.raises(RuntimeFailure, match=r"made for user_code:rollout, not for user_code\.other"):
        await executor.run(0, user.other, MODEL, {}, None)
    with pytest.raises(RuntimeFailure, match="worker 1 is not in use"):
        await executor.run(1, user.rollout, MODEL, {}, None)
    with pytest.raises(CallableError, match=r"the configuration of type function"):
        await executor.run(0, user.rollout, MODEL, {}, lambda: None)


async def test_submitted_rollouts_leave_their_records_with_the_worker(runtime: ArtRuntime, user: Any) -> None:
    executor = runtime.rollout_executor(InstalledAsyncCallable.from_callable(user.rollout), target_workers=2)
    scenarios: list[dict[str, Any]] = [
        {"reward": 0.25, "sleep": 0.2},
        {"reward": 0.75, "sleep": 0.2, "length": 40_000},
        {"fail": "broken"},
    ]
    group = await art.TrajectoryGroup(
        executor.submit(user.rollout, MODEL, scenario, None, group_id="g") for scenario in scenarios
    )
    handles = [handle for handle in group if isinstance(handle, art.TrajectoryHandle)]
    assert [handle.reward for handle in handles] == [0.25, 0.75]
    assert {handle.metadata["pid"] for handle in handles} == {
        actor.pid for actor in executor.handles.values()
    }
    (failure,) = group.exceptions
    assert isinstance(failure, art.RolloutFailed)
    assert "LookupError: broken" in str(failure)
    for handle, prompt_length in zip(handles, (2, 40_000), strict=True):
        ref = handle.ref
        assert ref is not None
        assert (ref.group_id, ref.ok, ref.min_version, ref.max_version) == ("g", True, 4, 4)
        assert ref.token_count == prompt_length + 2
        owner = executor.record_owner(ref.owner)
        (record,) = read_records(await owner.fetch([ref], Lease("lease", 1, "test", 30.0), 10.0))
        assert record.exchanges[0].completion_ids.tolist() == [7, 8]
        assert record.reward == handle.reward
        assert record.timing.duration_s >= 0.2
        assert await owner.drop([ref]) == 1
        stats = await owner.stats()
        assert stats.record_count == stats.failed_count


async def test_a_group_is_one_and_the_least_busy_worker_is_taken(runtime: ArtRuntime, user: Any) -> None:
    executor = runtime.rollout_executor(user.rollout, target_workers=2)
    scenario = {"sleep": 0.3}
    first, second = await art.gather_trajectory_groups(
        art.TrajectoryGroup(executor.submit(user.rollout, MODEL, scenario, None) for _ in range(3))
        for _ in range(2)
    )
    ids = [[handle.ref.group_id for handle in group] for group in (first, second)]
    assert [len(set(of_one)) for of_one in ids] == [1, 1]
    assert ids[0][0] != ids[1][0]
    alone = [await executor.submit(user.rollout, MODEL, {}, None) for _ in range(2)]
    assert len({*ids[0], *ids[1], *(handle.ref.group_id for handle in alone)}) == 4
    played = await asyncio.gather(
        *(executor.run(None, user.rollout, MODEL, scenario, None) for _ in range(6))
    )
    by_process = [trajectory.metadata["pid"] for trajectory in played]
    assert sorted(map(by_process.count, set(by_process))) == [3, 3]
    assert {(one.initial_policy_version, one.final_policy_version) for one in played} == {(4, 4)}
    with pytest.raises(CallableError, match="a lambda"):
        runtime.rollout_executor(lambda model, scenario, config: None, target_workers=1)


async def test_a_dead_rollout_worker_is_named_until_it_is_replaced(runtime: ArtRuntime, user: Any) -> None:
    executor = runtime.rollout_executor(InstalledAsyncCallable.from_callable(user.rollout), target_workers=2)
    await executor.start()
    victim = executor.handles[1]
    assert victim.pid is not None
    running = [
        asyncio.ensure_future(executor.run(worker, user.rollout, MODEL, {"sleep": 1.0}, None))
        for worker in (0, 1)
    ]
    await asyncio.wait(running, timeout=0.2)
    os.kill(victim.pid, signal.SIGKILL)
    survived, died = await asyncio.gather(*running, return_exceptions=True)
    assert isinstance(survived, art.Trajectory)
    assert str(died).startswith(f"rollout worker 1 (pid {victim.pid}) died: killed by SIGKILL (")
    with pytest.raises(ActorDied):
        await executor.run(1, user.rollout, MODEL, {}, None)
    await executor.restart_worker(1)
    assert executor.handles[1].pid != victim.pid
    assert isinstance(await executor.run(1, user.rollout, MODEL, {}, None), art.Trajectory)


async def test_workers_are_bounded_by_the_free_cpu_slots(runtime: ArtRuntime, user: Any) -> None:
    function = InstalledAsyncCallable.from_callable(user.rollout)
    with pytest.raises(RuntimeFailure, match=r"only 3 free CPU slots .* give 1 to 3, or raise"):
        runtime.rollout_executor(function, target_workers=4)
    executor = runtime.rollout_executor(function, target_workers=2)
    assert executor.workers == (0, 1)
    executor.set_workers((2,))
    assert executor.workers == (2,)
    for wrong in ((), (0, 0), (3,)):
        with pytest.raises(RuntimeFailure):
            executor.set_workers(wrong)
