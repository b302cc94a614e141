"""The settings with which `art demo --resume` goes on with a run, and why there may be none."""

import os
from pathlib import Path
from typing import Any

import msgspec

from art.demo.yes_no_maybe.train import NAME, Settings
from art.errors import ConfigError
from art.reporting import RunFinishedError, read_resumable, run_folder

_SHOWN_RUNS = 5


def resumed_settings(folder: Path, run_dir: Path | None, given: dict[str, Any]) -> Settings:
    """Those that the run in ``folder`` was started with; only the steps may have grown.

    Args:
        folder: the run's.
        run_dir: the run's folder as it was given otherwise, if it was.
        given: settings that were given besides, by name.

    Raises:
        RunFinishedError: it came to its end, and it is given no more steps than it had.
        ConfigError: it is no run of `art demo`, cannot be resumed, or has other settings than the given ones.
    """
    if not os.path.isfile(folder / run_folder.RUN):
        raise ConfigError(_no_run(folder))
    steps = given.get("steps")
    finished = None
    try:
        description = read_resumable(folder, steps)
    except RunFinishedError as error:
        finished, description = error, run_folder.read_run(folder)
    if description.name != NAME:
        raise ConfigError(
            f"the run in {folder} is of {description.name!r}, not of art demo; resume it with its own program"
        )
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
    if steps is not None and (steps != kept.steps or finished is not None):
        _check_more(folder, steps, kept.steps)
        kept = msgspec.structs.replace(kept, steps=steps)
    if finished is not None:
        raise finished
    return msgspec.structs.replace(kept, run_dir=folder, resume=True)


def _said(name: str, value: object) -> str:
    return "art demo's own model" if name == "model" and value is None else str(value)


def _check_more(folder: Path, steps: int, had: int) -> None:
    """The steps of a resumed run can only grow.

    Raises:
        ConfigError: they would not.
    """
    done = len(run_folder.read_steps(folder))
    if steps <= max(done, had):
        taken = f"has taken {done} steps" if done else "has taken no step yet"
        raise ConfigError(
            f"--steps {steps} counts from the run's beginning; the run in {folder} {taken} and was started "
            f"for {had}, so give more than {max(done, had)}, or leave --steps out"
        )


def _no_run(folder: Path) -> str:
    """Why a folder is none of a run, what one is, and which there are."""
    why = "it does not exist"
    if os.path.exists(folder):
        why = f"it has no {run_folder.RUN}" if os.path.isdir(folder) else "it is a file"
    places = {Path("runs"), folder, folder.parent}
    found = sorted(
        {path.parent for place in places for path in _globbed(place, f"*/{run_folder.RUN}")},
        key=lambda path: (path / run_folder.RUN).stat().st_mtime,
        reverse=True,
    )
    text = f"{folder} is no run's folder: {why}. A run's folder is what art demo named last when it ended"
    if not found:
        return f"{text}; without --run-dir it lies below runs/ where art demo was started"
    more = f" and {len(found) - _SHOWN_RUNS} older" if len(found) > _SHOWN_RUNS else ""
    return f"{text}; here are {', '.join(str(path) for path in found[:_SHOWN_RUNS])}{more}"


def _globbed(folder: Path, pattern: str) -> list[Path]:
    try:
        return [path for path in folder.glob(pattern) if os.path.isfile(path)]
    except OSError:  # a folder that may not be read has nothing to show
        return []
