"""The member's side of an activation: stage, swap between two steps, commit; and what is active now."""

import asyncio
import time
from typing import Any

import msgspec
from vllm.lora.request import LoRARequest

from art_dataplane.arrays import decode
from art_dataplane.snapshot import SnapshotManifest
from art_vllm_runtime.engine_swap import adapter_request

_STAGE_POLL_S = 0.005


class ActivationFailedError(Exception):
    """Nothing was activated; when ``in_doubt``, it is not known what the workers hold."""

    def __init__(self, message: str, *, in_doubt: bool = False) -> None:
        super().__init__(message)
        self.in_doubt = in_doubt


class Activated(msgspec.Struct, frozen=True):
    """An activation that took place; times in milliseconds."""

    version: int
    digest: str
    generation: str | None
    wait_ms: float
    pause_ms: float
    read_ms: float


class Adapters:
    """Owns which adapter is served. One activation at a time.

    ``requests`` is the mapping that vLLM's endpoints look names up in: a name that is not in it is unknown to
    them, so no request can name an adapter that was never activated.
    """

    def __init__(
        self, engine: Any, name: str, requests: dict[str, LoRARequest], generations: dict[int, str | None]
    ) -> None:
        self._engine = engine
        self._name = name
        self._requests = requests
        self._generations = generations
        self._lock = asyncio.Lock()
        self._count = 0
        self.active: Activated | None = None
        self.doubt: str | None = None

    async def activate(self, manifest: bytes, deadline_s: float) -> Activated:
        """Activates the snapshot that ``manifest`` (MessagePack of a SnapshotManifest) describes.

        Raises:
            ActivationFailedError: the snapshot was refused, a worker failed, or the deadline passed.
        """
        until = time.monotonic() + deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                await self._lock.acquire()
        except TimeoutError:
            raise ActivationFailedError(f"another activation took longer than {deadline_s} s") from None
        try:
            if self.doubt is not None:
                raise ActivationFailedError(self.doubt, in_doubt=True)
            return await self._activate(manifest, until)
        finally:
            self._lock.release()

    async def _activate(self, manifest: bytes, until: float) -> Activated:
        try:
            described = decode(manifest, SnapshotManifest)
        except msgspec.ValidationError as error:
            raise ActivationFailedError(f"this is no snapshot manifest: {error}") from error
        await self._call("art_stage", until, manifest)
        self._count += 1
        outcome = await self._swap(described.version, until)
        if not outcome["ok"]:
            await self._fail(outcome)
        if set(outcome["digests"]) != {described.digest}:
            self.doubt = f"workers loaded digests {sorted(set(outcome['digests']))} for {described.digest}"
            raise ActivationFailedError(self.doubt, in_doubt=True)
        self.active = Activated(
            version=described.version,
            digest=described.digest,
            generation=described.generation,
            wait_ms=outcome["wait_ms"],
            pause_ms=outcome["pause_ms"],
            read_ms=outcome["read_ms"],
        )
        self._generations[described.version] = described.generation
        self._requests[self._name] = adapter_request(self._name, self._count)
        return self.active

    async def _swap(self, version: int, until: float) -> dict[str, Any]:
        while time.monotonic() < until:
            try:
                outcome = await self._call("art_activate", until, self._name, self._count, version)
            except ActivationFailedError as error:
                self.doubt = f"it is not known whether version {version} is active: {error}"
                raise ActivationFailedError(self.doubt, in_doubt=True) from error
            if outcome["staged"]:
                return outcome
            await asyncio.sleep(_STAGE_POLL_S)
        raise ActivationFailedError(f"workers were still reading version {version} at the deadline")

    async def _fail(self, outcome: dict[str, Any]) -> None:
        text = "; ".join(outcome["errors"])
        if outcome["in_doubt"]:
            self.doubt = f"an activation failed and could not be taken back: {text}"
            raise ActivationFailedError(self.doubt, in_doubt=True)
        raise ActivationFailedError(text)

    async def _call(self, method: str, until: float, *args: Any) -> Any:
        left = until - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 0.0)):
                return await self._engine.engine_core.call_utility_async(method, *args)
        except TimeoutError:
            raise ActivationFailedError(f"the engine did not answer {method} before the deadline") from None
