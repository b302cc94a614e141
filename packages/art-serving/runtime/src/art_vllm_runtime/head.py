"""Starts the engine, serves, and ends in order: the part of the server that needs vLLM."""

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import socket
import threading
from functools import partial

import uvicorn
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.tool_parsers import ToolParserManager

from art_vllm_runtime import spans
from art_vllm_runtime.app import Member, build_app
from art_vllm_runtime.prompt_sharing import connector_config
from art_vllm_runtime.server import ENGINE_DIED, say, write_json
from art_vllm_runtime.serving import RecordingLLM
from art_vllm_runtime.stats_page import StatsPage

_BEAT_S = 0.2
_SHUTDOWN_S = 5.0
_ANSWERS_AFTER_DEATH_S = 1.0


def run_head(
    arguments: argparse.Namespace, listener: socket.socket, admin_token: str, api_key: str | None
) -> int:
    """Serves until told to stop; returns the exit status."""
    if arguments.tool_parser is not None:
        check_tool_parser(arguments.tool_parser)
    page = StatsPage(str(arguments.run_folder / "stats"))
    say("starting the engine")
    engine = start_engine(arguments, page)
    say("engine is up")
    member = Member(
        engine=engine,
        page=page,
        base_model_name=arguments.base_model_name,
        model_path=arguments.model_path,
        adapter_name=arguments.adapter_name,
        stall_timeout_s=arguments.stall_timeout_s,
        admin_token=admin_token,
        api_key=api_key,
        tool_parser=arguments.tool_parser,
    )
    return asyncio.run(_serve(member, arguments, listener))


def check_tool_parser(name: str) -> None:
    """Ends the process before the engine starts when vLLM has no tool parser of this name."""
    known = ToolParserManager.list_registered()
    if name not in known:
        raise SystemExit(f"there is no tool parser {name!r}; vLLM has {', '.join(sorted(known))}")


def start_engine(arguments: argparse.Namespace, page: StatsPage) -> RecordingLLM:
    """The engine core is a child process of this one; with one worker it is the worker, too."""
    spans.install()
    config = engine_arguments(arguments).create_engine_config()
    if config.parallel_config.world_size == 1:
        # vLLM's CPU platform asks for a worker process of its own so that it can set OMP's environment; here
        # that environment is set before the first process starts.
        config.parallel_config.distributed_executor_backend = "uni"
        # No thread but this one exists, so forking is safe, and the child need not import everything again.
        if threading.active_count() == 1:
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    gc.freeze()  # no collection looks at the imports again, nor makes a child copy their pages
    gc.enable()
    return RecordingLLM.from_vllm_config(config, disable_log_stats=True, stat_loggers=[page.logger()])


def engine_arguments(arguments: argparse.Namespace) -> AsyncEngineArgs:
    """vLLM's options.

    ``generation_config="vllm"``: a model's own defaults must not truncate sampling silently.
    """
    return AsyncEngineArgs(
        model=arguments.model_path,
        served_model_name=[arguments.base_model_name],
        dtype=arguments.dtype,
        max_model_len=arguments.max_model_len,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        kv_cache_memory_bytes=arguments.kv_cache_bytes,
        block_size=arguments.block_size,
        enable_prefix_caching=arguments.prefix_caching,
        kv_transfer_config=connector_config() if arguments.prefix_caching else None,
        tensor_parallel_size=arguments.tensor_parallel_size,
        pipeline_parallel_size=arguments.pipeline_parallel_size,
        seed=arguments.seed,
        enforce_eager=True,
        enable_lora=True,
        max_loras=1,
        max_cpu_loras=1,
        max_lora_rank=arguments.max_lora_rank,
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        scheduler_cls="art_vllm_runtime.span_scheduler.SpanScheduler",
        worker_extension_cls="art_vllm_runtime.worker_extension.ArtWorkerExtension",
    )


async def _serve(member: Member, arguments: argparse.Namespace, listener: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    app = build_app(member)
    server = _Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    watching = asyncio.create_task(_watch(member))
    up = asyncio.create_task(server.up.wait())
    await asyncio.wait({up, serving}, return_when=asyncio.FIRST_COMPLETED)
    if not server.up.is_set():
        await serving
        raise RuntimeError("the HTTP server ended before it was up")
    host, port = listener.getsockname()[:2]
    say(f"ready on {host} port {port}")
    write_json(
        arguments.run_folder / "ready.json",
        {
            "host": host,
            "port": port,
            "pid": os.getpid(),
            "engine_pids": [p.pid for p in _engine_processes(member)],
        },
    )
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({stopping, watching, serving}, return_when=asyncio.FIRST_COMPLETED)
    if watching.done():
        return await _end_after_death(member, arguments, watching.result())
    say("stopping")
    await _end(member, server, serving)
    say("stopped")
    return 0


class _Server(uvicorn.Server):
    """Says when it is up, and leaves signals to :func:`_serve`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's."""
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Leaves signals alone."""
        yield


def _engine_processes(member: Member) -> list:  # type: ignore[type-arg]
    return list(member.engine.engine_core.resources.engine_manager.processes)


async def _watch(member: Member) -> str:
    """Writes the statistics page; returns when a process of the engine has died, and says which and how."""
    processes = _engine_processes(member)
    while True:
        for process in processes:
            if process.exitcode is not None:
                return f"engine core (pid {process.pid}) {_describe(process.exitcode)}"
        member.page.beat(member.engine.get_num_unfinished_requests())
        await asyncio.sleep(_BEAT_S)


def _describe(code: int) -> str:
    if code >= 0:
        return f"ended with exit status {code}"
    return f"was killed by {signal.Signals(-code).name}"


async def _end_after_death(member: Member, arguments: argparse.Namespace, text: str) -> int:
    say(text)
    member.failure = text
    member.failed.set()
    write_json(arguments.failure_file, {"text": text})
    member.page.beat(member.engine.get_num_unfinished_requests())
    # Requests in flight get their error answer, which names the dead process.
    await asyncio.sleep(_ANSWERS_AFTER_DEATH_S)
    return ENGINE_DIED


async def _end(member: Member, server: uvicorn.Server, serving: "asyncio.Task[None]") -> None:
    loop = asyncio.get_running_loop()
    ending = loop.run_in_executor(None, partial(member.engine.shutdown, timeout=_SHUTDOWN_S))
    await asyncio.wait({ending}, timeout=_SHUTDOWN_S + 1.0)
    server.should_exit = True
    await asyncio.wait({serving}, timeout=2.0)
