"""The packing worker packs what owners hold and owns each batch until it is released."""

import uuid

import numpy as np
import pytest

from art.distributed.packing import BATCHES_IN_FLIGHT, OwnerEntry, PackingWorker
from art_dataplane import (
    Outcome,
    PackingError,
    PackingRequest,
    QueueLimits,
    SelectionRule,
    ShmBatchMapper,
    TokenRecord,
    TrajectoryQueue,
    TrajectoryRecord,
    TrajectoryStore,
    VersionSpan,
    list_segments,
)


@pytest.fixture
async def worker():
    worker = PackingWorker("packing worker", f"test-{uuid.uuid4().hex[:8]}", 1 << 22)
    yield worker
    await worker.close()


def record(group, index):
    return TrajectoryRecord(
        record_id=f"{group}-{index}",
        group_id=group,
        exchanges=(
            TokenRecord(
                prompt_ids=np.array([1, 2, 3], np.int32),
                completion_ids=np.array([4, 5 + index], np.int32),
                logprobs=np.array([-1.0, -2.0], np.float32),
                prompt_spans=(VersionSpan(0, 3, 0),),
                completion_spans=(VersionSpan(0, 2, 0),),
            ),
        ),
        reward=float(index),
    )


async def packed(worker, group, lease_s=600.0):
    """Packs two records of one group that are held here."""
    store = TrajectoryStore("here", 10, 1 << 16)
    queue = TrajectoryQueue(QueueLimits(groups=10, records=10, byte_count=1 << 16))
    await queue.put([store.put(record(group, index)) for index in range(2)], 1.0)
    selection = await queue.select(1, SelectionRule(), 1.0)
    way = await store.fetch(selection.refs, selection.lease, 1.0)
    request = PackingRequest(
        selection, packed_sequence_length=64, ticket=1, policy_version=0, lease_s=lease_s
    )
    return await worker.pack(request, [OwnerEntry("here", way)], 5.0)


async def test_a_batch_is_there_until_it_is_released(worker):
    ref = (await packed(worker, "a")).ref
    with ShmBatchMapper().map(ref) as batch:
        # The shared prompt and first token are computed once; both answers predict from them.
        assert batch.token_ids.tolist() == [1, 2, 3, 4]
        assert sorted(batch.loss_target.tolist()) == [4, 4, 5, 6]
    await worker.release(ref.batch_id, Outcome.CONSUMED)
    with pytest.raises(PackingError, match="no batch"):
        await worker.release(ref.batch_id, Outcome.CONSUMED)
    assert (await worker.stats()).used_bytes == 0


async def test_more_batches_than_may_be_in_flight_are_refused(worker):
    refs = [(await packed(worker, str(number))).ref for number in range(BATCHES_IN_FLIGHT)]
    with pytest.raises(PackingError, match=f"{BATCHES_IN_FLIGHT} batches are held already"):
        await packed(worker, "one too many")
    await worker.release(refs[0].batch_id, Outcome.DISCARDED)
    assert (await packed(worker, "now it fits")).ref is not None


async def test_nothing_is_left_after_the_close(worker):
    ref = (await packed(worker, "a")).ref
    await worker.close()
    assert ref.location.name not in [segment.name for segment in list_segments()]


async def test_an_owner_that_is_not_named_is_an_error(worker):
    store = TrajectoryStore("elsewhere", 10, 1 << 16)
    queue = TrajectoryQueue(QueueLimits(groups=10, records=10, byte_count=1 << 16))
    await queue.put([store.put(record("a", 0))], 1.0)
    selection = await queue.select(1, SelectionRule(), 1.0)
    request = PackingRequest(selection, packed_sequence_length=64, ticket=1, policy_version=0)
    with pytest.raises(PackingError, match="elsewhere"):
        await worker.pack(request, [], 5.0)


async def test_batches_whose_lease_is_over_are_taken_back_before_the_next_is_packed(worker):
    refs = [(await packed(worker, str(number), lease_s=1e-6)).ref for number in range(BATCHES_IN_FLIGHT)]
    fresh = (await packed(worker, "fresh")).ref
    held = [segment.name for segment in list_segments()]
    assert fresh.location.name in held
    assert not {ref.location.name for ref in refs}.intersection(held)
    with pytest.raises(PackingError, match="its lease expired and it was taken back"):
        await worker.release(refs[0].batch_id, Outcome.CONSUMED)
    await worker.release(fresh.batch_id, Outcome.CONSUMED)
    assert (await worker.stats()).segment_count == 0
