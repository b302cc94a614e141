"""A group is complete or named as lost, whatever becomes of the others."""

import asyncio

import pytest

from art_dataplane import (
    DeadlineError,
    Lease,
    LeaseError,
    PackingError,
    Selection,
    ShmError,
    ShmSegmentStore,
    TrajectoryStore,
)
from art_dataplane.errors import OwnerDiedError, RecordsLostError, RecordsMissingError
from art_dataplane.fetching import fetch_available, fetch_groups
from art_dataplane.records import LostGroup

LEASE = Lease("l", 5, "packing", 60.0)


class Stand:
    """Stands for an owner, and does something else at a fetch."""

    def __init__(self, answer):
        self.answer = answer
        self.calls = 0

    async def fetch(self, refs, lease, deadline_s):
        self.calls += 1
        result = self.answer(refs, lease, deadline_s)
        return await result if asyncio.iscoroutine(result) else result


def raising(error):
    def answer(refs, lease, deadline_s):
        raise error

    return answer


@pytest.fixture
def stores(segments):
    return {name: TrajectoryStore(name, 100, 1 << 24, segments=segments) for name in ("w0", "w1")}


@pytest.fixture
def selection(stores, record):
    """Groups a (of w0), b (of both) and c (of w1), each with one failed record."""
    owners = {"a": ("w0", "w0"), "b": ("w0", "w1"), "c": ("w1", "w1")}
    groups = tuple(
        tuple(
            stores[owner].put(record(f"{name}{index}", name, failed=index == 1))
            for index, owner in enumerate(of)
        )
        for name, of in owners.items()
    )
    return Selection(groups, LEASE)


def ids(groups):
    return ["".join(record.record_id for record in group) for group in groups]


async def test_failed_records_come_with_their_error_and_without_a_reward(selection, stores):
    groups = await fetch_groups(selection, stores, 5.0)
    assert ids(groups) == ["a0a1", "b0b1", "c0c1"]
    failed = [record for group in groups for record in group if record.error is not None]
    assert [record.record_id for record in failed] == ["a1", "b1", "c1"]
    assert {(record.reward, record.error.message) for record in failed} == {(None, "the environment broke")}
    assert [ref.failure for ref in selection.failed] == ["ValueError: the environment broke"] * 3


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OwnerDiedError("w1", "killed by signal 9"), "killed by signal 9"),
        (ConnectionResetError("by peer"), "ConnectionResetError: by peer"),
        (EOFError(), "EOFError"),
    ],
)
async def test_the_groups_of_a_dead_owner_are_named_and_the_others_come(selection, stores, error, reason):
    fetched = await fetch_available(selection, {**stores, "w1": Stand(raising(error))}, 5.0)
    assert fetched.lost == (
        LostGroup("b", ("b1",), ("w1",), reason),
        LostGroup("c", ("c0", "c1"), ("w1",), reason),
    )
    assert ids(fetched.records) == ["a0a1"]
    assert fetched.selection == selection.without(["b", "c"])
    with pytest.raises(RecordsLostError, match=r"2 of 3 groups lost records: group b lost 1 records of w1"):
        await fetch_groups(selection, {**stores, "w1": Stand(raising(error))}, 5.0)


async def test_only_the_groups_of_missing_records_are_lost_and_not_all_of_their_owner(selection, stores):
    await stores["w1"].drop(selection.groups[1][1:])
    fetched = await fetch_available(selection, stores, 5.0)
    assert [(loss.group_id, loss.record_ids) for loss in fetched.lost] == [("b", ("b1",))]
    assert fetched.lost[0].reason.startswith("store w1 does not hold 1 of 3 records, the first b1")
    assert ids(fetched.records) == ["a0a1", "c0c1"]


async def test_an_owner_that_misses_what_nobody_asked_for_is_not_believed(selection, stores):
    stand = Stand(raising(RecordsMissingError("w1", ("other",), 3)))
    with pytest.raises(RecordsMissingError):
        await fetch_available(selection, {**stores, "w1": stand}, 5.0)
    assert stand.calls == 1


async def test_a_stale_lease_is_no_loss(selection, stores):
    await stores["w1"].fetch(selection.groups[2], Lease("m", 6, "p", 1.0), 1.0)
    with pytest.raises(LeaseError, match="'c0': fence 5 of 'packing' is stale"):
        await fetch_available(selection, stores, 5.0)


async def test_nobody_waits_for_an_owner_whose_groups_are_lost_already(selection, stores, record):
    hanging = Stand(lambda *_: asyncio.Event().wait())
    await stores["w0"].drop(selection.groups[1][:1])
    only_b = Selection((selection.groups[0], selection.groups[1]), LEASE)
    fetched = await asyncio.wait_for(fetch_available(only_b, {**stores, "w1": hanging}, 600.0), 10)
    assert [loss.group_id for loss in fetched.lost] == ["b"]
    assert ids(fetched.records) == ["a0a1"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_silent_owner_is_a_deadline_that_does_not_hide_a_loss(selection, stores):
    hanging = Stand(lambda *_: asyncio.Event().wait())
    await stores["w0"].drop(selection.groups[0][:1])
    with pytest.raises(DeadlineError, match=r"owners \['w1'\] within 0.05 s; 2 of 3 groups") as caught:
        await fetch_available(selection, {**stores, "w1": hanging}, 0.05)
    assert isinstance(caught.value.__cause__, RecordsLostError)
    assert caught.value.__cause__.group_ids == ("a",)


async def test_a_segment_of_a_living_owner_that_is_gone_is_no_death(record, exchange, run_id):
    with ShmSegmentStore(run_id, 64 << 20) as segments:
        store = TrajectoryStore("w0", 10, 1 << 24, segments=segments)
        ref = store.put(record("r", "g", [exchange(range(30_000), [1])]))

        async def dropped(refs, lease, deadline_s):
            location = await store.fetch(refs, lease, deadline_s)
            segments.drop(location)
            return location

        with pytest.raises(ShmError, match="does not exist"):
            await fetch_groups(Selection(((ref,),), LEASE), {"w0": Stand(dropped)}, 5.0)


async def test_a_selection_of_nothing_and_an_unknown_owner_are_refused(selection, stores):
    with pytest.raises(PackingError, match="holds no references"):
        await fetch_available(Selection((), LEASE), stores, 1.0)
    with pytest.raises(PackingError, match=r"no way to the owners \['w1'\]; 1 owners are known"):
        await fetch_available(selection, {"w0": stores["w0"]}, 1.0)
