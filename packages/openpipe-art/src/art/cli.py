"""The command `art`.

Importing it loads the standard library only, and the first line is written before anything heavy is loaded.
From that line on SIGINT, SIGTERM and SIGHUP end the command within seconds, with 128 and the signal's number.
"""

import argparse
import asyncio
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from art.distributed.launch import ArtLaunchContext
    from art.distributed.programs import Main

_FAILURE = 1
_STARTUP_TIMEOUT_S = 120.0
_DEMO_NEEDS = {
    "monarch": "distributed",
    "psutil": "distributed",
    "art_trainer": "cpu",
    "art_serving": "cpu",
    "rich": "cpu",
}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command; leaves with 0, 1 after an error, 2 for wrong arguments, 128 + signal."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """As :func:`main`, but returns the exit code."""
    parser, demo = _parsers()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        demo.error(f"unrecognized arguments: {' '.join(unknown)}")
    return _demo(options)


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parser of ``art`` and that of its one command."""
    import art

    parser = argparse.ArgumentParser(prog="art", description="Reinforcement learning for language models.")
    parser.add_argument("--version", action="version", version=f"art {art.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train a small model on this machine, no GPU needed",
        description='Trains SmolLM2-135M-Instruct to answer "maybe": the whole loop on this machine\'s CPUs. '
        "The first run fetches the model and builds vLLM's environment.",
    )
    demo.add_argument(
        "--steps", type=_steps, default=25, metavar="N", help="the most steps to take (default 25)"
    )
    demo.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and sampling (default 0)")
    demo.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="a new folder for what the run leaves (default: under runs/)",
    )
    return parser, demo


def _steps(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps (1 or more)")
    return int(text)


def _demo(options: argparse.Namespace) -> int:
    missing = [name for name in _DEMO_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"art demo: not installed: {', '.join(missing)}. They come with the extra 'cpu':\n"
            f"    pip install 'openpipe-art[cpu]'\n"
        )
        return _FAILURE
    from art.distributed import monarch_cli
    from art.distributed.programs import Program

    with monarch_cli.Signals() as signals:
        print('art demo: SmolLM2-135M-Instruct learns to answer "maybe" (Ctrl-C ends it)', flush=True)
        program = Program("art.demo.yes_no_maybe.train", "main")
        launch = argparse.Namespace(port=0, startup_timeout=_STARTUP_TIMEOUT_S)
        try:
            asyncio.run(monarch_cli.run_local(program, _with_settings(options), launch, signals))
        except (asyncio.CancelledError, KeyboardInterrupt):
            if signals.received is None:
                raise
        except _errors() as error:
            sys.stderr.write(f"art demo: {error}\n")
            return _FAILURE if signals.received is None else 128 + signals.received
    return 0 if signals.received is None else 128 + signals.received


def _with_settings(options: argparse.Namespace) -> "Main":
    async def program(launch: "ArtLaunchContext") -> None:
        from art.demo.yes_no_maybe import train

        settings = train.Settings(steps=options.steps, seed=options.seed, run_dir=options.run_dir)
        await train.main(launch, settings)

    return program


def _errors() -> tuple[type[Exception], ...]:
    """The errors whose text names cause and remedy, so that a traceback would add nothing."""
    from art.errors import ArtError
    from art_serving import ServingError
    from art_topology import TopologyError

    return (ArtError, ServingError, TopologyError)


if __name__ == "__main__":
    main()
