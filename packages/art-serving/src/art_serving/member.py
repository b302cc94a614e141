"""One host's share of a service: the server process under its supervisor, from start to end."""

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from art_serving.client import MemberClient
from art_serving.deployment import EngineStats, Health, MemberLaunch, MemberState
from art_serving.engine_log import last_line, root_cause
from art_serving.environment import Environment
from art_serving.errors import MemberError
from art_serving.launch import member_command, member_environment
from art_serving.metrics import StatsReader, stall
from art_serving.preflight import check_host
from art_serving.silence import Unanswered, is_halted
from art_serving.supervision import describe_exit, read_end, supervised

_POLL_S = 0.05
_GRACE_S = 6.0
"""Between SIGTERM and SIGKILL. The server gives the engine core 5 s."""
_KILL_S = 3.0
_SOCKET_FOLDER_BYTES = 107 - len("/art-vllm-12345678/") - 36
"""A unix socket's path has at most 107 bytes; vLLM names its sockets by UUIDs of 36."""
_LOG_BYTES = 1 << 20
_PROGRESS = "ART "


class _Ready(msgspec.Struct, frozen=True):
    host: str
    port: int
    pid: int
    engine_pids: tuple[int, ...]


class _Failure(msgspec.Struct, frozen=True):
    text: str


class MemberProcess:
    """A started member. Made by :meth:`start`; :meth:`stop` ends it, and so does this process's death."""

    def __init__(self, launch: MemberLaunch, environment: Environment) -> None:
        stem = Path(launch.log_folder) / f"{launch.service}-{launch.member}-{launch.incarnation}"
        self.launch = launch
        self.log_file = stem.with_name(stem.name + ".log")
        self._end_file = stem.with_name(stem.name + ".end.json")
        self._failure_file = stem.with_name(stem.name + ".failure.json")
        self._run_folder = _make_run_folder()
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._ready: _Ready | None = None
        self._stats: StatsReader | None = None
        self._client: MemberClient | None = None
        self._ready_at = 0
        self._stopped = False
        self._unanswered = Unanswered(launch.options.stall_timeout_s)

    @classmethod
    async def start(
        cls,
        launch: MemberLaunch,
        environment: Environment,
        *,
        deadline_s: float,
        progress: Callable[[str], None] | None = None,
    ) -> "MemberProcess":
        """Starts the server and waits until it answers requests.

        Raises:
            PreflightError: the host cannot run it; nothing was started.
            MemberError: it died, or was not ready in time; nothing of it is left.
        """
        check_host(launch, environment)
        member = cls(launch, environment)
        try:
            await member._spawn()
            await member._wait_ready(time.monotonic() + deadline_s, deadline_s, progress)
        except BaseException:
            await member.stop(deadline_s=_GRACE_S)
            raise
        return member

    @property
    def base_url(self) -> str | None:
        """``http://HOST:PORT`` once it is ready."""
        if self._ready is None:
            return None
        host = f"[{self._ready.host}]" if ":" in self._ready.host else self._ready.host
        return f"http://{host}:{self._ready.port}"

    async def _spawn(self) -> None:
        for stale in (self._end_file, self._failure_file):
            stale.unlink(missing_ok=True)
        command = member_command(self.launch, self._environment, self._run_folder, self._failure_file)
        self.log_file.unlink(missing_ok=True)
        with self.log_file.open("ab") as log:  # what is appended here and by the server stands in order
            self._process = await asyncio.create_subprocess_exec(
                *supervised(command, grace_s=_GRACE_S, scratch=self._run_folder, end_file=self._end_file),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=member_environment(self.launch, self._run_folder),
            )

    async def _wait_ready(
        self, until: float, deadline_s: float, progress: Callable[[str], None] | None
    ) -> None:
        assert self._process is not None
        with self.log_file.open(errors="replace") as log:
            while True:
                _report(log.readlines(), progress)
                if self._process.returncode is not None:
                    raise MemberError(self.failure())
                with contextlib.suppress(FileNotFoundError):
                    ready = (self._run_folder / "ready.json").read_bytes()
                    self._ready = msgspec.json.decode(ready, type=_Ready)
                    break
                if time.monotonic() > until:
                    raise MemberError(
                        f"{self.launch.title} was not ready within {deadline_s:.0f} s; its log says last: "
                        f"{last_line(self._log_text())} ({self.log_file})"
                    )
                await asyncio.sleep(_POLL_S)
            _report(log.readlines(), progress)
            self._ready_at = self.log_file.stat().st_size
        self._stats = StatsReader(self._run_folder / "stats")
        assert self.base_url is not None
        self._client = MemberClient(self.base_url, self.launch.admin_token, self.launch.title)

    def failure(self) -> str:
        """Which process died, how, the one line of the log that says why, and where the log is."""
        text = self._log_text()
        why = root_cause(text) or ("" if self._ready else last_line(text))
        return f"{self.launch.title} died: {self._cause()}{f': {why}' if why else ''} (log: {self.log_file})"

    def _cause(self) -> str:
        assert self._process is not None
        with contextlib.suppress(FileNotFoundError):
            return msgspec.json.decode(self._failure_file.read_bytes(), type=_Failure).text
        end = read_end(self._end_file)
        if end is not None:
            during = "" if self._ready else " while starting"
            return f"API server (pid {end.pid}){during}: {end.describe()}"
        return f"supervisor (pid {self._process.pid}): {describe_exit(self._process.returncode or 0)}"

    def _log_text(self) -> str:
        """The log since it was ready, or from its start before; of a long one its end."""
        with self.log_file.open("rb") as log:
            log.seek(max(self._ready_at, self.log_file.stat().st_size - _LOG_BYTES))
            return log.read().decode(errors="replace")

    def stats(self) -> EngineStats | None:
        """The member's statistics; None before it is ready."""
        return self._stats.read() if self._stats is not None else None

    async def state(self, deadline_s: float) -> MemberState:
        """What the member is now, also when it does not answer any more.

        One that lives and does not answer a look is ready, with what is known of it as detail, until it has
        not answered for the stall timeout.
        """
        health, detail, answer = Health.STARTING, "", None
        stats = self.stats()
        if self._stopped:
            health = Health.STOPPED
        elif self._process is not None and self._process.returncode is not None:
            health, detail = Health.FAILED, self.failure()
        elif self._client is not None and stats is not None:
            reason = stall(stats, self.launch.options.stall_timeout_s)
            if reason is not None:
                health, detail = Health.STALLED, self._explained(f"{self.launch.title}: {reason}")
            else:
                asked = time.monotonic()
                try:
                    answer = await self._client.state(deadline_s)
                    self._unanswered.end()
                    health, detail = answer.health, answer.detail
                    if health is Health.FAILED:
                        why = root_cause(self._log_text())
                        detail = f"{detail}{f': {why}' if why else ''}; its log is {self.log_file}"
                except MemberError as error:
                    dead = self._process is not None and self._process.returncode is not None
                    health, detail = (
                        (Health.FAILED, self.failure()) if dead else self._silent(asked, str(error))
                    )
        return MemberState(
            member=self.launch.member,
            incarnation=self.launch.incarnation,
            health=health,
            detail=detail,
            pid=self._ready.pid if self._ready else None,
            engine_pids=self._ready.engine_pids if self._ready else (),
            base_url=self.base_url,
            version=answer.version if answer else None,
            digest=answer.digest if answer else None,
            stats=stats,
        )

    def _silent(self, asked: float, reason: str) -> tuple[Health, str]:
        """What a member is that lives and did not answer when it was asked."""
        silent_s = self._unanswered.asked_at(asked)
        if silent_s is None:
            return Health.READY, f"{reason}; it is asked again"
        return Health.STALLED, self._explained(
            f"{reason}, and nothing since {self._unanswered.since_clock()}, for {silent_s:.0f} s"
        )

    def _explained(self, reason: str) -> str:
        """With the stopped process, if that is why, and where to look."""
        assert self._ready is not None
        halted = [pid for pid in (self._ready.pid, *self._ready.engine_pids) if is_halted(pid)]
        limit = f"{reason} (the limit, stall_timeout_s, is {self.launch.options.stall_timeout_s:g} s)"
        if halted:
            return f"{limit}: its process {halted[0]} was stopped; `kill -CONT {halted[0]}` lets it go on"
        return f"{limit}; its log is {self.log_file}"

    async def stop(self, deadline_s: float) -> None:
        """Ends every process of the member: SIGTERM, then SIGKILL. Also when the caller is being cancelled.

        Raises:
            MemberError: something of it is still there after all that.
        """
        await asyncio.shield(asyncio.ensure_future(self._stop(deadline_s)))

    async def _stop(self, deadline_s: float) -> None:
        self._stopped = True
        if self._client is not None:
            await self._client.close()
        if self._process is not None and self._process.returncode is None:
            self._note("ART stops this server; errors below, of a dead engine too, come of that")
            await self._end(self._process, deadline_s)
            self._note("ART stopped this server, as it was told to")
        if self._stats is not None:
            self._stats.close()
            self._stats = None
        _remove(self._run_folder)

    def _note(self, text: str) -> None:
        """A line of ART's own in the log; without room for it the server is stopped all the same."""
        with contextlib.suppress(OSError), self.log_file.open("a") as log:
            log.write(f"{text} ({time.strftime('%Y-%m-%d %H:%M:%S')})\n")

    async def _end(self, process: asyncio.subprocess.Process, deadline_s: float) -> None:
        process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), max(deadline_s - _KILL_S, 0.1))
        if process.returncode is None:
            # The supervisor's death ends the server, and the server's death the engine (PR_SET_PDEATHSIG).
            process.kill()
            try:
                await asyncio.wait_for(process.wait(), _KILL_S)
            except TimeoutError as error:
                raise MemberError(
                    f"{self.launch.title}: supervisor {process.pid} survived SIGKILL"
                ) from error


def _make_run_folder() -> Path:
    """A new folder whose path is short enough for the unix sockets in it."""
    for parent in (tempfile.gettempdir(), "/tmp"):
        if len(os.fsencode(parent)) <= _SOCKET_FOLDER_BYTES and os.access(parent, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="art-vllm-", dir=parent))
    raise MemberError(
        f"the temporary folder {tempfile.gettempdir()} has a name of more than {_SOCKET_FOLDER_BYTES} bytes, "
        f"too long for the unix sockets of vLLM, and /tmp is not writable; set TMPDIR to a shorter one"
    )


def _report(lines: list[str], progress: Callable[[str], None] | None) -> None:
    if progress is not None:
        for line in lines:
            if line.startswith(_PROGRESS):
                progress(line.removeprefix(_PROGRESS).strip())


def _remove(folder: Path) -> None:
    """The supervisor removed it already, unless it was killed or never started."""
    if folder.exists():
        shutil.rmtree(folder)
