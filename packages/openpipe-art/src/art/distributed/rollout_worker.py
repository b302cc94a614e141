"""What runs in a rollout worker's process: user code, many rollouts at a time, and the records they leave.

The worker owns the trajectories of its rollouts (:class:`art_dataplane.store.TrajectoryStore`); references
travel.
"""

import asyncio
import inspect
import time
import uuid
import warnings
from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec

from art.distributed import user_values
from art.distributed.callables import AsyncFunction, InstalledAsyncCallable
from art.distributed.service import Raised, raised, sendable
from art.distributed.user_traceback import close_unawaited, last_user_line, rollout_traceback
from art.errors import RecordError, UnlimitedAnswerWarning
from art.model import TrainableModel
from art.records import check_texts, set_policy_versions, trajectory_record
from art.trajectories import Trajectory, TrajectoryHandle, not_a_trajectory
from art.user_code import definition
from art_dataplane import (
    DataPlaneError,
    Lease,
    Location,
    RolloutError,
    RolloutTiming,
    ShmSegmentStore,
    StoreStats,
    TrajectoryRecord,
    TrajectoryRef,
    TrajectoryStore,
)

COMPLETION_TOKENS = "completion_tokens"
"""The metric that every rollout for training has: how many tokens the model said in it."""

_KEPT_MODELS = 8
_ROOM_WAIT_S = 600.0


class RolloutWorkerSpec(msgspec.Struct, frozen=True):
    """How a worker is made.

    Args:
        owner: the name under which its records are found: the actor's name.
        run_id: of the run; names its segments.
        function: what it runs.
        max_records, max_bytes: bounds of its store; a rollout that ends when it is full waits for room.
        max_segment_bytes: bound of the segments through which records are fetched.
        warns: whether it warns of what is alike in all workers, requests without ``max_tokens``; one does.
    """

    owner: str
    run_id: str
    function: InstalledAsyncCallable
    max_records: int = 65_536
    max_bytes: int = 1 << 30
    max_segment_bytes: int = 1 << 30
    warns: bool = True


class RolloutRequest(msgspec.Struct, frozen=True):
    """One rollout: the model as JSON, scenario and configuration as :mod:`art.distributed.user_values` packs
    them; and whether what it returns must be a trajectory."""

    model: bytes
    scenario: bytes
    config: bytes
    group_id: str | None = None
    must_be_trajectory: bool = False


class RolloutValue(msgspec.Struct, frozen=True, tag="value"):
    """What the function returned, packed."""

    data: bytes


RolloutReply = RolloutValue | Raised


class RolloutWorker:
    """The service of one worker process.

    Raises:
        CallableError: the function cannot be imported here or is another source.
    """

    def __init__(self, spec: RolloutWorkerSpec) -> None:
        self._spec = spec
        self._function: AsyncFunction = spec.function.resolve()
        self._segments = ShmSegmentStore(spec.run_id, spec.max_segment_bytes)
        self._store = TrajectoryStore(spec.owner, spec.max_records, spec.max_bytes, segments=self._segments)
        self._models: dict[bytes, TrainableModel] = {}
        if not spec.warns:
            warnings.simplefilter("ignore", UnlimitedAnswerWarning)

    async def run(self, request: RolloutRequest) -> RolloutReply:
        """Runs one rollout and returns its value; a trajectory says which policy versions it is of."""
        try:
            value = await self._roll_out(request)
            if isinstance(value, Trajectory):
                check_texts(value)
                set_policy_versions(value)
            elif request.must_be_trajectory or returns_trajectory(self._function):
                raise not_a_trajectory(definition(self._function), value)
            elif isinstance(value, Awaitable):
                raise not_a_trajectory(definition(self._function), value, "or a value")
            return RolloutValue(user_values.pack(value, f"the result of {definition(self._function)}"))
        except _OF_USER_CODE as error:
            return _raised_by_user(error)

    async def submit(self, request: RolloutRequest) -> TrajectoryHandle:
        """Runs one rollout, keeps its record and returns a handle; a failure is kept as a failed record."""
        record_id = uuid.uuid4().hex
        group_id = request.group_id or record_id
        started_unix_s, started = time.time(), time.monotonic()
        try:
            trajectory = await self._roll_out(request)
            if not isinstance(trajectory, Trajectory):
                raise not_a_trajectory(definition(self._function), trajectory)
            record = self._record(trajectory, group_id, record_id)
        except _OF_USER_CODE as error:
            failure = _raised_by_user(error)
            record = TrajectoryRecord(
                record_id=record_id,
                group_id=group_id,
                exchanges=(),
                reward=None,
                error=RolloutError(failure.kind, failure.message, failure.traceback),
            )
        timing = RolloutTiming(time.monotonic() - started, started_unix_s)
        said = sum(len(exchange.completion_ids) for exchange in record.exchanges)
        metrics = {COMPLETION_TOKENS: float(said), **record.metrics}
        record = msgspec.structs.replace(record, timing=timing, metrics=metrics)
        return handle_of(record, await self._store.put_when_room(record, _ROOM_WAIT_S))

    def _record(self, trajectory: Trajectory, group_id: str, record_id: str) -> TrajectoryRecord:
        """The record of what the function returned; an error names the function."""
        try:
            record = trajectory_record(trajectory, group_id=group_id, record_id=record_id)
            record.validate()
        except (RecordError, DataPlaneError) as error:
            raise RecordError(
                f"{definition(self._function)} returned what cannot be trained on: {error}"
            ) from None
        return record

    async def _roll_out(self, request: RolloutRequest) -> Any:
        scenario, config = user_values.unpack(request.scenario), user_values.unpack(request.config)
        return await self._function(self._model(request.model), scenario, config)

    def _model(self, data: bytes) -> TrainableModel:
        """The model of these fields: one object, so that its client's connections are used again."""
        model = self._models.pop(data, None) or TrainableModel.model_validate_json(data)
        self._models[data] = model
        if len(self._models) > _KEPT_MODELS:
            del self._models[next(iter(self._models))]
        return model

    async def fetch(self, refs: Sequence[TrajectoryRef], lease: Lease, deadline_s: float) -> Location:
        """As :meth:`art_dataplane.store.RecordOwner.fetch`."""
        return await self._store.fetch(refs, lease, deadline_s)

    async def drop(self, refs: Sequence[TrajectoryRef]) -> int:
        """As :meth:`art_dataplane.store.RecordOwner.drop`."""
        return await self._store.drop(refs)

    async def stats(self) -> StoreStats:
        """As :meth:`art_dataplane.store.RecordOwner.stats`."""
        return await self._store.stats()

    async def close(self) -> None:
        """Removes the segments."""
        self._segments.close()


_OF_USER_CODE = (Exception, SystemExit, asyncio.CancelledError)
"""What user code may raise that is told as its failure; also what would end the process or the call."""


def _raised_by_user(error: BaseException) -> Raised:
    """An exception of user code as a reply.

    Raises:
        asyncio.CancelledError: it is one, and the call was cancelled from outside.
    """
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error
    reply = msgspec.structs.replace(raised(error), traceback=sendable(rollout_traceback(error)))
    close_unawaited(error)
    line = last_user_line(error)
    at = f" ({line})" if line else ""
    if isinstance(error, SystemExit):
        text = (
            f"the rollout called sys.exit({'' if error.code is None else repr(error.code)}){at}; it runs "
            "beside others in a process that goes on. Raise an exception, or return an art.Trajectory"
        )
        return msgspec.structs.replace(reply, message=sendable(text))
    if isinstance(error, asyncio.CancelledError):
        text = (
            f"the rollout raised it, or awaited what was cancelled{at}; nobody cancelled the rollout itself. "
            "Catch it there, or raise another exception"
        )
        return msgspec.structs.replace(reply, message=text)
    return reply


def returns_trajectory(function: AsyncFunction) -> bool:
    """Whether the function is annotated to return an ``art.Trajectory``."""
    annotation = inspect.get_annotations(function).get("return")
    if isinstance(annotation, str):
        return annotation.strip("'\"").rpartition(".")[2] == Trajectory.__name__
    return isinstance(annotation, type) and issubclass(annotation, Trajectory)


def handle_of(record: TrajectoryRecord, ref: TrajectoryRef) -> TrajectoryHandle:
    """The handle that stands for a kept record."""
    return TrajectoryHandle(
        reward=record.reward if record.error is None else None,
        metrics=dict(record.metrics),
        metadata=dict(record.metadata),
        ref=ref,
        error=record.error,
    )
