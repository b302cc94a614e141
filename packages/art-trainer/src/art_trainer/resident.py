"""What a warm rank holds: the loaded model for its whole life, and the resources of one run at a time."""

import asyncio
import logging
import os
import time
from collections.abc import Mapping

import msgspec
import torch

from art_dataplane import Receipt, SnapshotManifest, SnapshotSink
from art_trainer import platform
from art_trainer.durability import DurabilitySink, GenerationStore
from art_trainer.environment import rank_environment
from art_trainer.model import TrainableModel
from art_trainer.models import describe_model, read_config
from art_trainer.optimizer import AdapterOptimizer
from art_trainer.preflight import check_machine
from art_trainer.sinks import SinkLane
from art_trainer.snapshots import SnapshotPool, SnapshotSlot
from art_trainer.specs import TrainerRuntimeSpec, TrainingRunSpec
from art_trainer.step import CancellationPoints

DURABILITY = "durability"
"""Name of the sink that the rank adds itself when the run has a ``generations_dir``."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_logger = logging.getLogger("art_trainer")


class LoadReport(msgspec.Struct, frozen=True):
    """What loading found and took.

    Args:
        base_parameters: parameters of the frozen model.
        trained_parameters: parameters of the adapter.
        estimated_bytes: the preflight's figure for the peak of the process's memory, in bytes.
        resident_bytes: most bytes that the process has had resident so far.
        duration_s: seconds that loading took.
    """

    base_parameters: int
    trained_parameters: int
    estimated_bytes: int
    resident_bytes: int
    duration_s: float


class Loaded:
    """What :meth:`art_trainer.rank.TrainerRank.load` makes; lives until the rank is closed."""

    def __init__(self, runtime: TrainerRuntimeSpec) -> None:
        started = time.monotonic()
        platform.reuse_freed_memory()
        _check_environment(runtime.threads)
        description = describe_model(read_config(runtime.model_path))
        estimate = check_machine(runtime, description)
        self.model = TrainableModel(description, _DTYPES[runtime.dtype], runtime.lora, runtime.model_path)
        self.optimizer = AdapterOptimizer(self.model.adapter, runtime.optimizer)
        self.cancellation = CancellationPoints(self.model)
        self.peft_config = self.model.adapter.peft_config(runtime.base_model_name or runtime.model_path)
        self.report = LoadReport(
            base_parameters=self.model.base_parameter_count,
            trained_parameters=self.model.adapter.parameter_count,
            estimated_bytes=estimate.total,
            resident_bytes=platform.peak_resident_bytes(),
            duration_s=time.monotonic() - started,
        )


class ActiveRun:
    """What :meth:`art_trainer.rank.TrainerRank.start_run` makes; lives until the next run or the end."""

    def __init__(
        self,
        spec: TrainingRunSpec,
        pool: SnapshotPool,
        store: GenerationStore | None,
        sinks: Mapping[str, SnapshotSink],
    ) -> None:
        self.spec = spec
        self.pool = pool
        self.store = store
        self.durability = DurabilitySink(store) if store is not None else None
        everyone = {**sinks, DURABILITY: self.durability} if self.durability is not None else dict(sinks)
        self.lanes = {name: SinkLane(name, sink) for name, sink in everyone.items()}
        self.durable_versions: set[int] = set()  # written or being written

    def submit(self, slot: SnapshotSlot) -> SnapshotManifest:
        """Hands a filled slot to every sink that does not have its version yet, and gives the slot back."""
        manifest = slot.snapshot.manifest
        for name, lane in self.lanes.items():
            if name == DURABILITY:
                if manifest.version in self.durable_versions:
                    continue
                self.durable_versions.add(manifest.version)
            lane.submit(slot.lease(name, self.spec.snapshot_lease_s))
        slot.release()
        return manifest

    def take_receipts(self) -> tuple[Receipt, ...]:
        """What the sinks finished since the last call."""
        return tuple(receipt for lane in self.lanes.values() for receipt in lane.take_receipts())

    def unseen_errors(self) -> dict[str, str]:
        """Errors of sinks that nobody has waited for, as ``NAME@VERSION`` to message."""
        return {key: text for lane in self.lanes.values() for key, text in lane.unseen_errors().items()}

    async def close(self, deadline_s: float) -> list[str]:
        """Drains the sinks, then frees everything; returns which sinks were cut off."""
        drained = await asyncio.gather(*(lane.drain(deadline_s) for lane in self.lanes.values()))
        cut_off = [name for name, done in zip(self.lanes, drained, strict=True) if not done]
        if self.durability is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.durability.close)
        if self.store is not None:
            self.store.close()
        self.pool.close()
        return cut_off


def _check_environment(threads: int) -> None:
    wanted = {name: value for name, value in rank_environment(threads).items() if name.startswith("OMP_")}
    missing = {name: value for name, value in wanted.items() if os.environ.get(name, "").upper() != value}
    if threads > 1 and missing:
        settings = " ".join(f"{name}={value}" for name, value in missing.items())
        _logger.warning(
            "start the rank's process with %s: steps are slower without on shared processors", settings
        )
