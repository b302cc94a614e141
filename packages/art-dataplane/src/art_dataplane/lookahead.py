"""Prepares the next batch while the trainer works on the one before.

A batch is prepared under a *ticket* for the policy version that it will presumably be used with: the version
of the step before it, plus one. When the policy is another one by then (a step was skipped or failed, or was
ahead), the batch is relabelled, which is right as every token carries the version that sampled it, or it is
given back and another one prepared, by rule.

What always holds:

- at most one batch is being prepared or waits to be taken; two are never prepared at the same time;
- a prepared batch is handed out once or given back once, also when a caller is cancelled, its deadline passes
  or the lookahead is closed;
- a failure to prepare is told by one ``next()``, and the one after it gets what was prepared since.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from art_dataplane.batch import PackedBatchRef
from art_dataplane.choices import check_choices
from art_dataplane.errors import DeadlineError, LeaseError, LookaheadError
from art_dataplane.leases import Outcome
from art_dataplane.packing import PackingResult
from art_dataplane.queue import TrajectoryQueue
from art_dataplane.shm import ShmSegmentStore
from art_dataplane.waiting import Signal, check_deadline

type Prepare = Callable[[int, int], Awaitable[PackingResult]]
"""``await prepare(ticket, policy_version)`` packs a batch for a step from that version. When it raises or is
cancelled it has kept nothing."""

type GiveBack = Callable[[PackingResult], Awaitable[None]]
"""``await give_back(result)`` undoes it: its segment is dropped, and its records may be selected again."""


class LookaheadRule(msgspec.Struct, frozen=True):
    """What becomes of a batch that was prepared for another policy version than it is asked for.

    Args:
        on_change: ``"relabel"`` keeps the batch, for the version asked for, unless one of its tokens is of a
            later version or too old; ``"discard"`` always gives it back.
        most_versions_behind: by how many versions a token may be older than the version asked for; None for
            any number. Looked at only when a batch is to be relabelled: otherwise its selection has decided.
    """

    on_change: Literal["relabel", "discard"] = "relabel"
    most_versions_behind: int | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        if self.most_versions_behind is not None and self.most_versions_behind < 0:
            raise ValueError(f"most_versions_behind is {self.most_versions_behind}; it must be at least 0")

    def keeps(self, ref: PackedBatchRef, policy_version: int) -> bool:
        """Whether ``ref``, prepared for another version, is right for a step from ``policy_version``."""
        if self.on_change == "discard":
            return False
        newest = max(ref.versions, default=policy_version)
        oldest = min(ref.versions, default=policy_version)
        behind = self.most_versions_behind
        return newest <= policy_version and (behind is None or policy_version - oldest <= behind)


class LookaheadStats(msgspec.Struct, frozen=True):
    """Counts since the beginning, and what is there now.

    Args:
        ticket: the last one that was given out; 0 for none.
        prepared: how often preparing succeeded; ``handed_out + discarded`` and one more when ``ready``.
        handed_out: results that ``next()`` returned.
        at_once: those of them that were ready when they were asked for.
        empty: those of them that have no batch, since there was nothing to train on.
        relabelled: those of them that were prepared for another policy version.
        discarded: results that were given back.
        expired: those of them whose batch's lease had run out while it waited.
        failed: how often preparing, or giving back, failed.
        preparing: whether a batch is being prepared now.
        ready: whether one waits to be taken.
        prepared_s: seconds of all preparing together, those of waiting for records included.
        waited_s: seconds that ``next()`` waited in all; without lookahead it would have been ``prepared_s``.
    """

    ticket: int
    prepared: int
    handed_out: int
    at_once: int
    empty: int
    relabelled: int
    discarded: int
    expired: int
    failed: int
    preparing: bool
    ready: bool
    prepared_s: float
    waited_s: float


class _Attempt:
    """One batch being prepared, or ready."""

    def __init__(self, ticket: int, policy_version: int) -> None:
        self.ticket = ticket
        self.policy_version = policy_version
        self.ended_at = 0.0
        self.returning: asyncio.Task[None] | None = None  # gives back the one before; never cancelled
        self.task: asyncio.Task[PackingResult]


class Lookahead:
    """Prepares one batch ahead. Belongs to one event loop; close it.

    Args:
        prepare: see :data:`Prepare`.
        give_back: see :data:`GiveBack`.
        rule: see :class:`LookaheadRule`.
        first_ticket: number of the first attempt.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        prepare: Prepare,
        give_back: GiveBack,
        *,
        rule: LookaheadRule = LookaheadRule(),  # noqa: B008 - frozen
        first_ticket: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prepare = prepare
        self._give_back = give_back
        self._rule = rule
        self._clock = clock
        self._next_ticket = first_ticket
        self._attempt: _Attempt | None = None
        self._closing: asyncio.Task[None] | None = None
        self._signal = Signal()
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._prepared_s = self._waited_s = 0.0

    def start(self, policy_version: int) -> None:
        """Begins to prepare a batch for ``policy_version``, unless one is being prepared or ready.

        Raises:
            LookaheadError: it is closed.
        """
        self._check_open()
        if self._attempt is None:
            self._attempt = self._begin(policy_version, None)

    async def next(self, policy_version: int, deadline_s: float) -> PackingResult:
        """Takes the batch for the step from ``policy_version``, and begins to prepare the one after it.

        The result is the caller's from here on, its leases and segment with it. Meant for one caller at a
        time; several are served one after the other.

        Args:
            policy_version: the version that the step starts from.
            deadline_s: seconds from now. When they pass, or the caller is cancelled, preparing goes on and
                the next call gets what comes of it.

        Returns:
            What was packed, its reference naming ``policy_version``. Its ``ref`` is None when there was
            nothing to train on.

        Raises:
            DeadlineError: nothing was ready in time.
            LookaheadError: preparing failed, with its error as the cause; or the lookahead is or was closed.
        """
        check_deadline(deadline_s)
        asked_at = self._clock()
        at_once = True
        while True:
            self.start(policy_version)
            began_at = self._clock()
            left = max(0.0, deadline_s - (began_at - asked_at))
            at_once = at_once and self._is_ready()
            try:
                in_time = await self._signal.wait_until(self._is_ready, left, check=self._check_open)
            finally:
                self._waited_s += self._clock() - began_at
            if not in_time:
                raise DeadlineError(self._not_in_time(policy_version, deadline_s))
            # Nothing else runs from here to the return: whoever is cancelled has taken nothing.
            result = self._take(policy_version)
            if result is not None:
                self._counts["at_once"] += at_once
                return result

    def stats(self) -> LookaheadStats:
        """What happened so far, and what is there now."""
        there = self._attempt is not None and self._closing is None
        return LookaheadStats(
            ticket=self._next_ticket - 1,
            preparing=there and not self._is_ready(),
            ready=there and self._is_ready(),
            prepared_s=self._prepared_s,
            waited_s=self._waited_s,
            **self._counts,
        )

    async def close(self, deadline_s: float) -> None:
        """Cancels what is being prepared and gives back what was; whoever waits in ``next()`` is told.

        Args:
            deadline_s: seconds to wait for that. It goes on when they pass; another ``close`` waits on.

        Raises:
            DeadlineError: it takes longer.
            LookaheadError: preparing or giving back failed, with its error as the cause.
        """
        check_deadline(deadline_s)
        if self._closing is None:
            self._closing = asyncio.create_task(self._shut(self._attempt), name="lookahead-close")
            self._signal.notify_all()
        await asyncio.wait([self._closing], timeout=deadline_s)
        if not self._closing.done():
            raise DeadlineError(
                f"ticket {self._next_ticket - 1} was cancelled but did not end within {deadline_s} s; close "
                "again to wait on"
            )
        await self._closing

    def _begin(self, policy_version: int, stale: PackingResult | None) -> _Attempt:
        attempt = _Attempt(self._next_ticket, policy_version)
        self._next_ticket += 1
        if stale is not None:
            attempt.returning = asyncio.create_task(self._return(stale), name="lookahead-give-back")
        attempt.task = asyncio.create_task(self._run(attempt), name=f"lookahead-{attempt.ticket}")
        attempt.task.add_done_callback(lambda _: self._signal.notify())
        return attempt

    async def _run(self, attempt: _Attempt) -> PackingResult:
        if attempt.returning is not None:
            await asyncio.shield(attempt.returning)
        began_at = self._clock()
        try:
            result = await self._prepare(attempt.ticket, attempt.policy_version)
        finally:
            attempt.ended_at = self._clock()
            self._prepared_s += attempt.ended_at - began_at
        self._counts["prepared"] += 1
        return result

    def _take(self, policy_version: int) -> PackingResult | None:
        """Hands out what is ready, or puts it away and begins anew; either way another attempt runs."""
        attempt = self._attempt
        assert attempt is not None
        if attempt.task.cancelled() or attempt.task.exception() is not None:
            self._counts["failed"] += 1
            self._attempt = self._begin(policy_version, None)
            raise _failure(attempt)
        result = attempt.task.result()
        if result.ref is None:
            self._counts["handed_out"] += 1
            self._counts["empty"] += 1
            self._attempt = self._begin(policy_version, None)  # there will be no step: the version stays
            return result
        if self._clock() - attempt.ended_at >= result.ref.lease.duration_s:
            self._counts["expired"] += 1
            self._discard(result, policy_version)
            return None
        if attempt.policy_version != policy_version:
            if not self._rule.keeps(result.ref, policy_version):
                self._discard(result, policy_version)
                return None
            self._counts["relabelled"] += 1
            ref = msgspec.structs.replace(result.ref, policy_version=policy_version)
            result = msgspec.structs.replace(result, ref=ref)
        self._counts["handed_out"] += 1
        self._attempt = self._begin(policy_version + 1, None)
        return result

    async def _return(self, result: PackingResult) -> None:
        try:
            await self._give_back(result)
        except Exception as error:
            raise LookaheadError(f"ticket {result.ticket} could not be given back: {error}") from error

    def _discard(self, result: PackingResult, policy_version: int) -> None:
        self._counts["discarded"] += 1
        self._attempt = self._begin(policy_version, result)

    async def _shut(self, attempt: _Attempt | None) -> None:
        if attempt is None:
            return
        attempt.task.cancel()
        await asyncio.wait([attempt.task] if attempt.returning is None else [attempt.task, attempt.returning])
        if not attempt.task.cancelled() and attempt.task.exception() is not None:
            self._counts["failed"] += 1
            raise _failure(attempt)
        if attempt.returning is not None:
            attempt.returning.result()
        if not attempt.task.cancelled():
            self._counts["discarded"] += 1
            await self._return(attempt.task.result())

    def _is_ready(self) -> bool:
        return self._attempt is not None and self._attempt.task.done()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise LookaheadError("the lookahead was closed; make another one to prepare batches")

    def _not_in_time(self, policy_version: int, deadline_s: float) -> str:
        waiting = len(self._signal)
        others = f"; {waiting} others wait, too" if waiting else ""
        return (
            f"no batch for version {policy_version} within {deadline_s} s: ticket {self._next_ticket - 1} is "
            f"still being prepared{others}. Ask again, with a longer deadline"
        )


_COUNTED = ("prepared", "handed_out", "at_once", "empty", "relabelled", "discarded", "expired", "failed")


def _failure(attempt: _Attempt) -> LookaheadError:
    cause = asyncio.CancelledError() if attempt.task.cancelled() else attempt.task.exception()
    error = LookaheadError(
        f"preparing ticket {attempt.ticket} for version {attempt.policy_version} failed: "
        f"{type(cause).__name__}: {cause}"
    )
    error.__cause__ = cause
    return error


def give_back(result: PackingResult, segments: ShmSegmentStore, queue: TrajectoryQueue) -> bool:
    """Undoes a packing whose batch nobody has mapped: drops its segment and returns its groups to the queue.

    Args:
        result: what :func:`art_dataplane.pack` returned.
        segments: the store that it was given.
        queue: the one that granted the request's selection.

    Returns:
        False when the selection's lease had ended, so that the queue had taken the groups back itself.
    """
    if result.ref is not None:
        segments.drop(result.ref.location)
    if result.selection_lease is None:
        return False
    try:
        queue.release(result.selection_lease, Outcome.DISCARDED)
    except LeaseError:
        return False
    return True
