"""Watches the parts that others depend on without holding a connection to them, such as a model service.

A rollout that talks to a dead server only sees a refused connection, and one that talks to a stalled server
sees nothing at all. Here the part itself is asked, so that the error names it and its cause.

Invariant: the first failure stays; from then on everything that is guarded ends with it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from art.distributed.errors import PartFailed
from art.distributed.handle import ActorHandle

type Check = Callable[[], Awaitable[str | None]]
"""Says in words what is wrong with a part, or None while it works. It must end by itself, within seconds."""

POLL_S = 1.0


class FailureWatch:
    """Owned by a runtime; belongs to one event loop."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        self._failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._round: asyncio.Task[None] | None = None
        self._polling: asyncio.Task[None] | None = None
        self._deaths: dict[str, asyncio.Task[None]] = {}
        self._advice: list[Callable[[], str]] = []

    @property
    def failure(self) -> str | None:
        """The first failure that was found."""
        return self._failure.result() if self._failure.done() else None

    def add(self, name: str, check: Check) -> None:
        """Begins to watch a part."""
        self._checks[name] = check
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll())

    def add_process(self, handle: ActorHandle) -> None:
        """Begins to watch a part's process: its death is the failure, as soon as it is seen."""
        self._deaths[handle.name] = asyncio.create_task(self._await_death(handle))

    def advise(self, advice: Callable[[], str]) -> None:
        """Takes what says, in a sentence, what to do when a part has failed; it is asked when one has."""
        self._advice.append(advice)

    def add_end(self, name: str, end: Callable[[], Awaitable[str]]) -> None:
        """Begins to watch a part whose ``end`` says in words how it ended: that is the failure."""

        async def wait() -> None:
            self._fail(await end())

        self._deaths[name] = asyncio.create_task(wait())

    async def _await_death(self, handle: ActorHandle) -> None:
        self._fail(str(await handle.wait_died()))

    def _fail(self, text: str) -> None:
        if not self._failure.done():
            advice = dict.fromkeys(one() for one in self._advice)
            self._failure.set_result(". ".join([text.rstrip("."), *advice]))

    def remove(self, name: str) -> None:
        """Ends the watch on a part, which is about to be stopped."""
        self._checks.pop(name, None)
        death = self._deaths.pop(name, None)
        if death is not None:
            death.cancel()

    async def _poll(self) -> None:
        while self.failure is None:
            await self.diagnose()
            await asyncio.sleep(POLL_S)

    async def diagnose(self) -> str | None:
        """Asks every part now; callers at the same time share one round of questions."""
        if self.failure is None:
            if self._round is None or self._round.done():
                self._round = asyncio.create_task(self._ask())
            await asyncio.shield(self._round)
        return self.failure

    async def _ask(self) -> None:
        names = list(self._checks)
        answers = await asyncio.gather(*(self._checks[name]() for name in names), return_exceptions=True)
        for name, answer in zip(names, answers, strict=True):
            if name not in self._checks or answer is None or self._failure.done():
                continue
            text = f"{name} cannot be asked: {answer}" if isinstance(answer, BaseException) else answer
            self._fail(text)

    async def guard[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits ``work``, or ends it as soon as a watched part fails.

        Raises:
            PartFailed: a part failed; when ``work`` raised as well, that is its cause.
        """
        task = asyncio.ensure_future(work)
        waited: set[asyncio.Future[Any]] = {task, self._failure}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise PartFailed(self._failure.result())
            try:
                return task.result()
            except Exception as error:
                failure = await self.diagnose()
                if failure is None:
                    raise
                raise PartFailed(failure) from error
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=1.0)

    def close(self) -> None:
        """Ends the watch."""
        for task in (self._polling, self._round, *self._deaths.values()):
            if task is not None:
                task.cancel()
        self._checks.clear()
        self._deaths.clear()
