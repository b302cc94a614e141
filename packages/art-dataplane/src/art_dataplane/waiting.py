"""Waiting for a condition with a deadline, on one event loop."""

import asyncio
import math
from collections.abc import Callable

from art_dataplane.errors import DeadlineError


def check_deadline(deadline_s: float) -> None:
    """Refuses what would be waited for without end.

    Raises:
        DeadlineError: it is not a finite number of at least 0.
    """
    if not deadline_s >= 0 or math.isinf(deadline_s):
        raise DeadlineError(f"a deadline of {deadline_s} s; give a finite number of seconds, at least 0")


def _nothing() -> None:
    return None


class Signal:
    """Wakes those who wait for a condition whenever it may have become true.

    What always holds: waiters are served in the order in which they came, so a large request is not overtaken
    for ever by small ones; a waiter that was cancelled, gave up or was served leaves nothing behind, and the
    one behind it looks next.
    """

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def notify(self) -> None:
        """Lets the first waiter look at its condition."""
        for waiter in self._waiters[:1]:
            _wake(waiter)

    def notify_all(self) -> None:
        """Lets the first waiter look at its condition, and every waiter whether it still has a chance."""
        for waiter in self._waiters:
            _wake(waiter)

    async def wait_until(
        self,
        condition: Callable[[], bool],
        deadline_s: float,
        *,
        check: Callable[[], None] = _nothing,
        next_look_s: Callable[[], float | None] = _nothing,
    ) -> bool:
        """Waits until it is this caller's turn and ``condition()`` is true.

        Between its return and the caller's next await nothing else runs, so what was true still is.

        Args:
            condition: looked at when notified; may change state (expire leases).
            deadline_s: seconds from now, not negative.
            check: raises when waiting is of no use any more; looked at first, and whether or not it is this
                caller's turn.
            next_look_s: after how many seconds to look again without being notified; None for never.

        Returns:
            False when the deadline passed first.

        Raises:
            DeadlineError: the deadline is not a number of at least 0.
        """
        check_deadline(deadline_s)
        check()
        if not self._waiters and condition():
            return True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        ticket = loop.create_future()
        self._waiters.append(ticket)
        try:
            while True:
                check()
                first = self._waiters[0] is ticket
                if first and condition():
                    return True
                left = deadline - loop.time()
                if left <= 0:
                    return False
                again = next_look_s() if first else None
                await asyncio.wait([ticket], timeout=left if again is None else min(left, again))
                if ticket.done():
                    fresh = loop.create_future()
                    self._waiters[self._waiters.index(ticket)] = fresh
                    ticket = fresh
        finally:
            self._waiters.remove(ticket)
            self.notify()


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
