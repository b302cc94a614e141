"""The controller's side of an actor: calls with deadlines, and prompt news of its death.

Death is seen by pidfd where the process is on this machine, else through Monarch's supervision. Every call
in flight then ends with :class:`ActorDied`; so does every later one.
"""

import asyncio
import itertools
import os
import re
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from art.distributed import monarch_setup
from art.distributed.errors import ActorDied, ActorTimeout, RemoteError
from art.distributed.peer import PeerReference
from art.distributed.processes import (
    ProcessId,
    exit_cause,
    exit_status,
    machine_id,
    open_process,
    send_signal,
    wait_ended,
    zombie_status,
)
from art.distributed.service import (
    Call,
    Cancel,
    End,
    NextItem,
    Raised,
    Reply,
    Signature,
    Value,
    encode,
    method_signature,
)
from art_dataplane import ProcessIdentity, arrays

_CAUSE_WAIT_S = 2.0
_HOST_END_S = 0.25
_GRACE_S = 2.0


class ActorHandle:
    """One actor process. Made by :meth:`art.distributed.ArtRuntime.spawn_actor`.

    ``name`` is its role, ``host`` the index of the host it is on, ``pid`` and ``hostname`` say where it runs,
    and ``died`` is the :class:`ActorDied` once its process ended.
    """

    def __init__(
        self, name: str, monarch_name: str, cls: type, host: int, host_end: Callable[[], str | None]
    ) -> None:
        self.name = name
        self.host = host
        self.pid: int | None = None
        self.hostname = ""
        self.died: ActorDied | None = None
        self._cls = cls
        self._host_end = host_end
        self._monarch_name = monarch_name
        self._loop = asyncio.get_running_loop()
        self._death: asyncio.Future[None] = self._loop.create_future()
        self._reported: asyncio.Future[str] = self._loop.create_future()
        self._ids = itertools.count(secrets.randbits(62))  # other actors call it, too
        self._process: ProcessId | None = None
        self._pidfd: int | None = None
        self._actor: Any = None
        self._proc_mesh: Any = None
        self._stopping = False
        self._tasks: set[asyncio.Task[Any]] = set()
        monarch_setup.listen(monarch_name, self._on_fault)

    def __repr__(self) -> str:
        return f"<actor {self.role}{'' if self.died is None else f', {self.died.cause}'}>"

    @property
    def role(self) -> str:
        """The name with the process id: ``rollout worker 3 (pid 123)``."""
        return self.name if self.pid is None else f"{self.name} (pid {self.pid})"

    @property
    def alive(self) -> bool:
        """Whether no death has been seen."""
        return self.died is None

    @property
    def process(self) -> ProcessIdentity | None:
        """Its process, for whoever grants leases to it; None where it cannot be seen from here."""
        if self._process is None:
            return None
        here = ProcessIdentity.current()  # of the same machine and namespace, or it were not watched
        return ProcessIdentity(self._process.pid, self._process.start_ticks, here.namespace)

    def attach(self, actor: Any, proc_mesh: Any) -> None:
        """Gives the handle its Monarch ``actor`` and ``proc_mesh``. For the runtime."""
        self._actor, self._proc_mesh = actor, proc_mesh

    def peer_reference(self) -> PeerReference:
        """The way to this actor for others of the same run (:class:`art.distributed.peer.Peer`)."""
        import cloudpickle  # type: ignore[import-untyped]

        return PeerReference(
            self.role, self._cls.__module__, self._cls.__qualname__, cloudpickle.dumps(self._actor)
        )

    async def started(self, reference: bytes, deadline_s: float) -> None:
        """Starts the service and begins to watch its process. For the runtime.

        Args:
            reference: the service's class and arguments, encoded.
            deadline_s: seconds until its object is made.

        Raises:
            RemoteError: the import or the constructor raised.
            ActorDied: the process ended.
            ActorTimeout: it was not started in time.
        """
        from art.distributed.actor import Greeting

        data = await self._ask(self._actor.start, reference, "start", deadline_s)
        greeting = msgspec.msgpack.decode(data, type=Greeting)
        if isinstance(greeting, Raised):
            raise self._remote_error("start", greeting)
        self.pid, self.hostname = greeting.pid, greeting.hostname
        if greeting.machine == machine_id():
            self._watch(ProcessId(greeting.pid, greeting.start_ticks))

    def _watch(self, process: ProcessId) -> None:
        self._process = process
        self._pidfd = open_process(process)
        if self._pidfd is None:
            self._spawn(self._process_ended(process, None))
        else:
            self._loop.add_reader(self._pidfd, self._on_pidfd, process)

    def _on_pidfd(self, process: ProcessId) -> None:
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        self._spawn(self._process_ended(process, self._pidfd))

    async def _process_ended(self, process: ProcessId, pidfd: int | None) -> None:
        """Finds the cause: the end of its host's worker, the kernel's word, or Monarch's, its parent.

        A worker that is killed takes its actors along, and they may be gone before it is: what was killed is
        told of only when its worker has had time to be seen ending.
        """
        began = self._loop.time()
        while self._loop.time() < began + _CAUSE_WAIT_S:
            host_end = self._host_end()
            if host_end is not None:
                return self._die(f"the worker process of its host {host_end}")
            if self._loop.time() < began + _HOST_END_S:
                await asyncio.sleep(0.02)
                continue
            status = zombie_status(process)
            if status is None and pidfd is not None:
                status = exit_status(pidfd)
            if status is not None:
                return self._die(exit_cause(status))
            if self._reported.done():
                return self._die(_cause_in(self._reported.result()))
            await asyncio.sleep(0.02)
        return self._die("its process ended (the cause was not reported)")

    def _on_fault(self, report: str) -> None:
        self._loop.call_soon_threadsafe(self._fault_reported, report)

    def _fault_reported(self, report: str) -> None:
        if not self._reported.done():
            self._reported.set_result(report)
        if self._pidfd is None and not self._stopping:
            self._die(_cause_in(report))

    def _die(self, cause: str) -> None:
        if self.died is None:
            self.died = ActorDied(self.role, cause)
            if not self._death.done():
                self._death.set_result(None)

    def _spawn(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_died(self) -> ActorDied:
        """Waits until the process has ended and returns why. For supervision; cancel it to stop waiting."""
        await asyncio.shield(self._death)
        assert self.died is not None
        return self.died

    async def call(self, method: str, *arguments: Any, deadline_s: float) -> Any:
        """Calls a method of the service and returns its result, of the annotated type.

        Args:
            method: its name.
            arguments: messages, in the order of its parameters.
            deadline_s: how long to wait, in seconds; then the call is cancelled there too.

        Raises:
            RemoteError: the method raised.
            ActorDied: the process ended before the answer.
            ActorTimeout: no answer in time.
            ServiceError: no such method, or an argument cannot be sent.
        """
        signature = method_signature(self._cls, method)
        call = Call(next(self._ids), method, encode(list(arguments)))
        reply = await self._cancellable(self._actor.call, call, call.call_id, method, deadline_s)
        return self._value(reply, signature, method)

    async def stream(self, method: str, *arguments: Any, deadline_s: float) -> AsyncIterator[Any]:
        """Iterates over what an async generator of the service yields. Leaving the loop early closes it
        there.

        Args:
            method: its name.
            arguments: messages, in the order of its parameters.
            deadline_s: how long to wait for each item, in seconds.

        Raises:
            RemoteError: the generator raised.
            ActorDied: the process ended.
            ActorTimeout: an item did not come in time.
            ServiceError: no such method, or an argument cannot be sent.
        """
        signature = method_signature(self._cls, method)
        call = Call(next(self._ids), method, encode(list(arguments)))
        reply = await self._cancellable(self._actor.call, call, call.call_id, method, deadline_s)
        self._raise_for(reply, method)
        over = False
        try:
            while True:
                request = NextItem(call.call_id)
                reply = await self._cancellable(
                    self._actor.next_item, request, call.call_id, method, deadline_s
                )
                over = not isinstance(reply, Value)
                if isinstance(reply, End):
                    return
                yield self._value(reply, signature, method)
        finally:
            if not over and self.died is None:
                self._cancel_there(call.call_id)

    def _value(self, reply: Reply, signature: Signature, method: str) -> Any:
        self._raise_for(reply, method)
        assert isinstance(reply, Value)
        return arrays.decode(reply.data, signature.result)

    def _raise_for(self, reply: Reply, method: str) -> None:
        if isinstance(reply, Raised):
            raise self._remote_error(method, reply)

    def _remote_error(self, method: str, reply: Raised) -> RemoteError:
        return RemoteError(self.role, method, reply.kind, reply.message, reply.traceback, reply.arguments)

    async def _cancellable(
        self, endpoint: Any, message: msgspec.Struct, call_id: int, method: str, deadline_s: float
    ) -> Reply:
        try:
            data = await self._ask(endpoint, msgspec.msgpack.encode(message), method, deadline_s)
        except (ActorTimeout, asyncio.CancelledError):
            self._cancel_there(call_id)
            raise
        return msgspec.msgpack.decode(data, type=Reply)

    def _cancel_there(self, call_id: int) -> None:
        if self.died is None:
            message = msgspec.msgpack.encode(Cancel(call_id))
            answer = self._actor.cancel.call_one(message).as_asyncio()
            answer.add_done_callback(_retrieve)

    async def _ask(self, endpoint: Any, message: bytes, what: str, deadline_s: float) -> bytes:
        """One round trip: the answer, or the death of the process, or the deadline, whichever is first."""
        if self.died is not None:
            raise self.died
        answer = endpoint.call_one(message).as_asyncio()
        answer.add_done_callback(_retrieve)
        try:
            await asyncio.wait({answer, self._death}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not answer.done():
                answer.cancel()
        if answer.done() and not answer.cancelled():
            error = answer.exception()
            if error is None:
                return bytes(answer.result())
            raise await self._died_by(error) from error
        if self.died is not None:
            raise self.died
        raise ActorTimeout(f"{self.role} did not answer {what}() within {deadline_s:g} s")

    async def _died_by(self, error: BaseException) -> ActorDied:
        """The death behind a failed call: what the watch on the process says, if it comes soon."""
        if self._pidfd is not None:
            await asyncio.wait({self._death}, timeout=_CAUSE_WAIT_S + 0.5)
        if self.died is None:
            self._die(_cause_in(str(error)))
        assert self.died is not None
        return self.died

    async def stop(self, deadline_s: float = 10.0) -> None:
        """Closes the service and ends the process. A second call does nothing.

        Args:
            deadline_s: seconds for the service's ``close``; the process is killed after that.

        Raises:
            ActorDied: the process ended while its service was being closed.
            RemoteError: the service's ``close`` raised; the process has ended all the same.
            ActorTimeout: it did not close in time; the process is ended, too.
        """
        if self._stopping:
            return
        self._stopping = True
        try:
            if self.died is None and self.pid is not None:
                data = await self._ask(self._actor.close, b"", "close", max(deadline_s - _GRACE_S, 0.1))
                self._raise_for(msgspec.msgpack.decode(data, type=Reply), "close")
        finally:
            await self._end_process()

    async def _end_process(self) -> None:
        monarch_setup.forget(self._monarch_name)
        if self._proc_mesh is not None and self.died is None:
            stopped = self._proc_mesh.stop().as_asyncio()
            stopped.add_done_callback(_retrieve)
            await asyncio.wait({stopped}, timeout=_GRACE_S)
        if self._process is not None and self._process.alive():
            send_signal(self._process, signal.SIGKILL)
            await asyncio.to_thread(wait_ended, [self._process], _GRACE_S)
        self.release("stopped")

    async def discard(self) -> None:
        """Ends the process of an actor that did not start. For the runtime."""
        self._stopping = True
        await self._end_process()

    def release(self, cause: str) -> None:
        """Marks the actor as ended by ``cause`` and gives back what the watch holds. For the runtime."""
        self._stopping = True
        monarch_setup.forget(self._monarch_name)
        self._die(cause)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None


def _retrieve(future: "asyncio.Future[Any]") -> None:
    """Marks an abandoned answer's exception as seen."""
    if not future.cancelled():
        future.exception()


def _cause_in(report: str) -> str:
    """The cause in Monarch's report: its signal or exit code in our words, else its last line."""
    killed = re.search(r"Killed\(sig=(\d+)\)", report)
    if killed:
        return exit_cause(int(killed.group(1)))
    stopped = re.search(r"Stopped\(exit_code=(\d+)\)|exit(?:ed)?[ _]code[ =:]*(\d+)", report)
    if stopped:
        return exit_cause(int(stopped.group(1) or stopped.group(2)) << 8)
    return report.strip().splitlines()[-1].strip() if report.strip() else "unknown"
