"""Whether a run can go on, and where: arithmetic on what its folder holds.

A step's line is written before the next step begins, and its generation becomes durable beside the next
steps. So what a kill leaves is one of three things: generations that lag behind the lines (the steps that
they lack are lost and rolled back), generations that agree with them, or one generation more than there are
lines (the step was trained, its line was lost, and is written again).

A run that was stopped goes on with the settings it was started with; ``steps`` among them, how many it may
take, may be another number above those that were taken. One that is finished goes on when it is another.
Where the settings do not say how many steps there may be, the program's loop does, later.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from art.errors import ConfigError
from art.reporting.generations import check_generations, newest_version
from art.reporting.no_run import is_run, no_run
from art.reporting.run_folder import (
    METRICS,
    RUN,
    RunDescription,
    StepLine,
    known_numbers,
    read_lines,
    read_run,
)

STEPS = "steps"
"""The setting that says how many steps a run may take."""


class RunFinishedError(ConfigError):
    """A run that is to be resumed has come to its end already."""


class ResumePoint(msgspec.Struct, frozen=True):
    """Where a run goes on.

    What always holds: the kept lines and the restored one are steps 1 to ``steps_done``, no step among them
    has a version above ``policy_version``, and the last has exactly it.

    Args:
        kept: how many lines stay, from the first.
        restored: the step whose line has to be written again, if one was lost.
        policy_version: of the newest generation, 0 without one.
    """

    kept: int
    restored: int | None
    policy_version: int

    @property
    def steps_done(self) -> int:
        """Steps that are not taken again."""
        return self.kept + (self.restored is not None)


def resume_point(steps: Sequence[StepLine], newest: int) -> ResumePoint:
    """Where a run goes on whose lines are ``steps`` and whose newest generation is of version ``newest``.

    Raises:
        ConfigError: no kill leaves this: the lines are not steps 1, 2, 3 ..., or there is more than one
            generation that no line leads to.
    """
    last = 0
    for number, line in enumerate(steps, start=1):
        version = int(line.get("policy_version", -1))
        if line.get("step") != number or not 0 <= version - last <= 1:
            raise ConfigError(
                f"line {number} of metrics.jsonl is of step {line.get('step')} and policy version {version}, "
                f"after version {last}; a run's steps are counted from 1 and move the version by 0 or 1. The "
                "folder was changed by hand or by two runs at once, and cannot be resumed"
            )
        last = version
    if newest > last + 1:
        raise ConfigError(
            f"the newest generation is of policy version {newest}, but metrics.jsonl ends with version "
            f"{last}: its lines were lost. Bring the file back from a copy, or start a new run; nothing was "
            "changed"
        )
    if newest == last + 1:
        return ResumePoint(len(steps), len(steps) + 1, newest)
    kept = sum(int(line["policy_version"]) <= newest for line in steps)
    return ResumePoint(kept, None, newest)


def read_resumable(folder: Path, steps: int | None = None) -> RunDescription:
    """What the run in ``folder`` is, which is to go on; its policies are looked at, and nothing is changed.

    Args:
        folder: the run's.
        steps: how many it may take now; None for as many as it was started with.

    Raises:
        RunFinishedError: it came to its end, and ``steps`` gives it no other than it had.
        ConfigError: it is no run's folder, or what a resumption needs was lost or is damaged.
    """
    description = read_description(folder)
    lines = read_taken(folder)
    check_unfinished(folder, description, len(lines), steps)
    check_generations(folder, description, lines)
    resume_point(lines, newest_version(folder))
    return description


def read_description(folder: Path) -> RunDescription:
    """What the run in ``folder`` is.

    Raises:
        ConfigError: it is no run's folder, or ``run.json`` is damaged.
    """
    if not is_run(folder):
        raise ConfigError(no_run(folder))
    try:
        return read_run(folder)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{folder} is no run's folder, or it was changed by hand or damaged: {RUN} cannot be read "
            f"({error}). Bring the file back from a copy, or start a new run"
        ) from error
    except OSError as error:
        raise ConfigError(f"the run in {folder} cannot be resumed: {error}") from error


def read_taken(folder: Path) -> list[StepLine]:
    """The steps that the run in ``folder`` took.

    Raises:
        ConfigError: a line cannot be read.
    """
    return [known_numbers(line) for line in read_all(folder / METRICS, dict[str, float | None])]


def check_unfinished(folder: Path, description: RunDescription, done: int, steps: int | None) -> None:
    """Checks that there is something to go on with.

    Args:
        folder: the run's.
        description: what it is.
        done: steps that it took.
        steps: how many it may take now; None for as many as it was started with.

    Raises:
        RunFinishedError: it came to its end, and ``steps`` is what it had, or no more than it took.
    """
    had = steps_of(description.settings)
    other = steps is not None and had is not None and steps > done and steps != had
    if not description.finished or other:
        return
    more = (
        f". To go on with it, let it take more than {_steps(had)}, for example --steps {had + 10}"
        if had is not None
        else ""
    )
    raise RunFinishedError(
        f"the run in {folder} is finished after {_steps(done)}; there is nothing to resume{more}"
    )


def read_all[Line](path: Path, kind: type[Line]) -> list[Line]:
    """The finished lines of a file that a resumption needs; none where there is no such file.

    Raises:
        ConfigError: one cannot be read.
    """
    lines: list[Line] = []
    try:
        lines.extend(read_lines(path, kind))
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"line {len(lines) + 1} of {path} cannot be read: {error}. It was changed by hand or damaged, so "
            "the run cannot be resumed: bring the file back from a copy, or start a new run"
        ) from error
    return lines


def check_settings(now: Mapping[str, Any], then: Mapping[str, Any], done: int) -> None:
    """Compares the settings of now with those that a run was started with, which took ``done`` steps.

    Raises:
        ConfigError: they differ; only :data:`STEPS` may, and must be as before or above ``done``.
    """
    limit, had = steps_of(now), steps_of(then)
    if limit is not None and had is not None:
        check_limit(limit, had, done)
        then = {**then, STEPS: limit}
    different = [
        f"{name} is {now.get(name)!r} now and {then.get(name)!r} in the run"
        for name in sorted(now.keys() | then.keys())
        if now.get(name) != then.get(name)
    ]
    if different:
        raise ConfigError(
            f"a run goes on with the settings it was started with: {'; '.join(different)}. Leave them as "
            "they were, or start a new run"
        )


def check_limit(limit: int, had: int, done: int) -> None:
    """Checks how many steps a run may take that took ``done`` of ``had``.

    Raises:
        ConfigError: it took as many already.
    """
    if limit <= done and limit != had:
        raise ConfigError(
            f"{_steps(limit)} in all are no more than the {_steps(done)} that the run has taken already "
            f"(it was started for {had}); give more than {done}, or as many as before"
        )


def steps_of(settings: Mapping[str, Any]) -> int | None:
    """How many steps a run of these settings may take, where they say so."""
    steps = settings.get(STEPS)
    return steps if isinstance(steps, int) and not isinstance(steps, bool) else None


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
