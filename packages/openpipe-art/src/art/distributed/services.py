"""A model service as an actor on its leader's host, and the controller's end of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from art.distributed.errors import RuntimeFailure
from art.distributed.handle import ActorHandle
from art.distributed.peer import PeerReference
from art_dataplane.snapshot import SnapshotManifest
from art_serving import (
    ActivationReport,
    EngineOptions,
    Health,
    LocalLauncher,
    ModelService,
    ServiceState,
)
from art_topology import ModelServiceSpec

STATE_TIMEOUT_S = 5.0


class ServiceSettings(msgspec.Struct, frozen=True):
    """What the topology does not say about a service.

    Args:
        log_folder: where members write their logs, on their hosts.
        options: how vLLM runs.
    """

    log_folder: str
    options: EngineOptions


class StartProgress(msgspec.Struct, frozen=True, tag="progress"):
    """One line for the user while a service starts."""

    line: str


class ServiceEndpoint(msgspec.Struct, frozen=True, tag="endpoint"):
    """Where a service is, for an OpenAI client.

    Args:
        base_url: ``http://HOST:PORT/v1``.
        api_key: what requests must carry.
        model_name: what requests for the policy name, once a version is active.
    """

    base_url: str
    api_key: str
    model_name: str

    def __repr__(self) -> str:
        return f"ServiceEndpoint(base_url={self.base_url!r}, model_name={self.model_name!r})"


class ModelServiceHost:
    """A service (see :mod:`art.distributed.service`) that owns one ``art_serving.service.ModelService``."""

    def __init__(self, spec: ModelServiceSpec, settings: ServiceSettings) -> None:
        self._spec = spec
        self._settings = settings
        self._service: ModelService | None = None

    async def start(self, deadline_s: float) -> AsyncIterator[StartProgress | ServiceEndpoint]:
        """Starts every member; yields lines for the user and, last, the endpoint."""
        lines: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def progress(line: str) -> None:
            loop.call_soon_threadsafe(lines.put_nowait, line)

        starting = asyncio.ensure_future(
            ModelService.start(
                self._spec,
                LocalLauncher(progress=progress),
                deadline_s=deadline_s,
                log_folder=Path(self._settings.log_folder),
                options=self._settings.options,
            )
        )
        try:
            while not (starting.done() and lines.empty()):
                line = asyncio.ensure_future(lines.get())
                await asyncio.wait({starting, line}, return_when=asyncio.FIRST_COMPLETED)
                if line.done():
                    yield StartProgress(line.result())
                else:
                    line.cancel()
            self._service = await starting
        finally:
            if not starting.done():
                starting.cancel()
                await asyncio.wait({starting})
        service = self._service
        yield ServiceEndpoint(service.base_url, service.api_key, service.adapter_name)

    async def activate(self, manifest: SnapshotManifest, deadline_s: float) -> ActivationReport:
        """See :meth:`ModelService.activate`. The caller holds the snapshot until a later one is active."""
        return await self._running.activate(manifest, deadline_s)

    async def state(self) -> ServiceState:
        """See :meth:`ModelService.state`."""
        return await self._running.state(STATE_TIMEOUT_S)

    async def close(self) -> None:
        """Ends every member."""
        if self._service is not None:
            await self._service.stop(5.0)

    @property
    def _running(self) -> ModelService:
        if self._service is None:
            raise RuntimeFailure(f"model service {self._spec.name!r} was not started")
        return self._service


class RunningModelService:
    """The controller's end of a model service.

    Made by :meth:`art.distributed.ArtRuntime.start_model_service`. ``name`` is the service's, as the user
    gave it, ``handle`` the actor that owns it, and ``endpoint`` says where it serves.
    """

    def __init__(
        self, name: str, handle: ActorHandle, endpoint: ServiceEndpoint, rpc_timeout_s: float
    ) -> None:
        self.name = name
        self.handle = handle
        self.endpoint = endpoint
        self._rpc_timeout_s = rpc_timeout_s

    @property
    def peer(self) -> PeerReference:
        """The way for other actors to this service."""
        return self.handle.peer_reference()

    async def state(self) -> ServiceState:
        """What the service is now.

        Raises:
            RuntimeFailure: the actor that owns it died or does not answer.
        """
        state: ServiceState = await self.handle.call("state", deadline_s=self._rpc_timeout_s)
        return state

    async def failure(self) -> str | None:
        """What is wrong with the service, in words, or None while it serves."""
        try:
            state = await self.state()
        except RuntimeFailure as error:
            return str(error)
        if state.health is Health.READY:
            return None
        return f"model service {self.name!r} is {state.health.value}: {state.detail}"


async def start_service(
    handle: ActorHandle,
    name: str,
    *,
    deadline_s: float,
    rpc_timeout_s: float,
    progress: Callable[[str], None] | None = None,
) -> RunningModelService:
    """Starts the service that ``handle`` holds and waits until it serves.

    Raises:
        RuntimeFailure: a member did not get ready, with what its log says last.
    """
    async for item in handle.stream("start", deadline_s, deadline_s=deadline_s + rpc_timeout_s):
        if isinstance(item, ServiceEndpoint):
            return RunningModelService(name, handle, item, rpc_timeout_s)
        if progress is not None:
            progress(item.line)
    raise RuntimeFailure(f"model service {name!r} ended its start without an endpoint")
