"""Lookahead with a prepare that the test holds by the hand, and with real queues, leases and segments."""

import asyncio
import contextlib
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_dataplane import (
    DeadlineError,
    InlineLocation,
    Lease,
    Outcome,
    PackedBatchRef,
    PackingCounts,
    PackingRequest,
    PackingResult,
    PackingTiming,
    QueueLimits,
    SelectionRule,
    ShmBatchMapper,
    TrajectoryQueue,
    TrajectoryStore,
    pack_selection,
)
from art_dataplane.errors import LookaheadError
from art_dataplane.lookahead import Lookahead, LookaheadRule, give_back


def make_result(ticket, policy_version, *, versions=(0,), empty=False, lease_s=600.0):
    counts, timing = PackingCounts(1, 1, 1, 1, 1), PackingTiming(0.0, 0.0, 0.0)
    ref = PackedBatchRef(
        f"batch-{ticket}",
        "p",
        Lease(f"l{ticket}", ticket, "trainer", lease_s),
        (),
        0,
        InlineLocation(b""),
        ticket,
        8,
        counts,
        versions,
        (),
        (),
        policy_version,
    )
    return PackingResult(None if empty else ref, counts, timing, ticket)


class Preparer:
    """Preparing waits until the test lets it go on; everything that happens is written down."""

    def __init__(self):
        self.calls = []
        self.running = 0
        self.most_running = 0
        self.cancelled = []
        self.given_back = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures = {}
        self.results = {}

    async def prepare(self, ticket, policy_version):
        self.calls.append((ticket, policy_version))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(ticket)
            raise
        finally:
            self.running -= 1
        if ticket in self.failures:
            raise self.failures[ticket]
        return self.results.get(ticket, make_result(ticket, policy_version))

    async def give_back(self, result):
        await asyncio.sleep(0)
        self.given_back.append(result.ticket)


async def until(condition, deadline_s=5.0):
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 - there is no event for "somebody else has run"
            await asyncio.sleep(0)


async def test_the_next_batch_is_prepared_for_the_next_version_while_one_is_used():
    preparer = Preparer()
    ahead = Lookahead(preparer.prepare, preparer.give_back)
    first = await ahead.next(4, 5.0)
    assert (first.ref.ticket, first.ref.policy_version) == (1, 4)
    await until(lambda: ahead.stats().ready)
    assert preparer.calls == [(1, 4), (2, 5)]
    second = await ahead.next(5, 0.0)
    assert (second.ref.ticket, second.ref.policy_version) == (2, 5)
    stats = ahead.stats()
    assert (stats.prepared, stats.handed_out, stats.at_once, stats.relabelled) == (2, 2, 1, 0)
    await ahead.close(5.0)
    assert preparer.most_running == 1


async def test_a_start_before_the_first_step_is_not_done_twice():
    preparer = Preparer()
    ahead = Lookahead(preparer.prepare, preparer.give_back, first_ticket=7)
    ahead.start(0)
    ahead.start(0)
    await until(lambda: ahead.stats().ready)
    assert (await ahead.next(0, 0.0)).ticket == 7
    assert preparer.calls[0] == (7, 0)
    await ahead.close(5.0)


async def test_a_batch_for_another_version_is_relabelled_and_stays_what_it_was():
    preparer = Preparer()
    preparer.results[2] = make_result(2, 5, versions=(2, 4))
    ahead = Lookahead(preparer.prepare, preparer.give_back, rule=LookaheadRule(most_versions_behind=2))
    await ahead.next(4, 5.0)
    got = await ahead.next(4, 5.0)  # the step with the first batch was skipped
    assert got == msgspec.structs.replace(
        preparer.results[2], ref=msgspec.structs.replace(preparer.results[2].ref, policy_version=4)
    )
    stats = ahead.stats()
    assert (stats.relabelled, stats.discarded) == (1, 0)
    await ahead.close(5.0)
    assert preparer.given_back in ([], [3])


@pytest.mark.parametrize(
    ("rule", "versions", "asked"),
    [
        (LookaheadRule("discard"), (4,), 7),
        (LookaheadRule(), (4, 5), 4),
        (LookaheadRule(most_versions_behind=2), (4, 6), 7),
    ],
    ids=["by rule", "a token is of a later version", "a token is too old"],
)
async def test_a_batch_that_does_not_fit_the_version_is_given_back_and_replaced(rule, versions, asked):
    preparer = Preparer()
    preparer.results[2] = make_result(2, 5, versions=versions)
    ahead = Lookahead(preparer.prepare, preparer.give_back, rule=rule)
    await ahead.next(4, 5.0)
    got = await ahead.next(asked, 5.0)
    assert (got.ticket, got.ref.policy_version) == (3, asked)
    assert preparer.calls[:3] == [(1, 4), (2, 5), (3, asked)]
    assert preparer.given_back == [2]
    stats = ahead.stats()
    assert (stats.discarded, stats.expired, stats.relabelled) == (1, 0, 0)
    await ahead.close(5.0)


async def test_a_batch_whose_lease_ran_out_while_it_waited_is_replaced():
    now = [100.0]
    preparer = Preparer()
    preparer.results[2] = make_result(2, 1, lease_s=30.0)
    ahead = Lookahead(preparer.prepare, preparer.give_back, clock=lambda: now[0])
    await ahead.next(0, 5.0)
    await until(lambda: ahead.stats().ready)
    now[0] += 30.0
    assert (await ahead.next(1, 5.0)).ticket == 3
    assert (ahead.stats().expired, preparer.given_back) == (1, [2])
    await ahead.close(5.0)


async def test_nothing_to_train_on_is_an_answer_and_the_version_stays():
    preparer = Preparer()
    preparer.results[1] = make_result(1, 4, empty=True)
    ahead = Lookahead(preparer.prepare, preparer.give_back)
    assert (await ahead.next(4, 5.0)).ref is None
    assert (await ahead.next(4, 5.0)).ticket == 2
    assert preparer.calls[:2] == [(1, 4), (2, 4)]
    assert (ahead.stats().empty, ahead.stats().relabelled) == (1, 0)
    await ahead.close(5.0)


async def test_a_failure_is_told_once_with_its_cause_and_lookahead_goes_on():
    preparer = Preparer()
    preparer.failures[2] = ValueError("no room")
    ahead = Lookahead(preparer.prepare, preparer.give_back)
    await ahead.next(0, 5.0)
    message = "preparing ticket 2 for version 1 failed: ValueError: no room"
    with pytest.raises(LookaheadError, match=message) as caught:
        await ahead.next(1, 5.0)
    assert caught.value.__cause__ is preparer.failures[2]
    assert (await ahead.next(1, 5.0)).ticket == 3
    assert ahead.stats().failed == 1
    await ahead.close(5.0)


async def test_a_batch_that_cannot_be_given_back_is_told_and_lookahead_goes_on():
    preparer = Preparer()

    async def refuse(result):
        raise ConnectionError("the packing worker is gone")

    ahead = Lookahead(preparer.prepare, refuse, rule=LookaheadRule("discard"))
    await ahead.next(0, 5.0)
    with pytest.raises(LookaheadError, match="ticket 2 could not be given back: the packing worker is gone"):
        await ahead.next(5, 5.0)
    assert (await ahead.next(5, 5.0)).ticket == 4
    await until(lambda: ahead.stats().ready)
    with pytest.raises(LookaheadError, match="ticket 5 could not be given back"):
        await ahead.close(5.0)


@pytest.mark.parametrize("end", ["deadline", "cancel"])
async def test_whoever_gives_up_waiting_loses_nothing(end):
    preparer = Preparer()
    preparer.gate.clear()
    ahead = Lookahead(preparer.prepare, preparer.give_back)
    if end == "deadline":
        with pytest.raises(DeadlineError, match=r"no batch for version 3 within 0.01 s: ticket 1"):
            await ahead.next(3, 0.01)
    else:
        waiting = asyncio.create_task(ahead.next(3, 5.0))
        await until(lambda: preparer.running == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    preparer.gate.set()
    assert (await ahead.next(3, 5.0)).ticket == 1
    assert preparer.calls[0] == (1, 3)
    assert preparer.calls.count((1, 3)) == 1
    await ahead.close(5.0)


async def test_cancelled_in_the_moment_in_which_the_batch_came_nothing_is_lost():
    preparer = Preparer()
    preparer.gate.clear()
    ahead = Lookahead(preparer.prepare, preparer.give_back)
    waiting = asyncio.create_task(ahead.next(0, 5.0))
    await until(lambda: preparer.running == 1)
    preparer.gate.set()
    await until(lambda: ahead.stats().ready)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await ahead.next(0, 0.0)).ticket == 1
    await ahead.close(5.0)


async def test_close_cancels_what_is_prepared_and_tells_who_waits():
    preparer = Preparer()
    preparer.gate.clear()
    ahead = Lookahead(preparer.prepare, preparer.give_back)
    waiting = [asyncio.create_task(ahead.next(0, 5.0)) for _ in range(2)]
    await until(lambda: preparer.running == 1)
    await ahead.close(5.0)
    assert preparer.cancelled == [1]
    for each in waiting:
        with pytest.raises(LookaheadError, match="the lookahead was closed"):
            await each
    with pytest.raises(LookaheadError, match="the lookahead was closed"):
        await ahead.next(0, 5.0)
    with pytest.raises(LookaheadError, match="the lookahead was closed"):
        ahead.start(0)
    await ahead.close(5.0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_close_gives_back_what_is_ready_once():
    preparer = Preparer()
    ahead = Lookahead(preparer.prepare, preparer.give_back)
    ahead.start(0)
    await until(lambda: ahead.stats().ready)
    await asyncio.gather(ahead.close(5.0), ahead.close(5.0))
    assert preparer.given_back == [1]
    stats = ahead.stats()
    assert (stats.prepared, stats.discarded, stats.ready, stats.preparing) == (1, 1, False, False)


async def test_close_lets_a_giving_back_end_that_is_under_way():
    preparer = Preparer()
    release = asyncio.Event()

    async def slow(result):
        await release.wait()
        preparer.given_back.append(result.ticket)

    ahead = Lookahead(preparer.prepare, slow, rule=LookaheadRule("discard"))
    await ahead.next(0, 5.0)
    with pytest.raises(DeadlineError, match="still being prepared"):
        await ahead.next(9, 0.05)
    with pytest.raises(DeadlineError, match=r"did not end within 0.01 s; close again"):
        await ahead.close(0.01)
    assert preparer.given_back == []
    release.set()
    await ahead.close(5.0)
    assert preparer.given_back == [2]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_was_prepared_in_spite_of_the_cancellation_is_given_back():
    preparer = Preparer()
    release = asyncio.Event()

    async def stubborn(ticket, policy_version):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await release.wait()
        return make_result(ticket, policy_version)

    ahead = Lookahead(stubborn, preparer.give_back)
    waiting = asyncio.create_task(ahead.next(0, 600.0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(DeadlineError, match="ticket 1 was cancelled but did not end within"):
        await ahead.close(0.01)
    with pytest.raises(LookaheadError, match="the lookahead was closed"):
        await asyncio.wait_for(waiting, 5.0)
    assert preparer.given_back == []
    release.set()
    await ahead.close(5.0)
    assert preparer.given_back == [1]


async def test_a_failure_that_nobody_took_is_told_by_close():
    preparer = Preparer()
    preparer.failures[1] = ValueError("no room")
    ahead = Lookahead(preparer.prepare, preparer.give_back)
    ahead.start(0)
    await until(lambda: ahead.stats().ready)
    with pytest.raises(LookaheadError, match="no room"):
        await ahead.close(5.0)


async def test_a_deadline_that_is_no_number_of_seconds_is_refused():
    preparer = Preparer()
    ahead = Lookahead(preparer.prepare, preparer.give_back)
    with pytest.raises(DeadlineError, match="inf"):
        await ahead.next(0, float("inf"))
    await ahead.close(5.0)


class Ledger:
    """Groups that are taken by preparing and end in exactly one place; checks every step."""

    def __init__(self, chooser):
        self.chooser = chooser
        self.queue = list(range(60))
        self.held = {}
        self.trained = []
        self.preparing = 0
        self.version = 0

    async def pause(self):
        for _ in range(self.chooser.randrange(4)):
            await asyncio.sleep(0)

    async def prepare(self, ticket, policy_version):
        assert self.preparing == 0, "two batches are prepared at the same time"
        self.preparing += 1
        group = None
        try:
            await self.pause()
            group = self.queue.pop(0)
            await self.pause()
            if self.chooser.random() < 0.2:
                raise ValueError("preparing broke")
            assert not self.held, "one batch is held already"
            self.held[ticket] = group
            versions = (max(0, policy_version - self.chooser.randrange(4)),)
            return make_result(ticket, policy_version, versions=versions, empty=self.chooser.random() < 0.1)
        except BaseException:
            if group is not None:
                self.queue.insert(0, group)
            raise
        finally:
            self.preparing -= 1

    async def give_back(self, result):
        await self.pause()
        self.queue.insert(0, self.held.pop(result.ticket))

    def train(self, result):
        self.trained.append(self.held.pop(result.ticket))


async def drive(chooser, rule):
    ledger = Ledger(chooser)
    ahead = Lookahead(ledger.prepare, ledger.give_back, rule=rule)
    handed_out = empty = 0
    causes = []

    async def take(deadline_s):
        result = await ahead.next(ledger.version, deadline_s)
        ledger.train(result)
        return result

    for _ in range(40):
        action = chooser.random()
        if action < 0.1:
            ledger.version = max(0, ledger.version - 1)  # a step was undone
        deadline_s = chooser.choice([0.0, 1.0])
        waiting = asyncio.create_task(take(deadline_s))
        await ledger.pause()
        if action > 0.7:
            waiting.cancel()
        try:
            result = await waiting
        except (asyncio.CancelledError, DeadlineError):
            continue
        except LookaheadError as error:
            causes.append(error.__cause__)
            continue
        handed_out += 1
        if result.ref is None:
            empty += 1
            continue
        assert result.ref.policy_version == ledger.version
        assert max(result.ref.versions) <= ledger.version
        ledger.version += chooser.choice([0, 1, 1, 1, 2])
    try:
        await ahead.close(5.0)
    except LookaheadError as error:
        causes.append(error.__cause__)
    assert {str(cause) for cause in causes} <= {"preparing broke"}
    stats = ahead.stats()
    assert ledger.held == {}
    assert sorted(ledger.queue + ledger.trained) == list(range(60))
    assert len(set(ledger.trained)) == len(ledger.trained) == handed_out
    assert (stats.handed_out, stats.empty, stats.failed) == (handed_out, empty, len(causes))
    assert stats.prepared == stats.handed_out + stats.discarded
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return stats


rules = st.builds(LookaheadRule, st.sampled_from(["relabel", "discard"]), st.sampled_from([None, 0, 2]))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), rules)
def test_whatever_happens_when_nothing_is_lost_or_trained_on_twice(seed, rule):
    asyncio.run(drive(random.Random(seed), rule))


def test_the_random_interleavings_reach_every_outcome():
    seen = [asyncio.run(drive(random.Random(seed), LookaheadRule("relabel", 0))) for seed in range(30)]
    for name in ("at_once", "empty", "relabelled", "discarded", "failed"):
        assert sum(getattr(stats, name) for stats in seen), name


async def test_with_real_queues_leases_and_segments_the_queue_gets_back_what_is_not_trained_on(
    exchange, record, segments
):
    store = TrajectoryStore("w0", 100, 1 << 20)
    queue = TrajectoryQueue(QueueLimits(10, 100, 1 << 20))
    for group in range(4):
        refs = [
            store.put(record(f"g{group}r{index}", f"g{group}", [exchange([1, 2], [index])], reward=index))
            for index in range(2)
        ]
        await queue.put(refs, 1.0)

    async def prepare(ticket, policy_version):
        selection = await queue.select(1, SelectionRule(), 5.0, holder="packing", lease_s=60.0)
        try:
            request = PackingRequest(selection, 64, ticket, policy_version)
            return await pack_selection(request, {"w0": store}, segments, 5.0, owner="packing")
        except BaseException:
            queue.release(selection.lease, Outcome.DISCARDED)
            raise

    async def undo(result):
        assert give_back(result, segments, queue)

    ahead = Lookahead(prepare, undo, rule=LookaheadRule("discard"))
    trained = []
    for version in (0, 1, 5):  # the policy jumps: the batch for 2 is given back
        result = await ahead.next(version, 5.0)
        with ShmBatchMapper().map(result.ref) as batch:
            assert batch.ref.policy_version == version
        trained += result.ref.group_ids
        segments.release(result.ref.location, result.ref.lease, Outcome.CONSUMED)
        queue.release(result.selection_lease, Outcome.CONSUMED)
    await until(lambda: ahead.stats().ready)
    assert segments.stats().leased_count == 1
    await ahead.close(5.0)
    assert len(set(trained)) == 3
    assert ahead.stats().discarded == 2
    assert (segments.stats().segment_count, segments.stats().leased_count) == (0, 0)
    stats = queue.stats()
    assert (stats.waiting_groups, stats.leased_groups, stats.consumed_groups) == (1, 0, 3)


async def test_a_selection_whose_lease_ended_was_taken_back_by_the_queue_itself(record, segments):
    queue = TrajectoryQueue(QueueLimits(10, 100, 1 << 20))
    result = msgspec.structs.replace(
        make_result(1, 0, empty=True), selection_lease=Lease("gone", 9, "p", 1.0)
    )
    assert give_back(result, segments, queue) is False
    assert give_back(make_result(1, 0), segments, queue) is False
