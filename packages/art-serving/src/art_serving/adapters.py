"""Which version a service has committed, and how it moves to the next.

What always holds:

- a version is committed only when every member reported that its workers loaded exactly the snapshot's bytes;
- when no member activated it, the old version stays committed and active;
- when some did, or a member does not answer, the service is quarantined: it is told to refuse inference, and
  a member that cannot be told is ended. Only a restart lifts a quarantine;
- the lease on the committed snapshot is held until another version commits or the service stops.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from art_dataplane.snapshot import SnapshotLease, SnapshotManifest
from art_serving.client import MemberClient
from art_serving.deployment import ActivationReport, HostLauncher, MemberActivation
from art_serving.errors import ActivationError, MemberError

_QUARANTINE_S = 2.0


class ServingMember:
    """A running member as this module needs it: where snapshots are received, whom to tell, how to end it."""

    def __init__(
        self, index: int, launcher: HostLauncher, client: MemberClient, end: Callable[[], Awaitable[None]]
    ) -> None:
        self.index = index
        self.launcher = launcher
        self.client = client
        self.end = end


class CommittedAdapter:
    """Owns the committed version and its lease. One activation at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._manifest: SnapshotManifest | None = None
        self._lease: SnapshotLease | None = None
        self.doubt: str | None = None

    @property
    def manifest(self) -> SnapshotManifest | None:
        """What is committed; None before the first activation."""
        return self._manifest

    async def activate(
        self,
        members: Sequence[ServingMember],
        manifest: SnapshotManifest,
        lease: SnapshotLease | None,
        deadline_s: float,
    ) -> ActivationReport:
        """Activates on every member and commits. The lease is kept on success and released on failure.

        Raises:
            ActivationError: see the module's text.
        """
        began = time.monotonic()
        committed = False
        try:
            async with self._lock:
                if self.doubt is not None:
                    raise ActivationError(f"the service is quarantined: {self.doubt}", quarantined=True)
                activations = await self._on_every_member(members, manifest, deadline_s)
                self._commit(manifest, lease)
                committed = True
        finally:
            if not committed and lease is not None:
                lease.release()
        return ActivationReport(
            manifest.version, manifest.digest, activations, (time.monotonic() - began) * 1e3
        )

    async def restore(self, members: Sequence[ServingMember], deadline_s: float) -> None:
        """Activates the committed version on members that were just started, and lifts a quarantine.

        Raises:
            ActivationError: it could not be activated; nothing is served then.
        """
        async with self._lock:
            self.doubt = None
            if self._manifest is not None:
                await self._on_every_member(members, self._manifest, deadline_s)

    async def release(self) -> None:
        """Gives the committed snapshot's lease back."""
        async with self._lock:
            lease, self._lease = self._lease, None
            if lease is not None:
                lease.release()

    def _commit(self, manifest: SnapshotManifest, lease: SnapshotLease | None) -> None:
        previous, self._lease = self._lease, lease
        self._manifest = manifest
        if previous is not None and previous is not lease:
            previous.release()

    async def _on_every_member(
        self, members: Sequence[ServingMember], manifest: SnapshotManifest, deadline_s: float
    ) -> tuple[MemberActivation, ...]:
        until = time.monotonic() + deadline_s
        local = await asyncio.gather(
            *(one.launcher.receive_snapshot(manifest, deadline_s) for one in members)
        )
        left = until - time.monotonic()
        if left <= 0:
            raise ActivationError(
                f"version {manifest.version} reached the hosts after the deadline of {deadline_s:.1f} s"
            )
        results = await asyncio.gather(
            *(_activate(one, here, left) for one, here in zip(members, local, strict=True)),
            return_exceptions=True,
        )
        activated = tuple(result for result in results if isinstance(result, MemberActivation))
        errors = [result for result in results if isinstance(result, BaseException)]
        if not errors:
            return activated
        doubtful = any(not isinstance(error, ActivationError) or error.quarantined for error in errors)
        text = "; ".join(str(error) for error in errors)
        if activated or doubtful:
            await self._quarantine(members, text)
            raise ActivationError(
                f"{text}. The service is quarantined; restart it", quarantined=True
            ) from errors[0]
        raise ActivationError(text) from errors[0]

    async def _quarantine(self, members: Sequence[ServingMember], reason: str) -> None:
        self.doubt = reason
        await asyncio.gather(*(_refuse(member, reason) for member in members))


async def _activate(member: ServingMember, manifest: SnapshotManifest, deadline_s: float) -> MemberActivation:
    done = await member.client.activate(manifest, deadline_s)
    if (done.version, done.digest) != (manifest.version, manifest.digest):
        raise ActivationError(
            f"member {member.index} activated version {done.version} with digest {done.digest} when asked "
            f"for version {manifest.version} with digest {manifest.digest}",
            quarantined=True,
        )
    return MemberActivation(
        version=done.version,
        digest=done.digest,
        wait_ms=done.wait_ms,
        pause_ms=done.pause_ms,
        read_ms=done.read_ms,
        member=member.index,
    )


async def _refuse(member: ServingMember, reason: str) -> None:
    try:
        await member.client.quarantine(reason, _QUARANTINE_S)
    except MemberError:
        await member.end()
