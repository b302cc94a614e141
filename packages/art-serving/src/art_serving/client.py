"""HTTP to one member: its health, its state and activations, each with a deadline."""

import asyncio

import aiohttp
import msgspec

from art_dataplane.arrays import encode
from art_dataplane.snapshot import SnapshotManifest
from art_serving.deployment import Health, MemberActivation, Secret
from art_serving.errors import ActivationError, MemberError

_GRACE_S = 1.0
"""How much longer than the member's own deadline its answer is waited for."""


class MemberAnswer(msgspec.Struct, frozen=True):
    """What the member says about itself.

    Args:
        health: what it is.
        detail: why, when it is not ready.
        version: active policy version; None before the first activation.
        digest: of the active snapshot's bytes (BLAKE2b-256, hex); None before the first activation.
        pid: of the API server.
    """

    health: Health
    detail: str
    version: int | None
    digest: str | None
    pid: int


class MemberClient:
    """One member's administration. Close it, or use it in an ``async with`` statement.

    Args:
        base_url: ``http://HOST:PORT``.
        admin_token: of this launch.
        title: names the member in messages.
    """

    def __init__(self, base_url: str, admin_token: Secret, title: str) -> None:
        self._url = base_url
        self._title = title
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {admin_token.value}"},
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def __aenter__(self) -> "MemberClient":
        """Returns itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes."""
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._session.close()

    async def state(self, deadline_s: float) -> MemberAnswer:
        """What the member says about itself.

        Raises:
            MemberError: it does not answer within ``deadline_s`` seconds, or not as it should.
        """
        status, body = await self._request("GET", "/art/state", deadline_s)
        return self._parse(status, body, MemberAnswer)

    async def activate(self, manifest: SnapshotManifest, deadline_s: float) -> MemberActivation:
        """Activates the snapshot between two engine steps.

        Args:
            manifest: describes the snapshot; its bytes must be on the member's host.
            deadline_s: seconds that the member may take; its answer is waited for one second longer.

        Raises:
            ActivationError: it was refused and the old version is active; or, with ``quarantined`` set, the
                member does not know which is active, or does not answer.
            MemberError: the answer to an activation that was made is none.
        """
        path = f"/art/activate?deadline_s={deadline_s}"
        try:
            status, body = await self._request("POST", path, deadline_s + _GRACE_S, encode(manifest))
        except MemberError as error:
            raise ActivationError(
                f"it is not known whether {self._title} activated version {manifest.version}: {error}",
                quarantined=True,
            ) from error
        if status == 200:
            return self._parse(status, body, MemberActivation)
        problem = _problem(body)
        raise ActivationError(
            f"{self._title} did not activate version {manifest.version}: {problem.message}",
            quarantined=problem.in_doubt,
        )

    async def quarantine(self, reason: str, deadline_s: float) -> None:
        """Makes the member refuse inference until it is restarted.

        Args:
            reason: told to those who ask for inference.
            deadline_s: seconds until it must have answered.

        Raises:
            MemberError: it does not answer in time, or refuses.
        """
        status, body = await self._request("POST", "/art/quarantine", deadline_s, reason.encode())
        if status != 200:
            raise MemberError(f"{self._title} refused to be quarantined: {_problem(body).message}")

    async def trace(self, deadline_s: float) -> list[list[tuple[int | None, dict[str, int]]]]:
        """Per worker, the engine steps since the last call: version in place and tokens computed per request.

        The first call starts the recording and returns empty lists. For diagnosis.

        Raises:
            MemberError: it does not answer within ``deadline_s`` seconds.
        """
        status, body = await self._request("POST", "/art/trace", deadline_s)
        return self._parse(status, body, list[list[tuple[int | None, dict[str, int]]]])

    async def _request(
        self, method: str, path: str, deadline_s: float, data: bytes | None = None
    ) -> tuple[int, bytes]:
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._session.request(method, self._url + path, data=data) as answer,
            ):
                return answer.status, await answer.read()
        except TimeoutError as error:
            raise MemberError(
                f"{self._title} did not answer {path.partition('?')[0]} within {deadline_s:.1f} s"
            ) from error
        except aiohttp.ClientError as error:
            raise MemberError(f"{self._title} at {self._url} cannot be reached: {error}") from error

    def _parse[T](self, status: int, body: bytes, kind: type[T]) -> T:
        if status != 200:
            raise MemberError(f"{self._title} answered with status {status}: {_problem(body).message}")
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            raise MemberError(f"{self._title} answered something else than {kind}: {error}") from error


class _Problem(msgspec.Struct, frozen=True):
    message: str
    in_doubt: bool = False


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Problem


def _problem(body: bytes) -> _Problem:
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.MsgspecError:
        # A server that fails without an answer of its own has not said what it did.
        return _Problem(body[:500].decode(errors="replace"), in_doubt=True)
