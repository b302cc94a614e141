"""What can be known on a host before a member starts there. All problems at once."""

import errno
import os
import socket
from pathlib import Path

from art_serving.deployment import MemberLaunch
from art_serving.environment import Environment
from art_serving.errors import EnvironmentBuildError, PreflightError
from art_serving.vllm_runtime import RUNTIME_COMMAND

_PROCESS_BYTES = 1600 * 2**20
"""What the API server and the engine core take before weights and KV cache, measured with vLLM 0.32 on CPU.
"""


def check_host(launch: MemberLaunch, environment: Environment) -> None:
    """Checks model folder, port, memory, environment and log folder.

    Raises:
        PreflightError: with every problem found.
    """
    problems = [
        problem
        for problem in (
            _environment_problem(environment),
            _model_problem(Path(launch.model_path)),
            _port_problem(launch.host, launch.port),
            _memory_problem(launch),
            _log_problem(Path(launch.log_folder)),
        )
        if problem
    ]
    if problems:
        raise PreflightError(
            f"{launch.title} cannot start here:\n" + "\n".join(f"- {text}" for text in problems)
        )


def _environment_problem(environment: Environment) -> str | None:
    try:
        environment.command(RUNTIME_COMMAND)
    except EnvironmentBuildError as error:
        return str(error)
    return None


def _model_problem(path: Path) -> str | None:
    if not (path / "config.json").is_file():
        return f"{path} is no model folder: it has no config.json"
    if not any(path.glob("*.safetensors")):
        return f"{path} has no *.safetensors file"
    return None


def _port_problem(host: str, port: int) -> str | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"port {port} of {host} is in use; choose another, or 0 to have one chosen"
            return f"cannot listen on {host} port {port}: {error.strerror}"
    return None


def _memory_problem(launch: MemberLaunch) -> str | None:
    weights = sum(file.stat().st_size for file in Path(launch.model_path).glob("*.safetensors"))
    if launch.dtype == "float32":
        weights *= 2  # files are usually half as wide
    needed = (
        weights
        + launch.kv_cache_bytes * launch.tensor_parallel_size * launch.pipeline_parallel_size
        + _PROCESS_BYTES
    )
    free = available_bytes()
    if needed > free:
        return (
            f"about {needed / 2**30:.1f} GiB are needed (weights {weights / 2**30:.1f}, KV cache "
            f"{launch.kv_cache_bytes / 2**30:.1f}, processes {_PROCESS_BYTES / 2**30:.1f}), "
            f"{free / 2**30:.1f} GiB are free"
        )
    return None


def available_bytes() -> int:
    """Memory that can still be had: the machine's, or less where a cgroup bounds it."""
    free = _machine_available()
    root = Path("/sys/fs/cgroup")
    try:
        own = Path("/proc/self/cgroup").read_text().strip().rpartition(":")[2].lstrip("/")
        group = root / own
        while True:
            limit, used = (group / "memory.max").read_text().strip(), (group / "memory.current").read_text()
            if limit != "max":
                free = min(free, int(limit) - int(used) + _file_cache(group))
            if group == root:
                return free
            group = group.parent
    except (OSError, ValueError):
        return free


def _machine_available() -> int:
    """What ``MemAvailable:`` of ``/proc/meminfo`` says, in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise PreflightError("/proc/meminfo has no MemAvailable; Linux 3.14 or newer is needed")


def _file_cache(group: Path) -> int:
    """Bytes of a cgroup that the kernel gives back when they are needed."""
    for line in (group / "memory.stat").read_text().splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


def _log_problem(folder: Path) -> str | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"the log folder {folder} cannot be made: {error.strerror}"
    return None if os.access(folder, os.W_OK) else f"the log folder {folder} is not writable"
