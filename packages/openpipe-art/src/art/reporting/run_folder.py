"""The files of a run's folder: what each line of them means, and how they are read.

    run.json                        RunDescription
    metrics.jsonl                   one StepLine per training step
    evaluations.jsonl               one EvaluationLine per evaluation, for example of held-out prompts
    phases.jsonl                    one PhaseLine per part of the run that is no step (start-up, evaluation)
    trajectories/step-0001.jsonl    one TrajectoryLine per trajectory of the step
    trajectories/NAME-0000.jsonl    the same of the evaluation NAME (- for spaces) at policy version 0
    generations/, logs/             of the trainer and the processes
    report.html                     made from all of it
    .lock                           held by the process that writes, dropped by the kernel when it dies

What always holds: a step's trajectories are on disk before it is trained on, and its metrics before the next
step begins. A line that cannot be appended whole, on a full disk, is taken back. A writer that was killed in
the middle can leave an unfinished last line; readers leave it out and :func:`unfinished_bytes` tells of it,
writers cut it off before they go on.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

RUN = "run.json"
METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
PHASES = "phases.jsonl"
TRAJECTORIES = "trajectories"
GENERATIONS = "generations"
LOGS = "logs"
LOCK = ".lock"
REPORT = "report.html"

_BLOCK_BYTES = 1 << 16


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended before its program came to its end.

    Args:
        reason: ``interrupted`` by a signal, or ``failed``.
        doing: what was at work, for example ``step 5, training``; empty between two parts.
        kind: the error's type; empty after an interrupt.
        message: its text, shortened where it is very long.
    """

    reason: Literal["interrupted", "failed"]
    doing: str = ""
    kind: str = ""
    message: str = ""


class RunDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is, and how it ended.

    Args:
        name: the task's.
        art_version: of the package that started it.
        model: the base model's name, without the folders above it.
        model_folder: the base model's folder, absolute; the tokenizer is read from it.
        started_unix_s: seconds since 1970, of the first start.
        settings: the program's own, as it was called last; ``steps`` may have grown since it was started.
        model_digest: of the base model's configuration and of the ends of its weight files; hex.
        finished: the program came to its end.
        stop: how it ended otherwise. A run with neither goes on, or its process was killed;
            :func:`art.reporting.read_state` tells which.
        resume_command: goes on with the run when the folder's name is put behind it, and says which program
            the run is of (:mod:`art.reporting.run_program`); empty without one.
        elapsed_s: seconds of the whole run when it ended, as in :data:`StepLine`.
        step_limit: how many steps its loop might take when it was started or resumed last; None before that.
        durable_version: the newest policy that was on disk when the run ended or was resumed; None without.

    ``model`` and what follows from it are empty until the base model is there.
    """

    name: str
    art_version: str
    model: str
    model_folder: str
    started_unix_s: float
    settings: dict[str, Any] = {}
    model_digest: str = ""
    finished: bool = False
    stop: Stop | None = None
    resume_command: str = ""
    durable_version: int | None = None
    elapsed_s: float | None = None
    step_limit: int | None = None


type StepLine = dict[str, float]
"""Numbers of one step by name.

`step` (from 1), `policy_version`, `reward`, `tokens_per_s`, `rollout_s`, `train_s`, `elapsed_s` (since the
start, time between a stop and its resumption left out), and the metrics of `art.TrainResult`:
`logical_tokens`, `physical_tokens`, `sampler_difference_mean`, `sampler_difference_p99`, `skipped` ...
`durable_version` is the newest policy that was seen on disk when the step ended, if one was. Names
that end in `_s` are seconds, in `_bytes` bytes. A line with `restored` 1 was lost and written again: the
process was killed after the step's generation was durable and before the line was, so it has `step`,
`policy_version`, `reward`, `trajectories` and `elapsed_s` alone.
"""


class EvaluationLine(msgspec.Struct, frozen=True, kw_only=True):
    """Answers that were not trained on.

    Args:
        name: the evaluation's.
        step: the training step that was finished last; 0 before the first.
        policy_version: of the policy that answered.
        reward: mean over the rollouts.
        trajectories: how many rollouts there were.
        duration_s: seconds that they took.
    """

    name: str
    step: int
    policy_version: int
    reward: float
    trajectories: int
    duration_s: float


class PhaseLine(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the run that is no step: its ``name``, and the seconds that it took in ``duration_s``."""

    name: str
    duration_s: float


class ExchangeLine(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange with the model.

    Args:
        prompt: its text, chat template included.
        tokens: the texts of the sampled tokens; their concatenation is the completion.
        logprobs: natural log-probability of each token when it was sampled.
        versions: the policy version that sampled each.
    """

    prompt: str
    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]


class TrajectoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout.

    Args:
        step: the training step, from 1; of an evaluation that of :class:`EvaluationLine`.
        group: the number of its group in the step, from 0; in an evaluation each rollout is a group.
        reward: None when it failed.
        advantage: relative to its group as the trainer uses it; None where nothing was trained.
        metrics: of the trajectory, as the rollout gave them.
        metadata: likewise; the page shows all of it, a live display ``prompt`` and ``answer``.
        record: id of the record that holds its tokens; empty without one.
        worker: what ran it, for example ``rollout worker 3 (pid 123)``; empty where the program itself did.
        exchanges: with the tokens; kept for some trajectories of each group, empty for the others.
        failure: why it failed; empty if it did not.
    """

    step: int
    group: int
    reward: float | None
    advantage: float | None = None
    metrics: dict[str, float] = {}
    metadata: dict[str, str | int | float | bool | None] = {}
    record: str = ""
    worker: str = ""
    exchanges: tuple[ExchangeLine, ...] = ()
    failure: str = ""


def step_file(folder: Path, step: int) -> Path:
    """Where the trajectories of training step ``step`` are in the run's ``folder``."""
    return folder / TRAJECTORIES / f"step-{step:04d}.jsonl"


def evaluation_file(folder: Path, name: str, policy_version: int) -> Path:
    """Where trajectories of the evaluation ``name`` at ``policy_version`` are in the run's ``folder``; its
    name stands there with ``-`` for spaces."""
    return folder / TRAJECTORIES / f"{'-'.join(name.split())}-{policy_version:04d}.jsonl"


def is_step_file(path: Path) -> bool:
    """Whether a file of trajectories is named as those of training steps are."""
    return path.name.startswith("step-")


def append_lines(path: Path, values: Sequence[Any]) -> None:
    """Appends each value as one line of JSON; they are on disk when it returns.

    Raises:
        OSError: there is no room, for example; the file is as it was.
    """
    data = memoryview(msgspec.json.Encoder().encode_lines(values))
    new = not path.exists()
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(end)
            raise
    if new:
        keep_names(path.parent)


def write_lines(path: Path, values: Sequence[Any]) -> None:
    """Writes a file of lines anew, whole or not at all; they are on disk when it returns."""
    write_whole(path, msgspec.json.Encoder().encode_lines(values))


def write_whole(path: Path, data: bytes) -> None:
    """Puts a file of this content in place of the one there; whole or not at all.

    Raises:
        OSError: there is no room, for example; the file is as it was.
    """
    aside = path.with_name(f".{path.name}.part")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    keep_names(path.parent)


def keep_names(folder: Path) -> None:
    """The names in a folder are on disk when it returns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unfinished_bytes(path: Path) -> int:
    """Bytes of a last line of the file at ``path`` that was not written to its end; 0 where all are finished
    or there is no file."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        left = file.seek(0, os.SEEK_END)
        unfinished = 0
        while left:
            start = max(0, left - _BLOCK_BYTES)
            file.seek(start)
            block = file.read(left - start)
            newline = block.rfind(b"\n")
            if newline >= 0:
                return unfinished + len(block) - newline - 1
            unfinished += len(block)
            left = start
    return unfinished


def read_lines[Line](path: Path, kind: type[Line]) -> Iterator[Line]:
    """The finished lines of the file at ``path``; nothing when it does not exist. :func:`unfinished_bytes` is
    the rest.

    Args:
        path: of the file.
        kind: what each line is, for example :class:`TrajectoryLine`.

    Raises:
        msgspec.MsgspecError: a finished line is no ``kind``.
    """
    if not path.exists():
        return
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield decoder.decode(line)


def read_run(folder: Path) -> RunDescription:
    """What the run in ``folder`` is.

    Raises:
        OSError: there is no such file.
        msgspec.MsgspecError: it is something else.
    """
    return msgspec.json.decode((folder / RUN).read_bytes(), type=RunDescription)


def read_steps(folder: Path) -> list[StepLine]:
    """The steps of the run in ``folder``, in order.

    Raises:
        msgspec.MsgspecError: a finished line is something else.
    """
    return [known_numbers(line) for line in read_lines(folder / METRICS, dict[str, float | None])]


def known_numbers(line: Mapping[str, float | None]) -> StepLine:
    """A line without what was not finite, for which JSON has no word but ``null``."""
    return {name: value for name, value in line.items() if value is not None}
