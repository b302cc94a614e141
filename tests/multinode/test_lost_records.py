"""A rollout worker or a packing worker is killed: exactly the groups concerned are lost, the others wait."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

import art
from art.distributed import ActorHandle, ArtRuntime, GroupsLost, PartFailed, compile_topology
from art.distributed.model_run import ModelRun, RunSettings
from art.distributed.rollouts import RolloutExecutor
from art.records import encode_choice_field
from art.train_config import TrainConfig
from art_dataplane import Outcome, TokenRecord, TrajectoryRef, VersionSpan
from art_topology import local_cluster
from art_trainer import LoraSpec

MODEL = art.TrainableModel(name="m", project="tests", base_model="not-loaded")


async def rollout(_model: art.TrainableModel, reward: float, _config: None) -> art.Trajectory:
    """A trajectory of two sampled tokens, without a model; slow enough for the next to go elsewhere."""
    record = TokenRecord(
        prompt_ids=np.array([1, 2], np.int32),
        completion_ids=np.array([7, 8], np.int32),
        logprobs=np.full(2, -0.25, np.float32),
        prompt_spans=(VersionSpan(0, 2, 0),),
        completion_spans=(VersionSpan(0, 2, 0),),
    )
    message = ChatCompletionMessage(role="assistant", content="x")
    choice = Choice(index=0, finish_reason="stop", message=message, art=encode_choice_field(record))
    await asyncio.sleep(0.2)
    return art.Trajectory(messages_and_choices=[{"role": "user", "content": "?"}, choice], reward=reward)


class Packing:
    """A model's run with its packing worker and no trainer or server, and two rollout workers."""

    def __init__(self, run: ModelRun, executor: RolloutExecutor) -> None:
        self.run = run
        self.executor = executor

    async def sampled(self, group_id: str, worker: int) -> art.TrajectoryGroup:
        """A group of two whose records are with one worker."""
        self.executor.set_workers((worker,))
        submitted = [
            self.executor.submit(rollout, MODEL, reward, None, group_id=group_id) for reward in (0.0, 1.0)
        ]
        group = art.TrajectoryGroup(await asyncio.gather(*submitted))
        self.executor.set_workers((0, 1))
        return group

    def refs(self, *groups: art.TrajectoryGroup) -> list[list[TrajectoryRef]]:
        return [self.run._records.refs_of(group) for group in groups]

    async def pack(self, *groups: art.TrajectoryGroup) -> Any:
        _, packed = await self.run._packed(self.refs(*groups), TrainConfig())
        assert packed.ref is not None
        await self.run._release(packed.ref.batch_id, Outcome.CONSUMED)
        return packed.ref

    @property
    def packer(self) -> ActorHandle:
        assert self.run._packer is not None
        return self.run._packer


@pytest.fixture
async def packing(state_dir: Path, tmp_path: Path) -> AsyncIterator[Packing]:
    topology = compile_topology(cluster=local_cluster(cpu_slots=4))
    settings = RunSettings(
        folder=tmp_path,
        lora=LoraSpec(),
        seed=0,
        resume=False,
        threads=1,
        step_timeout_s=60.0,
        tool_parser=None,
    )
    placed: Any = None  # nothing is placed: no trainer, no server
    async with await ArtRuntime.start_local(topology) as runtime:
        parallel = art.MegatronTopologyConfig()
        config = art.MegatronRuntimeConfig(topology=parallel, packed_sequence_length=64)
        run = ModelRun(MODEL, placed, config, runtime, settings, lambda _: None, lambda _: None)
        run._packer = await run._start_packer()
        executor = runtime.rollout_executor(rollout, target_workers=2)
        await executor.start()
        yield Packing(run, executor)
        await run.discard()


async def kill(handle: ActorHandle) -> None:
    assert handle.pid is not None
    os.kill(handle.pid, signal.SIGKILL)
    await asyncio.wait_for(handle.wait_died(), 10.0)


async def test_a_dead_rollout_worker_loses_exactly_its_groups(packing: Packing) -> None:
    first, second = await packing.sampled("first", 0), await packing.sampled("second", 1)
    await kill(packing.executor.handles[1])
    with pytest.raises(GroupsLost, match=r"rollout worker 1 \(pid \d+\) died: killed by SIGKILL") as caught:
        await packing.pack(first, second)
    assert caught.value.group_ids == ("second",)
    assert packing.run._groups.stats().consumed_groups == 0
    assert (await packing.pack(first)).group_ids == ("first",)


async def test_a_worker_that_was_started_again_does_not_hold_the_old_records(packing: Packing) -> None:
    first, second = await packing.sampled("first", 0), await packing.sampled("second", 1)
    await packing.executor.restart_worker(1)
    with pytest.raises(GroupsLost, match="does not hold 2 of 2 records") as caught:
        await packing.pack(first, second)
    assert caught.value.group_ids == ("second",)
    assert set(caught.value.groups[0].record_ids) == {ref.record_id for ref in packing.refs(second)[0]}
    third = await packing.sampled("third", 1)
    assert set((await packing.pack(first, third)).group_ids) == {"first", "third"}


async def test_a_dead_packing_worker_gives_back_what_it_had(packing: Packing) -> None:
    group = await packing.sampled("g", 0)
    holder = packing.executor.handles[0]
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGSTOP)  # the packing worker waits for its answer
    try:
        working = asyncio.ensure_future(packing.pack(group))
        async with asyncio.timeout(20):
            while not packing.run._groups.stats().leased_groups:  # noqa: ASYNC110 (it has no event)
                await asyncio.sleep(0.01)
        assert packing.packer.process is not None
        assert packing.packer.process.is_alive()
        await kill(packing.packer)
        with pytest.raises(PartFailed, match=r"packing worker m \(pid \d+\) died: killed by SIGKILL"):
            await working
    finally:
        os.kill(holder.pid, signal.SIGCONT)
    stats = packing.run._groups.stats()
    assert (stats.waiting_groups, stats.leased_groups, stats.consumed_groups) == (1, 0, 0)
    assert stats.revoked_leases == 1
    assert packing.packer.process.is_alive() is False


async def test_a_rollout_worker_that_dies_while_its_records_are_fetched(packing: Packing) -> None:
    first, second = await packing.sampled("first", 0), await packing.sampled("second", 1)
    victim = packing.executor.handles[1]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGSTOP)  # the packing worker waits for its answer
    working = asyncio.ensure_future(packing.pack(first, second))
    async with asyncio.timeout(20):
        while not packing.run._groups.stats().leased_groups:  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0.01)
    done, _ = await asyncio.wait([working], timeout=0.5)
    assert not done
    await kill(victim)
    with pytest.raises(GroupsLost, match=r"worker 1 \(pid \d+\) died: killed by SIGKILL") as caught:
        await working
    assert caught.value.group_ids == ("second",)
    stats = packing.run._groups.stats()
    assert (stats.waiting_groups, stats.lost_groups, stats.consumed_groups) == (1, 1, 0)
    assert (await packing.pack(first)).group_ids == ("first",)
