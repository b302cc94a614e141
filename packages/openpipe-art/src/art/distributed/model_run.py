"""One registered model: its queue, packing worker, trainer rank and model service, and its steps.

One step: references go through the queue, a packing worker fetches their records from the owners and writes a
batch into shared memory, the rank trains on it, and the new adapter is active in the server before
:meth:`ModelRun.train` returns.

What always holds:

- Groups are consumed from the queue when they are packed and before the rank steps on them, so nothing is
  trained on twice. When packing fails they wait again. Records are dropped by their owners after the step;
  when no step was taken they are still there, and the same groups can be given again.
- A group of which records are gone fails the step by name; the others can be given again.
- A version is returned only when every member of the service runs it. Durability goes on beside the next
  steps; what fails there is raised by the next step, or by the close.
"""

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from art.distributed.errors import RemoteError, RuntimeFailure
from art.distributed.handle import ActorHandle
from art.distributed.next_step import next_step
from art.distributed.packing import BATCHES_IN_FLIGHT, PackingWorker
from art.distributed.peer import data_plane_error
from art.distributed.placement import Placed
from art.distributed.run_records import FETCH_S, RunRecords
from art.distributed.runtime import ArtRuntime
from art.distributed.services import RunningModelService, ServiceSettings
from art.distributed.step_groups import StepGroups
from art.distributed.step_metrics import packing_metrics, reward_metrics
from art.distributed.trainer import DURABILITY, PUBLISH, MegatronTrainer
from art.errors import ArtError, ConfigError
from art.megatron_config import MegatronRuntimeConfig
from art.model import TrainableModel
from art.train_config import TrainConfig, TrainResult
from art.trajectory_groups import TrajectoryGroup
from art_dataplane import (
    Outcome,
    PackingRequest,
    PackingResult,
    QueueLimits,
    RecordsLostError,
    Selection,
    TrajectoryRef,
    encode,
)
from art_serving import EngineOptions
from art_trainer import Completed, LoraSpec, RlTrainJob, TrainerRuntimeSpec, TrainingRunSpec

_QUEUE_LIMITS = QueueLimits(groups=4096, records=1 << 20, byte_count=8 << 30)
_REMEMBERED = 1 << 20  # record ids that were trained on


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one model is trained and served.

    Args:
        folder: the run's folder, absolute.
        lora: the adapter's shape.
        seed: of the adapter's first weights.
        resume: continue from the last durable generation in ``folder``.
        threads: that the trainer and the server compute with, each.
        step_timeout_s: longest wait for one sign of progress of a step, in seconds.
        tool_parser: vLLM's name of the parser of tool calls; without one requests with tools are refused.
    """

    folder: Path
    lora: LoraSpec
    seed: int
    resume: bool
    threads: int
    step_timeout_s: float
    tool_parser: str | None = None


class ModelRun:
    """One model's parts and its steps; made by :class:`~art.backend.MegatronBackend`.

    Args:
        model: the model.
        placed: where its parts run.
        config: the process-wide configuration.
        runtime: runs the actors.
        settings: see :class:`RunSettings`.
        progress: called with a line for the user while parts start, and with what a step does.
        notice: called with a line that the user should read.
    """

    def __init__(
        self,
        model: TrainableModel,
        placed: Placed,
        config: MegatronRuntimeConfig,
        runtime: ArtRuntime,
        settings: RunSettings,
        progress: Callable[[str], None],
        notice: Callable[[str], None],
    ) -> None:
        self.lock = asyncio.Lock()
        self.service: RunningModelService
        self.model = model
        self._placed = placed
        self._config = config
        self._runtime = runtime
        self._settings = settings
        self._progress = progress
        self._notice = notice
        self._trainer: MegatronTrainer | None = None
        self._packer: ActorHandle | None = None
        self._actors: list[ActorHandle] = []
        self._records = RunRecords(runtime)
        self._groups = StepGroups(_QUEUE_LIMITS, self._records.end_of)
        self._ticket = 0
        self._trained: OrderedDict[str, int] = OrderedDict()
        self._warned_of_truncation = False
        self._version = 0
        self._resumed = 0  # the version that the run went on from: it is durable

    async def start(self) -> None:
        """Starts everything; the slow parts, the server and the trainer, together."""
        folder = self._settings.folder
        folder.mkdir(parents=True, exist_ok=True)
        self._runtime.hosts.run.keeps_in(folder)
        self._runtime.failures.advise(lambda: next_step(folder))
        packer, _, _ = await _together(
            self._start_packer(), self._start_service(folder), self._start_trainer(folder)
        )
        self._packer = packer
        trainer = self._ready_trainer
        rpc_timeout_s = self._runtime.topology.rpc_timeout_s
        await trainer.connect(self.service.peer, self._settings.step_timeout_s)
        await trainer.publish_current(rpc_timeout_s)
        await trainer.wait_sink(PUBLISH, self._version, self._settings.step_timeout_s)

    @property
    def listeners(self) -> tuple[tuple[str, int, str], ...]:
        """Address, port and purpose of what this run listens on."""
        return self._placed.listeners

    @property
    def _ready_trainer(self) -> MegatronTrainer:
        assert self._trainer is not None
        return self._trainer

    async def _start_packer(self) -> ActorHandle:
        name = f"packing worker {self.model.name}"
        row_bytes = 64 * self._config.packed_sequence_length
        capacity_bytes = BATCHES_IN_FLIGHT * max(256 << 20, 64 * row_bytes)
        return self._keep(
            await self._runtime.spawn_actor(name, PackingWorker, name, self._runtime.run_id, capacity_bytes)
        )

    async def _start_service(self, folder: Path) -> None:
        spec = self._placed.service
        options = EngineOptions(threads=self._settings.threads, tool_parser=self._settings.tool_parser)
        self.service = await self._runtime.start_model_service(
            spec,
            ServiceSettings(str(folder / "logs"), options),
            host=self._placed.service_host,
            progress=self._progress,
        )
        self._actors.append(self.service.handle)  # whose end and state the runtime watches

    async def _start_trainer(self, folder: Path) -> None:
        self._trainer = await self._runtime.start_trainer(
            TrainerRuntimeSpec(
                model_path=self.model.base_model,
                packed_sequence_length=self._config.packed_sequence_length,
                topology=self._config.topology,
                lora=self._settings.lora,
                seed=self._settings.seed,
                snapshot_capacity=self._config.snapshot_capacity + 1,
                threads=self._settings.threads,
            ),
            name=f"trainer rank 0 of {self.model.name}",
            host=self._placed.trainer_host,
            progress=self._progress,
        )
        self._keep(self._trainer.handle)
        run = TrainingRunSpec(
            run_id=self._runtime.run_id,
            generations_dir=str(folder / "generations"),
            resume_from="latest" if self._settings.resume else None,
        )
        self._version = await self._trainer.start_run(run, self._runtime.topology.startup_timeout_s)
        self._resumed = self._version

    def _keep(self, handle: ActorHandle) -> ActorHandle:
        self._actors.append(handle)
        self._runtime.failures.add_process(handle)
        return handle

    async def train(self, groups: list[TrajectoryGroup], config: TrainConfig) -> TrainResult:
        """One step."""
        begun = time.monotonic()
        refs = [group_refs for group in groups if (group_refs := self._records.refs_of(group))]
        if not refs:
            raise ConfigError("there is nothing to train on: no group holds a trajectory")
        self._check_untrained(refs)
        self._progress("packing")
        selection, packed = await self._packed(refs, config)
        self._warn_of_truncation(packed)
        metrics = reward_metrics(groups)
        metrics |= packing_metrics(packed)
        if packed.ref is None:
            self._remember(selection.refs)
            await self._records.drop(selection.refs)
            return TrainResult(self._version, metrics | {"skipped": 1.0})
        self._progress("training")
        try:
            completed, snapshot_bytes = await self._stepped(packed, config)
        except BaseException:
            await self._records.drop_own(selection.refs)  # given again, they are put again
            raise
        self._version = completed.version
        self._remember(selection.refs)
        await self._records.drop(selection.refs)
        published = time.monotonic()
        self._progress(f"publishing v{self._version}")
        report = await self._runtime.failures.guard(
            self._ready_trainer.wait_published(self._version, self._settings.step_timeout_s)
        )
        if completed.sink_errors:
            raise RuntimeFailure(
                "snapshots could not be kept: "
                + "; ".join(f"{name}: {text}" for name, text in completed.sink_errors.items())
            )
        metrics |= completed.metrics
        metrics |= {f"train_{stage}": seconds for stage, seconds in completed.timings.items()}
        metrics |= {
            f"{receipt.sink}_s": receipt.duration_s
            for receipt in completed.receipts
            if receipt.sink == DURABILITY
        }
        metrics |= {
            "record_bytes": float(sum(ref.byte_count for ref in selection.refs)),
            "reference_bytes": float(len(encode(selection.refs))),
            "snapshot_bytes": float(snapshot_bytes),
            "publish_s": report.duration_ms / 1e3,
            "publish_wait_s": time.monotonic() - published,
            "engine_pause_s": report.pause_ms / 1e3,
            "train_s": time.monotonic() - begun,
            "skipped": 0.0,
        }
        return TrainResult(self._version, metrics)

    def _check_untrained(self, groups: list[list[TrajectoryRef]]) -> None:
        again = [ref for refs in groups for ref in refs if ref.record_id in self._trained]
        if again:
            raise ConfigError(
                f"{len(again)} of these trajectories were used already, the first in the step that led to "
                f"version {self._trained[again[0].record_id]}; a trajectory is trained on once, so gather "
                "new ones"
            )

    def _remember(self, refs: tuple[TrajectoryRef, ...]) -> None:
        self._trained.update((ref.record_id, self._version) for ref in refs)
        while len(self._trained) > _REMEMBERED:
            self._trained.popitem(last=False)

    def _warn_of_truncation(self, packed: PackingResult) -> None:
        count = packed.counts.truncated_records
        if count and not self._warned_of_truncation:
            self._warned_of_truncation = True
            self._notice(
                f"{count} of {packed.counts.trajectory_count} trajectories were sampled with top-k, top-p, "
                "min-p, penalties or greedily: the ratio of their tokens is only approximate. The metric "
                "truncated_records counts them; sample with a temperature alone for exact ratios"
            )

    async def _packed(
        self, groups: list[list[TrajectoryRef]], config: TrainConfig
    ) -> tuple[Selection, PackingResult]:
        """Takes the groups, packs and consumes them; on any error they wait again, but for those that lost
        records."""
        assert self._packer is not None
        packer = self._packer
        deadline_s = self._runtime.topology.rpc_timeout_s
        await self._records.drop_own(await self._groups.withdraw_others(groups, deadline_s))
        selection = await self._groups.take(
            groups,
            holder=packer.name,
            process=packer.process,
            lease_s=3 * deadline_s + FETCH_S,
            deadline_s=deadline_s,
        )
        self._ticket += 1
        request = PackingRequest(
            selection=selection,
            packed_sequence_length=self._config.packed_sequence_length,
            ticket=self._ticket,
            policy_version=self._version,
            advantage=config.advantage_rule(),
            lease_s=max(600.0, 2 * self._settings.step_timeout_s),
        )
        try:
            owners = await self._records.owners(selection)
            async with self._records.telling_deaths(packer, owners):
                result: PackingResult = await self._runtime.failures.guard(
                    packer.call("pack", request, owners, deadline_s, deadline_s=2 * deadline_s)
                )
        except BaseException as error:
            lost = _lost_records(error)
            if not packer.alive:
                self._groups.holder_died(packer.name)
            elif lost is not None:
                await self._records.await_causes({owner for group in lost.groups for owner in group.owners})
                raise self._groups.lose(selection, lost) from error
            else:
                self._groups.give_back(selection)
            raise
        try:
            self._groups.consume(selection)
        except RuntimeFailure:
            if result.ref is not None:
                await self._release(result.ref.batch_id, Outcome.DISCARDED)
            raise
        return selection, result

    async def _stepped(self, packed: PackingResult, config: TrainConfig) -> tuple[Completed, int]:
        assert packed.ref is not None
        assert self._packer is not None
        job = RlTrainJob(
            job_id=f"step-{self._version + 1:08d}-{self._ticket}",
            batch=packed.ref,
            expected_version=self._version,
            resulting_version=self._version + 1,
            learning_rate=config.learning_rate,
            clip_low=config.clip_epsilon_low,
            clip_high=config.clip_epsilon_high,
            max_grad_norm=config.max_grad_norm or math.inf,
        )
        try:
            completed, snapshot_bytes = await self._runtime.failures.guard(
                self._ready_trainer.step(job, event_timeout_s=self._settings.step_timeout_s)
            )
        except BaseException:
            with contextlib.suppress(ArtError):  # the step's error is what is told
                await self._release(packed.ref.batch_id, Outcome.DISCARDED)
            raise
        await self._release(packed.ref.batch_id, Outcome.CONSUMED)
        return completed, snapshot_bytes

    async def _release(self, batch_id: str, outcome: Outcome) -> None:
        assert self._packer is not None
        if self._packer.alive:
            deadline_s = self._runtime.topology.rpc_timeout_s
            await self._packer.call("release", batch_id, outcome, deadline_s=deadline_s)

    async def close(self, durability_s: float) -> list[Exception]:
        """Waits for durability and ends all parts; returns what failed."""
        failures: list[Exception] = []
        trainer = self._trainer
        if trainer is not None and trainer.handle.alive and self._version > self._resumed:
            try:
                await trainer.wait_sink(DURABILITY, self._version, durability_s)
            except ArtError as error:
                failures.append(error)
        return failures + await self.discard()

    async def discard(self) -> list[Exception]:
        """Ends all parts; returns what failed on the way."""
        results = await asyncio.gather(
            *(self._runtime.stop_actor(handle) for handle in self._actors), return_exceptions=True
        )
        self._records.close()
        return [result for result in results if isinstance(result, Exception)]


def _lost_records(error: BaseException) -> RecordsLostError | None:
    """What a packing worker said of lost records, also where the failure of another part was told first."""
    for each in (error, error.__cause__):
        known = data_plane_error(each) if isinstance(each, RemoteError) else None
        if isinstance(known, RecordsLostError):
            return known
    return None


async def _together[*Results](*work: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
    """Runs all; the first failure cancels the others, waits for them and is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return tuple(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
