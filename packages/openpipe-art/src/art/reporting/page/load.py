"""Reads a run's folder for the page.

What always holds: a number that is not finite is `None` here (JSON has no other word for it), an unfinished
last line is left out, and each step is there once, as it was taken last.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from art.errors import ArtError
from art.reporting.no_run import no_run
from art.reporting.run_folder import (
    EVALUATIONS,
    METRICS,
    PHASES,
    RUN,
    TRAJECTORIES,
    RunDescription,
    evaluation_file,
    known_numbers,
    read_lines,
    read_run,
)
from art.reporting.run_state import RunState, state_of
from art.typed_commands import typed

TRAINING = "step"
"""What the files of training steps are called, where others bear their evaluation's name."""

_FILE_NAME = re.compile(r"(.+)-(\d+)\.jsonl")

type Step = dict[str, float | None]


class PageError(ArtError):
    """A run's folder cannot be shown: the text names the file and what is wrong with it."""


class Evaluation(msgspec.Struct, frozen=True):
    """As :class:`art.reporting.run_folder.EvaluationLine`."""

    name: str
    step: int
    policy_version: int
    reward: float | None
    trajectories: int
    duration_s: float | None


class Phase(msgspec.Struct, frozen=True):
    """As :class:`art.reporting.run_folder.PhaseLine`."""

    name: str
    duration_s: float | None


class Exchange(msgspec.Struct, frozen=True):
    """As :class:`art.reporting.run_folder.ExchangeLine`."""

    prompt: str
    tokens: tuple[str, ...]
    logprobs: tuple[float | None, ...]
    versions: tuple[int, ...]


class Rollout(msgspec.Struct, frozen=True):
    """As :class:`art.reporting.run_folder.TrajectoryLine`."""

    group: int
    reward: float | None
    advantage: float | None = None
    metrics: dict[str, float | None] = {}
    metadata: dict[str, str | int | float | bool | None] = {}
    exchanges: tuple[Exchange, ...] = ()


class TrajectoryFile(msgspec.Struct, frozen=True):
    """One file of trajectories: of training step ``number``, or of an evaluation at that policy version."""

    path: Path
    name: str
    number: int

    @property
    def of_training(self) -> bool:
        """Whether these were trained on."""
        return self.name == TRAINING


class Run(msgspec.Struct, frozen=True):
    """A run's folder, but for its trajectories.

    Args:
        state: whether it goes on or how it ended.
        steps: in order, each once.
        files: trajectories of the ``steps`` and of the evaluations, in order.
    """

    description: RunDescription
    state: RunState
    steps: list[Step]
    evaluations: list[Evaluation]
    phases: list[Phase]
    files: list[TrajectoryFile]


def load_run(folder: Path) -> Run:
    """Everything of a run but its trajectories.

    Raises:
        PageError: the folder or its ``run.json`` is missing, or a finished line cannot be read.
    """
    if not folder.is_dir():
        raise PageError(f"there is no run folder {folder}")
    description = _description(folder)
    steps: dict[int, Step] = {}
    read = _read(folder / METRICS, dict[str, float | None])
    for position, line in enumerate(read, start=1):
        number = line.get("step")
        if number is None:
            raise PageError(f"{folder / METRICS}, line {position}: there is no number `step` in it")
        steps[int(number)] = line
    evaluations = {
        (item.name, item.step, item.policy_version): item for item in _read(folder / EVALUATIONS, Evaluation)
    }
    return Run(
        description=description,
        state=_state(folder, description, read),
        steps=[steps[number] for number in sorted(steps)],
        evaluations=list(evaluations.values()),
        phases=_read(folder / PHASES, Phase),
        files=[
            item
            for item in _files(folder, evaluations.values())
            if not item.of_training or item.number in steps
        ],
    )


def read_rollouts(file: TrajectoryFile) -> list[Rollout]:
    """The trajectories in a file.

    Raises:
        PageError: a finished line cannot be read.
    """
    return _read(file.path, Rollout)


def _description(folder: Path) -> RunDescription:
    try:
        return read_run(folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PageError(f"{no_run(folder)}. `{typed('art demo --run-dir DIR')}` makes one") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise PageError(f"{folder / RUN} cannot be read: {error}") from error


def _state(folder: Path, description: RunDescription, steps: Sequence[Step]) -> RunState:
    try:
        return state_of(folder, description, [known_numbers(step) for step in steps])
    except OSError as error:
        raise PageError(f"{folder} cannot be read: {error}") from error


def _read[Line](path: Path, kind: type[Line]) -> list[Line]:
    lines: list[Line] = []
    try:
        lines.extend(read_lines(path, kind))
    except (OSError, msgspec.MsgspecError) as error:
        raise PageError(f"{path}, line {len(lines) + 1}: cannot be read: {error}") from error
    return lines


def _files(folder: Path, evaluations: Iterable[Evaluation]) -> Iterator[TrajectoryFile]:
    names = {evaluation_file(folder, item.name, item.policy_version).name: item.name for item in evaluations}
    found = []
    for path in (folder / TRAJECTORIES).glob("*.jsonl"):
        match = _FILE_NAME.fullmatch(path.name)
        if match is not None:
            found.append(TrajectoryFile(path, names.get(path.name, match[1]), int(match[2])))
    return iter(sorted(found, key=lambda item: (not item.of_training, item.name, item.number)))
