"""The records of one run: who keeps them, and how they are reached.

What a rollout worker recorded stays with it. What was made in this process, a trajectory that the user built
or changed, is kept here, under the name :data:`CONTROLLER`.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterable

from art.distributed.errors import ActorDied, RuntimeFailure
from art.distributed.handle import ActorHandle
from art.distributed.packing import OwnerEntry
from art.distributed.peer import PeerReference
from art.distributed.runtime import ArtRuntime
from art.errors import ConfigError
from art.records import trajectory_record
from art.trajectories import TrajectoryHandle
from art.trajectory_groups import TrajectoryGroup
from art_dataplane import Selection, ShmSegmentStore, TrajectoryRef, TrajectoryStore

CONTROLLER = "controller"
"""Owner name of records that were made in this process."""

FETCH_S = 60.0
"""Until the records that were made in this process are at hand, in seconds."""

_RECORD_BYTES = 4 << 30
_CAUSE_S = 3.0  # until it is known why a process ended


class RunRecords:
    """Owns the records that were made in this process, and knows the other owners.

    Args:
        runtime: whose actors are the other owners.
    """

    def __init__(self, runtime: ArtRuntime) -> None:
        self._runtime = runtime
        self._segments = ShmSegmentStore(runtime.run_id, _RECORD_BYTES)
        self._store = TrajectoryStore(CONTROLLER, 1 << 20, _RECORD_BYTES, segments=self._segments)

    def refs_of(self, group: TrajectoryGroup) -> list[TrajectoryRef]:
        """References to a group's records; what was made in this process is put into the store here."""
        if group.pending:
            raise ConfigError(f"{group} was not awaited; use art.gather_trajectory_groups")
        group_id = next(
            (item.ref.group_id for item in group if isinstance(item, TrajectoryHandle) and item.ref),
            uuid.uuid4().hex,
        )
        refs = []
        for item in group:
            if isinstance(item, TrajectoryHandle):
                if item.ref is None:
                    raise ConfigError("a trajectory handle without a record cannot be trained on")
                if item.ref.group_id != group_id:
                    raise ConfigError(
                        f"one group holds records of the groups {group_id!r} and {item.ref.group_id!r}; "
                        "give its rollouts one group_id in executor.submit, or give the TrajectoryGroup the "
                        "coroutines of executor.submit themselves"
                    )
                refs.append(item.ref)
            else:
                refs.append(self._store.put(trajectory_record(item, group_id=group_id)))
        return refs

    async def owners(self, selection: Selection) -> list[OwnerEntry]:
        """The owners of a selection's records, each with the way to it."""
        entries = []
        for name in sorted({ref.owner for ref in selection.refs}):
            if name == CONTROLLER:
                mine = [ref for ref in selection.refs if ref.owner == CONTROLLER]
                entries.append(OwnerEntry(name, await self._store.fetch(mine, selection.lease, FETCH_S)))
            else:
                entries.append(OwnerEntry(name, self._runtime.actors[name].peer_reference()))
        return entries

    def end_of(self, name: str) -> str | None:
        """Why the owner of this name is gone; None while it lives."""
        if name == CONTROLLER:
            return None
        handle = self._runtime.actors.get(name)
        if handle is None:
            return f"{name!r} is not part of this runtime (any more)"
        return None if handle.died is None else str(handle.died)

    async def await_causes(self, owners: set[str]) -> None:
        """Waits for the cause of each owner's death; others may see the death before it."""
        for name in owners:
            handle = self._runtime.actors.get(name)
            if handle is None or handle.process is None or handle.process.is_alive():
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(handle.wait_died(), _CAUSE_S)

    @contextlib.asynccontextmanager
    async def telling_deaths(self, packer: ActorHandle, owners: list[OwnerEntry]) -> AsyncIterator[None]:
        """Meanwhile the packing worker ``packer``, which does not see it, is told of each owner that dies."""

        async def watch(handle: ActorHandle, way: PeerReference) -> None:
            died = await handle.wait_died()
            with contextlib.suppress(RuntimeFailure):  # then the call that packs fails, and says why
                await packer.call(
                    "owner_died", way, str(died), deadline_s=self._runtime.topology.rpc_timeout_s
                )

        actors = self._runtime.actors
        watches = [
            asyncio.create_task(watch(actors[entry.name], entry.way))
            for entry in owners
            if isinstance(entry.way, PeerReference)
        ]
        try:
            yield
        finally:
            for each in watches:
                each.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def drop(self, refs: tuple[TrajectoryRef, ...]) -> None:
        """Tells the owners that the records are done with; those of an owner that is gone are gone, too."""
        await self.drop_own(refs)
        for name in {ref.owner for ref in refs} - {CONTROLLER}:
            handle = self._runtime.actors.get(name)
            if handle is not None:
                theirs = [ref for ref in refs if ref.owner == name]
                with contextlib.suppress(ActorDied):
                    await handle.call("drop", theirs, deadline_s=self._runtime.topology.rpc_timeout_s)

    async def drop_own(self, refs: Iterable[TrajectoryRef]) -> None:
        """Forgets the records that were made in this process."""
        await self._store.drop([ref for ref in refs if ref.owner == CONTROLLER])

    def close(self) -> None:
        """Drops what was made in this process."""
        self._segments.close()
