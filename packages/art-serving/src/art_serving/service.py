"""One native vLLM deployment as one health, version, update and recovery domain."""

from collections.abc import Callable
from pathlib import Path

from art_dataplane.snapshot import SnapshotLease, SnapshotManifest
from art_topology import ModelServiceSpec

from art_serving.deployment import ActivationReport, EngineOptions, HostLauncher, ServiceState


class ModelService:
    """A running model service. Made by :meth:`start`, ended by :meth:`stop`; an async context manager stops it."""

    @classmethod
    async def start(
        cls,
        spec: ModelServiceSpec,
        launcher: HostLauncher,
        *,
        deadline_s: float,
        model_path: Path,
        log_folder: Path,
        options: EngineOptions | None = None,
        api_key: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> "ModelService":
        """Starts every member and waits until all of them serve.

        Raises:
            MemberError: a member did not get ready; the others are stopped.
            PreflightError: a host cannot run its member.
        """
        raise NotImplementedError

    @property
    def base_url(self) -> str:
        """For an OpenAI client: ``http://HOST:PORT/v1``."""
        raise NotImplementedError

    @property
    def api_key(self) -> str:
        """What inference requests must carry as bearer token."""
        raise NotImplementedError

    @property
    def adapter_name(self) -> str:
        """The model name that serves the policy. A request for it before the first activation is a 404."""
        raise NotImplementedError

    async def activate(
        self, manifest: SnapshotManifest, deadline_s: float, *, lease: SnapshotLease | None = None
    ) -> ActivationReport:
        """Activates a snapshot on every member, between two engine steps, and commits its version.

        The lease is taken over: it is held until a later version commits or the service stops, so that a restart can
        serve this version again; it is released at once when the activation fails.

        Raises:
            ActivationError: not every member reported it. The old version stays active, or, when that is in doubt, the
                service is quarantined until :meth:`restart`.
        """
        raise NotImplementedError

    async def state(self, deadline_s: float = 5.0) -> ServiceState:
        """What the service is now; dead members are part of the answer, not an error."""
        raise NotImplementedError

    async def restart(self, deadline_s: float) -> None:
        """Ends and starts every member and activates the last committed snapshot again."""
        raise NotImplementedError

    async def stop(self, deadline_s: float = 20.0) -> None:
        """Ends every member and releases the held lease. A second call does nothing."""
        raise NotImplementedError
