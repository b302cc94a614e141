"""The settings with which `art demo --resume` goes on with a run, and why there may be none."""

import os
from pathlib import Path
from typing import Any

import msgspec

from art.demo.yes_no_maybe.train import NAME, Settings
from art.errors import ConfigError
from art.reporting import RunFinishedError, read_resumable, run_folder
from art.reporting.resume import check_limit, read_description
from art.reporting.run_program import check_program

RESUME_COMMAND = "art demo --resume"


def resumed_settings(folder: Path, run_dir: Path | None, given: dict[str, Any]) -> Settings:
    """Those that the run in ``folder`` was started with; only the steps may be others.

    Args:
        folder: the run's.
        run_dir: the run's folder as it was given otherwise, if it was.
        given: settings that were given besides, by name.

    Raises:
        RunFinishedError: it came to its end, and it is given no other steps than it had.
        ConfigError: it is no run of `art demo`, cannot be resumed, or has other settings than the given ones.
    """
    description = read_description(folder)
    check_program(folder, description, NAME, RESUME_COMMAND)
    steps = given.get("steps")
    finished = None
    try:
        read_resumable(folder, steps)
    except RunFinishedError as error:
        finished = error
    try:
        kept = msgspec.convert(description.settings, Settings, dec_hook=lambda kind, value: kind(value))
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigError(
            f"the settings in {folder / run_folder.RUN} are not those of art demo: {error}. Bring the file "
            "back from a copy, or start a new run"
        ) from error
    wrong = [
        f"--{name} {value} (the run has {_said(name, getattr(kept, name))})"
        for name, value in given.items()
        if name != "steps" and getattr(kept, name) != value
    ]
    if run_dir is not None and os.path.realpath(run_dir) != os.path.realpath(folder):
        wrong.append(f"--run-dir {run_dir} (the run is in {folder})")
    if wrong:
        raise ConfigError(
            f"a run goes on with the settings it was started with, so leave out {', '.join(wrong)}; or start "
            "a new run without --resume"
        )
    if steps is not None:
        check_limit(steps, kept.steps, len(run_folder.read_steps(folder)))
        kept = msgspec.structs.replace(kept, steps=steps)
    if finished is not None:
        raise finished
    return msgspec.structs.replace(kept, run_dir=folder, resume=True)


def _said(name: str, value: object) -> str:
    return "art demo's own model" if name == "model" and value is None else str(value)
