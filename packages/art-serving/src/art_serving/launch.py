"""The exact command and environment of a member's process. Nothing is decided anywhere else."""

import os
from collections.abc import Mapping
from pathlib import Path

from art_serving.deployment import MemberLaunch
from art_serving.environment import Environment
from art_serving.vllm_runtime import RUNTIME_COMMAND

_NOT_INHERITED = {"VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LD_PRELOAD"}


def member_command(
    launch: MemberLaunch, environment: Environment, run_folder: Path, failure_file: Path
) -> list[str]:
    """The server's argument vector, every option spelled out."""
    options = launch.options
    command = [str(environment.command(RUNTIME_COMMAND))]
    values: dict[str, object] = {
        "--run-folder": run_folder,
        "--failure-file": failure_file,
        "--host": launch.host,
        "--port": launch.port,
        "--model-path": launch.model_path,
        "--base-model-name": launch.base_model_name,
        "--adapter-name": launch.adapter_name,
        "--dtype": launch.dtype,
        "--max-model-len": launch.max_model_len,
        "--max-num-seqs": launch.max_num_seqs,
        "--max-num-batched-tokens": options.max_num_batched_tokens,
        "--max-lora-rank": launch.max_lora_rank,
        "--kv-cache-bytes": launch.kv_cache_bytes,
        "--block-size": options.block_size,
        "--tensor-parallel-size": launch.tensor_parallel_size,
        "--pipeline-parallel-size": launch.pipeline_parallel_size,
        "--seed": launch.seed,
        "--stall-timeout-s": options.stall_timeout_s,
        "--tool-parser": options.tool_parser,
    }
    for name, value in values.items():
        if value is not None:
            command += [name, str(value)]
    command.append("--prefix-caching" if options.prefix_caching else "--no-prefix-caching")
    return command


def member_environment(
    launch: MemberLaunch, run_folder: Path, inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The server's environment: what is inherited, without this process's Python, and what vLLM needs.

    Threads are not bound to cores, and waiting threads sleep instead of spinning: a trainer shares the cores.
    """
    environment = {
        name: value
        for name, value in inherited.items()
        if name not in _NOT_INHERITED and not name.startswith(("ART_", "VLLM_", "OMP_", "KMP_"))
    }
    environment |= {
        "ART_ADMIN_TOKEN": launch.admin_token.value,
        "TMPDIR": str(run_folder),
        "VLLM_RPC_BASE_PATH": str(run_folder),
        "VLLM_PLUGINS": "art_vllm_runtime",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(launch.options.threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        # vLLM runs eagerly with adapters; the one helper it would still compile costs the first request 15 s.
        "TORCH_COMPILE_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if launch.api_key is not None:
        environment["ART_API_KEY"] = launch.api_key.value
    return environment
