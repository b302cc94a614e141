"""Hands snapshots to one sink in order and remembers what became of them."""

import asyncio
from collections import OrderedDict

from art_dataplane import Receipt, SnapshotLease, SnapshotSink
from art_trainer.errors import SinkError

_REMEMBERED = 256  # finished versions whose receipts can still be asked for


class SinkLane:
    """One sink's queue: versions are submitted one after another, and their outcomes can be waited for.

    Invariants: a lease that is given to :meth:`submit` is released by the sink or, when the sink never got
    it, here; an error stays until somebody has seen it. Belongs to one event loop.
    """

    def __init__(self, name: str, sink: SnapshotSink) -> None:
        """Starts empty."""
        self.name = name
        self._sink = sink
        self._turn = asyncio.Lock()
        self._outcomes: OrderedDict[int, asyncio.Future[Receipt]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unseen: dict[int, BaseException] = {}
        self._untold: list[Receipt] = []

    def submit(self, lease: SnapshotLease) -> None:
        """Queues a snapshot and returns at once; owns the lease from here on."""
        version = lease.manifest.version
        outcome = self._outcome(version)
        if outcome.done():  # the version is submitted again: later waiters see the new outcome
            del self._outcomes[version]
            outcome = self._outcome(version)
        task = asyncio.get_running_loop().create_task(self._deliver(lease, outcome))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self, version: int, deadline_s: float) -> Receipt:
        """Waits until the sink is done with ``version``, which may not have been submitted yet.

        Raises:
            SinkError: it is not done within ``deadline_s`` seconds.
            Exception: the sink's own error.
        """
        outcome = self._outcome(version)
        await asyncio.wait([outcome], timeout=deadline_s)
        if not outcome.done():
            raise SinkError(f"sink {self.name!r} is not done with version {version} after {deadline_s} s")
        self._unseen.pop(version, None)
        return outcome.result()

    def unseen_errors(self) -> dict[str, str]:
        """Errors that nobody waited for, as ``NAME@VERSION`` to message; they stay unseen."""
        return {f"{self.name}@{version}": f"{type(e).__name__}: {e}" for version, e in self._unseen.items()}

    def take_receipts(self) -> tuple[Receipt, ...]:
        """Receipts that came since the last call, in the order of versions."""
        receipts, self._untold = tuple(self._untold), []
        return receipts

    async def drain(self, deadline_s: float) -> bool:
        """Waits for everything submitted; cancels what is left at the deadline and returns False then."""
        if not self._tasks:
            return True
        _, pending = await asyncio.wait(set(self._tasks), timeout=deadline_s)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=1.0)
        return not pending

    def _outcome(self, version: int) -> asyncio.Future[Receipt]:
        if version not in self._outcomes:
            self._outcomes[version] = asyncio.get_running_loop().create_future()
            finished = [known for known, outcome in self._outcomes.items() if outcome.done()]
            for known in finished[: max(0, len(finished) - _REMEMBERED)]:
                del self._outcomes[known]
        return self._outcomes[version]

    async def _deliver(self, lease: SnapshotLease, outcome: asyncio.Future[Receipt]) -> None:
        version, handed_over = lease.manifest.version, False
        try:
            async with self._turn:
                handed_over = True
                receipt = await self._sink.submit(lease)
            if receipt.version != version:
                raise SinkError(
                    f"sink {self.name!r} was given version {version} and returned "
                    f"a receipt for {receipt.version}"
                )
        except BaseException as error:
            if not handed_over:
                lease.release()
            self._unseen[version] = error
            outcome.set_exception(
                SinkError(f"sink {self.name!r} was stopped before it was done with version {version}")
                if isinstance(error, asyncio.CancelledError)
                else error
            )
            outcome.exception()  # retrieved: the lane reports it, not the garbage collector
            if not isinstance(error, Exception):
                raise
        else:
            self._untold.append(receipt)
            outcome.set_result(receipt)
