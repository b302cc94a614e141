"""The command `art demo`: its options, its help, and how it runs the program.

Importing it loads the standard library only.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from art.checks.arguments import Parser, folder_argument, whole_number

if TYPE_CHECKING:
    from art.demo.yes_no_maybe.train import Settings
    from art.distributed.launch import ArtLaunchContext
    from art.distributed.programs import Main
    from art.reporting import Display

__all__ = ["DESCRIPTION", "EPILOG", "SUMMARY", "Parser", "add_arguments", "run"]

SUMMARY = "train a small model on this machine, no GPU needed"
DESCRIPTION = """\
Trains a small language model on this machine's CPUs with reinforcement
learning, and leaves a page that shows how it went.

Every prompt asks for one of the words yes, no and maybe. The reward is 0.5,
0.75 and 1, and 0 for anything else; nothing but the reward says so. The whole
loop is real: rollout workers sample answers from vLLM, a trainer takes an
optimizer step on them, and the next answers come from the new policy. Prompts
in wordings that are not trained on are asked before and after.
"""
EPILOG = """\
how long, how much
  A run takes one to two minutes on two cores and 5.7 GiB of memory. The first
  one on a machine also fetches and builds, some minutes more:
    vLLM for CPUs           440 MB to fetch, 6.3 GB of disk
    SmolLM2-135M-Instruct   110 MB to fetch, 0.8 GB of disk (Apache-2.0)
  That is with torch in uv's cache, as `uv run art demo` leaves it. Installing
  ART itself fetches 2.9 GB, since torch from the package index brings 2.2 GB
  of CUDA libraries, with a GPU or without; where uv's cache lacks them, vLLM
  fetches them again (3.2 GB). Model and vLLM stay in ~/.cache/art, or where
  ART_CACHE_DIR says, and are used again. uv keeps a cache of its own (uv cache
  clean); on one file system the two share the bytes of vLLM. `art doctor` says
  whether this machine has what it takes, and what of the cache is of earlier
  versions of ART (`art doctor --prune-cache` removes that).

what a run leaves
  The run folder; no process, port or temporary file. (Besides, what is kept
  for all runs: the caches of ART, vLLM and uv, and in ~/.local/state/art a
  short record that lets the next run end what a killed one left.)
    run.json            what the run is, with its settings
    metrics.jsonl       a line per step
    trajectories/       every answer, with the tokens of some
    evaluations.jsonl   reward on wordings that are not trained on
    generations/        adapter and optimizer after every step, 29 MB each
    phases.jsonl, logs/
    report.html         a page with plots and answers; `art report RUN`
                        writes it again

stopping and going on
  Ctrl-C ends a run within seconds. --resume RUN goes on from the last step
  whose policy is on disk, also after a crash or a kill at whatever moment;
  with another --steps also after a run that came to its end.

--json
  Standard output holds one JSON object per line and nothing else. "event"
  names its kind: start, phase_started, phase, progress, notice, step_started,
  step_sampled, answer (one to look at), step (with "metrics"),
  evaluation_started, evaluation (with "line"), stopping, end of a run that was
  started (with "reason", "steps", "reward", "run_folder" and "report"), and
  error, the last line when something failed (with "kind" and "message"). The
  module art.reporting.events has every field.

exit status
  0 when the run came to its end, 1 after an error, 2 for wrong arguments,
  130 after Ctrl-C (SIGINT), 143 after SIGTERM, 129 after SIGHUP, 141 when the
  output is no longer read (1 when it cannot be written).

examples
    art demo
    art demo --steps 8 --seed 1 --run-dir runs/first
    art demo --resume runs/first
    art demo --model ~/models/my-llama
    art demo --json | jq 'select(.event == "step").metrics.reward'
"""

_FAILURE = 1
_USAGE_ERROR = 2
_BROKEN_PIPE = 128 + signal.SIGPIPE
_STARTUP_TIMEOUT_S = 120.0
_DEFAULT_STEPS = 25
_MOST_STEPS = 100_000
_HIGHEST_SEED = 2**32 - 1
"""NumPy in the server takes none above."""
_NEEDS = {
    "monarch": "distributed",
    "psutil": "distributed",
    "art_trainer": "cpu",
    "art_serving": "cpu",
    "rich": "cpu",
    "tokenizers": "cpu",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Gives the parser of `art demo` its options."""
    parser.add_argument(
        "--model",
        type=folder_argument,
        metavar="DIR",
        help="folder of a Hugging Face model to train in place of SmolLM2-135M-Instruct; with a chat "
        "template and of a family that ART supports",
    )
    parser.add_argument(
        "--steps",
        type=_steps,
        metavar="N",
        help=f"the most steps to take (default {_DEFAULT_STEPS}); it ends earlier once the mean reward of "
        "five steps is above 0.95",
    )
    parser.add_argument(
        "--seed",
        type=_seed,
        metavar="N",
        help="of prompts, sampling and the adapter's first weights (default 0)",
    )
    parser.add_argument(
        "--run-dir",
        type=folder_argument,
        metavar="DIR",
        help="a new folder for what the run leaves (default: under runs/)",
    )
    parser.add_argument(
        "--resume",
        type=folder_argument,
        metavar="RUN",
        help="go on with the run in this folder, with the settings it was started with; --steps, above the "
        "steps that it took, says anew how many it may take in all",
    )
    parser.add_argument("--json", action="store_true", help="write events as lines of JSON, see below")


def _steps(text: str) -> int:
    return whole_number(text, 1, _MOST_STEPS)


def _seed(text: str) -> int:
    return whole_number(text, 0, _HIGHEST_SEED)


def run(options: argparse.Namespace) -> int:
    """Runs the demo; returns the exit status."""
    out = _json_stream() if options.json else None
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        from art.checks.packages import install_command

        return _refused(
            f"not installed: {', '.join(missing)}. They come with the extra 'cpu':\n"
            f"    {install_command('cpu')}",
            out,
        )
    from art.distributed import monarch_cli
    from art.distributed.programs import Program

    with monarch_cli.Signals() as signals:
        program = Program("art.demo.yes_no_maybe.train", "main")
        try:
            settings = _settings(options)
            _check(settings)
            if out is None:
                _greet(settings)
            asyncio.run(
                monarch_cli.run_local(
                    program,
                    _with_settings(settings, _display(out)),
                    signals,
                    startup_timeout_s=_STARTUP_TIMEOUT_S,
                )
            )
        except (asyncio.CancelledError, KeyboardInterrupt):
            if signals.received is None:
                raise
        except Exception as error:  # noqa: BLE001 - told as what it is: one message, or a traceback
            return _ended(error, out) if signals.received is None else 128 + signals.received
    return 0 if signals.received is None else 128 + signals.received


def _greet(settings: "Settings") -> None:
    """The first line, before anything is fetched or started.

    Raises:
        DisplayError: it cannot be written.
    """
    from art.reporting.output import Output

    what = settings.model.name if settings.model else "SmolLM2-135M-Instruct"
    Output(sys.stdout).say(f'art demo: {what} learns to answer "maybe" (Ctrl-C ends it)')


def _settings(options: argparse.Namespace) -> "Settings":
    """What the options say, or the settings of the run that is resumed.

    Raises:
        ConfigError: an option contradicts them, or it is no run that can be resumed.
    """
    from art.demo.yes_no_maybe.train import Settings

    model = Path(os.path.realpath(options.model)) if options.model is not None else None
    given: dict[str, Any] = {"model": model, "steps": options.steps, "seed": options.seed}
    given = {name: value for name, value in given.items() if value is not None}
    if options.resume is None:
        return Settings(run_dir=options.run_dir, **given)
    from art.demo.resume import resumed_settings

    return resumed_settings(options.resume, options.run_dir, given)


def _check(settings: "Settings") -> None:
    """Refuses what can be known not to work, before anything is fetched, started or created.

    Raises:
        ConfigError: with everything that is wrong.
    """
    from art.checks import demo_checks, require, warnings
    from art.reporting import check_new_folder, run_folder

    folder = settings.run_dir
    done = len(run_folder.read_steps(folder)) if folder is not None and settings.resume else 0
    found = demo_checks(run_dir=folder, model=settings.model, steps=settings.steps - done, resume=True)
    if folder is not None and not settings.resume and os.path.isdir(folder):
        check_new_folder(folder)
    # The run's folder was looked into above, and a run that has no generation yet is resumed from its start.
    require([check for check in found if check.name != "run to resume"], "it cannot start")
    for check in warnings(found):
        sys.stderr.write(f"art demo: {check.line()}\n")


def _with_settings(settings: "Settings", display: "Display | None") -> "Main":
    async def program(launch: "ArtLaunchContext") -> None:
        from art.demo.resume import RESUME_COMMAND
        from art.demo.yes_no_maybe import train

        await train.main(launch, settings, display, RESUME_COMMAND)

    return program


def _json_stream() -> TextIO:
    """Standard output, which everything else that writes there is kept from: it goes to standard error."""
    sys.stdout.flush()
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream


def _display(out: TextIO | None) -> "Display | None":
    if out is None:
        return None
    from art.reporting import JsonDisplay

    return JsonDisplay(out)


def _ended(error: Exception, out: TextIO | None) -> int:
    """Tells why a run failed, or why there was none to start; returns the exit status."""
    from art.distributed.monarch_cli import error_texts
    from art.reporting import DisplayError, RunFinishedError
    from art.reporting.output import Output

    if isinstance(error, DisplayError) and error.closed:
        sys.stderr.write("art demo: nobody reads the output any more, so the run was stopped\n")
        return _BROKEN_PIPE
    if isinstance(error, RunFinishedError):
        if out is None:
            Output(sys.stdout).say(str(error))
        else:
            _tell(out, "notice", text=str(error))
        return 0
    for text in error_texts(error):
        sys.stderr.write(text if text.startswith("Traceback") else f"art demo: {text}\n")
    if out is not None:
        _tell(out, "error", kind=type(error).__name__, message=str(error))
    return _FAILURE


def _refused(text: str, out: TextIO | None) -> int:
    sys.stderr.write(f"art demo: {text}\n")
    if out is not None:
        _tell(out, "error", kind="PreflightError", message=text)
    return _FAILURE


def _tell(out: TextIO, event: str, **fields: str) -> None:
    from art.reporting import DisplayError
    from art.reporting.output import Output

    with contextlib.suppress(DisplayError):  # nobody hears it; standard error has it too
        Output(out).line(json.dumps({"event": event, **fields}))
