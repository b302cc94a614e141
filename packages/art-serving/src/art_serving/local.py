"""Members as subprocesses of this process."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from art_dataplane.locations import ShmLocation
from art_dataplane.snapshot import SnapshotManifest
from art_serving.deployment import MemberLaunch, MemberState
from art_serving.environment import BuildProgress, Environment
from art_serving.errors import ActivationError, MemberError
from art_serving.member import MemberProcess
from art_serving.vllm_runtime import vllm_environment

_SHARED_MEMORY = Path("/dev/shm")


class LocalLauncher:
    """Runs members on this host: a :class:`art_serving.HostLauncher` without any other process in between.

    Args:
        environment: where vLLM is installed; None takes :func:`art_serving.vllm_environment`, which builds it
            when the cache does not have it (within the deadline of the first start).
        progress: is called with one line at a time while an environment is built or a member starts.
    """

    def __init__(
        self, environment: Environment | None = None, *, progress: Callable[[str], None] | None = None
    ) -> None:
        self._environment = environment
        self._progress = progress
        self._members: dict[tuple[str, int], MemberProcess] = {}

    async def start_member(self, launch: MemberLaunch, deadline_s: float) -> MemberState:
        """Starts the member that ``launch`` describes and waits until it serves; ends one of its name before.

        Raises:
            EnvironmentBuildError: vLLM's environment could not be built.
            PreflightError: the host cannot run the member; nothing was started.
            MemberError: it did not get ready within ``deadline_s`` seconds, or died; nothing of it is left.
        """
        until = time.monotonic() + deadline_s
        key = (launch.service, launch.member)
        previous = self._members.get(key)
        if previous is not None:
            await previous.stop(deadline_s)
        environment = await self._installed(deadline_s)
        self._members[key] = await MemberProcess.start(
            launch, environment, deadline_s=until - time.monotonic(), progress=self._progress
        )
        return await self._members[key].state(max(until - time.monotonic(), 1.0))

    async def _installed(self, deadline_s: float) -> Environment:
        if self._environment is None:
            self._environment = await vllm_environment(deadline_s=deadline_s, progress=self._building)
        return self._environment

    def _building(self, progress: BuildProgress) -> None:
        if self._progress is not None:
            self._progress(progress.text)

    async def member_state(self, service: str, member: int, deadline_s: float) -> MemberState:
        """What the member is now; a dead member is a state, not an error.

        Args:
            service: name of the service.
            member: index of the member.
            deadline_s: seconds that its server may take to answer.

        Raises:
            MemberError: there never was one of that name here.
        """
        return await self._member(service, member).state(deadline_s)

    async def stop_member(self, service: str, member: int, deadline_s: float) -> None:
        """Ends the member; it stays known, as stopped. Does nothing when there never was one of that name.

        Args:
            service: name of the service.
            member: index of the member.
            deadline_s: seconds that all of it may take to end.

        Raises:
            MemberError: something of it is still there after all that.
        """
        process = self._members.get((service, member))
        if process is not None:
            await process.stop(deadline_s)

    async def receive_snapshot(self, manifest: SnapshotManifest, deadline_s: float) -> SnapshotManifest:
        """Returns ``manifest`` as it is: the snapshot is on this host already, so ``deadline_s`` (seconds) is
        unused.

        Raises:
            ActivationError: its segment is gone.
        """
        location = manifest.location
        if isinstance(location, ShmLocation):
            exists = await asyncio.to_thread((_SHARED_MEMORY / location.name).exists)
            if not exists:
                raise ActivationError(
                    f"the segment {location.name} of version {manifest.version} is gone; "
                    "its owner died or dropped it"
                )
        return manifest

    def _member(self, service: str, member: int) -> MemberProcess:
        try:
            return self._members[service, member]
        except KeyError:
            raise MemberError(f"no member {member} of service {service!r} was started here") from None
