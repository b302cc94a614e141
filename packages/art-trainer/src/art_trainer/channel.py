"""How a controller talks to one warm rank, whatever carries the messages."""

from collections.abc import AsyncIterator
from typing import Protocol

from art_trainer.events import TrainerEvent
from art_trainer.specs import TrainJob


class RankChannel(Protocol):
    """One warm rank. :class:`art_trainer.rank.TrainerRank` is one in this process; actors make others."""

    def run(self, job: TrainJob) -> AsyncIterator[TrainerEvent]:
        """Runs ``job`` and yields its events in the order that :class:`art_trainer.EventSequence` checks.

        One job runs at a time. What goes wrong with it is its last event (:class:`art_trainer.Failed`).
        Closing the iterator early cancels the job; the close returns when the compute has stopped.
        """
        ...

    def cancel(self, job_id: str) -> bool:
        """Asks the running job to stop before its optimizer step; False when ``job_id`` is not running."""
        ...

    async def close(self, deadline_s: float) -> None:
        """Stops the rank and frees what it holds within ``deadline_s`` seconds; may be called again."""
        ...
