"""Real processes that are killed: owners with their records, packers with their leases."""

import asyncio
import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from art_dataplane import (
    DeadlineError,
    LeaseError,
    Outcome,
    ProcessIdentity,
    QueueLimits,
    SelectionRule,
    ShmSegmentStore,
    TrajectoryQueue,
    TrajectoryStore,
    sweep,
)
from art_dataplane.errors import OwnerDiedError, RecordsLostError
from art_dataplane.fetching import fetch_available, fetch_groups

LIMITS = QueueLimits(groups=100, records=1000, byte_count=1 << 30)
OLDEST = SelectionRule()
START_S = 60.0


def serve_records(pipe: Connection, name: str, run_id: str, records: list) -> None:
    """An owner: says its references, then answers fetches until the pipe ends."""
    with ShmSegmentStore(run_id, 64 << 20) as segments:
        store = TrajectoryStore(name, 100, 64 << 20, segments=segments)
        pipe.send((ProcessIdentity.current(), tuple(store.put(record) for record in records)))
        while True:
            refs, lease, deadline_s = pipe.recv()
            try:
                pipe.send(asyncio.run(store.fetch(refs, lease, deadline_s)))
            except LeaseError as error:
                pipe.send(error)


def hold_a_lease(pipe: Connection) -> None:
    """A packer: says who it is, and works on what it is given for ever."""
    pipe.send(ProcessIdentity.current())
    pipe.recv()
    pipe.send("working")
    signal.pause()


class Owner:
    """The way to an owner in another process, over a pipe as anybody would write it."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self.process = process
        self.pipe = pipe
        self.identity, self.refs = receive(pipe)

    async def fetch(self, refs, lease, deadline_s):
        return await asyncio.to_thread(self.ask, list(refs), lease, deadline_s)

    def ask(self, refs, lease, deadline_s):
        self.pipe.send((refs, lease, deadline_s))
        answer = receive(self.pipe, deadline_s)
        if isinstance(answer, LeaseError):
            raise answer
        return answer

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(START_S)
        assert self.process.exitcode == -signal.SIGKILL


def receive(pipe: Connection, within_s: float = START_S) -> Any:
    if not pipe.poll(within_s):
        raise TimeoutError(f"nothing came within {within_s} s")
    return pipe.recv()


@pytest.fixture
def spawn() -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")
    processes = []

    def start(target, *arguments):
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        processes.append((process, ours))
        return process, ours

    yield start
    for process, pipe in processes:
        pipe.close()
        process.kill()
        process.join(START_S)


@pytest.fixture
def owners(spawn, record, exchange, run_id) -> Iterator[dict[str, Owner]]:
    """``w0`` has records of the groups a, b and c, ``w1`` of b, c and d; those of d are large."""
    groups = {"w0": ("a", "b", "c"), "w1": ("b", "c", "d")}
    started = {}
    for name, group_ids in groups.items():
        records = [
            record(
                f"{group_id}-{name}-{index}",
                group_id,
                [exchange(range(30_000 if group_id == "d" else 3), [1, 2])],
            )
            for group_id in group_ids
            for index in range(2)
        ]
        started[name] = Owner(*spawn(serve_records, name, run_id, records))
    yield started
    for owner in started.values():
        owner.pipe.close()
        owner.process.kill()
        owner.process.join(START_S)
    sweep(run_id)


async def queue_of(owners) -> TrajectoryQueue:
    queue = TrajectoryQueue(LIMITS)
    for group_id in "abcd":
        refs = [ref for owner in owners.values() for ref in owner.refs if ref.group_id == group_id]
        await queue.put(refs, 1.0)
    return queue


def ids(groups) -> list[list[str]]:
    return [[each.record_id for each in group] for group in groups]


async def test_the_death_of_an_owner_names_its_groups_and_leaves_the_others_usable(owners):
    queue = await queue_of(owners)
    selection = await queue.select(4, OLDEST, 1.0)
    assert ids(await fetch_groups(selection, owners, 30.0)) == ids(selection.groups)
    owners["w1"].kill()
    with pytest.raises(RecordsLostError, match="3 of 4 groups lost records") as caught:
        await fetch_groups(selection, owners, 30.0)
    assert caught.value.group_ids == ("b", "c", "d")
    assert [loss.owners for loss in caught.value.groups] == [("w1",)] * 3
    assert caught.value.groups[0].record_ids == ("b-w1-0", "b-w1-1")

    queue.mark_lost(caught.value.groups)
    queue.release(selection.lease, Outcome.CONSUMED, group_ids=caught.value.group_ids)
    left = selection.without(caught.value.group_ids)
    assert ids(await fetch_groups(left, owners, 30.0)) == [["a-w0-0", "a-w0-1"]]
    queue.release(selection.lease, Outcome.CONSUMED)
    stats = queue.stats()
    assert (stats.consumed_groups, stats.lost_groups, stats.records) == (1, 3, 0)


async def test_an_owner_that_dies_while_it_is_asked_is_a_loss_and_not_a_deadline(owners):
    queue = await queue_of(owners)
    selection = await queue.select(4, OLDEST, 1.0)
    os.kill(owners["w1"].process.pid, signal.SIGSTOP)  # it will not answer
    fetching = asyncio.ensure_future(fetch_available(selection, owners, 60.0))
    done, _ = await asyncio.wait([fetching], timeout=0.2)
    assert not done
    owners["w1"].kill()
    fetched = await asyncio.wait_for(fetching, 30.0)
    assert [loss.group_id for loss in fetched.lost] == ["b", "c", "d"]
    assert ids(fetched.records) == [["a-w0-0", "a-w0-1"]]
    assert fetched.selection.lease == selection.lease


async def test_an_owner_that_dies_before_its_segment_is_mapped_is_a_loss(owners, run_id):
    """Its segment was swept between its answer and the reading."""
    queue = await queue_of(owners)
    await queue.select(3, OLDEST, 1.0)
    selection = await queue.select(1, OLDEST, 1.0)
    assert selection.group_ids == ("d",)
    owner = owners["w1"]

    class DiesAfterItsAnswer:
        async def fetch(self, refs, lease, deadline_s):
            location = await owner.fetch(refs, lease, deadline_s)
            owner.kill()
            assert [info.run_id for info in sweep(run_id)] == [run_id]
            return location

    with pytest.raises(RecordsLostError) as caught:
        await fetch_groups(selection, {"w1": DiesAfterItsAnswer()}, 30.0)
    assert caught.value.group_ids == ("d",)


async def test_a_silent_owner_is_no_dead_one(owners):
    queue = await queue_of(owners)
    selection = await queue.select(4, OLDEST, 1.0)
    os.kill(owners["w1"].process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineError, match=r"owners \['w1'\] within 0.5 s; 3 of 4 groups .*first b"):
            await fetch_groups(selection, owners, 0.5)
    finally:
        owners["w1"].kill()


async def test_a_queue_that_is_told_of_a_death_hands_the_groups_out_as_lost(owners):
    queue = await queue_of(owners)
    leased = await queue.select(2, OLDEST, 1.0)
    owners["w1"].kill()
    known = queue.drop_owner("w1", "killed by signal 9")
    assert [loss.group_id for loss in known] == ["b", "c", "d"]
    lost = await queue.select(2, OLDEST, 1.0)
    assert (lost.group_ids, [loss.reason for loss in lost.lost]) == (("c", "d"), ["killed by signal 9"] * 2)
    queue.release(lost.lease, Outcome.CONSUMED)
    queue.release(leased.lease, Outcome.DISCARDED)
    assert (await queue.select(1, OLDEST, 1.0)).group_ids == ("b",)  # alone, and as lost
    good = await queue.select(1, OLDEST, 1.0)
    assert (good.group_ids, good.lost) == (("a",), ())
    assert ids(await fetch_groups(good, owners, 30.0)) == [["a-w0-0", "a-w0-1"]]


async def test_a_packer_that_is_killed_gives_its_groups_back_to_who_waits(owners, spawn):
    queue = await queue_of(owners)
    process, pipe = spawn(hold_a_lease)
    identity = receive(pipe)
    selection = await queue.select(4, OLDEST, 1.0, holder="packer 0", lease_s=3600.0, process=identity)
    pipe.send(selection)
    assert receive(pipe) == "working"
    waiting = asyncio.ensure_future(queue.select(4, OLDEST, 60.0, holder="packer 1"))
    await asyncio.sleep(0)
    assert queue.revoke_dead() == ()  # it lives
    os.kill(process.pid, signal.SIGKILL)
    again = await asyncio.wait_for(waiting, 30.0)
    assert again.groups == selection.groups
    assert again.lease.fence > selection.lease.fence
    assert queue.stats().revoked_leases == 1
    with pytest.raises(LeaseError, match="is not in force"):
        queue.release(selection.lease, Outcome.CONSUMED)
    await fetch_groups(again, owners, 30.0)
    with pytest.raises(LeaseError, match="is stale"):  # to the owners of the records, too
        await fetch_groups(selection, owners, 30.0)


async def test_a_producer_that_is_killed_gives_its_reservation_back(spawn):
    queue = TrajectoryQueue(QueueLimits(1, 10, 1000))
    process, pipe = spawn(hold_a_lease)
    lease = await queue.reserve("g", 4, 1000, 1.0, holder="producer 0", process=receive(pipe))
    waiting = asyncio.ensure_future(queue.reserve("h", 4, 1000, 60.0))
    await asyncio.sleep(0)
    os.kill(process.pid, signal.SIGKILL)
    await asyncio.wait_for(waiting, 30.0)
    with pytest.raises(LeaseError, match="is not in force"):
        queue.commit(lease, ())


async def test_errors_of_losses_travel_between_processes():
    died = pickle.loads(pickle.dumps(OwnerDiedError("w1", "killed")))
    assert str(died) == "the owner 'w1' is gone with its records: killed"
    lost = RecordsLostError((), 3)
    assert pickle.loads(pickle.dumps(lost)).asked == 3
