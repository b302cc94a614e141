"""One warm trainer rank: load once, then runs, then jobs."""

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from art_dataplane import BatchMapper, DataPlaneError, Receipt, SnapshotManifest, SnapshotSink
from art_trainer import platform
from art_trainer.durability import GenerationStore, new_generation_name
from art_trainer.errors import BatchError, RankStateError, ResumeError, SinkError, SnapshotPoolError
from art_trainer.events import (
    Accepted,
    Cancelled,
    Completed,
    EventSequence,
    Failed,
    FailureCode,
    Progress,
    SnapshotReady,
    Stage,
    TrainerEvent,
)
from art_trainer.resident import DURABILITY, ActiveRun, Loaded, LoadReport
from art_trainer.rows import PackedRow, packed_rows
from art_trainer.snapshots import SnapshotPool, SnapshotSlot
from art_trainer.specs import TrainerRuntimeSpec, TrainingRunSpec, TrainJob
from art_trainer.step import (
    Gradients,
    NonFiniteError,
    StepCancelledError,
    compute_gradients,
)

__all__ = ["DURABILITY", "LoadReport", "TrainerRank"]

_LAST: None = None  # ends a job's event queue


class _ActiveJob:
    """One job in progress: its events, and whether it can still be cancelled."""

    def __init__(self, job: TrainJob) -> None:
        self.job = job
        self.events: asyncio.Queue[TrainerEvent | None] = asyncio.Queue()
        self.cancelled = asyncio.Event()
        self.committed = False  # the optimizer step has begun
        self.over = asyncio.Event()


class TrainerRank:
    """Owns model, adapter, optimizer, snapshot pool and one compute thread; a
    :class:`art_trainer.RankChannel`.

    Order of use: :meth:`load` once, :meth:`start_run` (again for each run), then jobs (:meth:`run`), then
    :meth:`close`. All calls belong to one event loop, which stays live while the thread computes.

    Invariants: :attr:`version` counts the optimizer steps behind the weights in memory. A job that does not
    complete leaves it and the weights as they were, except when the step itself failed: then the rank is
    broken and refuses every further job. A job whose expected version is another one is refused, so none is
    ever trained twice.

    Nothing is allocated before :meth:`load`.

    Args:
        runtime: what to load.
        mapper: maps a job's batch on this host; called in the compute thread.
        sinks: by name, who gets every snapshot. Each gets leases one at a time, in the order of versions.

    Raises:
        RankStateError: a sink has the name that the rank uses for its own.
    """

    def __init__(
        self, runtime: TrainerRuntimeSpec, *, mapper: BatchMapper, sinks: Mapping[str, SnapshotSink]
    ) -> None:
        if DURABILITY in sinks:
            raise RankStateError(
                f"the sink name {DURABILITY!r} is the rank's own; set generations_dir instead"
            )
        self._runtime = runtime
        self._mapper = mapper
        self._sinks = dict(sinks)
        self._thread = ThreadPoolExecutor(
            1, "art-trainer", initializer=platform.use_threads, initargs=(runtime.threads,)
        )
        self._loaded: Loaded | None = None
        self._run: ActiveRun | None = None
        self._active: _ActiveJob | None = None
        self._version = 0
        self._broken: str | None = None
        self._closed = False

    @property
    def version(self) -> int:
        """The policy version of the weights in memory."""
        return self._version

    async def load(self, deadline_s: float) -> LoadReport:
        """Checks the machine, builds the model and loads its weights.

        Raises:
            PreflightError: the machine cannot do it.
            UnsupportedModelError: no handler covers the model.
            ModelLoadError: the weights do not fit it.
            SpecError: the adapter targets unknown layers.
            RankStateError: loaded already, closed, or not done within ``deadline_s`` seconds.
        """
        if self._loaded is not None or self._closed:
            raise RankStateError("the rank is closed" if self._closed else "the rank is loaded already")
        self._loaded = await self._in_thread(lambda: Loaded(self._runtime), deadline_s, "loading the model")
        return self._loaded.report

    async def start_run(self, run: TrainingRunSpec, deadline_s: float) -> int:
        """Ends the run before, if any, and starts ``run`` with a fresh or resumed adapter and optimizer.

        Returns:
            The version it starts at.

        Raises:
            ResumeError: the folder does not hold what ``run`` asks for, or holds generations though it asks
                for none.
            DurabilityError: the folder is in use.
            RankStateError: not loaded, a job is running, or not done within ``deadline_s`` seconds.
        """
        loaded = self._require_idle()
        end = time.monotonic() + deadline_s
        if self._run is not None:
            before, self._run = self._run, None
            cut_off = await before.close(deadline_s)
            if cut_off:
                raise RankStateError(
                    f"sinks {', '.join(cut_off)} of run {before.spec.run_id} "
                    f"were not done after {deadline_s} s"
                )
        store = GenerationStore(run.generations_dir, run.run_id) if run.generations_dir is not None else None
        try:
            left = max(0.0, end - time.monotonic())
            version = await self._in_thread(
                lambda: self._restore(loaded, run, store), left, "restoring the run"
            )
            adapter_bytes = 4 * loaded.model.adapter.parameter_count
            pool = SnapshotPool(run.run_id, self._runtime.snapshot_capacity, adapter_bytes)
        except BaseException:
            if store is not None:
                store.close()
            raise
        self._version, self._broken = version, None
        self._run = ActiveRun(run, pool, store, self._sinks)
        if version > 0:
            self._run.durable_versions.add(version)
        return version

    async def publish_current(self, deadline_s: float) -> SnapshotManifest:
        """Snapshots the weights as they are and submits them to the sinks; so serving starts with an adapter.

        A version that is durable already is not written again.

        Raises:
            SnapshotPoolError: no slot became free within ``deadline_s`` seconds.
            RankStateError: no run, or a job is running.
        """
        loaded, run = self._require_idle(), self._require_run()
        slot = await run.pool.acquire(deadline_s)
        try:
            await self._in_thread(lambda: self._fill(loaded, run, slot), deadline_s, "taking a snapshot")
        except BaseException:
            slot.release()
            raise
        return run.submit(slot)

    async def run(self, job: TrainJob) -> AsyncIterator[TrainerEvent]:
        """Runs ``job`` and yields its events; see :class:`art_trainer.RankChannel`.

        Closing the iterator cancels the job unless its step has begun, and returns when the thread is idle.

        Raises:
            RankStateError: the rank is not loaded, has no run, or is closed.
        """
        sequence = EventSequence(job.job_id)
        loaded, run = self._require_loaded(), self._require_run()
        refusal = self._refusal(job)
        if refusal is not None:
            sequence.check(refusal)
            yield refusal
            return
        active = self._active = _ActiveJob(job)
        loaded.cancellation.clear()
        task = asyncio.create_task(self._execute(active, loaded, run))
        try:
            while (event := await active.events.get()) is not None:
                sequence.check(event)
                yield event
        finally:
            self.cancel(job.job_id)
            await asyncio.shield(task)

    def cancel(self, job_id: str) -> bool:
        """Asks the running job to stop; False when ``job_id`` is not running or its step has begun."""
        active = self._active
        if active is None or active.job.job_id != job_id or active.committed:
            return False
        active.cancelled.set()
        if self._loaded is not None:
            self._loaded.cancellation.request()
        return True

    async def wait_sink(self, name: str, version: int, deadline_s: float) -> Receipt:
        """Waits until sink ``name`` is done with ``version``, which may still be to come.

        Raises:
            SinkError: no such sink, or not done within ``deadline_s`` seconds.
            Exception: the sink's own error.
        """
        lanes = self._require_run().lanes
        if name not in lanes:
            raise SinkError(f"there is no sink {name!r}; this rank has {', '.join(lanes) or 'none'}")
        return await lanes[name].wait(version, deadline_s)

    async def close(self, deadline_s: float) -> None:
        """Stops the job in progress, drains the sinks and frees everything; a second call does nothing.

        Args:
            deadline_s: seconds for the job to stop and the sinks to be done.

        Raises:
            SinkError: sinks were cut off at the deadline, or failed and nobody has seen it; all is freed
                before.
            RankStateError: the compute thread did not stop; end the process.
        """
        if self._closed:
            return
        self._closed = True
        end = time.monotonic() + deadline_s
        active = self._active
        if active is not None:
            self.cancel(active.job.job_id)
            # The thread is idle between two stages of a job too, so the job itself has to be over.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(active.over.wait(), deadline_s)
        idle = await self._thread_idle(max(0.1, end - time.monotonic()))
        problems: dict[str, str] = {}
        if self._run is not None:
            run, self._run = self._run, None
            cut_off = await run.close(max(0.1, end - time.monotonic()))
            problems = run.unseen_errors()
            problems |= dict.fromkeys(cut_off, f"not done after {deadline_s} s")
        self._thread.shutdown(wait=idle, cancel_futures=True)  # an idle thread ends at once
        self._loaded = None
        if not idle:
            raise RankStateError(f"the compute thread has not stopped after {deadline_s} s; end the process")
        if problems:
            raise SinkError("; ".join(f"{name}: {text}" for name, text in sorted(problems.items())))

    # One job, as a task of its own: what happens does not depend on who reads the events.

    async def _execute(self, active: _ActiveJob, loaded: Loaded, run: ActiveRun) -> None:
        job, emit = active.job, active.events.put_nowait
        try:
            emit(Accepted(job.job_id, self._version))
            emit(await self._train(active, loaded, run))
        except StepCancelledError:
            emit(Cancelled(job.job_id, self._version))
        except (BatchError, DataPlaneError) as error:
            emit(self._failed(job, "bad_batch", error))
        except SnapshotPoolError as error:
            emit(self._failed(job, "rank_broken" if self._broken else "snapshot_backpressure", error))
        except NonFiniteError as error:
            emit(self._failed(job, "non_finite", error))
        except Exception as error:  # noqa: BLE001 (the one place where an unknown error becomes an event)
            emit(self._failed(job, "rank_broken" if self._broken else "internal", error))
        finally:
            self._active = None
            active.over.set()
            emit(_LAST)

    async def _train(self, active: _ActiveJob, loaded: Loaded, run: ActiveRun) -> Completed:
        job, timings = active.job, dict[str, float]()
        loop = asyncio.get_running_loop()

        def report(stage: Stage, done: int, total: int) -> None:
            loop.call_soon_threadsafe(active.events.put_nowait, Progress(job.job_id, stage, done, total))

        with _timed(timings, "map_s"):
            rows = await self._compute(lambda: self._map(loaded, job))
        report("map", 1, 1)
        with _timed(timings, "forward_backward_s"):
            gradients: Gradients = await self._compute(
                lambda: compute_gradients(
                    loaded.model,
                    loaded.optimizer,
                    rows,
                    job,
                    loaded.cancellation,
                    lambda done, total: report("forward_backward", done, total),
                )
            )
        with _timed(timings, "snapshot_wait_s"):
            slot = await _slot_unless_cancelled(active, run.pool)
        active.committed = True
        try:
            with _timed(timings, "optimizer_s"):
                await self._compute(lambda: self._step(loaded, job, gradients))
            report("optimizer", 1, 1)
            with _timed(timings, "snapshot_s"):
                await self._compute(lambda: self._fill(loaded, run, slot))
            report("snapshot", 1, 1)
        except BaseException as error:
            self._broken = f"job {job.job_id}: {type(error).__name__}: {error}"
            slot.release()
            raise
        manifest = run.submit(slot)
        await asyncio.sleep(0)  # progress events of the thread come first
        active.events.put_nowait(SnapshotReady(job.job_id, manifest))
        metrics = {
            **gradients.metrics,
            "learning_rate": job.learning_rate,
            "rows": float(len(rows)),
            "physical_tokens": float(sum(len(row.token_ids) for row in rows)),
            "loss_entries": float(sum(len(row.loss) for row in rows)),
        }
        return Completed(
            job.job_id, self._version, metrics, timings, run.unseen_errors(), run.take_receipts()
        )

    def _map(self, loaded: Loaded, job: TrainJob) -> list[PackedRow]:
        batch = self._mapper.map(job.batch)
        try:
            return packed_rows(
                batch,
                vocabulary=loaded.model.description.vocabulary,
                packed_sequence_length=self._runtime.packed_sequence_length,
            )
        finally:
            batch.close()

    def _step(self, loaded: Loaded, job: TrainJob, gradients: Gradients) -> None:
        loaded.optimizer.step(job.learning_rate, job.max_grad_norm, gradients.norm)
        self._version = job.resulting_version

    def _fill(self, loaded: Loaded, run: ActiveRun, slot: SnapshotSlot) -> None:
        slot.fill(
            version=self._version,
            generation=new_generation_name(self._version) if run.store is not None else None,
            adapter=loaded.model.adapter,
            peft_config=loaded.peft_config,
            optimizer=loaded.optimizer.state(),
        )

    def _restore(self, loaded: Loaded, run: TrainingRunSpec, store: GenerationStore | None) -> int:
        """Fresh weights, or those that ``run`` names; the version they are of."""
        generation = (
            store.find(run.resume_from) if store is not None and run.resume_from is not None else None
        )
        if store is not None and run.resume_from is None and store.generations():
            newest = store.generations()[-1]
            raise ResumeError(
                f"{run.generations_dir} holds generations up to {newest.name}; "
                "set resume_from to 'latest' or to a name, or give this run an empty folder"
            )
        loaded.optimizer.reset()
        if store is None or generation is None:
            loaded.model.adapter.reset(self._runtime.seed)
            return 0
        state = store.read(generation)
        loaded.model.adapter.load(state.adapter)
        loaded.optimizer.load(state.optimizer)
        return generation.version

    def _refusal(self, job: TrainJob) -> Failed | None:
        if self._broken is not None:
            message = f"the rank is broken since {self._broken}; start a run that resumes from a generation"
            return Failed(job.job_id, self._version, "rank_broken", message)
        if self._active is not None:
            return Failed(job.job_id, self._version, "busy", f"job {self._active.job.job_id} is running")
        if job.expected_version != self._version:
            message = f"the job expects version {job.expected_version}, the rank is at {self._version}"
            return Failed(job.job_id, self._version, "version_mismatch", message)
        return None

    def _failed(self, job: TrainJob, code: FailureCode, error: Exception) -> Failed:
        text = f"{type(error).__name__}: {error}"
        return Failed(job.job_id, self._version, code, text, "".join(traceback.format_exception(error)))

    def _require_loaded(self) -> Loaded:
        if self._closed:
            raise RankStateError("the rank is closed")
        if self._loaded is None:
            raise RankStateError("the rank is not loaded; call load first")
        return self._loaded

    def _require_run(self) -> ActiveRun:
        if self._run is None:
            raise RankStateError("the rank has no run; call start_run first")
        return self._run

    def _require_idle(self) -> Loaded:
        if self._active is not None:
            raise RankStateError(f"job {self._active.job.job_id} is running")
        return self._require_loaded()

    async def _compute[T](self, work: Callable[[], T]) -> T:
        """Runs in the compute thread; a job bounds it through its cancellation, not by a deadline."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _in_thread[T](self, work: Callable[[], T], deadline_s: float, what: str) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        done, _ = await asyncio.wait([future], timeout=deadline_s)
        if not done:
            future.cancel()
            raise RankStateError(f"{what} was not done after {deadline_s} s")
        return future.result()

    async def _thread_idle(self, deadline_s: float) -> bool:
        """Whether the compute thread gets to the end of its work within the deadline."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, lambda: None)
        done, _ = await asyncio.wait([future], timeout=deadline_s)
        return bool(done)


async def _slot_unless_cancelled(active: _ActiveJob, pool: SnapshotPool) -> SnapshotSlot:
    """A slot for the job's snapshot.

    Raises:
        StepCancelledError: the job is cancelled, now or while it waits.
        SnapshotPoolError: see :meth:`SnapshotPool.acquire`.
    """
    acquiring = asyncio.create_task(pool.acquire(active.job.snapshot_deadline_s))
    cancelled = asyncio.create_task(active.cancelled.wait())
    await asyncio.wait((acquiring, cancelled), return_when=asyncio.FIRST_COMPLETED)
    cancelled.cancel()
    if not active.cancelled.is_set():
        return acquiring.result()
    acquiring.cancel()
    (outcome,) = await asyncio.gather(acquiring, return_exceptions=True)
    if isinstance(outcome, SnapshotSlot):
        outcome.release()
    raise StepCancelledError("cancelled before the optimizer step")


@contextlib.contextmanager
def _timed(timings: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    timings[name] = time.monotonic() - started
