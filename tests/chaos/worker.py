"""The processes of a chaos session that get killed: owners of records, packers, receivers and consumers.

    python -m chaos.worker ROLE NAME FOLDER RUN_ID FAULT

A worker listens on the Unix socket ``FOLDER/NAME``, says who it is in one line, and ends in order when its
standard input ends, which it also does when the controller dies.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from chaos.content import differences, group_of, make_record
from chaos.limits import BATCH_LEASE_S, SEGMENT_BYTES, STORE_BYTES, STORE_RECORDS
from chaos.messages import (
    Cancel,
    Consume,
    Consumed,
    Drop,
    Fetch,
    Free,
    GiveBack,
    Look,
    Make,
    Message,
    Pack,
    Packed,
    Receive,
    Used,
)
from chaos.wire import Peer, serve

from art_dataplane import (
    Lease,
    Location,
    Outcome,
    PackedBatchRef,
    PackingRequest,
    ProcessIdentity,
    RecordError,
    RemoteLocation,
    ShmBatchMapper,
    ShmLocation,
    ShmSegmentStore,
    StoreStats,
    TrajectoryRef,
    TrajectoryStore,
    encode_json,
    pack,
)
from art_dataplane.fetching import fetch_available
from art_dataplane.host_receiver import HostReceiver
from art_dataplane.stream import StreamTransport

CLOSE_S = 2.0


class Worker(Protocol):
    """One of the four."""

    async def handle(self, message: Message) -> Any:
        """Answers one message."""
        ...

    async def close(self) -> None:
        """Gives everything back."""
        ...


class Owner:
    """Makes records and keeps them."""

    def __init__(self, name: str, folder: Path, run_id: str, fault: str) -> None:
        self._segments = ShmSegmentStore(run_id, SEGMENT_BYTES)
        self._store = TrajectoryStore(name, STORE_RECORDS, STORE_BYTES, segments=self._segments)
        self._cancelled: set[str] = set()
        self._fault = fault

    async def handle(self, message: Message) -> Any:
        match message:
            case Make(_, record_ids):
                return self._make(record_ids)
            case Cancel(record_ids):
                self._cancelled.update(record_ids)
                return await self._store.drop([_ref_of(each) for each in record_ids])
            case Fetch(refs, lease):
                return await self._store.fetch(refs, lease, 1.0)
            case Drop(refs, lease):
                return 0 if self._fault == "keeps-records" else await self._store.drop(refs, lease)
            case Look():
                held = await self._store.stats()
                return [
                    Used("records", held.record_count, held.max_records),
                    Used("record bytes", held.byte_count, held.max_bytes),
                    _used(self._segments),
                ]
        raise TypeError(f"{message} is not for an owner")

    def _make(self, record_ids: Sequence[str]) -> list[TrajectoryRef]:
        if not self._cancelled.isdisjoint(record_ids):
            raise RecordError(f"{record_ids} are not wanted any more")
        return [self._store.put(self._record(record_id)) for record_id in record_ids]

    def _record(self, record_id: str) -> Any:
        record = make_record(record_id)
        if self._fault != "changes-a-token" or record.error is not None:
            return record
        (exchange,) = record.exchanges
        changed = exchange.completion_ids.copy()
        changed[-1] += 1
        return msgspec.structs.replace(
            record, exchanges=(msgspec.structs.replace(exchange, completion_ids=changed),)
        )

    async def close(self) -> None:
        self._store.close()
        self._segments.close()


class RemoteOwner:
    """An owner in another process; implements :class:`art_dataplane.RecordOwner`."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def fetch(self, refs: Sequence[TrajectoryRef], lease: Lease, deadline_s: float) -> Location:
        return await self._peer.call(Fetch(tuple(refs), lease), Location, deadline_s)

    async def drop(self, refs: Sequence[TrajectoryRef]) -> int:
        raise NotImplementedError("the controller drops")

    async def stats(self) -> StoreStats:
        raise NotImplementedError("the controller looks")


class _Batch(msgspec.Struct):
    ref: PackedBatchRef
    offer: RemoteLocation | None


class Packer:
    """Makes batches, for its own host and for the other one."""

    def __init__(self, name: str, folder: Path, run_id: str, fault: str) -> None:
        self._name = name
        self._folder = folder
        self._segments = ShmSegmentStore(run_id, SEGMENT_BYTES, recycle_bytes=SEGMENT_BYTES // 2)
        self._transport = StreamTransport("127.0.0.1")
        self._batches: dict[str, _Batch] = {}

    async def handle(self, message: Message) -> Any:
        match message:
            case Pack():
                return await self._pack(message)
            case Free(batch_id):
                return await self._free(batch_id)
            case Look():
                self._segments.reclaim_expired()
                return [_used(self._segments)]
        raise TypeError(f"{message} is not for a packer")

    async def _pack(self, message: Pack) -> Packed:
        owners = {ref.owner: RemoteOwner(Peer(self._folder, ref.owner)) for ref in message.selection.refs}
        fetched = await fetch_available(message.selection, owners, message.deadline_s)
        if not fetched.records:
            return Packed(None, fetched.lost)
        self._segments.reclaim_expired()
        request = PackingRequest(
            fetched.selection, 16384, message.ticket, 0, holder="consumer", lease_s=BATCH_LEASE_S
        )
        ref = pack(fetched.records, request, self._segments, owner=self._name).ref
        assert ref is not None
        assert isinstance(ref.location, ShmLocation)
        offer = None
        if message.offered:
            offer = await self._transport.offer(ref.location, duration_s=BATCH_LEASE_S / 2)
        self._batches[ref.batch_id] = _Batch(ref, offer)
        return Packed(ref if offer is None else msgspec.structs.replace(ref, location=offer), fetched.lost)

    async def _free(self, batch_id: str) -> bool:
        batch = self._batches.pop(batch_id)
        if batch.offer is not None:
            await self._transport.withdraw(batch.offer)
        assert isinstance(batch.ref.location, ShmLocation)
        self._segments.release(batch.ref.location, batch.ref.lease, Outcome.CONSUMED)
        return True

    async def close(self) -> None:
        await self._transport.close(CLOSE_S)
        self._segments.close()


class Receiver:
    """Reads the batches of other hosts, once for all consumers of its own."""

    def __init__(self, name: str, folder: Path, run_id: str, fault: str) -> None:
        self._segments = ShmSegmentStore(run_id, SEGMENT_BYTES, recycle_bytes=SEGMENT_BYTES // 2)
        self._transport = StreamTransport("127.0.0.1")
        self._receiver = HostReceiver(self._segments, {"stream": self._transport})

    async def handle(self, message: Message) -> Any:
        match message:
            case Receive(location, holder, deadline_s):
                return await self._receiver.local(location, deadline_s, holder=holder)
            case GiveBack(location, holder):
                return self._receiver.release(location, holder=holder)
            case Look():
                self._receiver.release_dead()
                return [_used(self._segments)]
        raise TypeError(f"{message} is not for a receiver")

    async def close(self) -> None:
        await self._receiver.close(CLOSE_S)
        await self._transport.close(CLOSE_S)
        self._segments.close()


class Consumer:
    """Reads batches as a trainer does."""

    def __init__(self, name: str, folder: Path, run_id: str, fault: str) -> None:
        self._folder = folder

    async def handle(self, message: Message) -> Any:
        match message:
            case Consume(ref, None, _):
                return self._read(ref)
            case Consume(ref, receiver, deadline_s):
                return await self._receive(ref, Peer(self._folder, receiver), deadline_s)
            case Look():
                return []
        raise TypeError(f"{message} is not for a consumer")

    async def _receive(self, ref: PackedBatchRef, receiver: Peer, deadline_s: float) -> Consumed:
        me = ProcessIdentity.current()
        location = await receiver.call(Receive(ref.location, me, deadline_s), ShmLocation, deadline_s)
        consumed = self._read(msgspec.structs.replace(ref, location=location))
        await receiver.call(GiveBack(location, me), bool, deadline_s)
        return consumed

    def _read(self, ref: PackedBatchRef) -> Consumed:
        with ShmBatchMapper().map(ref) as batch:
            wrong = differences(batch)
            if abs(float(batch.loss_weight.sum(dtype=np.float64)) - 1) > 1e-5:
                wrong.append(f"the weights of {ref.batch_id} sum to {batch.loss_weight.sum()}")
            return Consumed(
                {
                    group_id: tuple(each for each in ref.record_ids if group_of(each) == group_id)
                    for group_id in ref.group_ids
                },
                tuple(wrong),
            )

    async def close(self) -> None:
        return None


ROLES = {"owner": Owner, "packer": Packer, "receiver": Receiver, "consumer": Consumer}


def _ref_of(record_id: str) -> TrajectoryRef:
    return TrajectoryRef(record_id, group_of(record_id), "", 1, 0, 0.0, 0, 0, True)


def _used(segments: ShmSegmentStore) -> Used:
    stats = segments.stats()
    return Used("segment bytes", stats.used_bytes + stats.spare_bytes, stats.capacity_bytes)


async def main(role: str, name: str, folder: str, run_id: str, fault: str) -> None:
    """Works until standard input ends."""
    path = Path(folder) / name
    worker: Worker = ROLES[role](name, Path(folder), run_id, fault)
    server = await serve(path, worker.handle)
    print(encode_json(ProcessIdentity.current()).decode(), flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)
    server.close()
    await worker.close()
    path.unlink(missing_ok=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
