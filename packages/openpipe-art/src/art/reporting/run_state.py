"""How a run stands, from its folder alone: whether it goes on, or how it ended, where, and what is next."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from art.errors import ConfigError
from art.reporting.folder_claim import holder_of
from art.reporting.generations import lost_generations, newest_version
from art.reporting.resume import resume_point
from art.reporting.run_folder import (
    EVALUATIONS,
    METRICS,
    PHASES,
    TRAJECTORIES,
    RunDescription,
    StepLine,
    is_step_file,
    read_run,
    read_steps,
    unfinished_bytes,
)
from art.reporting.run_program import resume_line

_SHORT = {
    "running": "running",
    "interrupted": "stopped",
    "failed": "failed",
    "killed": "ended without a word",
}


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands.

    Args:
        state: ``finished``; ``running``; ``interrupted`` by a signal; ``failed``; ``killed``, when its
            process ended without a word.
        steps: that are finished.
        doing: what was at work when it was stopped, for example ``step 5, training``; may be empty.
        message: why it failed.
        process: number of the process that runs it.
        kept_steps: that it goes on after, 0 where it begins again; None where it cannot be resumed.
        resume: the command that goes on with it, where it can go on and its program has one.
        unfinished: files of lines whose last one was not written to its end, and is left out; of a run that
            goes on none, where it may be being written.
        remarks: on files that were there once and are gone, a sentence each.
    """

    state: Literal["finished", "running", "interrupted", "failed", "killed"]
    steps: int
    doing: str = ""
    message: str = ""
    process: str = ""
    kept_steps: int | None = None
    resume: str | None = None
    unfinished: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def read_state(folder: Path) -> RunState:
    """How the run in ``folder`` stands.

    Raises:
        OSError: there is no such run.
        msgspec.MsgspecError: a finished line, or ``run.json``, is something else.
    """
    return state_of(folder, read_run(folder), read_steps(folder))


def state_of(folder: Path, description: RunDescription, steps: Sequence[StepLine]) -> RunState:
    """As :func:`read_state`, of what was read already."""
    lined = [*(folder / name for name in (METRICS, EVALUATIONS, PHASES))]
    lined += sorted((folder / TRAJECTORIES).glob("*.jsonl"))
    unfinished = tuple(str(path.relative_to(folder)) for path in lined if unfinished_bytes(path))
    state = RunState(
        state="finished",
        steps=len(steps),
        unfinished=unfinished,
        remarks=tuple(_remarks(folder, description, steps)),
    )
    if description.finished:
        return state
    stop = description.stop
    if stop is None and (process := holder_of(folder)) is not None:
        return msgspec.structs.replace(state, state="running", process=process, unfinished=())
    kept = kept_steps(folder, description, steps)
    if kept is not None and description.resume_command:
        state = msgspec.structs.replace(state, resume=resume_line(description.resume_command, folder))
    if stop is None:
        return msgspec.structs.replace(state, state="killed", kept_steps=kept)
    named = stop.kind and not stop.message.startswith("Traceback")  # which names it at its end
    message = f"{stop.kind}: {stop.message}" if named and stop.message else stop.message or stop.kind
    return msgspec.structs.replace(
        state, state=stop.reason, kept_steps=kept, doing=stop.doing, message=message
    )


def _remarks(folder: Path, description: RunDescription, steps: Sequence[StepLine]) -> Iterator[str]:
    """What of the folder is gone."""
    trained = [path for path in (folder / TRAJECTORIES).glob("step-*.jsonl") if is_step_file(path)]
    if not (folder / METRICS).exists() and (newest_version(folder) > 0 or len(trained) > 1):
        yield (
            f"{METRICS} is missing, though the run took steps: their numbers are left out, and the run "
            "cannot be resumed until the file is back"
        )
        return
    if (lost := lost_generations(folder, description, steps)) is not None:
        yield f"{lost}; the run cannot be resumed until they are back"


def kept_steps(folder: Path, description: RunDescription, steps: Sequence[StepLine]) -> int | None:
    """How many steps the run in ``folder`` goes on after, 0 where it begins again; None where it cannot.

    A step is kept when its policy is on disk, or is the base model's since nothing was learned yet.
    """
    try:
        if lost_generations(folder, description, steps) is not None:
            return None
        return resume_point(steps, newest_version(folder)).steps_done
    except ConfigError:
        return None


def in_short(state: RunState) -> str:
    """How it ended, or that it goes on, without the place."""
    return headline(state) if state.state == "finished" else _SHORT[state.state]


def headline(state: RunState) -> str:
    """How it ended and at which step, in some words: ``failed in step 5, training``."""
    after = f"after {_steps(state.steps)}"
    at = f"in {state.doing}, {after}" if state.doing else after
    match state.state:
        case "finished":
            return f"finished after {'1 step' if state.steps == 1 else f'{state.steps} steps'}"
        case "running":
            return f"running in process {state.process}, {_steps(state.steps)} so far"
        case "interrupted":
            return f"stopped by Ctrl-C or another signal {at}"
        case "failed":
            return f"failed {at}"
        case "killed":
            return f"ended without a word {after}: its process was killed, or the machine went down"


def advice(state: RunState) -> str:
    """What to do next, before ``state.resume`` where there is one; empty where nothing is to be done."""
    if state.state in ("finished", "running"):
        return ""
    if state.remarks:
        return ""
    if state.kept_steps is None:
        return "It cannot be resumed: start a new run."
    mend = "mend what failed, then " if state.state == "failed" else ""
    if state.kept_steps:
        said, how = f"{mend}go on after step {state.kept_steps}", " by resuming it"
    else:
        said, how = f"No step is on disk to go on from; {mend}begin again", ""
    return said[:1].upper() + said[1:] + (":" if state.resume is not None else f"{how}.")


def state_lines(state: RunState) -> list[str]:
    """Lines for a terminal on ``state``: how the run ended, why, and what to do next."""
    lines = [headline(state)]
    if state.message:
        lines += [f"  {line}" for line in state.message.splitlines()]
    if state.unfinished:
        lines.append(unfinished_text(state))
    lines += state.remarks
    if said := advice(state):
        lines.append(f"{said} {state.resume}" if state.resume is not None else said)
    return lines


def unfinished_text(state: RunState) -> str:
    """Which files end in the middle of a line."""
    ends = "ends" if len(state.unfinished) == 1 else "end"
    return f"{', '.join(state.unfinished)} {ends} in the middle of a line, which is left out"


def _steps(count: int) -> str:
    return "1 finished step" if count == 1 else f"{count} finished steps"
