"""What a rank reports about a job, and the only order it may report it in.

A job's events are ``accepted, progress ..., snapshot_ready, progress ..., completed``, or end early with
``failed`` or ``cancelled``; a job that is refused is ``failed`` alone. After the last event nothing follows.
"""

from typing import Literal

import msgspec

from art_dataplane import Receipt, SnapshotManifest
from art_trainer.errors import EventOrderError

Stage = Literal["map", "forward_backward", "optimizer", "snapshot"]

FailureCode = Literal[
    "version_mismatch", "busy", "bad_batch", "snapshot_backpressure", "non_finite", "rank_broken", "internal"
]
"""Why a job failed. ``snapshot_backpressure``: no snapshot slot became free in time; ``non_finite``: the loss
or a gradient is infinite or not a number; ``rank_broken``: the optimizer step itself or its snapshot failed.
"""


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The rank is at the expected version and starts.

    Args:
        job_id: of the job.
        version: the policy version that the rank is at.
    """

    job_id: str
    version: int


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How far a stage is.

    Args:
        job_id: of the job.
        stage: what is being done.
        done: units that are done: rows for ``forward_backward``, the stage itself for the others.
        total: units in all.
    """

    job_id: str
    stage: Stage
    done: int
    total: int


class SnapshotReady(msgspec.Struct, frozen=True, tag="snapshot_ready"):
    """The trained adapter is immutable in the pool and has been handed to the sinks.

    Args:
        job_id: of the job.
        manifest: describes the adapter; its version is the one that the job results in.
    """

    job_id: str
    manifest: SnapshotManifest


class Completed(msgspec.Struct, frozen=True, tag="completed"):
    """The step is taken.

    Args:
        job_id: of the job.
        version: the policy version that the rank is at now.
        metrics: by name. Loss, gradient norm, ratio, clip fraction, advantage and learning rate are
            dimensionless; log-probs, entropy, KL estimates and ``sampler_difference_*`` (this forward pass
            against the sampler, for tokens of the version it started from) are in nats; the rest are counts.
        timings: seconds of each stage, by names such as ``forward_backward_s``.
        sink_errors: failures of sinks that nobody has waited for yet (``"name@version"`` to message).
        receipts: what sinks finished since the last completed job, usually of the version before.
    """

    job_id: str
    version: int
    metrics: dict[str, float]
    timings: dict[str, float]
    sink_errors: dict[str, str] = {}
    receipts: tuple[Receipt, ...] = ()


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The job ended without completing.

    Args:
        job_id: of the job.
        version: the policy version that the rank is at.
        code: why. Only with ``rank_broken`` are the weights in doubt; the rank then refuses every further job
            until a new run starts. Otherwise they are as they were.
        message: the error with its numbers.
        traceback: of the error, as text; empty when the job was refused.
    """

    job_id: str
    version: int
    code: FailureCode
    message: str
    traceback: str = ""


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """The job was cancelled before its optimizer step.

    Args:
        job_id: of the job.
        version: the policy version that the rank is still at.
    """

    job_id: str
    version: int


TrainerEvent = Accepted | Progress | SnapshotReady | Completed | Failed | Cancelled
"""What a rank says about a job, in the order that :class:`EventSequence` checks."""


class EventSequence:
    """Checks one job's events as they come; producer and consumer both use it.

    Args:
        job_id: of the job that all events must be of.
    """

    def __init__(self, job_id: str) -> None:
        """Starts before the first event of ``job_id``."""
        self._job_id = job_id
        self._state: Literal["start", "running", "trained", "done"] = "start"

    @property
    def done(self) -> bool:
        """Whether the last event has come."""
        return self._state == "done"

    def check(self, event: TrainerEvent) -> None:
        """Takes the next ``event``.

        Raises:
            EventOrderError: it belongs to another job or may not come now.
        """
        if event.job_id != self._job_id:
            raise EventOrderError(f"an event of job {event.job_id!r} came in the stream of {self._job_id!r}")
        allowed: dict[str, dict[type, str]] = {
            "start": {Accepted: "running", Failed: "done"},
            "running": {Progress: "running", SnapshotReady: "trained", Failed: "done", Cancelled: "done"},
            "trained": {Progress: "trained", Completed: "done", Failed: "done"},
            "done": {},
        }
        following = allowed[self._state].get(type(event))
        if following is None:
            raise EventOrderError(
                f"job {self._job_id!r}: {type(event).__name__} may not come in state {self._state!r}; "
                f"allowed are {', '.join(kind.__name__ for kind in allowed[self._state]) or 'none'}"
            )
        self._state = following  # type: ignore[assignment]
