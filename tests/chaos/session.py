"""The controller of a chaos session: the queue, and the loops that keep all others busy.

    python -m chaos.session SEED SECONDS FOLDER RUN_ID FAULT

writes its :class:`chaos.facts.Facts` as JSON into ``FOLDER/../facts.json``. What a consumer made of a batch
takes effect when the lease on its groups is released as consumed, in the same step of the event loop, or not
at all.
"""

import asyncio
import itertools
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from chaos.content import make_record
from chaos.facts import Death, Facts, Lost, Put, Taken
from chaos.limits import CALL_S, COUNTS, LEASE_S, QUEUE_LIMITS, RECORD_BYTES, SEGMENT_BYTES
from chaos.messages import Cancel, Consume, Consumed, Drop, Free, Look, Make, Pack, Packed, Used
from chaos.planted import FaultyQueue, make_queue
from chaos.staff import STOP_S, Staff, Tasks, Worker
from chaos.wire import Peer

from art_dataplane import (
    DataPlaneError,
    DeadlineError,
    LeaseError,
    Outcome,
    ProcessIdentity,
    Selection,
    SelectionRule,
    TrajectoryRef,
    encode_json,
    list_segments,
    sweep,
)
from art_dataplane.errors import UnsatisfiableError
from art_dataplane.records import LostGroup
from art_dataplane.segment_files import SHM_DIRECTORY, new_segment_name

DRAIN_S = 30.0
PLANTED_IDLE_S = 5.0
EXTRA_FACTOR = 3.0
EXTRA_S = 60.0
SAMPLE_S = 0.05
LOOK_S = 0.3
RETRY_S = 0.1
DROP_LATER_S = 1.0
"""So late owners may hear that records were consumed; until then it is they who refuse an old lease."""

Unreachable = (ConnectionError, EOFError, DeadlineError)


class Session:
    """See the module."""

    def __init__(self, seed: int, seconds: float, folder: Path, run_id: str, fault: str) -> None:
        self.facts = Facts(seed)
        self._seconds = seconds
        self._folder = folder
        self._run_id = run_id
        self._fault = fault
        self._queue = make_queue(fault)
        self._tasks = Tasks(self.facts.wrong.append)
        self._staff = Staff(folder, (run_id, fault), self._bury, self.facts.wrong.append, self._tasks)
        self._group_numbers = itertools.count()
        self._tickets = itertools.count(1)
        self._unwanted: dict[str, list[tuple[float, Cancel | Drop]]] = {}  # by owner, with when to say so
        self._phase = "chaos"  # then "drain", "end"
        self._started = time.monotonic()

    async def run(self) -> None:
        """From the first process to the last."""
        await self._staff.start()
        self._started = time.monotonic()
        seed = self.facts.seed
        producers = [self._produce(random.Random(f"{seed} {each}")) for each in range(COUNTS["owner"])]
        trainers = [self._train(each, random.Random(f"{seed} {each}")) for each in range(COUNTS["packer"])]
        loops = [*map(self._tasks.begin, (*producers, *trainers, self._sample(), self._tidy()))]
        await self._staff.harass(random.Random(seed), self._is_enough)
        self.facts.seconds = self._elapsed()
        self._phase = "drain"
        await self._drain()
        self._phase = "end"
        await asyncio.wait(loops, timeout=STOP_S)
        await self._end()

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _is_enough(self) -> bool:
        """Whether the time is over and each thing happened that the session is there to see."""
        elapsed, queue, facts = self._elapsed(), self._queue.stats(), self.facts
        if elapsed > self._seconds * EXTRA_FACTOR + EXTRA_S:
            return True
        if self._fault:
            return elapsed > self._seconds and self._has_been_wrong()
        seen = (queue.expired_leases, facts.stale_releases, facts.lost, facts.taken, facts.remote_batches)
        return elapsed > self._seconds and all(seen)

    def _has_been_wrong(self) -> bool:
        """Whether what was planted had its effect."""
        facts, queue = self.facts, self._queue
        match self._fault:
            case "ignores-stale-fence":
                return max(Counter(taken.group_id for taken in facts.taken).values(), default=0) > 1
            case "changes-a-token":
                return bool(facts.wrong)
            case "keeps-records":
                living = {worker.name for worker in self._staff.living("owner")}
                return any(living & {*facts.put[taken.group_id].owners.values()} for taken in facts.taken)
            case "leaks-segments":
                return any(death.not_swept for death in facts.deaths)
            case "overfills":
                return any("groups" in line for line in facts.over)
        return not isinstance(queue, FaultyQueue) or queue.planted > 0

    def _bury(self, worker: Worker, status: int) -> None:
        """Settles what a dead worker leaves: segments, a socket, records and leases."""
        swept = sweep(self._run_id)
        if self._fault == "leaks-segments":  # as a sweep would have left it
            (SHM_DIRECTORY / new_segment_name(self._run_id, worker.identity)).write_bytes(b"x")
        left = [info.name for info in list_segments(self._run_id) if info.owner == worker.identity]
        at_s = self._elapsed() if worker.killed_at is None else worker.killed_at - self._started
        self.facts.deaths.append(Death(worker.name, worker.role, at_s, len(swept), tuple(left)))
        (self._folder / worker.name).unlink(missing_ok=True)
        if worker.role == "owner":
            self._unwanted.pop(worker.name, None)
            self._queue.drop_owner(worker.name, f"{worker.name} ended with status {status}")
        if worker.role == "packer" and random.random() < 0.5:  # else the queue sees it by itself
            self._queue.revoke_holder(worker.name)

    # Groups come in

    async def _produce(self, rng: random.Random) -> None:
        while self._phase == "chaos":
            owners = self._staff.living("owner")
            if not owners:
                await asyncio.sleep(RETRY_S)
                continue
            group_id = f"g{next(self._group_numbers)}"
            ids = [f"{group_id}/{number}" for number in range(rng.randint(2, 4))]
            chosen = rng.sample(owners, min(len(owners), rng.randint(1, 2)))
            await self._produce_group(
                group_id, {each: ids[at :: len(chosen)] for at, each in enumerate(chosen)}
            )

    async def _produce_group(self, group_id: str, shares: dict[Worker, list[str]]) -> None:
        count = sum(map(len, shares.values()))
        try:
            lease = await self._queue.reserve(
                group_id,
                count,
                count * RECORD_BYTES,
                0.5,
                holder="producer",
                lease_s=2 * CALL_S,
            )
        except DeadlineError as error:  # no room: nothing leaves while packers are being replaced
            self.facts.count_failure(error)
            return
        refs: list[TrajectoryRef] = []
        try:
            for worker, ids in shares.items():
                refs += await worker.peer.call(Make(group_id, tuple(ids)), list[TrajectoryRef], CALL_S / 2)
            self._queue.commit(lease, refs)
        except (*Unreachable, DataPlaneError) as error:
            self.facts.count_failure(error)
            self.facts.unfinished += 1
            for worker, ids in shares.items():
                self._send_later(worker.name, Cancel(tuple(ids)))
            self._abort(lease)
            await asyncio.sleep(RETRY_S)
            return
        expected = tuple(ref.record_id for ref in refs if make_record(ref.record_id).error is None)
        self.facts.put[group_id] = Put({ref.record_id: ref.owner for ref in refs}, expected)

    def _abort(self, lease: Any) -> None:
        try:
            self._queue.abort(lease)
        except LeaseError as error:  # it ended before
            self.facts.count_failure(error)

    # Groups go out

    async def _train(self, index: int, rng: random.Random) -> None:
        """Selects, has packed, has consumed and commits, with one packer after the other."""
        while self._phase != "end":
            packer = self._staff.at("packer", index)
            if packer is None:
                await asyncio.sleep(RETRY_S)
                continue
            count = rng.randint(1, 3) if self._phase == "chaos" else 1
            try:
                selection = await self._queue.select(
                    count, SelectionRule(), 0.3, holder=packer.name, lease_s=LEASE_S, process=packer.identity
                )
            except (DeadlineError, UnsatisfiableError) as error:
                self.facts.count_failure(error)
                await asyncio.sleep(RETRY_S)
                continue
            if selection.lost:
                self._release_lost(selection, selection.lost)
                continue
            try:
                await self._consume(packer, selection, rng)
            except (*Unreachable, DataPlaneError) as error:
                self.facts.count_failure(error)
                # Otherwise the lease ends by itself: at its deadline, or with its holder.
                if packer.killed_at is None and rng.random() < 0.5:
                    self._give_back(selection)
                await asyncio.sleep(RETRY_S)

    async def _consume(self, packer: Worker, selection: Selection, rng: random.Random) -> None:
        consumers = [(self._staff.at("consumer", index), index % 2) for index in range(COUNTS["consumer"])]
        living = [(worker, host) for worker, host in consumers if worker is not None]
        receivers = self._staff.living("receiver")
        if not living or not receivers:
            raise DeadlineError("nobody is there to consume")
        consumer, host = rng.choice(living)
        request = Pack(selection, next(self._tickets), bool(host), CALL_S / 2)
        try:
            packed = await packer.peer.call(request, Packed, CALL_S)
        except LeaseError:
            self.facts.stale_fetches += 1
            raise
        if packed.lost:
            self._release_lost(selection, self._queue.mark_lost(packed.lost))
            selection = selection.without(group.group_id for group in packed.lost)
        if packed.ref is None:
            return
        receiver = receivers[0].name if host else None
        consumed = await consumer.peer.call(Consume(packed.ref, receiver, CALL_S / 2), Consumed, CALL_S)
        if self._commit(selection, consumed, consumer):
            self.facts.remote_batches += host
        try:
            await packer.peer.call(Free(packed.ref.batch_id), bool, CALL_S)
        except (
            *Unreachable,
            LeaseError,
        ) as error:  # its segment goes with the packer, or when its lease ends
            self.facts.count_failure(error)

    def _commit(self, selection: Selection, consumed: Consumed, consumer: Worker) -> bool:
        try:
            refs = self._queue.release(selection.lease, Outcome.CONSUMED)
        except LeaseError:
            refs = ()
            self.facts.stale_releases += 1
            if self._fault != "ignores-stale-fence":
                return False
        self.facts.wrong += consumed.wrong
        for group in selection.groups:
            group_id = group[0].group_id
            record_ids = consumed.record_ids.get(group_id, ())
            self.facts.taken.append(Taken(group_id, selection.lease.fence, record_ids, consumer.name))
        self._drop(selection, refs)
        return True

    def _release_lost(self, selection: Selection, lost: tuple[LostGroup, ...]) -> None:
        gone = {group.group_id for group in lost}
        try:
            refs = self._queue.release(selection.lease, Outcome.CONSUMED, group_ids=gone)
        except LeaseError:  # they come again, as lost
            self.facts.stale_releases += 1
            return
        at_s = self._elapsed()
        self.facts.lost += [
            Lost(group.group_id, group.record_ids, group.owners, group.reason, at_s) for group in lost
        ]
        self._drop(selection, refs)

    def _give_back(self, selection: Selection) -> None:
        try:
            self._queue.release(selection.lease, Outcome.DISCARDED)
        except LeaseError as error:  # it ended before
            self.facts.count_failure(error)

    # Records that nobody needs any more

    def _drop(self, selection: Selection, refs: tuple[TrajectoryRef, ...]) -> None:
        for owner in {ref.owner for ref in refs}:
            theirs = tuple(ref for ref in refs if ref.owner == owner)
            self._send_later(owner, Drop(theirs, selection.lease))

    def _send_later(self, owner: str, message: Cancel | Drop) -> None:
        if any(worker.name == owner for worker in self._staff.living("owner")):
            due = time.monotonic() + random.uniform(0, DROP_LATER_S)
            self._unwanted.setdefault(owner, []).append((due, message))

    async def _tidy(self) -> None:
        """Tells owners what to forget, as often as it takes."""
        while self._phase != "end":
            for name, messages in [*self._unwanted.items()]:
                for each in [each for each in messages if each[0] <= time.monotonic()]:
                    try:
                        await Peer(self._folder, name).call(each[1], int, 1.0)
                    except Unreachable as error:
                        self.facts.count_failure(error)
                        break
                    messages.remove(each)
            await asyncio.sleep(RETRY_S)

    # Bounds

    async def _sample(self) -> None:
        """Looks at the queue, at the files of each process, and at what the processes say of themselves."""
        look_at = 0.0
        while self._phase != "end":
            stats = self._queue.stats()
            held = stats.waiting_groups + stats.lost_waiting_groups + stats.leased_groups
            self._check("the queue", "groups", held + stats.reserved_groups, QUEUE_LIMITS.groups)
            self._check("the queue", "records", stats.records + stats.reserved_records, QUEUE_LIMITS.records)
            self._check(
                "the queue", "bytes", stats.byte_count + stats.reserved_bytes, QUEUE_LIMITS.byte_count
            )
            by_owner: dict[ProcessIdentity, int] = {}
            for info in list_segments(self._run_id):
                by_owner[info.owner] = by_owner.get(info.owner, 0) + info.byte_count
            for owner, byte_count in by_owner.items():
                self._check(f"process {owner.pid}", "bytes in /dev/shm", byte_count, SEGMENT_BYTES)
            if time.monotonic() > look_at:
                await asyncio.gather(*(self._look(each) for each in self._staff.living()))
                look_at = time.monotonic() + LOOK_S
            self.facts.samples += 1
            await asyncio.sleep(SAMPLE_S)

    async def _look(self, worker: Worker) -> None:
        if worker.is_stopped:
            return
        try:
            used = await worker.peer.call(Look(), list[Used], 0.2)
        except Unreachable as error:
            self.facts.count_failure(error)
            return
        for each in used:
            self._check(worker.name, each.what, each.used, each.capacity)

    def _check(self, who: str, what: str, used: int, capacity: int) -> None:
        if used > capacity and len(self.facts.over) < 10:
            self.facts.over.append(f"{who} used {used} of {capacity} {what}")

    # The end

    async def _drain(self) -> None:
        """Until every group that was put has gone, and every owner has dropped what was consumed.

        With a planted fault, which may keep groups for ever, only while any go.
        """
        deadline = time.monotonic() + DRAIN_S
        gone, idle_from = 0, time.monotonic()
        while (now := time.monotonic()) < deadline:
            stats = self._queue.stats()
            held = stats.waiting_groups + stats.lost_waiting_groups + stats.leased_groups
            is_empty = held + stats.reserved_groups == 0
            if is_empty and not any(self._unwanted.values()) and self._staff.are_all_there:
                return
            if gone != stats.consumed_groups + stats.lost_groups:
                gone, idle_from = stats.consumed_groups + stats.lost_groups, now
            if self._fault and now > idle_from + PLANTED_IDLE_S:
                return
            await asyncio.sleep(RETRY_S)

    async def _end(self) -> None:
        facts = self.facts
        facts.queue = self._queue.stats()
        facts.stops = self._staff.stops
        for worker in self._staff.living():
            for used in await worker.peer.call(Look(), list[Used], CALL_S):
                if used.used and used.what.startswith("record"):
                    facts.left.append(f"{worker.name} still holds {used.used} {used.what}")
        self._queue.close()
        if self._fault == "leaves-things":
            leave_things(self._run_id, self._folder)
        facts.left += await self._staff.leave()
        facts.left += await self._tasks.end(STOP_S)
        facts.left += [f"segment {info.name} is left" for info in list_segments(self._run_id)]
        sockets = [path.name for path in self._folder.iterdir() if path.suffix != ".log"]
        facts.left += [f"socket {name} is left" for name in sockets]


def leave_things(run_id: str, folder: Path) -> None:
    """The planted fault of a session that does not clean up."""
    (folder / "packer-of-yore").touch()
    (SHM_DIRECTORY / new_segment_name(run_id, ProcessIdentity.current())).write_bytes(b"x")
    listener = socket.create_server(("127.0.0.1", 0))
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.Popen(["sleep", "60"], pass_fds=[listener.fileno()], **silent)
    os.close(tempfile.mkstemp(prefix="queue-", suffix=".lock")[0])


async def main(seed: int, seconds: float, folder: Path, run_id: str, fault: str) -> None:
    """Runs a session and writes what happened."""
    session = Session(seed, seconds, folder, run_id, fault)
    await session.run()
    (folder.parent / "facts.json").write_bytes(msgspec.json.format(encode_json(session.facts)))


if __name__ == "__main__":
    _seed, _seconds, _folder, _run_id, *_fault = sys.argv[1:]
    asyncio.run(main(int(_seed), float(_seconds), Path(_folder), _run_id, *(_fault or [""])))
