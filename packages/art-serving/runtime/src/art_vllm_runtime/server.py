"""``art-vllm-runtime-server``: one member's head process, with vLLM's engine core as its child.

The order matters. The socket is bound first, so a port that is taken ends the process at once. The engine
core is forked before any event loop or thread pool exists. The ready file is written last, when requests are
answered.
"""

import argparse
import gc
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

ADMIN_TOKEN_VARIABLE = "ART_ADMIN_TOKEN"
API_KEY_VARIABLE = "ART_API_KEY"
ENGINE_DIED = 3

_STARTED = time.monotonic()


def say(text: str) -> None:
    """One line of progress in the log, with seconds since the process started."""
    print(f"ART {time.monotonic() - _STARTED:.1f} s: {text}", flush=True)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Every option is given by art-serving's ``launch.py``; only what may be absent has a default."""
    parser = argparse.ArgumentParser(prog="art-vllm-runtime-server", allow_abbrev=False)
    parser.add_argument(
        "--run-folder", type=Path, required=True, help="for the ready file, the statistics page, IPC"
    )
    parser.add_argument(
        "--failure-file", type=Path, required=True, help="where the cause is written when the engine dies"
    )
    parser.add_argument("--host", required=True)
    parser.add_argument(
        "--port", type=int, required=True, help="0: chosen here and written to the ready file"
    )
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--base-model-name", required=True)
    parser.add_argument("--adapter-name", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--max-num-seqs", type=int, required=True)
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--max-lora-rank", type=int, required=True)
    parser.add_argument("--kv-cache-bytes", type=int)
    parser.add_argument("--block-size", type=int, required=True)
    parser.add_argument("--prefix-caching", action=argparse.BooleanOptionalAction, required=True)
    parser.add_argument("--tensor-parallel-size", type=int, required=True)
    parser.add_argument("--pipeline-parallel-size", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--stall-timeout-s", type=float, required=True)
    parser.add_argument("--tool-parser", help="vLLM's name of the parser of tool calls; none: no tools")
    return parser.parse_args(argv)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that nobody can connect to yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    return listener


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Atomically, so that a reader sees all or nothing."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    os.replace(part, path)


def leave_out_the_compiler() -> None:
    """Imports vLLM without the part of torch's compiler that it would load only to extend it.

    Nothing is compiled where ``TORCH_COMPILE_DISABLE`` is set: ``torch.compile`` then gives back what it is
    given, but loads the compiler first, and so would an extension of it that vLLM can do without.
    """
    if os.environ.get("TORCH_COMPILE_DISABLE") != "1":
        return
    import torch

    torch.compile = _as_written  # type: ignore[assignment]  # what it does when it is disabled
    extended = "torch._inductor.lowering"
    sys.modules[extended] = None  # type: ignore[assignment]  # makes an import of it an ImportError
    try:
        import vllm  # noqa: F401  # for its effect: what it loads
    finally:
        del sys.modules[extended]


def _as_written(model: Any = None, **_: Any) -> Any:
    """Stands for ``torch.compile``, with and without a function."""
    return model if model is not None else _as_written


def main() -> None:
    """Runs until SIGTERM or SIGINT, or until the engine core dies."""
    arguments = parse_arguments(sys.argv[1:])
    admin_token = os.environ.pop(ADMIN_TOKEN_VARIABLE)
    api_key = os.environ.pop(API_KEY_VARIABLE, None)
    try:
        listener = bind(arguments.host, arguments.port)
    except OSError as error:
        raise SystemExit(f"cannot listen on {arguments.host} port {arguments.port}: {error}") from error

    from art_vllm_runtime.parent_death import tie_forked_children

    tie_forked_children()
    say("importing vLLM")
    # Of what the imports allocate nearly all stays; ``head`` switches the collector on again before it forks.
    gc.disable()
    leave_out_the_compiler()
    from art_vllm_runtime.head import run_head

    code = run_head(arguments, listener, admin_token, api_key)
    sys.stdout.flush()
    sys.stderr.flush()
    # Interpreter shutdown would wait for vLLM's threads; everything that needs an orderly end has had it.
    os._exit(code)


if __name__ == "__main__":
    main()
