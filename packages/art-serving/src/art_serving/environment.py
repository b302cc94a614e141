"""Locked Python environments, built by uv into a content-addressed cache.

What always holds:

- an environment's address is the digest of the bundle's files, the interpreter and the platform, so an edit
  of any of them makes a new environment and never changes one that is in use;
- an entry is used only when its marker says that it is complete; the marker is written last, after everything
  under it is on disk; an entry without a marker is removed and built anew, whatever left it behind;
- one builder at a time works on an entry. The lock is a ``flock`` that uv's process holds too, so it is free
  only when nothing can write there any more;
- uv never outlives the builder, and cancellation ends it.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from art_serving.bundle import EnvironmentBundle, bundle_digest, bundle_files
from art_serving.errors import EnvironmentBuildError
from art_serving.room import full_folder, lacks_room, no_room, tells_of_full_disk
from art_serving.supervision import supervised

CACHE_VARIABLE = "ART_CACHE_DIR"

_MARKER = "complete.json"
_LOCK_POLL_S = 0.2
_TAIL_LINES = 30
_UV_GRACE_S = 3.0

Phase = Literal["reuse", "wait", "prepare", "install", "done"]


class BuildProgress(msgspec.Struct, frozen=True):
    """One line for the user: what happens now.

    Args:
        environment: name of the bundle.
        phase: found in the cache ("reuse"), waiting for another builder, copying the bundle ("prepare"), uv
            at work ("install"), or done.
        text: the line.
        elapsed_s: seconds since the start of the call.
    """

    environment: str
    phase: Phase
    text: str
    elapsed_s: float


ProgressCallback = Callable[[BuildProgress], None]


class Environment(msgspec.Struct, frozen=True):
    """A complete environment.

    Args:
        path: the virtual environment's folder.
        python: its interpreter.
        digest: of what it was built from, 32 hex digits; ``external:PATH`` for one that the user named.
    """

    path: Path
    python: Path
    digest: str

    def command(self, name: str) -> Path:
        """The path of one of the environment's commands.

        Raises:
            EnvironmentBuildError: there is none of that name.
        """
        found = self.path / "bin" / name
        if not os.access(found, os.X_OK):
            raise EnvironmentBuildError(f"{self.path} has no command {name!r}")
        return found


def default_cache_root() -> Path:
    """``ART_CACHE_DIR``, or ``~/.cache/art``; absolute, also where the variable or ``HOME`` is not."""
    named = os.environ.get(CACHE_VARIABLE)
    return (Path(named).expanduser() if named else Path.home() / ".cache" / "art").absolute()


async def build_environment(
    bundle: EnvironmentBundle,
    cache_root: Path | None = None,
    *,
    deadline_s: float,
    progress: ProgressCallback | None = None,
) -> Environment:
    """Finds the bundle's environment in the cache, or builds it there.

    Cancelling the call ends uv within some seconds; what it leaves is never used.

    Args:
        bundle: what to build.
        cache_root: defaults to :func:`default_cache_root`.
        deadline_s: seconds for everything, waiting for another builder included.
        progress: is called with one line at a time, from the event loop's thread.

    Raises:
        EnvironmentBuildError: uv failed (with what it said about it), or the deadline passed.
        NoRoomError: a disk was full; what was half built is removed.
    """
    return await _Build(bundle, cache_root or default_cache_root(), deadline_s, progress).run()


def find_environment(bundle: EnvironmentBundle, cache_root: Path | None = None) -> Environment | None:
    """The complete environment of the bundle, or None; builds nothing.

    Args:
        bundle: what it was built from.
        cache_root: defaults to :func:`default_cache_root`.

    Raises:
        EnvironmentBuildError: the bundle lacks ``pyproject.toml``, ``uv.lock`` or something it includes.
    """
    digest = bundle_digest(bundle)
    return _complete(_entry(bundle, cache_root or default_cache_root(), digest), digest)


def _entry(bundle: EnvironmentBundle, cache_root: Path, digest: str) -> Path:
    return cache_root.expanduser().absolute() / "environments" / f"{bundle.name}-{digest}"


def _complete(entry: Path, digest: str) -> Environment | None:
    environment = Environment(entry / ".venv", entry / ".venv" / "bin" / "python", digest)
    try:
        marker = (entry / _MARKER).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return environment if marker == digest and environment.python.exists() else None


class _Build:
    """One call of :func:`build_environment`."""

    def __init__(
        self,
        bundle: EnvironmentBundle,
        cache_root: Path,
        deadline_s: float,
        progress: ProgressCallback | None,
    ) -> None:
        self._bundle = bundle
        self._digest = bundle_digest(bundle)
        self._cache = cache_root.expanduser().absolute()
        self._path = _entry(bundle, cache_root, self._digest)
        self._started = time.monotonic()
        self._deadline_s = deadline_s
        self._progress = progress

    async def run(self) -> Environment:
        found = _complete(self._path, self._digest)
        if found is not None:
            self._say("reuse", f"using {self._path}")
            return found
        try:
            await self._build()
        except OSError as error:
            if not lacks_room(error):
                raise
            raise no_room(self._bundle.name, self._cache, self._bundle.disk_bytes, CACHE_VARIABLE) from None
        done = _complete(self._path, self._digest)
        if done is None:
            raise EnvironmentBuildError(
                f"{self._path} is not complete after the build: {self._path / '.venv'} has no python"
            )
        self._say("done", f"environment ready in {self._elapsed():.1f} s at {self._path}")
        return done

    async def _build(self) -> None:
        """What is not there; of a build that found no room nothing is left."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        async with self._locked() as lock:
            if _complete(self._path, self._digest) is not None:
                return
            try:
                await self._prepare()
                await self._sync(lock)
                self._finish()
            except OSError as error:
                if lacks_room(error):
                    await self._remove()
                raise

    async def _remove(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._path, ignore_errors=True)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _left(self) -> float:
        left = self._deadline_s - self._elapsed()
        if left <= 0:
            raise EnvironmentBuildError(
                f"environment {self._bundle.name!r} was not ready within {self._deadline_s:.0f} s; "
                f"a later call goes on with what uv has fetched, so raise the deadline or call again"
            )
        return left

    def _say(self, phase: Phase, text: str) -> None:
        if self._progress is not None:
            self._progress(BuildProgress(self._bundle.name, phase, text, self._elapsed()))

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[int]:
        fd = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            said = False
            while not _try_lock(fd):
                if not said:
                    self._say("wait", f"another process is building {self._path}")
                    said = True
                await asyncio.sleep(min(_LOCK_POLL_S, self._left()))
            yield fd
        finally:
            os.close(fd)

    async def _prepare(self) -> None:
        """A new entry with a copy of the bundle's files, which is what is built, whatever happens to them."""
        self._say("prepare", f"building environment {self._bundle.name!r} (once) at {self._path}")
        if self._path.exists():
            await asyncio.to_thread(shutil.rmtree, self._path)
        for relative in bundle_files(self._bundle):
            target = self._path / "source" / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self._bundle.root / relative, target)
        copied = msgspec.structs.replace(self._bundle, root=self._path / "source")
        if bundle_digest(copied) != self._digest:
            raise EnvironmentBuildError(
                f"bundle {self._bundle.name!r} changed while it was copied; call again"
            )

    async def _sync(self, lock: int) -> None:
        temporary = self._path / "tmp"
        temporary.mkdir()  # uv leaves lock files in TMPDIR; the supervisor removes the folder
        command = supervised(
            [
                *(
                    _uv(),
                    "sync",
                    "--frozen",
                    "--no-dev",
                    "--no-editable",
                    "--no-progress",
                    "--color",
                    "never",
                ),
                *("--project", str(self._path / "source" / self._bundle.project), "--python", sys.executable),
            ],
            grace_s=_UV_GRACE_S,
            scratch=temporary,
        )
        environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        environment |= {
            "UV_PROJECT_ENVIRONMENT": str(self._path / ".venv"),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_COMPILE_BYTECODE": "1",
            "PYTHONDONTWRITEBYTECODE": "",
            "TMPDIR": str(temporary),
        }
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            pass_fds=(lock,),
        )
        tail: list[str] = []
        try:
            async with asyncio.timeout(self._left()):
                async for line in _lines(process):
                    tail = [*tail, line][-_TAIL_LINES:]
                    self._say("install", line)
                code = await process.wait()
        except TimeoutError:
            self._left()
            raise
        finally:
            await _end(process)
        if code != 0:
            await self._tell_failure(code, tail)

    async def _tell_failure(self, code: int, tail: list[str]) -> NoReturn:
        text = "\n".join(_complaint(tail))
        if tells_of_full_disk(text):
            full = full_folder(self._cache)
            await self._remove()
            variable = CACHE_VARIABLE if full == self._cache else "UV_CACHE_DIR"
            raise no_room(self._bundle.name, full, self._bundle.disk_bytes, variable)
        raise EnvironmentBuildError(
            f"uv could not build environment {self._bundle.name!r} (exit status {code}):\n{text}\n"
            "check the network, and the index and proxy that uv is set to, then call again; what uv has "
            "fetched is kept"
        )

    def _finish(self) -> None:
        """Everything to disk, then the marker, then the marker's name."""
        marker = self._path / _MARKER
        folder = os.open(self._path, os.O_RDONLY)
        try:
            _sync_filesystem(folder)
            with open(f"{marker}.part", "w") as file:
                file.write(self._digest)
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{marker}.part", marker)
            os.fsync(folder)
        finally:
            os.close(folder)


def _uv() -> str:
    import uv

    return str(uv.find_uv_bin())


def _complaint(lines: list[str]) -> list[str]:
    """What uv says about its failure, without its lines before that, which were told as they came."""
    begins = [
        place for place, line in enumerate(lines) if line.lstrip().startswith(("error", "\u00d7", "x "))
    ]
    return lines[begins[0] :] if begins else lines


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_filesystem(fd: int) -> None:
    """All data of the file system that ``fd`` is on (Linux ``syncfs``)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd) != 0:
        raise OSError(ctypes.get_errno(), "syncfs failed")


async def _lines(process: asyncio.subprocess.Process) -> AsyncIterator[str]:
    assert process.stdout is not None
    async for raw in process.stdout:
        line = raw.decode(errors="replace").rstrip()
        if line:
            yield line


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the supervisor, and with it uv, also while the caller is being cancelled."""
    if process.returncode is not None:
        return
    process.terminate()
    ended = asyncio.ensure_future(process.wait())
    until = time.monotonic() + _UV_GRACE_S + 2.0
    while not ended.done() and time.monotonic() < until:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({ended}, timeout=max(0.0, until - time.monotonic()))
    if not ended.done():
        process.kill()
    await ended
