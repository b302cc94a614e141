"""Owns a run's folder while the run lasts.

What always holds: the writer has the folder to itself (:mod:`art.reporting.folder_claim`); a resumed folder
is brought to the state after its last durable step before anything else is written; what cannot be written
leaves what is there as it was.
"""

import contextlib
import hashlib
import os
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from art.errors import ArtError, ConfigError
from art.reporting.folder_claim import check_new_folder, is_empty, locked, wait_until_free, why_kept
from art.reporting.generations import DURABLE, check_generations, newest_version, seen_durable
from art.reporting.resume import (
    check_settings,
    check_unfinished,
    read_all,
    read_description,
    read_taken,
    resume_point,
    steps_of,
)
from art.reporting.run_folder import (
    EVALUATIONS,
    GENERATIONS,
    LOCK,
    METRICS,
    PHASES,
    RUN,
    TRAJECTORIES,
    EvaluationLine,
    PhaseLine,
    RunDescription,
    StepLine,
    Stop,
    TrajectoryLine,
    append_lines,
    evaluation_file,
    step_file,
    unfinished_bytes,
    write_lines,
    write_whole,
)
from art.reporting.run_program import check_program

_DIGESTED_BYTES = 1 << 20
_FREE_WITHIN_S = 60.0


class RunFolderError(ArtError):
    """What a run leaves cannot be written, for example on a full disk. What is there already is whole."""


class RunWriter:
    """Made by :meth:`fresh` or :meth:`resumed`.

    Args:
        folder: the run's, absolute.
        lock: descriptor of its lock.
        description: what ``run.json`` says.

    ``is_resumed`` says that it is a run that goes on, ``reopened`` that it was finished and goes on for more
    steps, ``limit_before`` how many it might take then, where it said so.
    """

    def __init__(self, folder: Path, lock: int, description: RunDescription) -> None:
        self.folder = folder
        self.description = description
        self.steps: list[StepLine] = []
        self.evaluations: list[EvaluationLine] = []
        self.notices: list[str] = []
        self.is_resumed = self.reopened = False
        self.limit_before: int | None = None
        self._lock = lock

    @classmethod
    def fresh(cls, folder: Path, description: RunDescription) -> "RunWriter":
        """A new run in a folder that does not exist, is empty, or holds a run that never finished a step.

        Raises:
            ConfigError: there is something else, another process has it, or it cannot be written.
        """
        check_new_folder(folder)
        occupied = folder.exists() and not is_empty(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = locked(folder)
        except OSError as error:
            raise _unwritable(folder, error) from error
        writer = cls(folder, lock, description)
        try:
            if occupied and (problem := why_kept(folder)) is not None:  # another process was quicker
                raise ConfigError(problem)
            if occupied:
                _remove(path for path in folder.iterdir() if path.name != LOCK)
                writer.notices.append(
                    f"the run folder {folder} held a run that ended before its first step; it is used again"
                )
            (folder / TRAJECTORIES).mkdir()
            writer._write_description()
        except OSError as error:
            writer.close()
            raise _unwritable(folder, error) from error
        except BaseException:
            writer.close()
            raise
        return writer

    @classmethod
    async def resumed(
        cls,
        folder: Path,
        settings: dict[str, Any],
        waits: Callable[[], None] | None = None,
        *,
        name: str,
        resume_command: str = "",
    ) -> "RunWriter":
        """Goes on with the run in ``folder``, which must have been started with these settings.

        What is left of a killed run may write its generations for some seconds yet; ``waits`` is called if
        that has to be waited for.

        Args:
            folder: the run's.
            settings: of now; where they say nothing of steps, a run that is finished is taken up as well.
            waits: see above.
            name: of the program's task.
            resume_command: of the program of now; empty without one.

        Raises:
            RunFinishedError: it came to its end, and the settings give it no other number of steps.
            ConfigError: it is no run or another program's, has other settings, is in use, or is damaged.
        """

        def read() -> tuple[RunDescription, list[StepLine]]:
            description = read_description(folder)
            check_program(folder, description, name, resume_command)
            lines = read_taken(folder)
            limit = steps_of(settings)
            if limit is not None or steps_of(description.settings) is not None:
                check_unfinished(folder, description, len(lines), limit)
            return description, lines

        read()  # before anything is made: the folder may be something else
        try:
            lock = locked(folder)
        except OSError as error:
            raise _unwritable(folder, error) from error
        try:
            description, lines = read()  # who had the folder may have gone on
            check_settings(settings, description.settings, len(lines))
            await wait_until_free(folder / GENERATIONS / LOCK, _FREE_WITHIN_S, waits)
            check_generations(folder, description, lines)
            writer = cls(folder, lock, description)
            with _writing(folder):
                writer._take_up(settings, resume_command, lines)
        except BaseException:
            os.close(lock)
            raise
        return writer

    def close(self) -> None:
        """Gives the folder back; a second call does nothing."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    @property
    def policy_version(self) -> int:
        """After the last step, 0 before the first."""
        return int(self.steps[-1]["policy_version"]) if self.steps else 0

    def set_model(self, folder: Path, name: str | None = None) -> None:
        """Keeps what the base model is.

        Raises:
            ConfigError: the run was started with another, or ``folder`` cannot be read.
        """
        digest = model_digest(folder)
        before = self.description
        if before.model_digest not in ("", digest):
            raise ConfigError(
                f"the run in {self.folder} was started with the base model {before.model_folder}, and "
                f"{folder} is another or was changed; resume with the same one, or start a new run"
            )
        self.description = msgspec.structs.replace(
            before, model=name or folder.name, model_folder=str(folder), model_digest=digest
        )
        with _writing(self.folder):
            self._write_description()

    @property
    def elapsed_s(self) -> float:
        """The time that the run took up to where it goes on, in seconds; what was rolled back is in it."""
        last = self.steps[-1]["elapsed_s"] if self.steps else 0.0
        return max(last, self.description.elapsed_s or 0.0)

    def set_step_limit(self, limit: int) -> None:
        """Keeps how many steps the loop may take; of several loops the most."""
        before = self.description.step_limit
        if before is not None and limit <= before:
            return
        self.description = msgspec.structs.replace(self.description, step_limit=limit)
        with _writing(self.folder):
            self._write_description()

    def set_end(self, stop: Stop | None, elapsed_s: float | None = None) -> None:
        """The program came to its end, or was stopped before; all of it took ``elapsed_s`` seconds."""
        with _writing(self.folder):
            self.description = msgspec.structs.replace(
                self.description,
                finished=stop is None,
                stop=stop,
                durable_version=seen_durable(self.folder),
                elapsed_s=elapsed_s if elapsed_s is not None else self.description.elapsed_s,
            )
            self._write_description()

    def add_phase(self, line: PhaseLine) -> None:
        """Appends to the phases."""
        with _writing(self.folder):
            append_lines(self.folder / PHASES, [line])

    def add_trajectories(self, step: int, lines: Sequence[TrajectoryLine]) -> None:
        """Writes a step's trajectories, before it is trained on."""
        with _writing(self.folder):
            write_lines(step_file(self.folder, step), lines)

    def add_step(self, line: StepLine) -> None:
        """Appends to the metrics, with the newest policy that is on disk by now."""
        with _writing(self.folder):
            durable = seen_durable(self.folder)
            line = line if durable is None else {**line, DURABLE: float(durable)}
            append_lines(self.folder / METRICS, [line])
        self.steps.append(line)

    def add_evaluation(self, line: EvaluationLine, lines: Sequence[TrajectoryLine]) -> None:
        """Writes an evaluation's trajectories, then its line."""
        with _writing(self.folder):
            write_lines(evaluation_file(self.folder, line.name, line.policy_version), lines)
            append_lines(self.folder / EVALUATIONS, [line])
        self.evaluations.append(line)

    def _write_description(self) -> None:
        write_whole(self.folder / RUN, msgspec.json.format(msgspec.json.encode(self.description)) + b"\n")

    def _take_up(self, settings: dict[str, Any], resume_command: str, lines: list[StepLine]) -> None:
        """Brings the files to the state after the last durable step; ``lines`` are those of the metrics."""
        point = resume_point(lines, newest_version(self.folder))
        (self.folder / TRAJECTORIES).mkdir(exist_ok=True)
        lined = [self.folder / name for name in (METRICS, EVALUATIONS, PHASES)]
        for path in [*lined, *sorted((self.folder / TRAJECTORIES).glob("*.jsonl"))]:
            self._cut_unfinished_line(path)
        self.steps = lines[: point.kept]
        if point.restored is not None:
            for line in self._lost_lines(point.restored, point.policy_version):
                self.add_step(line)
                self.notices.append(
                    f"step {line['step']:.0f} was trained and its line lost; metrics.jsonl has it again, "
                    "without the trainer's numbers"
                )
        elif point.kept < len(lines):
            write_lines(self.folder / METRICS, self.steps)
            first, last = point.kept + 1, len(lines)
            which = f"step {first}" if first == last else f"steps {first} to {last}"
            self.notices.append(f"{which} rolled back: the newest durable policy is v{point.policy_version}")
        self._keep_evaluations(point.policy_version)
        expected = {step_file(self.folder, step).name for step in range(1, len(self.steps) + 1)} | {
            evaluation_file(self.folder, line.name, line.policy_version).name for line in self.evaluations
        }
        _remove(path for path in (self.folder / TRAJECTORIES).iterdir() if path.name not in expected)
        _remove(self.folder.glob(".*.part"))
        self.is_resumed, self.reopened = True, self.description.finished
        self.limit_before = self.description.step_limit
        self.description = msgspec.structs.replace(
            self.description,
            settings=settings,
            finished=False,
            stop=None,
            durable_version=seen_durable(self.folder),
            resume_command=resume_command or self.description.resume_command,
            step_limit=None,
        )
        self._write_description()

    def _cut_unfinished_line(self, path: Path) -> None:
        unfinished = unfinished_bytes(path)
        if unfinished:
            os.truncate(path, path.stat().st_size - unfinished)
            self.notices.append(
                f"{path.relative_to(self.folder)} ended in the middle of a line; its last {unfinished} bytes "
                "were cut off"
            )

    def _lost_lines(self, step: int, version: int) -> Iterator[StepLine]:
        """Of the step that led to ``version``, after those from ``step`` on that had nothing to learn from.

        A kill loses one line; where the file was cut otherwise there are more.
        """
        lines = self._lost_trajectories(step)
        while all(line.advantage is None for line in lines) and step_file(self.folder, step + 1).exists():
            yield self._lost_line(step, version - 1, lines)
            step += 1
            lines = self._lost_trajectories(step)
        yield self._lost_line(step, version, lines)

    def _lost_trajectories(self, step: int) -> list[TrajectoryLine]:
        file = step_file(self.folder, step).relative_to(self.folder)
        lines = read_all(self.folder / file, TrajectoryLine)
        if not lines:
            raise ConfigError(
                f"the run in {self.folder} lost the line of step {step} and its trajectories {file}; it "
                "cannot be resumed"
            )
        return lines

    def _lost_line(self, step: int, version: int, lines: Sequence[TrajectoryLine]) -> StepLine:
        return {
            "step": float(step),
            "policy_version": float(version),
            "reward": statistics.fmean(line.reward for line in lines if line.reward is not None),
            "trajectories": float(len(lines)),
            "elapsed_s": self.steps[-1]["elapsed_s"] if self.steps else 0.0,
            "restored": 1.0,
        }

    def _keep_evaluations(self, policy_version: int) -> None:
        lines = read_all(self.folder / EVALUATIONS, EvaluationLine)
        self.evaluations = [line for line in lines if line.policy_version <= policy_version]
        if len(self.evaluations) < len(lines):
            write_lines(self.folder / EVALUATIONS, self.evaluations)


def model_digest(folder: Path) -> str:
    """Of a Hugging Face folder: its configuration, its tokenizer, and both ends of each weight file.

    Raises:
        ConfigError: a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    names = ["config.json", "tokenizer.json", *sorted(path.name for path in folder.glob("*.safetensors"))]
    try:
        for name in names:
            with (folder / name).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                digest.update(f"{name} {size} ".encode())
                digest.update(file.read(_DIGESTED_BYTES))
                file.seek(max(size - _DIGESTED_BYTES, 0))
                digest.update(file.read(_DIGESTED_BYTES))
    except OSError as error:
        raise ConfigError(f"the base model {folder} cannot be read: {error}") from error
    return digest.hexdigest()


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(f"the run folder {folder} cannot be written: {error}; choose another")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"the run folder {folder} cannot be written any more: {error}. What is in it is whole; make "
            "room, or mend what the message says, and resume the run"
        ) from error


def _remove(paths: Iterable[Path]) -> None:
    for path in list(paths):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
