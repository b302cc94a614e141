"""One actor calling another directly, without the controller in between.

A reference is plain data: the controller takes it from an actor's handle and sends it to the actor that is to
call.
"""

import asyncio
import importlib
import itertools
import pickle
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from art.distributed.errors import ActorDied, ActorTimeout, RemoteError
from art.distributed.service import Call, Cancel, Raised, Reply, Value, encode, method_signature
from art_dataplane import arrays
from art_dataplane.errors import (
    DataPlaneError,
    DeadlineError,
    LeaseError,
    OwnerDiedError,
    RecordsLostError,
    RecordsMissingError,
)
from art_dataplane.leases import Lease
from art_dataplane.locations import Location
from art_dataplane.records import LostGroup, TrajectoryRef
from art_dataplane.store import StoreStats

if TYPE_CHECKING:
    from art.distributed.handle import ActorHandle


class PeerReference(msgspec.Struct, frozen=True, tag="peer"):
    """Names a living actor to others of the same run.

    Args:
        role: for errors, for example ``model service policy (pid 123)``.
        module: of the class of its service; the annotations there decode replies.
        qualname: of the class in its module.
        actor: Monarch's reference, pickled. Only ever sent between processes of one run.
    """

    role: str
    module: str
    qualname: str
    actor: bytes


class Peer:
    """Calls the methods of another actor's service; made from a reference in the calling process.

    Args:
        reference: names the actor.
        interface: whose annotations encode and decode calls; by default the service's own class, for which
            its module is imported here with all that it needs.
    """

    def __init__(self, reference: PeerReference, interface: type | None = None) -> None:
        self.role = reference.role
        self._cls: type = interface or _service_class(reference)
        self._actor: Any = pickle.loads(reference.actor)
        self._ids = itertools.count(secrets.randbits(62))

    async def call(self, method: str, *arguments: Any, deadline_s: float) -> Any:
        """Calls a method and returns its result, of the annotated type.

        Raises:
            RemoteError: the method raised.
            ActorDied: the process ended before the answer.
            ActorTimeout: no answer within ``deadline_s`` seconds; the call was cancelled there.
            ServiceError: no such method, or an argument cannot be sent.
        """
        signature = method_signature(self._cls, method)
        call = Call(next(self._ids), method, encode(list(arguments)))
        answer = self._actor.call.call_one(msgspec.msgpack.encode(call)).as_asyncio()
        try:
            data = await asyncio.wait_for(answer, deadline_s)
        except TimeoutError as error:
            self._cancel(call.call_id)
            raise ActorTimeout(f"{self.role} did not answer {method}() within {deadline_s:g} s") from error
        except asyncio.CancelledError:
            self._cancel(call.call_id)
            raise
        except Exception as error:
            raise ActorDied(self.role, str(error).strip().splitlines()[-1]) from error
        reply = msgspec.msgpack.decode(data, type=Reply)
        if isinstance(reply, Raised):
            raise RemoteError(self.role, method, reply.kind, reply.message, reply.traceback, reply.arguments)
        assert isinstance(reply, Value)
        return arrays.decode(reply.data, signature.result)

    def _cancel(self, call_id: int) -> None:
        answer = self._actor.cancel.call_one(msgspec.msgpack.encode(Cancel(call_id))).as_asyncio()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())


def _service_class(reference: PeerReference) -> type:
    cls: Any = importlib.import_module(reference.module)
    for part in reference.qualname.split("."):
        cls = getattr(cls, part)
    assert isinstance(cls, type)
    return cls


class PeerRecordOwner:
    """An :class:`art_dataplane.RecordOwner` in another process; it raises the data plane's own errors.

    The service there offers ``fetch``, ``drop`` and ``stats`` with the protocol's annotations.

    Args:
        peer: the way to the service.
        deadline_s: seconds that ``drop`` and ``stats``, which take no deadline, wait.
    """

    def __init__(self, peer: "Peer | ActorHandle", deadline_s: float) -> None:
        self._peer = peer
        self._deadline_s = deadline_s

    async def fetch(self, refs: Sequence[TrajectoryRef], lease: Lease, deadline_s: float) -> Location:
        """Where the records' MessagePack is; see :meth:`art_dataplane.RecordOwner.fetch`.

        Args:
            refs: of records held there.
            lease: the queue's, on all of them.
            deadline_s: seconds to wait for the answer.

        Raises:
            OwnerDiedError: the owner's process ended.
            RecordsMissingError: the owner does not hold some of the records; it names them.
            LeaseError: the owner has seen a higher fence for a record.
            DeadlineError: no answer in time.
            RemoteError: the owner raised another error; its type and text are there.
        """
        location: Location = await self._call(
            refs, "fetch", list(refs), lease, deadline_s, deadline_s=deadline_s
        )
        return location

    async def drop(self, refs: Sequence[TrajectoryRef]) -> int:
        """Forgets the records of ``refs`` there; returns how many were held.

        Raises:
            OwnerDiedError: the owner's process ended.
            DeadlineError: no answer in time.
            RemoteError: the owner raised another error.
        """
        count: int = await self._call(refs, "drop", list(refs), deadline_s=self._deadline_s)
        return count

    async def stats(self) -> StoreStats:
        """What is held there now.

        Raises:
            OwnerDiedError: the owner's process ended.
            DeadlineError: no answer in time.
            RemoteError: the owner raised another error.
        """
        stats: StoreStats = await self._call((), "stats", deadline_s=self._deadline_s)
        return stats

    async def _call(
        self, refs: Sequence[TrajectoryRef], method: str, *arguments: Any, deadline_s: float
    ) -> Any:
        try:
            return await self._peer.call(method, *arguments, deadline_s=deadline_s)
        except ActorDied as error:
            owner = refs[0].owner if refs else self._peer.role
            raise OwnerDiedError(owner, str(error)) from error
        except ActorTimeout as error:
            raise DeadlineError(str(error)) from error
        except RemoteError as error:
            known = data_plane_error(error)
            if known is None:
                raise
            raise known from error


def data_plane_error(error: RemoteError) -> DataPlaneError | None:
    """The error of the data plane that an actor raised, as it was there; None when it is none of those that
    say what became of records, leases and deadlines."""
    if error.kind == _kind(RecordsMissingError):
        return RecordsMissingError(*arrays.decode(error.arguments, tuple[str, tuple[str, ...], int]))
    if error.kind == _kind(RecordsLostError):
        return RecordsLostError(*arrays.decode(error.arguments, tuple[tuple[LostGroup, ...], int]))
    if error.kind == _kind(OwnerDiedError):
        return OwnerDiedError(*arrays.decode(error.arguments, tuple[str, str]))
    texts: tuple[type[DataPlaneError], ...] = (LeaseError, DeadlineError)
    for kind in texts:
        if error.kind == _kind(kind):
            return kind(f"{error.role}: {error.message}")
    return None


def _kind(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
