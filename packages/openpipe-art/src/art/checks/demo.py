"""What `art demo` needs, before it fetches or starts anything."""

import importlib.util
import shlex
from pathlib import Path

import msgspec

from art.checks import machine
from art.checks.cache import fetch_checks, runtime_python_check
from art.checks.hosts import (
    cpu_check,
    disk_check,
    folder_check,
    host_checks,
    process_limits_check,
    shared_memory_check,
)
from art.checks.model_facts import folder_problem
from art.checks.packages import install_command, installed_check, python_check
from art.checks.results import Check, State, failed, passed
from art.checks.shadows import shadows_check
from art.checks.training import TrainingPlan, available_text, rated_memory, training_checks
from art.errors import ConfigError, PromptLengthError

NEEDED_MEMORY = int(5.2 * 2**30)
"""What the demo's processes hold at its peak besides files that the kernel can drop: 5.14 GiB. See
:mod:`art.checks.training`; with less it is killed."""
COMFORTABLE_MEMORY = int(6.2 * 2**30)
"""Its peak of 5.7 GiB with the page cache, and half a GiB for everything else on the machine."""
SHARED_MEMORY = 48 << 20
"""Three adapters of 9.8 MB, and batches."""
STEP_BYTES = 31_000_000
"""Of one step in the run's folder: a generation of 29.3 MB, trajectories and metrics. All are kept."""
PACKED_SEQUENCE_LENGTH = 2048
_LONGER = f"take a model that was made for {PACKED_SEQUENCE_LENGTH} tokens or more"
_SMALLER = (
    "take a model with fewer layers or key-value heads, or, in a program of your own, a shorter "
    "packed_sequence_length"
)


def demo_checks(
    *,
    run_dir: Path | None = None,
    model: Path | None = None,
    steps: int = 25,
    resume: bool = False,
) -> list[Check]:
    """Collects everything that can be known before `art demo` fetches or starts anything; well below 0.3 s.

    Args:
        run_dir: the run's folder as the user gave it; None for a new one under ``runs/``.
        model: folder of a Hugging Face model in place of the demo's own.
        steps: the most that are taken; each leaves a generation.
        resume: ``run_dir`` holds a run, which is continued.
    """
    packages = [python_check(), installed_check("cpu")]
    if all(check.state is State.OK for check in packages):
        packages.append(runtime_python_check())
    checks = [*packages, shadows_check(), *host_checks(), cpu_check(), process_limits_check()]
    folder = run_dir or Path("runs")
    checks += _run_checks(folder, steps, new=run_dir is not None and not resume, resume=resume)
    if model is None:
        checks += [demo_memory_check(), shared_memory_check(SHARED_MEMORY, "adapters and batches")]
    else:
        checks += _model_checks(model, folder)
    if all(check.state is not State.FAILURE for check in packages):
        checks += fetch_checks(with_model=model is None)
    return list(dict.fromkeys(checks))


def demo_memory_check() -> Check:
    """Memory for the demo with its own model."""
    return rated_memory(
        NEEDED_MEMORY,
        available_text(machine.memory()),
        "5.7 GiB (the demo's measured peak)",
        "end other programs, or give the machine or container 8 GiB",
        comfortable=COMFORTABLE_MEMORY,
        why="5.7 GiB (the demo's measured peak), and some more for other programs",
    )


def _model_checks(model: Path, folder: Path) -> list[Check]:
    problem = folder_problem(model)
    if problem is not None:
        return [failed("model", problem, remedy="art demo --model DIR, with such a folder")]
    plan = TrainingPlan(
        base_model=model, run_dir=folder, resume=True, packed_sequence_length=PACKED_SEQUENCE_LENGTH
    )
    checks = [check for check in training_checks(plan) if check.name not in ("run folder", "disk of the run")]
    told = [_for_the_demo(check) for check in checks]
    unread = ("base_model", "model family")
    if any(check.name in unread and check.state is State.FAILURE for check in told):
        return told  # the prompts would be counted by the same files
    return [*told, _prompts_check(model)]


def _for_the_demo(check: Check) -> Check:
    """The check with the next step of someone who runs a command and no program."""
    remedy = {"packed_sequence_length": _LONGER, "KV cache": _SMALLER}.get(check.name)
    if check.state is State.FAILURE and remedy is not None:
        return msgspec.structs.replace(check, remedy=remedy)
    return check


def _prompts_check(model: Path) -> Check:
    """Whether the model's chat template and tokenizer take the demo's prompts, and these leave room."""
    if importlib.util.find_spec("tokenizers") is None or importlib.util.find_spec("jinja2") is None:
        return failed("prompts", "cannot be counted", remedy=install_command("cpu"))
    from art.checks.prompts import check_prompt_lengths, model_positions
    from art.demo import task

    answer = task.SAMPLING.max_tokens
    try:
        room = min(PACKED_SEQUENCE_LENGTH, model_positions(model) or PACKED_SEQUENCE_LENGTH)
        counted = check_prompt_lengths(model, task.all_prompts(), max_tokens=answer, limit=room)
    except PromptLengthError as error:
        return failed(
            "prompts", f"up to {error.longest} tokens with their answers", f"at most {error.limit}", _LONGER
        )
    except ConfigError as error:
        return failed("prompts", str(error), remedy="give another folder: art demo --model DIR")
    return passed("prompts", f"up to {counted.longest} tokens", f"at most {room - answer}")


def _run_checks(folder: Path, steps: int, *, new: bool, resume: bool) -> list[Check]:
    """The run's folder. Of one that holds a run already :class:`art.reporting.RunReport` knows the rest."""
    remedy = "choose another folder: art demo --run-dir DIR"
    usable = folder_check("run folder", folder, remedy)
    if usable.state is not State.OK:
        return [usable]
    checks = [usable, disk_check("disk of the run", folder, steps * STEP_BYTES, remedy)]
    if resume and not _holds_run(folder):
        found = f"{folder} holds no run (run.json)" if folder.is_dir() else f"{folder} is no folder"
        checks.append(
            failed("run to resume", found, "the folder of a run", "give one: art demo --resume RUN")
        )
    if new and folder.is_dir() and any(folder.iterdir()):
        kept = sorted(path.name for path in (folder / "generations").glob("step-*"))
        needed = "a folder that is new, empty, or of a run that ended before its first step"
        if kept:
            found = f"{folder} holds a run already, to {kept[-1]}"
            remedy += f", or go on with it: art demo --resume {shlex.quote(str(folder))}"
            checks.append(failed("run folder", found, needed, remedy))
        elif not _holds_run(folder):
            checks.append(failed("run folder", f"{folder} is not empty", needed, remedy))
    return checks


def _holds_run(folder: Path) -> bool:
    return (folder / "run.json").is_file()
