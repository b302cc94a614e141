"""Distributes rollouts of one user function over worker processes.

Worker ``i`` has its place by the topology: the free CPU slots of all hosts, first one of each host, then the
second of each. A worker that died is an error for its rollouts and for every later call, until it is left
out with ``set_workers`` or started again with ``restart_worker``: its records are lost, and nobody should
miss that.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from art.awaiting import must_be_awaited
from art.distributed import user_values
from art.distributed.callables import AsyncFunction, InstalledAsyncCallable
from art.distributed.errors import CallableError, PartFailed, RuntimeFailure
from art.distributed.handle import ActorHandle
from art.distributed.peer import PeerRecordOwner
from art.distributed.rollout_worker import (
    RolloutRequest,
    RolloutValue,
    RolloutWorker,
    RolloutWorkerSpec,
)
from art.errors import ConfigError, RolloutFailed
from art.model import TrainableModel
from art.settings import instance, number, whole_number
from art.trajectories import TrajectoryHandle
from art.trajectory_groups import gathering_group_id, trajectories_expected
from art.user_code import described, shown, with_place
from art_dataplane import Lease, TrajectoryRecord, TrajectoryRef, read_records
from art_dataplane.locations import INLINE_LIMIT
from art_topology import RuntimeTopology

if TYPE_CHECKING:
    from art.distributed.runtime import ArtRuntime


_READING = Lease(lease_id="reading", fence=0, holder="a reader", duration_s=0.0)
"""Below every fence that a queue grants (:class:`art_dataplane.LeaseTable` starts with 1): a reading never
makes a lease stale, and is refused once the record is leased."""


class RolloutCounts(NamedTuple):
    """Rollouts since the executor was made.

    Args:
        started: rollouts that were begun.
        done: those of them that ended, the failed ones too.
    """

    started: int
    done: int


class RolloutExecutor:
    """Runs rollouts of one function in worker processes, each started when it is first needed.

    Made by :meth:`art.distributed.ArtRuntime.rollout_executor`. A worker that died is an error for its
    rollouts and for every later call, until it is left out (:meth:`set_workers`) or started again
    (:meth:`restart_worker`): its records are lost, and nobody should miss that.
    """

    def __init__(
        self,
        runtime: "ArtRuntime",
        function: InstalledAsyncCallable,
        *,
        target_workers: int,
        rollout_timeout_s: float,
        env: Mapping[str, str | None],
    ) -> None:
        self.function = function
        self._runtime = runtime
        self._places = places(runtime.topology)
        target_workers = whole_number("target_workers", target_workers, 2)
        if target_workers > len(self._places):
            raise RuntimeFailure(with_place(_too_many(target_workers, len(self._places))))
        self._rollout_timeout_s = number("rollout_timeout_s", rollout_timeout_s, 600.0, above=0)
        self._env = dict(env)
        self._workers: tuple[int, ...] = tuple(range(target_workers))
        self._handles: dict[int, ActorHandle] = {}
        self._starting: dict[int, asyncio.Lock] = {}
        self._running: Counter[int] = Counter()
        self._started = 0

    @property
    def counts(self) -> RolloutCounts:
        """How many rollouts were started, and how many of them are done."""
        return RolloutCounts(self._started, self._started - self._running.total())

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers in use, by index."""
        return self._workers

    @property
    def handles(self) -> Mapping[int, ActorHandle]:
        """The workers that were started, by index."""
        return dict(self._handles)

    def set_workers(self, workers: Sequence[int]) -> None:
        """Chooses the workers in use. Others that run already keep their records.

        Raises:
            RuntimeFailure: none, one twice, or one beyond the topology's free CPU slots.
        """
        chosen = tuple(workers)
        if not chosen or len(set(chosen)) != len(chosen):
            raise RuntimeFailure(f"workers {chosen}: at least one is needed, each once")
        wrong = [worker for worker in chosen if not 0 <= worker < len(self._places)]
        if wrong:
            raise RuntimeFailure(
                f"workers {wrong} do not exist; the topology has {len(self._places)} free CPU slots, counted "
                "from 0"
            )
        self._workers = chosen

    @must_be_awaited
    async def start(self) -> None:
        """Starts all workers in use, together; otherwise each starts with its first rollout.

        Raises:
            RuntimeFailure: a worker did not come up, with its cause.
        """
        await asyncio.gather(*(self._worker(worker) for worker in self._workers))

    @must_be_awaited
    async def run(
        self, worker: int | None, function: AsyncFunction, model: TrainableModel, scenario: Any, config: Any
    ) -> Any:
        """Runs ``function(model, scenario, config)`` on one worker and returns its value.

        It may be any value, unless the function is annotated to return an ``art.Trajectory``, or a group or
        an evaluation awaits it: then anything else is a failure of the rollout.

        Args:
            worker: its index; ``None`` is the least busy one.
            function: the executor's function.
            model: its first argument.
            scenario: its second argument: data that pickle takes, of importable classes.
            config: its third argument, likewise.

        Raises:
            RolloutFailed: the function raised, or returned something else than a trajectory where that must
                be one.
            ActorDied: the worker died.
            ActorTimeout: the rollout took longer than the executor allows.
            CallableError: a value cannot be sent.
            PartFailed: a part that rollouts depend on failed.
            RuntimeFailure: it is not the executor's function, or the worker is not in use.
        """
        if worker is not None and worker not in self._workers:
            raise RuntimeFailure(f"worker {worker} is not in use; set_workers chose {self._workers}")
        request = self._request(function, model, scenario, config, None)
        request = msgspec.structs.replace(request, must_be_trajectory=trajectories_expected())
        worker = self._least_busy() if worker is None else worker
        with self._counted(worker):
            handle = await self._worker(worker)
            return await self._runtime.failures.guard(self._run_on(handle, request, scenario))

    async def _run_on(self, handle: ActorHandle, request: RolloutRequest, scenario: Any) -> Any:
        reply = await handle.call("run", request, deadline_s=self._rollout_timeout_s)
        if isinstance(reply, RolloutValue):
            return user_values.unpack(reply.data)
        raise RolloutFailed(reply.kind, reply.message, reply.traceback, handle.role, shown(scenario))

    @must_be_awaited
    async def submit(
        self,
        function: AsyncFunction,
        model: TrainableModel,
        scenario: Any,
        config: Any,
        *,
        group_id: str | None = None,
    ) -> TrajectoryHandle:
        """Runs a rollout for training on the least busy worker, which keeps the record.

        Args:
            function: the executor's function; it must return an ``art.Trajectory``.
            model: its first argument.
            scenario: its second argument: data that pickle takes, of importable classes.
            config: its third argument, likewise.
            group_id: equal for the rollouts whose rewards are compared with each other, and no other group's.
                By default that of the :class:`art.TrajectoryGroup` which awaits this coroutine. A rollout
                that is awaited elsewhere, or whose task was made before it came into its group, needs one
                to be trained on with others.

        Returns:
            A handle to the record. When the function raised, its ``error`` is set and ``reward`` is
            ``None``; a :class:`art.TrajectoryGroup` counts it among its exceptions.

        Raises:
            ActorDied: the worker died.
            ActorTimeout: the rollout took longer than the executor allows.
            CallableError: a value cannot be sent.
            PartFailed: a part that rollouts depend on failed, for example the model service.
            RuntimeFailure: it is not the executor's function.
        """
        request = self._request(function, model, scenario, config, group_id or gathering_group_id())
        worker = self._least_busy()
        with self._counted(worker):
            handle = await self._worker(worker)
            failures = self._runtime.failures
            result: TrajectoryHandle = await failures.guard(
                handle.call("submit", request, deadline_s=self._rollout_timeout_s)
            )
        result = msgspec.structs.replace(result, worker=handle.role, scenario=shown(scenario))
        if result.failure is not None and (failure := await failures.diagnose()) is not None:
            raise PartFailed(failure) from result.failure
        return result

    def _least_busy(self) -> int:
        return min(self._workers, key=lambda index: (self._running[index], self._workers.index(index)))

    @contextmanager
    def _counted(self, worker: int) -> Iterator[None]:
        self._started += 1
        self._running[worker] += 1
        try:
            yield
        finally:
            self._running[worker] -= 1

    def _request(
        self, function: AsyncFunction, model: TrainableModel, scenario: Any, config: Any, group_id: str | None
    ) -> RolloutRequest:
        if not self.function.refers_to(function):
            given = (
                f"{getattr(function, '__module__', '?')}.{function.__qualname__}"
                if hasattr(function, "__qualname__") and not inspect.isawaitable(function)
                else described(function)
            )
            raise RuntimeFailure(
                f"this executor was made for {self.function}, not for {given}. The function itself is the "
                "first argument of submit and the second of run: executor.submit(rollout, model, task, None)"
            )
        instance("model", model, TrainableModel, "the model that `await model.register(backend)` registered")
        try:
            model_json = model.model_dump_json().encode()
        except ValueError as error:
            raise CallableError(
                f"the model {model.name!r} cannot be sent to another process: {error}. Its config "
                "must be plain data"
            ) from error
        return RolloutRequest(
            model=model_json,
            scenario=user_values.pack(scenario, "the scenario"),
            config=user_values.pack(config, "the configuration"),
            group_id=group_id,
        )

    async def _worker(self, worker: int) -> ActorHandle:
        """The worker's actor, started if need be.

        Raises:
            ActorDied: it died; see the module's text.
        """
        async with self._starting.setdefault(worker, asyncio.Lock()):
            handle = self._handles.get(worker)
            if handle is None:
                handle = self._handles[worker] = await self._spawn(worker)
        if handle.died is not None:
            raise handle.died
        return handle

    async def _spawn(self, worker: int) -> ActorHandle:
        name = f"rollout worker {worker}"
        spec = RolloutWorkerSpec(
            owner=name,
            run_id=self._runtime.run_id,
            function=self.function,
            warns=worker == min(self._workers),
        )
        return await self._runtime.spawn_actor(
            name, RolloutWorker, spec, host=self._places[worker], env=self._env
        )

    @must_be_awaited
    async def restart_worker(self, worker: int) -> None:
        """Starts a worker anew, dead or alive; the records it held are lost.

        Raises:
            RuntimeFailure: it did not come up, with its cause.
        """
        async with self._starting.setdefault(worker, asyncio.Lock()):
            old = self._handles.pop(worker, None)
            if old is not None:
                await self._runtime.stop_actor(old)
            self._handles[worker] = await self._spawn(worker)

    @must_be_awaited
    async def records(
        self, handles: Sequence[TrajectoryHandle], *, deadline_s: float
    ) -> list[TrajectoryRecord]:
        """Reads records that stay with their workers, in the order of ``handles``.

        It takes no lease and changes nothing: the records can be trained on afterwards. Read them before
        that: a record that training has leased is refused, and one that was trained on is gone. One of more
        than 64 KiB can be read on the host of its worker only.

        Args:
            handles: of rollouts that this executor ran.
            deadline_s: seconds that each worker may take to answer.

        Raises:
            ConfigError: a handle has no record.
            RemoteError: the worker does not hold a record any more, or training has leased it.
            ActorDied: the worker died.
            ActorTimeout: the worker did not answer in time.
            RuntimeFailure: no worker of this executor holds it.
        """
        refs = [handle.ref for handle in handles if handle.ref is not None]
        if len(refs) < len(handles):
            raise ConfigError(f"{len(handles) - len(refs)} of {len(handles)} handles have no record to read")
        parts = [part for owner in dict.fromkeys(ref.owner for ref in refs) for part in _parts(refs, owner)]
        read = await asyncio.gather(*(self._read(part, deadline_s) for part in parts))
        found = {record.record_id: record for records in read for record in records}
        return [found[ref.record_id] for ref in refs]

    async def _read(self, refs: list[TrajectoryRef], deadline_s: float) -> list[TrajectoryRecord]:
        worker = self._holder(refs[0].owner)
        location = await worker.call("fetch", refs, _READING, deadline_s, deadline_s=deadline_s)
        return await asyncio.to_thread(read_records, location)

    def record_owner(self, owner: str) -> PeerRecordOwner:
        """The worker that holds records under the name ``owner`` (``TrajectoryRef.owner``).

        Raises:
            RuntimeFailure: no worker of this executor has that name.
        """
        return PeerRecordOwner(self._holder(owner), self._runtime.topology.rpc_timeout_s)

    def _holder(self, owner: str) -> ActorHandle:
        for handle in self._handles.values():
            if handle.name == owner:
                return handle
        raise RuntimeFailure(f"no rollout worker is named {owner!r}")


def places(topology: RuntimeTopology) -> tuple[int, ...]:
    """The host of each possible worker: slots of all hosts in turn."""
    deepest = max((len(host.free_cpu_slots) for host in topology.hosts), default=0)
    return tuple(
        index
        for depth in range(deepest)
        for index, host in enumerate(topology.hosts)
        if len(host.free_cpu_slots) > depth
    )


def _parts(refs: Sequence[TrajectoryRef], owner: str) -> Iterator[list[TrajectoryRef]]:
    """References to records of one owner, in parts that travel inline wherever a record is small enough."""
    part: list[TrajectoryRef] = []
    byte_count = 0
    for ref in (ref for ref in refs if ref.owner == owner):
        if part and byte_count + ref.byte_count > INLINE_LIMIT - 64:
            yield part
            part, byte_count = [], 0
        part.append(ref)
        byte_count += ref.byte_count
    if part:
        yield part


def _too_many(workers: int, slots: int) -> str:
    """The message for more ``workers`` than free CPU ``slots``.

    Counted are the slots that neither trainer nor services of the topology take. Those that
    :class:`art.MegatronBackend` places itself take none of them.
    """
    has = f"only {slots} free CPU slot{'s' if slots > 1 else ''}" if slots else "no free CPU slot"
    allowed = f"give 1{f' to {slots}' if slots > 1 else ''}, or " if slots else ""
    return (
        f"target_workers is {workers}, and the topology has {has} for rollout workers, which take one each; "
        f"{allowed}raise cpu_slots of the hosts by {workers - slots}. The trainer and the model service that "
        "art.MegatronBackend starts take none of these"
    )
