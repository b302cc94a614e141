"""Hands snapshots to one sink in order and remembers what became of them."""

import asyncio
from collections import OrderedDict

from art_dataplane import LeaseError, Receipt, SnapshotLease, SnapshotSink
from art_trainer.errors import SinkError
from art_trainer.snapshots import PoolLease

_LOOK_S = 0.5  # how often a lease is looked at while its sink is at work
_RENEW_S = 30.0  # how often a lease that a sink keeps is renewed, at least
_CANCEL_S = 1.0  # for a sink to end that is cancelled
_REMEMBERED = 256  # finished versions whose receipts can still be asked for


class SinkLane:
    """One sink's queue: versions are submitted one after another, and their outcomes can be waited for.

    Invariants: a lease that is given to :meth:`submit` is released by the sink or, when the sink never got
    it, here; an error stays until somebody has seen it. A sink whose lease on a version ends before its
    receipt is cancelled, its receipt does not count, and the next version has its turn. A lease that the sink
    keeps after its receipt is renewed here until the sink releases it. Belongs to one event loop.
    """

    def __init__(self, name: str, sink: SnapshotSink) -> None:
        """Starts empty."""
        self.name = name
        self._sink = sink
        self._turn = asyncio.Lock()
        self._outcomes: OrderedDict[int, asyncio.Future[Receipt]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeping: set[asyncio.Task[None]] = set()
        self._unseen: dict[int, BaseException] = {}
        self._working: dict[int, PoolLease] = {}
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
        """Errors that nobody waited for, as ``NAME@VERSION`` to message; they stay unseen.

        A lease that ended is told at once, also before its sink is cancelled for it.
        """
        errors: dict[int, BaseException] = {}
        for version, lease in self._working.items():
            try:
                lease.check()
            except LeaseError as error:
                errors[version] = error
        errors |= self._unseen
        return {f"{self.name}@{version}": f"{type(e).__name__}: {e}" for version, e in errors.items()}

    def take_receipts(self) -> tuple[Receipt, ...]:
        """Receipts that came since the last call, in the order of versions."""
        receipts, self._untold = tuple(self._untold), []
        return receipts

    async def drain(self, deadline_s: float) -> bool:
        """Waits for everything submitted; cancels what is left at the deadline and returns False then.

        What the sink keeps is not renewed any more.
        """
        for keeping in self._keeping:
            keeping.cancel()
        if not self._tasks:
            return True
        _, pending = await asyncio.wait(set(self._tasks), timeout=deadline_s)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=2 * _CANCEL_S)
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
                if isinstance(lease, PoolLease):
                    lease.check()
                handed_over = True
                receipt = await self._receipt(lease)
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
            if isinstance(lease, PoolLease) and lease.is_held:
                keeping = asyncio.get_running_loop().create_task(_keep(lease))
                self._keeping.add(keeping)
                keeping.add_done_callback(self._keeping.discard)

    async def _receipt(self, lease: SnapshotLease) -> Receipt:
        """What the sink says of a snapshot.

        Raises:
            LeaseError: the lease ended before.
            Exception: the sink's own error.
        """
        if not isinstance(lease, PoolLease):
            return await self._sink.submit(lease)
        working = asyncio.ensure_future(self._sink.submit(lease))
        self._working[lease.manifest.version] = lease
        try:
            while not working.done():
                lease.check()
                await asyncio.wait({working}, timeout=min(_LOOK_S, lease.lease.duration_s / 4))
            receipt = working.result()
            lease.check()
            return receipt
        finally:
            if not working.done():
                working.cancel()
                working.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen
                await asyncio.wait({working}, timeout=_CANCEL_S)
            del self._working[lease.manifest.version]


async def _keep(lease: PoolLease) -> None:
    """Renews a lease until its sink releases it."""
    while lease.is_held:
        try:
            lease.renew()
        except LeaseError:
            return  # it ended between the two lines
        await asyncio.sleep(min(_RENEW_S, lease.lease.duration_s / 4))
