"""One lease for each holder of a snapshot: fences, deadlines, renewal, and what a stuck sink cannot do."""

import asyncio
import logging
import uuid

import pytest
import torch

from art_dataplane import LeaseError, Receipt, list_segments
from art_trainer import SnapshotPoolError
from art_trainer.sinks import SinkLane
from art_trainer.snapshots import SnapshotPool


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Weights:
    def named_tensors(self):
        return [("a", torch.zeros(3))]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def run_id():
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def pool(run_id, clock):
    made = SnapshotPool(run_id, 1, 64, clock=clock)
    yield made
    made.close()
    assert list_segments(run_id) == ()


async def snapshot(pool, version=1):
    slot = await pool.acquire(1.0)
    slot.fill(version=version, generation=None, adapter=Weights(), peft_config="{}", optimizer={})
    return slot


class Sink:
    """Waits until it is let go; then gives its receipt, with or without its lease."""

    def __init__(self, keeps=False):
        self.go = asyncio.Event()
        self.keeps = keeps
        self.leases = []
        self.cancelled = 0

    async def submit(self, lease):
        self.leases.append(lease)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if not self.keeps:
            lease.release()
        return Receipt("sink", lease.manifest.version, "here", 0.0)


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (the condition has no event)
            await asyncio.sleep(0.005)


async def test_each_holder_has_a_lease_of_its_own(pool, run_id):
    slot = await snapshot(pool)
    publish, durability = slot.lease("publish"), slot.lease("durability")
    slot.release()
    assert durability.lease.fence > publish.lease.fence
    with pytest.raises(LeaseError, match="leased to 'publish'"):
        slot.lease("publish")
    publish.release()
    publish.release()
    publish.check()  # it was released: nothing is wrong
    assert pool.held == 1
    durability.release()
    assert pool.held == 0
    assert list_segments(run_id) == ()


async def test_a_lease_that_is_not_renewed_frees_its_slot_and_is_told(pool, clock, run_id, caplog):
    slot = await snapshot(pool, version=7)
    stuck, fine = slot.lease("stuck", 10.0), slot.lease("fine", 30.0)
    slot.release()
    clock.now += 9
    fine.renew(30.0)
    clock.now += 1
    with caplog.at_level(logging.WARNING, "art_trainer"):
        assert not stuck.is_held
    assert "the lease of 'stuck' (fence 1) on version 7 expired after 10 s" in caplog.text
    with pytest.raises(LeaseError, match="expired after 10 s without a renewal"):
        stuck.check()
    with pytest.raises(LeaseError):
        stuck.renew()
    stuck.release()
    assert pool.held == 1, "the other holder's bytes are there"
    assert len(list_segments(run_id)) == 1
    clock.now += 28
    assert fine.is_held
    fine.release()
    assert pool.held == 0


async def test_whoever_waits_for_a_slot_gets_that_of_an_expired_lease(run_id):
    pool = SnapshotPool(run_id, 1, 64)  # with the real clock
    slot = await snapshot(pool)
    slot.lease("stuck", 0.2)
    slot.release()
    with pytest.raises(SnapshotPoolError, match="Held by stuck"):
        await pool.acquire(0.01)
    later = await pool.acquire(10.0)
    later.release()
    pool.close()


async def test_a_holder_s_leases_can_be_revoked(pool):
    slot = await snapshot(pool)
    dead, living = slot.lease("dead"), slot.lease("living")
    slot.release()
    assert pool.revoke_holder("dead") == (dead,)
    with pytest.raises(LeaseError, match=r"'dead'.*was revoked"):
        dead.check()
    living.check()
    living.release()
    assert pool.held == 0


async def test_a_sink_that_is_stuck_is_cancelled_and_its_receipt_refused(pool, clock):
    sink = Sink()
    lane = SinkLane("sink", sink)
    slot = await snapshot(pool)
    lane.submit(slot.lease("sink", 1.0))
    slot.release()
    await until(lambda: sink.leases)
    clock.now += 1
    with pytest.raises(LeaseError, match="expired after 1 s"):
        await lane.wait(1, 10.0)
    assert sink.cancelled == 1
    assert lane.take_receipts() == ()
    assert pool.held == 0
    following = await snapshot(pool, version=2)
    lane.submit(following.lease("sink"))
    following.release()
    sink.go.set()
    assert (await lane.wait(2, 10.0)).version == 2


async def test_a_receipt_that_comes_after_the_end_does_not_count(pool, clock):
    sink = Sink()
    lane = SinkLane("sink", sink)
    slot = await snapshot(pool)
    lane.submit(slot.lease("sink", 1000.0))
    slot.release()
    await until(lambda: sink.leases)
    clock.now += 1000
    sink.go.set()  # before the lane looks at the lease again
    with pytest.raises(LeaseError, match="expired after 1000 s"):
        await lane.wait(1, 10.0)
    assert lane.take_receipts() == ()
    assert lane.unseen_errors() == {}, "the wait has told it"


async def test_a_lease_that_ends_while_its_sink_is_at_work_on_another_is_not_handed_over(run_id, clock):
    pool = SnapshotPool(run_id, 2, 64, clock=clock)
    sink = Sink()
    lane = SinkLane("sink", sink)
    for version, duration_s in ((1, 1000.0), (2, 1.0)):
        slot = await snapshot(pool, version)
        lane.submit(slot.lease("sink", duration_s))
        slot.release()
    await until(lambda: sink.leases)
    clock.now += 1
    sink.go.set()
    with pytest.raises(LeaseError, match=r"on version 2 expired after 1 s"):
        await lane.wait(2, 10.0)
    assert (await lane.wait(1, 10.0)).version == 1
    assert [lease.manifest.version for lease in sink.leases] == [1]
    assert pool.held == 0
    pool.close()


async def test_what_a_sink_keeps_after_its_receipt_is_renewed_until_it_lets_go(run_id):
    pool = SnapshotPool(run_id, 1, 64)  # with the real clock
    sink = Sink(keeps=True)
    sink.go.set()
    lane = SinkLane("publish", sink)
    slot = await snapshot(pool)
    lane.submit(slot.lease("publish", 0.4))
    slot.release()
    await lane.wait(1, 10.0)
    with pytest.raises(SnapshotPoolError, match="Held by publish"):
        await pool.acquire(1.2)  # three times as long as it was granted for
    sink.leases[0].release()
    assert pool.held == 0
    assert await lane.drain(1.0)
    pool.close()
