"""Records that stay with rollout workers are read without touching what training does with them."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

import art
from art.distributed import ArtRuntime, InstalledAsyncCallable, RemoteError, compile_topology
from art.distributed.rollouts import RolloutExecutor
from art.errors import ConfigError
from art.records import encode_choice_field
from art_dataplane import Lease, TokenRecord, VersionSpan, read_records
from art_topology import local_cluster

MODEL = art.TrainableModel(name="m", project="tests", base_model="not-loaded")
LARGE = 20_000  # tokens: more than travels inline


async def rollout(_model: art.TrainableModel, count: int, _config: None) -> art.Trajectory:
    """A trajectory of ``count`` sampled tokens, without a model."""
    if count < 0:
        raise ValueError("the user's own")
    record = TokenRecord(
        prompt_ids=np.array([1, 2], np.int32),
        completion_ids=np.arange(count, dtype=np.int32),
        logprobs=np.full(count, -0.25, np.float32),
        prompt_spans=(VersionSpan(0, 2, 3),),
        completion_spans=(VersionSpan(0, count, 3),),
    )
    choice = Choice(
        index=0,
        finish_reason="stop",
        message=ChatCompletionMessage(role="assistant", content="x"),
        art=encode_choice_field(record),
    )
    return art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "?"}, choice], reward=float(count)
    )


@pytest.fixture
async def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RolloutExecutor]:
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "state"))
    runtime = await ArtRuntime.start_local(compile_topology(cluster=local_cluster(cpu_slots=3)))
    async with runtime:
        yield runtime.rollout_executor(InstalledAsyncCallable.from_callable(rollout), target_workers=2)


async def submit(executor: RolloutExecutor, *counts: int) -> list[art.TrajectoryHandle]:
    return [await executor.submit(rollout, MODEL, count, None, group_id="g") for count in counts]


async def test_records_are_read_and_can_be_trained_on_afterwards(executor: RolloutExecutor) -> None:
    assert executor.counts == (0, 0)
    handles = await submit(executor, 3, LARGE, 5, LARGE, 1)
    assert executor.counts == (5, 5)
    assert [handle.metrics["completion_tokens"] for handle in handles] == [3, LARGE, 5, LARGE, 1]
    for _ in range(2):
        records = await executor.records(handles, deadline_s=30)
        assert [record.record_id for record in records] == [handle.ref.record_id for handle in handles]
        for record, count in zip(records, [3, LARGE, 5, LARGE, 1], strict=True):
            (exchange,) = record.exchanges
            assert np.array_equal(exchange.completion_ids, np.arange(count))
            assert exchange.completion_spans == (VersionSpan(0, count, 3),)
    # As the queue's first lease: the readings have not made it stale.
    lease = Lease(lease_id="1", fence=1, holder="packing", duration_s=60)
    for owner in {handle.ref.owner for handle in handles}:
        refs = [handle.ref for handle in handles if handle.ref.owner == owner]
        location = await executor.record_owner(owner).fetch(refs, lease, 30)
        assert [record.record_id for record in read_records(location)] == [ref.record_id for ref in refs]
        assert (await executor.record_owner(owner).stats()).record_count == len(refs)


async def test_what_training_has_leased_or_dropped_is_refused(executor: RolloutExecutor) -> None:
    (handle,) = await submit(executor, 4)
    owner = executor.record_owner(handle.ref.owner)
    await owner.fetch([handle.ref], Lease(lease_id="1", fence=1, holder="packing", duration_s=60), 30)
    with pytest.raises(RemoteError, match="stale"):
        await executor.records([handle], deadline_s=30)
    await owner.drop([handle.ref])
    with pytest.raises(RemoteError, match="does not hold"):
        await executor.records([handle], deadline_s=30)


async def test_a_rollout_s_error_shows_the_user_s_line(executor: RolloutExecutor) -> None:
    (handle,) = await submit(executor, -1)
    text = handle.error.traceback
    assert 'raise ValueError("the user\'s own")' in text
    assert "rollout_worker.py" not in text
    with pytest.raises(art.RolloutFailed, match=r"test_records\.py"):
        await executor.run(0, rollout, MODEL, -1, None)


async def test_a_handle_without_a_record_is_refused(executor: RolloutExecutor) -> None:
    bare = art.TrajectoryHandle(reward=1.0, metrics={}, metadata={})
    with pytest.raises(ConfigError, match="1 of 1 handles have no record"):
        await executor.records([bare], deadline_s=30)
    assert await executor.records([], deadline_s=30) == []
