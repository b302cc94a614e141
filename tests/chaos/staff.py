"""The processes of a chaos session: who starts, stops, kills and replaces them.

A slot has one process after the other, each with a name of its own, so that what is said of one is never
about the next.
"""

import asyncio
import itertools
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from chaos.limits import COUNTS, LEASE_S
from chaos.wire import Peer

from art_dataplane import ProcessIdentity, decode_json

START_S = 30.0
STOP_S = 10.0
MEAN_PAUSE_S = 0.6
HOWS = ("kill", "stop")
LOG_CHARACTERS = 2000


class Tasks:
    """What runs in the background; the error of each is told."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts ``work``."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def end(self, within_s: float) -> list[str]:
        """Waits for all; says which did not end."""
        if not self._tasks:
            return []
        _, running = await asyncio.wait(self._tasks, timeout=within_s)
        return [f"{task} did not end" for task in running]

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report(f"the session failed: {error!r} {''.join(getattr(error, '__notes__', ()))}")


class Worker:
    """One process."""

    def __init__(
        self, role: str, peer: Peer, process: asyncio.subprocess.Process, identity: ProcessIdentity, log: Path
    ) -> None:
        self.role = role
        self.peer = peer
        self.process = process
        self.identity = identity
        self.is_stopped = False
        self.killed_at: float | None = None
        self._log = log

    @property
    def name(self) -> str:
        return self.peer.name

    @property
    def last_words(self) -> str:
        return self._log.read_text()[-LOG_CHARACTERS:]


class Staff:
    """All processes of a session.

    Args:
        folder: for their sockets and logs.
        arguments: of a worker, behind its role, name and folder.
        bury: told of each that has died, with its status, before the next one takes its place.
        report: told of what must not be.
        tasks: where the work goes.
    """

    def __init__(
        self,
        folder: Path,
        arguments: tuple[str, ...],
        bury: Callable[[Worker, int], None],
        report: Callable[[str], None],
        tasks: Tasks,
    ) -> None:
        self.stops = dict.fromkeys(COUNTS, 0)
        self._folder = folder
        self._arguments = arguments
        self._bury = bury
        self._report = report
        self._tasks = tasks
        self._slots: dict[tuple[str, int], Worker | None] = {}
        self._numbers = itertools.count()
        self._is_leaving = False

    async def start(self) -> None:
        """Starts one process in every slot."""
        async with asyncio.TaskGroup() as starting:
            for role, count in COUNTS.items():
                for index in range(count):
                    starting.create_task(self._spawn((role, index)))

    @property
    def are_all_there(self) -> bool:
        """Whether every slot has a process that was not killed."""
        return all(worker is not None and worker.killed_at is None for worker in self._slots.values())

    def at(self, role: str, index: int) -> Worker | None:
        """Who is in a slot; nobody, when it was killed."""
        worker = self._slots[role, index]
        return worker if worker is not None and worker.killed_at is None else None

    def living(self, *roles: str) -> list[Worker]:
        """Those of ``roles`` that were not killed, of all roles when none is named."""
        workers = (self.at(role, index) for role, index in self._slots if not roles or role in roles)
        return [worker for worker in workers if worker is not None]

    async def harass(self, rng: random.Random, is_enough: Callable[[], bool]) -> None:
        """Kills and stops at random moments: first each role once, then whom it hits.

        Args:
            rng: says who, how and when.
            is_enough: looked at before each time, when every role had its turn.
        """
        plan = [*itertools.product(HOWS, COUNTS)]
        rng.shuffle(plan)
        while plan or not is_enough():
            await asyncio.sleep(rng.expovariate(1 / MEAN_PAUSE_S))
            how, role = plan[-1] if plan else rng.choice([*itertools.product(HOWS, COUNTS)])
            targets = [each for each in self.living(role) if not each.is_stopped]
            if not targets:
                continue
            if plan:
                plan.pop()
            worker = rng.choice(targets)
            if how == "kill":
                worker.killed_at = time.monotonic()
                worker.process.send_signal(signal.SIGKILL)
            else:
                self._tasks.begin(self._stop(worker, rng.uniform(0.5, 2.5) * LEASE_S))

    async def leave(self) -> list[str]:
        """Has all end in order; says who did not."""
        self._is_leaving = True
        workers = self.living()
        for worker in workers:
            assert worker.process.stdin is not None
            worker.process.stdin.close()
        ends = [asyncio.ensure_future(worker.process.wait()) for worker in workers]
        await asyncio.wait(ends, timeout=STOP_S)
        late = [worker for worker in workers if worker.process.returncode is None]
        for worker in late:
            worker.process.kill()
        return [f"{worker.name} did not end within {STOP_S} s" for worker in late]

    async def _spawn(self, slot: tuple[str, int]) -> None:
        role, index = slot
        name = f"{role}-{index}.{next(self._numbers)}"
        path = self._folder / f"{name}.log"
        with path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "chaos.worker", role, name, str(self._folder), *self._arguments,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), START_S)
        if not line:
            raise RuntimeError(f"{name} did not start: {path.read_text()}")
        identity = decode_json(line, ProcessIdentity)
        worker = Worker(role, Peer(self._folder, name), process, identity, path)
        self._slots[slot] = worker
        self._tasks.begin(self._attend(slot, worker))

    async def _attend(self, slot: tuple[str, int], worker: Worker) -> None:
        """Waits for the end of a worker, and starts the next one."""
        status = await worker.process.wait()
        if self._is_leaving:
            if status != 0:
                self._report(f"{worker.name} ended with status {status}: {worker.last_words}")
            return
        self._slots[slot] = None
        if worker.killed_at is None:
            self._report(f"{worker.name} ended by itself with {status}: {worker.last_words}")
        self._bury(worker, status)
        await self._spawn(slot)

    async def _stop(self, worker: Worker, seconds: float) -> None:
        worker.is_stopped = True
        self.stops[worker.role] += 1
        worker.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        worker.is_stopped = False
        if worker.process.returncode is None:
            worker.process.send_signal(signal.SIGCONT)
