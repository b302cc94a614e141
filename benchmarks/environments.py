"""Environments for the benchmarks whose peers are not among ART's own dependencies.

A benchmark with a ``requirements.txt`` beside it runs in an environment of its own: what the file names,
art-dataplane of this clone, and what ``requirements-no-deps.txt`` names, without dependencies.
Environments are kept in the user's cache folder and built again when the files, the interpreter or the clone
are others.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_REQUIREMENTS = ("requirements.txt", "requirements-no-deps.txt")
_READY = "ready"


class EnvironmentBuildError(Exception):
    """An environment could not be built; the message has uv's output."""


def requirements(folder: Path) -> list[Path]:
    """The files of a benchmark that name what it needs; empty if it runs in ART's own environment."""
    return [folder / name for name in _REQUIREMENTS if (folder / name).exists()]


def environment_folder(folder: Path) -> Path:
    """Where the environment of the benchmark in ``folder`` is kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    content = "\0".join(path.read_text() for path in requirements(folder))
    digest = hashlib.sha256(f"{ROOT} {sys.base_prefix} {sys.version} {content}".encode()).hexdigest()[:12]
    return cache / "art-benchmarks" / f"{folder.name}-{digest}"


def interpreter(folder: Path, say: Callable[[str], None], deadline_s: float) -> str:
    """The Python that runs the benchmark in ``folder``; builds its environment if there is none yet.

    Raises:
        EnvironmentBuildError: uv is missing, failed or took longer than ``deadline_s`` for one of its steps.
    """
    files = requirements(folder)
    if not files:
        return sys.executable
    target = environment_folder(folder)
    python = target / "bin" / "python"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / _READY).exists():
            say(f"building its environment in {target} (the first time takes minutes)")
            shutil.rmtree(target, ignore_errors=True)
            _uv(["venv", "--quiet", "--python", sys.executable, str(target)], deadline_s)
            install = ["pip", "install", "--quiet", "--python", str(python)]
            _uv([*install, "-r", str(files[0]), "-e", str(ROOT / "packages" / "art-dataplane")], deadline_s)
            for file in files[1:]:
                _uv([*install, "--no-deps", "-r", str(file)], deadline_s)
            (target / _READY).touch()
    return str(python)


def _uv(arguments: list[str], deadline_s: float) -> None:
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise EnvironmentBuildError("uv is not on PATH: https://docs.astral.sh/uv says how to install it")
    command = [uv, *arguments]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=deadline_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentBuildError(f"{' '.join(command)}: not done within {deadline_s:.0f} s") from error
    if done.returncode:
        raise EnvironmentBuildError(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
