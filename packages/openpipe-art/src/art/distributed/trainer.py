"""A warm trainer rank as an actor, and the controller's end of it.

The rank's process owns the model, the optimizer and the snapshot segments. It publishes to a model service
directly; the controller sees references and events only.
"""

import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from art.distributed.errors import RuntimeFailure
from art.distributed.handle import ActorHandle
from art.distributed.peer import Peer, PeerReference
from art_dataplane.batch import ShmBatchMapper
from art_dataplane.snapshot import Receipt, SnapshotLease, SnapshotManifest
from art_serving import ActivationReport
from art_trainer.events import Completed, SnapshotReady, TrainerEvent
from art_trainer.specs import RlTrainJob, TrainerRuntimeSpec, TrainingRunSpec

DURABILITY = "durability"
"""Name of the rank's own sink: ``art_trainer.rank.DURABILITY``, whose module would bring torch here."""

PUBLISH = "publish"
"""Name of the sink that hands snapshots to the model service."""


class LoadedModel(msgspec.Struct, frozen=True):
    """What a rank loaded.

    Args:
        base_parameters: parameters of the frozen model.
        trained_parameters: parameters of the adapter.
        resident_bytes: most bytes that the process has had resident so far.
        duration_s: seconds that loading took.
    """

    base_parameters: int
    trained_parameters: int
    resident_bytes: int
    duration_s: float


class PublicationSink:
    """Activates snapshots in one model service.

    It holds the lease of the last version that became active, since a restarted member is given that version
    again.
    """

    def __init__(self) -> None:
        self._service: Peer | None = None
        self._deadline_s = 60.0
        self._active: SnapshotLease | None = None
        self.report: ActivationReport | None = None

    def connect(self, service: Peer, deadline_s: float) -> None:
        """Names the service; each activation may take ``deadline_s`` seconds."""
        self._service = service
        self._deadline_s = deadline_s

    async def submit(self, lease: SnapshotLease) -> Receipt:
        """Activates the snapshot.

        Raises:
            RuntimeFailure: no service is connected, or the service refused, died or did not answer in time.
        """
        begun = time.monotonic()
        try:
            if self._service is None:
                raise RuntimeFailure("the trainer publishes, but no model service is connected")
            report: ActivationReport = await self._service.call(
                "activate", lease.manifest, self._deadline_s, deadline_s=self._deadline_s + 5.0
            )
        except BaseException:
            lease.release()
            raise
        previous, self._active, self.report = self._active, lease, report
        if previous is not None:
            previous.release()
        detail = f"active, engine stood for {report.pause_ms:.1f} ms"
        return Receipt(PUBLISH, report.version, detail, time.monotonic() - begun)

    def close(self) -> None:
        """Releases the held lease."""
        if self._active is not None:
            self._active.release()
            self._active = None


class TrainerService:
    """A service (see :mod:`art.distributed.service`): one rank of one trainer."""

    def __init__(self, spec: TrainerRuntimeSpec) -> None:
        # torch warns that a CUDA toolkit without a device is of no use, which a rank on a CPU knows.
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
        from art_trainer.rank import TrainerRank

        self._sink = PublicationSink()
        self._rank = TrainerRank(spec, mapper=ShmBatchMapper(), sinks={PUBLISH: self._sink})

    async def load(self, deadline_s: float) -> LoadedModel:
        """Loads the model; see :meth:`art_trainer.rank.TrainerRank.load`."""
        return msgspec.convert(await self._rank.load(deadline_s), LoadedModel, from_attributes=True)

    async def start_run(self, run: TrainingRunSpec, deadline_s: float) -> int:
        """Starts a run; see :meth:`art_trainer.rank.TrainerRank.start_run`."""
        return await self._rank.start_run(run, deadline_s)

    async def connect(self, service: PeerReference, activation_deadline_s: float) -> None:
        """Names the model service that snapshots are published to."""
        self._sink.connect(Peer(service), activation_deadline_s)

    async def publish_current(self, deadline_s: float) -> SnapshotManifest:
        """Publishes the weights as they are; see :meth:`art_trainer.rank.TrainerRank.publish_current`."""
        return await self._rank.publish_current(deadline_s)

    async def run(self, job: RlTrainJob) -> AsyncIterator[TrainerEvent]:
        """Runs one job; see :class:`art_trainer.channel.RankChannel`."""
        async for event in self._rank.run(job):
            yield event

    async def wait_sink(self, name: str, version: int, deadline_s: float) -> Receipt:
        """Waits for a sink; see :meth:`art_trainer.rank.TrainerRank.wait_sink`."""
        return await self._rank.wait_sink(name, version, deadline_s)

    async def wait_published(self, version: int, deadline_s: float) -> ActivationReport:
        """Waits until a version is active and returns how that went."""
        await self._rank.wait_sink(PUBLISH, version, deadline_s)
        if self._sink.report is None or self._sink.report.version != version:
            raise RuntimeFailure(f"version {version} is not the one that was activated last")
        return self._sink.report

    async def close(self) -> None:
        """Drains the sinks and frees the rank."""
        self._sink.close()
        await self._rank.close(5.0)


class MegatronTrainer:
    """The controller's end of a warm trainer. Made by :meth:`art.distributed.ArtRuntime.start_trainer`.

    ``handle`` is the actor that holds the rank. Every method raises :class:`art.distributed.RuntimeFailure`
    when the rank refuses, dies or is too slow.
    """

    def __init__(self, handle: ActorHandle, rpc_timeout_s: float) -> None:
        self.handle = handle
        self._rpc_timeout_s = rpc_timeout_s

    async def load(self, deadline_s: float) -> LoadedModel:
        """Loads the model and its weights.

        Raises:
            RuntimeFailure: the rank refused, died, or took more than ``deadline_s`` seconds.
        """
        report: LoadedModel = await self._call("load", deadline_s)
        return report

    async def start_run(self, run: TrainingRunSpec, deadline_s: float) -> int:
        """Starts ``run``, fresh or resumed, and returns the policy version it is at.

        Raises:
            RuntimeFailure: the rank refused, died, or took more than ``deadline_s`` seconds.
        """
        version: int = await self._call("start_run", deadline_s, run)
        return version

    async def connect(self, service: PeerReference, activation_deadline_s: float) -> None:
        """Names the model service that the rank publishes to.

        Args:
            service: the way to the model service.
            activation_deadline_s: seconds that each activation may take.

        Raises:
            RuntimeFailure: the rank died or does not answer.
        """
        await self.handle.call("connect", service, activation_deadline_s, deadline_s=self._rpc_timeout_s)

    async def publish_current(self, deadline_s: float) -> SnapshotManifest:
        """Publishes the weights as they are, and returns what describes them.

        Raises:
            RuntimeFailure: the rank refused, died, or took more than ``deadline_s`` seconds.
        """
        manifest: SnapshotManifest = await self._call("publish_current", deadline_s)
        return manifest

    async def run(self, job: RlTrainJob, *, event_timeout_s: float) -> AsyncIterator[TrainerEvent]:
        """Runs ``job`` and yields its events.

        Args:
            job: one optimizer step.
            event_timeout_s: seconds within which each event must come after the one before.

        Raises:
            RuntimeFailure: the rank died, or an event did not come in time.
        """
        async for event in self.handle.stream("run", job, deadline_s=event_timeout_s):
            yield event

    async def step(self, job: RlTrainJob, *, event_timeout_s: float) -> tuple[Completed, int]:
        """Runs ``job`` to its end; returns its last event and the bytes of the snapshot that it made.

        Args:
            job: one optimizer step.
            event_timeout_s: seconds within which each event must come after the one before.

        Raises:
            RuntimeFailure: the job failed or was cancelled, with the rank's reason.
        """
        last: TrainerEvent | None = None
        snapshot_bytes = 0
        async for event in self.run(job, event_timeout_s=event_timeout_s):
            last = event
            if isinstance(event, SnapshotReady):
                snapshot_bytes = event.manifest.byte_count
        if isinstance(last, Completed):
            return last, snapshot_bytes
        reason = getattr(last, "message", "it was cancelled" if last is not None else "it sent no event")
        raise RuntimeFailure(f"{self.handle.role}: job {job.job_id} did not complete: {reason}")

    async def wait_sink(self, name: str, version: int, deadline_s: float) -> Receipt:
        """Waits until a sink is done with a version.

        Args:
            name: of the sink.
            version: the policy version.
            deadline_s: seconds to wait.

        Raises:
            RuntimeFailure: the sink failed, with its cause, or did not end in time.
        """
        receipt: Receipt = await self._call("wait_sink", deadline_s, name, version)
        return receipt

    async def wait_published(self, version: int, deadline_s: float) -> ActivationReport:
        """Waits up to ``deadline_s`` seconds until the model service runs ``version``; returns how that went.

        Raises:
            RuntimeFailure: it could not be activated, with the cause, or not in time.
        """
        report: ActivationReport = await self._call("wait_published", deadline_s, version)
        return report

    async def _call(self, method: str, deadline_s: float, *arguments: Any) -> Any:
        """A call whose deadline is enforced by the rank, and a little later here."""
        return await self.handle.call(
            method, *arguments, deadline_s, deadline_s=deadline_s + self._rpc_timeout_s
        )
