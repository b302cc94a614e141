"""A record owner in another process raises what the data plane knows; which records and groups are concerned
travels with it."""

from typing import Any

import msgspec
import numpy as np
import pytest

from art.distributed.errors import ActorDied, ActorTimeout, RemoteError
from art.distributed.peer import PeerRecordOwner, data_plane_error
from art.distributed.service import Call, Raised, ServiceHost, Value, encode, method_signature
from art_dataplane import (
    DeadlineError,
    Lease,
    LeaseError,
    Location,
    LostGroup,
    OwnerDiedError,
    QueueLimits,
    RecordsLostError,
    RecordsMissingError,
    SelectionRule,
    TokenRecord,
    TrajectoryQueue,
    TrajectoryRecord,
    TrajectoryRef,
    TrajectoryStore,
    VersionSpan,
    arrays,
    fetch_groups,
)


class Owner:
    """The service of a process that holds records."""

    def __init__(self, name: str) -> None:
        self.store = TrajectoryStore(name, 10, 1 << 16)

    async def fetch(self, refs: list[TrajectoryRef], lease: Lease, deadline_s: float) -> Location:
        return await self.store.fetch(refs, lease, deadline_s)

    async def drop(self, refs: list[TrajectoryRef]) -> int:
        return await self.store.drop(refs)

    async def fail(self) -> None:
        raise RecordsLostError((LostGroup("g", ("r",), ("w",), "it died"),), 3)


class Way:
    """Calls a service by the messages that cross processes; ``error`` is raised in place of an answer."""

    role = "rollout worker 0 (pid 7)"

    def __init__(self, service: Owner) -> None:
        self.host = ServiceHost(service)
        self.error: Exception | None = None

    async def call(self, method: str, *arguments: Any, deadline_s: float) -> Any:
        if self.error is not None:
            raise self.error
        reply = await self.host.call(Call(1, method, encode(list(arguments))))
        reply = msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=Value | Raised)
        if isinstance(reply, Raised):
            raise RemoteError(self.role, method, reply.kind, reply.message, reply.traceback, reply.arguments)
        return arrays.decode(reply.data, method_signature(Owner, method).result)


def record(group: str, index: int) -> TrajectoryRecord:
    exchange = TokenRecord(
        prompt_ids=np.array([1, 2, 3], np.int32),
        completion_ids=np.array([4, 5 + index], np.int32),
        logprobs=np.array([-1.0, -2.0], np.float32),
        prompt_spans=(VersionSpan(0, 3, 0),),
        completion_spans=(VersionSpan(0, 2, 0),),
    )
    return TrajectoryRecord(f"{group}-{index}", group, (exchange,), float(index))


@pytest.fixture
async def taken() -> Any:
    """Three groups: ``a`` of the first owner, ``b`` of both, ``c`` of the second, under one lease."""
    ways = {name: Way(Owner(name)) for name in ("first", "second")}
    services = {"first": ways["first"].host._service, "second": ways["second"].host._service}
    queue = TrajectoryQueue(QueueLimits(groups=10, records=10, byte_count=1 << 16))
    for group, owners in (("a", ("first",)), ("b", ("first", "second")), ("c", ("second",))):
        refs = [services[name].store.put(record(group, index)) for index, name in enumerate(owners)]
        await queue.put(refs, 1.0)
    selection = await queue.select(3, SelectionRule(), 1.0)
    return selection, ways, {name: PeerRecordOwner(way, 1.0) for name, way in ways.items()}


async def test_an_owner_that_died_loses_exactly_its_groups(taken: Any) -> None:
    selection, ways, owners = taken
    ways["second"].error = ActorDied("rollout worker 1 (pid 8)", "killed by SIGKILL")
    with pytest.raises(RecordsLostError) as caught:
        await fetch_groups(selection, owners, 5.0)
    assert caught.value.group_ids == ("b", "c")
    assert [group.owners for group in caught.value.groups] == [("second",), ("second",)]
    assert "rollout worker 1 (pid 8) died: killed by SIGKILL" in caught.value.groups[0].reason
    with pytest.raises(OwnerDiedError) as died:
        await owners["second"].drop(selection.groups[2])
    assert died.value.owner == "second"


async def test_records_that_an_owner_does_not_hold_are_named(taken: Any) -> None:
    selection, _, owners = taken
    await owners["first"].drop(selection.groups[0])
    with pytest.raises(RecordsMissingError) as missing:
        await owners["first"].fetch([selection.groups[0][0], selection.groups[1][0]], selection.lease, 5.0)
    assert (missing.value.owner, missing.value.record_ids, missing.value.asked) == ("first", ("a-0",), 2)
    with pytest.raises(RecordsLostError) as caught:
        await fetch_groups(selection, owners, 5.0)
    assert caught.value.group_ids == ("a",)


async def test_a_stale_lease_and_a_deadline_are_those_of_the_data_plane(taken: Any) -> None:
    selection, ways, owners = taken
    await owners["first"].fetch(list(selection.groups[0]), Lease("later", 99, "packing", 60.0), 5.0)
    with pytest.raises(LeaseError, match="rollout worker 0"):
        await owners["first"].fetch(list(selection.groups[0]), selection.lease, 5.0)
    ways["first"].error = ActorTimeout("rollout worker 0 (pid 7) did not answer fetch() within 5 s")
    with pytest.raises(DeadlineError, match="did not answer fetch"):
        await owners["first"].fetch(list(selection.groups[0]), selection.lease, 5.0)


async def test_lost_groups_come_back_from_another_process_as_they_were(taken: Any) -> None:
    _, ways, _ = taken
    with pytest.raises(RemoteError) as caught:
        await ways["first"].call("fail", deadline_s=1.0)
    error = data_plane_error(caught.value)
    assert isinstance(error, RecordsLostError)
    assert error.groups == (LostGroup("g", ("r",), ("w",), "it died"),)
    assert error.asked == 3


async def test_another_error_stays_what_the_actor_raised(taken: Any) -> None:
    selection, ways, owners = taken
    ways["first"].error = RemoteError("worker", "fetch", "KeyError", "'x'", "Traceback ...")
    with pytest.raises(RemoteError, match="KeyError"):
        await owners["first"].fetch(list(selection.groups[0]), selection.lease, 5.0)
