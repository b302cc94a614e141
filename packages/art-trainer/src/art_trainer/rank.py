"""One warm trainer rank: load once, then runs, then jobs."""

from collections.abc import AsyncIterator, Mapping

import msgspec
from art_dataplane.batch import BatchMapper
from art_dataplane.snapshot import Receipt, SnapshotManifest, SnapshotSink

from art_trainer.events import TrainerEvent
from art_trainer.specs import TrainerRuntimeSpec, TrainingRunSpec, TrainJob

DURABILITY = "durability"
"""Name of the sink that the rank adds itself when the run has a ``generations_dir``."""


class LoadReport(msgspec.Struct, frozen=True):
    """What loading found: counts of parameters, bytes and seconds."""

    base_parameters: int
    trained_parameters: int
    resident_bytes: int
    duration_s: float


class TrainerRank:
    """Owns the model, the adapter, the optimizer, the snapshot pool and one compute thread; a ``RankChannel``.

    Order of use: ``load`` once, ``start_run`` (again for each run), then jobs, then ``close``.
    """

    def __init__(self, runtime: TrainerRuntimeSpec, *, mapper: BatchMapper, sinks: Mapping[str, SnapshotSink]) -> None:
        """Keeps the arguments; nothing is allocated before :meth:`load`."""
        raise NotImplementedError

    @property
    def version(self) -> int:
        """The policy version of the weights in memory."""
        raise NotImplementedError

    async def load(self, deadline_s: float) -> LoadReport:
        """Preflight, then the model and its weights; seconds."""
        raise NotImplementedError

    async def start_run(self, run: TrainingRunSpec, deadline_s: float) -> int:
        """Fresh or resumed adapter and optimizer, swept stages; returns the version it starts at."""
        raise NotImplementedError

    async def publish_current(self, deadline_s: float) -> SnapshotManifest:
        """Snapshots the weights as they are (version 0 at first) and submits them to the given sinks."""
        raise NotImplementedError

    def run(self, job: TrainJob) -> AsyncIterator[TrainerEvent]:
        """Runs one job; see :class:`art_trainer.channel.RankChannel`."""
        raise NotImplementedError

    def cancel(self, job_id: str) -> bool:
        """Asks the running job to stop before its optimizer step."""
        raise NotImplementedError

    async def wait_sink(self, name: str, version: int, deadline_s: float) -> Receipt:
        """Waits until sink ``name`` is done with ``version``; raises the sink's error."""
        raise NotImplementedError

    async def close(self, deadline_s: float) -> None:
        """Stops the job in progress, drains sinks within the deadline, frees shared memory and the thread."""
        raise NotImplementedError
