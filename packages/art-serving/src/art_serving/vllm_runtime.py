"""Where vLLM is installed: the locked environment of our own bundle, or the one that the user names."""

import os
import shlex
from pathlib import Path

from art_serving.bundle import EnvironmentBundle
from art_serving.environment import Environment, ProgressCallback, build_environment
from art_serving.errors import EnvironmentBuildError

RUNTIME_BIN_VARIABLE = "ART_VLLM_RUNTIME_BIN"
RUNTIME_COMMAND = "art-vllm-runtime-server"

VLLM_DISK_BYTES = 6_300_000_000
"""vLLM's environment for CPUs: 6.27 GB in 175 packages."""

_VLLM_INCLUDE = (
    "art-serving/runtime/pyproject.toml",
    "art-serving/runtime/uv.lock",
    "art-serving/runtime/src",
    "art-dataplane/pyproject.toml",
    "art-dataplane/README.md",
    "art-dataplane/LICENSE",
    "art-dataplane/src",
)
"""The runtime and the package of ours that it needs; ``hatch_build.py`` puts the same into the wheel."""


def vllm_bundle() -> EnvironmentBundle:
    """The locked vLLM runtime: the copy in the wheel, or in a source checkout the tree itself.

    Raises:
        EnvironmentBuildError: neither is there.
    """
    packaged = Path(__file__).with_name("_bundle")
    checkout = Path(__file__).parents[3]
    for root in (packaged, checkout):
        if (root / "art-serving" / "runtime" / "uv.lock").is_file():
            return EnvironmentBundle("vllm-cpu", root, "art-serving/runtime", _VLLM_INCLUDE, VLLM_DISK_BYTES)
    raise EnvironmentBuildError(
        f"this installation of art-serving carries no vLLM runtime (looked in {packaged} and {checkout}); "
        f"install a released wheel or set {RUNTIME_BIN_VARIABLE}"
    )


def runtime_from_variable(value: str) -> Environment:
    """The environment that ``ART_VLLM_RUNTIME_BIN`` names.

    Only ``ROOT/.venv/bin/art-vllm-runtime-server`` is taken, so that what is checked is what runs: the
    interpreter and the root are derived from it, and a wrapper elsewhere is refused.

    Raises:
        EnvironmentBuildError: the path is something else.
    """
    path = Path(value)
    problem = _runtime_problem(path)
    if problem:
        raise EnvironmentBuildError(
            f"{RUNTIME_BIN_VARIABLE}={value!r}: {problem}; it must be ROOT/.venv/bin/{RUNTIME_COMMAND} of "
            f"a virtual environment, not a wrapper"
        )
    venv = path.parents[1]
    return Environment(venv, venv / "bin" / "python", f"external:{venv}")


def _runtime_problem(path: Path) -> str | None:
    if not path.is_absolute():
        return "the path is not absolute"
    if len(path.parts) < 5 or path.parts[-3:] != (".venv", "bin", RUNTIME_COMMAND):
        return "the path does not end as that of an environment's command"
    if path.is_symlink():
        return "the file is a symbolic link"
    if not path.is_file() or not os.access(path, os.X_OK):
        return "there is no such executable file"
    if not (path.parents[1] / "pyvenv.cfg").is_file() or not os.access(path.parent / "python", os.X_OK):
        return f"{path.parents[1]} is not a virtual environment"
    if _interpreter(path) not in {str(path.parent / name) for name in ("python", "python3", "python3.12")}:
        return "its first lines do not name the environment's own interpreter"
    return None


def _interpreter(script: Path) -> str | None:
    """What runs an installed command; installers write a detour over ``/bin/sh`` when the path is long."""
    with open(script, "rb") as file:
        first, second = (os.fsdecode(file.readline(4096)).strip() for _ in range(2))
    if first == "#!/bin/sh" and second.startswith("'''exec' "):
        return shlex.split(second.removeprefix("'''exec' "))[0]
    return first.removeprefix("#!") if first.startswith("#!") else None


async def vllm_environment(
    cache_root: Path | None = None, *, deadline_s: float, progress: ProgressCallback | None = None
) -> Environment:
    """The environment that members run in: ``ART_VLLM_RUNTIME_BIN``'s, or the locked bundle's from the cache.

    Args:
        cache_root: defaults to :func:`art_serving.default_cache_root`.
        deadline_s: seconds for a build, waiting for another builder included.
        progress: is called with one line at a time while it is built.

    Raises:
        EnvironmentBuildError: the variable names something that is no such environment, or the build failed
            or was not done in time.
    """
    named = os.environ.get(RUNTIME_BIN_VARIABLE)
    if named:
        return runtime_from_variable(named)
    return await build_environment(vllm_bundle(), cache_root, deadline_s=deadline_s, progress=progress)
