"""One native vLLM deployment as one health, version, update and recovery domain."""

import asyncio
import secrets
import time
from pathlib import Path

import msgspec

from art_dataplane.snapshot import SnapshotLease, SnapshotManifest
from art_serving.adapters import CommittedAdapter, ServingMember
from art_serving.client import MemberClient
from art_serving.deployment import (
    ActivationReport,
    EngineOptions,
    EngineStats,
    Health,
    HostLauncher,
    MemberLaunch,
    MemberState,
    Secret,
    ServiceState,
)
from art_serving.errors import MemberError, ServiceClosedError, ServingError
from art_serving.metrics import pooled
from art_topology import CpuPlacement, ModelServiceSpec

_DEFAULT_KV_CACHE_BYTES = 2**30
_WORST_FIRST = (
    Health.FAILED,
    Health.STOPPED,
    Health.QUARANTINED,
    Health.STALLED,
    Health.STARTING,
    Health.READY,
)


class ModelService:
    """A running model service. Made by :meth:`start`, ended by :meth:`stop`; ``async with`` stops it."""

    def __init__(self, spec: ModelServiceSpec, launcher: HostLauncher, launch: MemberLaunch) -> None:
        self._spec = spec
        self._launcher = launcher
        self._launch = launch
        self._adapter = CommittedAdapter()
        self._members: list[ServingMember] = []
        self._leader: MemberState | None = None
        self._changing = asyncio.Lock()
        self._closed = False

    @classmethod
    async def start(
        cls,
        spec: ModelServiceSpec,
        launcher: HostLauncher,
        *,
        deadline_s: float | None = None,
        log_folder: Path,
        options: EngineOptions | None = None,
        api_key: str | None = None,
    ) -> "ModelService":
        """Starts every member and waits until all of them serve.

        Args:
            spec: the deployment; one CPU member for now.
            launcher: of the member's host.
            deadline_s: seconds until all serve; by default the spec's ``startup_timeout_s``.
            log_folder: where the members' logs are written.
            options: how vLLM runs, beyond the spec.
            api_key: what inference requests must carry; by default one is made up.

        Raises:
            ServingError: the spec asks for what this version cannot serve.
            PreflightError: a host cannot run its member.
            MemberError: a member did not get ready; the others are stopped.
        """
        service = cls(spec, launcher, _launch(spec, log_folder, options or EngineOptions(), api_key))
        try:
            await service._start_members(spec.startup_timeout_s if deadline_s is None else deadline_s)
        except BaseException:
            await service.stop()
            raise
        return service

    async def __aenter__(self) -> "ModelService":
        """Returns itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops."""
        await self.stop()

    @property
    def name(self) -> str:
        """The spec's name."""
        return self._spec.name

    @property
    def base_url(self) -> str:
        """For an OpenAI client: ``http://HOST:PORT/v1``. A restart may change the port.

        Raises:
            ServiceClosedError: no member runs.
        """
        if self._leader is None or self._leader.base_url is None:
            raise ServiceClosedError(f"service {self.name!r} does not run")
        return f"{self._leader.base_url}/v1"

    @property
    def api_key(self) -> str:
        """What inference requests must carry as bearer token."""
        assert self._launch.api_key is not None
        return self._launch.api_key.value

    @property
    def adapter_name(self) -> str:
        """The model name of the policy. A request for it before the first activation is a 404."""
        return self._launch.adapter_name

    @property
    def base_model_name(self) -> str:
        """The model name of the base model without an adapter."""
        return self._launch.base_model_name

    @property
    def version(self) -> int | None:
        """The committed policy version; None before the first activation."""
        manifest = self._adapter.manifest
        return manifest.version if manifest else None

    async def activate(
        self, manifest: SnapshotManifest, deadline_s: float, *, lease: SnapshotLease | None = None
    ) -> ActivationReport:
        """Activates a snapshot on every member, between two engine steps, and commits its version.

        Requests in flight keep their keys and values and go on under the new version, labelled so. An
        activation that has begun runs to its end also when the caller is cancelled.

        Args:
            manifest: the snapshot.
            deadline_s: seconds until every member must have reported.
            lease: is taken over: held until a later version commits or the service stops, so that a restart
                can serve this version again; released at once when the activation fails.

        Raises:
            ActivationError: not every member reported it. The old version stays active, or, when that is in
                doubt, the service is quarantined until :meth:`restart`.
            ServiceClosedError: the service was stopped.
        """
        return await asyncio.shield(asyncio.ensure_future(self._activate(manifest, deadline_s, lease)))

    async def _activate(
        self, manifest: SnapshotManifest, deadline_s: float, lease: SnapshotLease | None
    ) -> ActivationReport:
        async with self._changing:
            if self._closed or not self._members:
                if lease is not None:
                    lease.release()
                raise ServiceClosedError(
                    f"service {self.name!r} does not run; version {manifest.version} was not activated"
                )
            return await self._adapter.activate(self._members, manifest, lease, deadline_s)

    async def state(self, deadline_s: float = 5.0) -> ServiceState:
        """What the service is now; dead members are part of the answer, not an error.

        Args:
            deadline_s: seconds that each member may take to answer.
        """
        members = await asyncio.gather(*(self._member_state(one, deadline_s) for one in self._members))
        worst = min(members, key=lambda one: _WORST_FIRST.index(one.health), default=None)
        health, detail = (worst.health, worst.detail) if worst else (Health.STOPPED, "")
        if self._closed:
            health, detail = Health.STOPPED, ""
        elif self._adapter.doubt is not None and health in (Health.READY, Health.STALLED):
            health, detail = Health.QUARANTINED, self._adapter.doubt
        base_url = self._leader.base_url if self._leader else None
        return ServiceState(
            name=self.name,
            health=health,
            detail=detail,
            version=self.version,
            members=tuple(members),
            base_url=f"{base_url}/v1" if base_url else None,
        )

    async def _member_state(self, member: ServingMember, deadline_s: float) -> MemberState:
        try:
            return await self._launcher.member_state(self.name, member.index, deadline_s)
        except MemberError as error:
            return MemberState(member.index, self._launch.incarnation, Health.FAILED, str(error))

    async def stats(self, deadline_s: float = 5.0) -> EngineStats:
        """The members' statistics, pooled: counters add up, ages and usage are the worst.

        Args:
            deadline_s: seconds that each member may take to answer.

        Raises:
            ServiceClosedError: no member has any.
        """
        state = await self.state(deadline_s)
        found = [member.stats for member in state.members if member.stats is not None]
        if not found:
            raise ServiceClosedError(f"service {self.name!r} does not run")
        return pooled(found)

    async def until_unhealthy(self, poll_s: float = 0.5) -> ServiceState:
        """Waits until the service is anything but ready or starting, and returns what it is then.

        Waits without end while the service is well: it is for a task that is cancelled with the service.

        Args:
            poll_s: seconds between two looks.
        """
        while True:
            state = await self.state()
            if state.health not in (Health.READY, Health.STARTING):
                return state
            await asyncio.sleep(poll_s)

    async def restart(self, deadline_s: float) -> None:
        """Ends and starts every member and activates the committed snapshot again. Lifts a quarantine.

        Args:
            deadline_s: seconds for all of it.

        Raises:
            MemberError: a member did not get ready; the service does not run then and can be restarted again.
            ActivationError: the committed snapshot could not be activated; likewise.
            ServiceClosedError: the service was stopped.
        """
        async with self._changing:
            if self._closed:
                raise ServiceClosedError(f"service {self.name!r} was stopped; start another")
            until = time.monotonic() + deadline_s
            await self._stop_members(deadline_s)
            self._launch = _next_incarnation(self._launch)
            try:
                await self._start_members(until - time.monotonic())
                await self._adapter.restore(self._members, until - time.monotonic())
            except BaseException:
                await self._stop_members(deadline_s)
                raise

    async def stop(self, deadline_s: float = 20.0) -> None:
        """Ends every member and releases the held lease. A second call does nothing.

        Args:
            deadline_s: seconds for the members to end; SIGKILL after that.

        Raises:
            MemberError: something of a member is still there after all that.
        """
        self._closed = True
        async with self._changing:
            try:
                await self._stop_members(deadline_s)
            finally:
                await self._adapter.release()

    async def _start_members(self, deadline_s: float) -> None:
        launch = self._launch
        self._leader = await self._launcher.start_member(launch, deadline_s)
        assert self._leader.base_url is not None
        client = MemberClient(self._leader.base_url, launch.admin_token, launch.title)

        async def end() -> None:
            await self._launcher.stop_member(self.name, launch.member, 10.0)

        self._members = [ServingMember(launch.member, self._launcher, client, end)]

    async def _stop_members(self, deadline_s: float) -> None:
        members, self._members, self._leader = self._members, [], None
        for member in members:
            await member.client.close()
        await self._launcher.stop_member(self.name, self._launch.member, deadline_s)


def _launch(
    spec: ModelServiceSpec, log_folder: Path, options: EngineOptions, api_key: str | None
) -> MemberLaunch:
    placement = spec.members[0].placement
    unsupported = [
        text
        for text, asked in (
            (f"{len(spec.members)} members (one is supported)", len(spec.members) != 1),
            ("a GPU placement (CPU is supported)", not isinstance(placement, CpuPlacement)),
            (f"dp={spec.parallel.dp} (1 is supported)", spec.parallel.dp != 1),
            ("expert_parallel", spec.parallel.expert_parallel),
            ("temporal_sharing (False is supported)", spec.temporal_sharing),
            (f"max_loras={spec.max_loras} (1 is supported)", spec.max_loras != 1),
        )
        if asked
    ]
    if unsupported:
        raise ServingError(
            f"service {spec.name!r} asks for what this version cannot serve: {', '.join(unsupported)}"
        )
    return MemberLaunch(
        service=spec.name,
        member=0,
        incarnation=0,
        model_path=spec.model_path or spec.base_model,
        base_model_name=spec.base_model,
        adapter_name=spec.name,
        dtype=spec.dtype,
        max_model_len=spec.max_model_len,
        max_num_seqs=spec.max_num_seqs,
        max_lora_rank=spec.max_lora_rank,
        kv_cache_bytes=spec.kv_cache_bytes or _DEFAULT_KV_CACHE_BYTES,
        seed=spec.seed,
        log_folder=str(log_folder),
        admin_token=Secret(secrets.token_urlsafe(32)),
        api_key=Secret(api_key or secrets.token_urlsafe(32)),
        host=spec.leader.host if spec.leader else "127.0.0.1",
        port=spec.leader.port if spec.leader else 0,
        tensor_parallel_size=spec.parallel.tp,
        pipeline_parallel_size=spec.parallel.pp,
        options=options,
    )


def _next_incarnation(launch: MemberLaunch) -> MemberLaunch:
    return msgspec.structs.replace(
        launch, incarnation=launch.incarnation + 1, admin_token=Secret(secrets.token_urlsafe(32))
    )
