"""Owns a run's folder while the run lasts.

What always holds: one process at a time has the folder, by a lock that the kernel drops when the process
dies; a folder that holds anything but an unused run is never written to by a new one; a resumed folder is
brought to the state after its last durable step before anything else is written.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from art.errors import ConfigError
from art.reporting.resume import resume_point
from art.reporting.run_folder import (
    EVALUATIONS,
    GENERATIONS,
    LOCK,
    LOGS,
    METRICS,
    PHASES,
    REPORT,
    RUN,
    TRAJECTORIES,
    EvaluationLine,
    PhaseLine,
    RunDescription,
    StepLine,
    TrajectoryLine,
    append_lines,
    evaluation_file,
    newest_generation,
    read_lines,
    read_run,
    read_steps,
    step_file,
    write_lines,
    write_whole,
)

_OURS = frozenset({RUN, METRICS, EVALUATIONS, PHASES, TRAJECTORIES, GENERATIONS, LOGS, LOCK, REPORT})
_DIGESTED_BYTES = 1 << 20
_FREE_POLL_S = 0.1
_FREE_WITHIN_S = 60.0


class RunWriter:
    """Made by :meth:`fresh` or :meth:`resumed`.

    Args:
        folder: the run's, absolute.
        lock: descriptor of its lock.
        description: what ``run.json`` says.
    """

    def __init__(self, folder: Path, lock: int, description: RunDescription) -> None:
        self.folder = folder
        self.description = description
        self.steps: list[StepLine] = []
        self.evaluations: list[EvaluationLine] = []
        self.notices: list[str] = []
        self._lock = lock

    @classmethod
    def fresh(cls, folder: Path, description: RunDescription) -> "RunWriter":
        """A new run in a folder that does not exist, is empty, or holds a run that never finished a step.

        Raises:
            ConfigError: there is something else, another process has it, or it cannot be written.
        """
        check_new_folder(folder)
        occupied = folder.exists() and not _is_empty(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = _locked(folder)
        except OSError as error:
            raise _unwritable(folder, error) from error
        writer = cls(folder, lock, description)
        try:
            if occupied and (problem := _why_kept(folder)) is not None:  # another process was quicker
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
    def resumed(cls, folder: Path, settings: dict[str, Any]) -> "RunWriter":
        """Goes on with the run in ``folder``, which must have been started with these settings.

        Waits some seconds for what is left of a killed run to let go of its generations.

        Raises:
            ConfigError: it is no run, is finished, has other settings, is in use, or cannot be resumed.
        """
        read_resumable(folder)
        try:
            lock = _locked(folder)
        except OSError as error:
            raise _unwritable(folder, error) from error
        try:
            writer = cls(folder, lock, read_resumable(folder))
            _check_settings(settings, writer.description.settings)
            _wait_until_free(folder / GENERATIONS / LOCK)
            writer._take_up()
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
        self._write_description()

    def set_finished(self) -> None:
        """The program came to its end."""
        self.description = msgspec.structs.replace(self.description, finished=True)
        self._write_description()

    def add_phase(self, line: PhaseLine) -> None:
        """Appends to the phases."""
        append_lines(self.folder / PHASES, [line])

    def add_trajectories(self, step: int, lines: Sequence[TrajectoryLine]) -> None:
        """Writes a step's trajectories, before it is trained on."""
        write_lines(step_file(self.folder, step), lines)

    def add_step(self, line: StepLine) -> None:
        """Appends to the metrics."""
        append_lines(self.folder / METRICS, [line])
        self.steps.append(line)

    def add_evaluation(self, line: EvaluationLine, lines: Sequence[TrajectoryLine]) -> None:
        """Writes an evaluation's trajectories, then its line."""
        write_lines(evaluation_file(self.folder, line.name, line.policy_version), lines)
        append_lines(self.folder / EVALUATIONS, [line])
        self.evaluations.append(line)

    def _write_description(self) -> None:
        write_whole(self.folder / RUN, msgspec.json.format(msgspec.json.encode(self.description)) + b"\n")

    def _take_up(self) -> None:
        """Brings the files to the state after the last durable step."""
        for name in (METRICS, EVALUATIONS, PHASES):
            _cut_unfinished_line(self.folder / name)
        (self.folder / TRAJECTORIES).mkdir(exist_ok=True)
        lines = read_steps(self.folder)
        point = resume_point(lines, newest_generation(self.folder))
        self.steps = lines[: point.kept]
        if point.restored is not None:
            line = self._lost_line(point.restored, point.policy_version)
            self.add_step(line)
            self.notices.append(
                f"step {point.restored} was trained and its line lost; metrics.jsonl has it again, without "
                "the trainer's numbers"
            )
        elif point.kept < len(lines):
            write_lines(self.folder / METRICS, self.steps)
            first, last = point.kept + 1, len(lines)
            which = f"step {first}" if first == last else f"steps {first} to {last}"
            self.notices.append(f"{which} rolled back: the newest durable policy is v{point.policy_version}")
        self._keep_evaluations(point.policy_version)
        expected = {step_file(self.folder, step).name for step in range(1, point.steps_done + 1)} | {
            evaluation_file(self.folder, line.name, line.policy_version).name for line in self.evaluations
        }
        _remove(path for path in (self.folder / TRAJECTORIES).iterdir() if path.name not in expected)
        _remove(self.folder.glob(".*.part"))

    def _lost_line(self, step: int, version: int) -> StepLine:
        rewards = [line.reward for line in read_lines(step_file(self.folder, step), TrajectoryLine)]
        if not rewards:
            raise ConfigError(
                f"the run in {self.folder} lost the line of step {step} and its trajectories "
                f"{step_file(self.folder, step).name}; it cannot be resumed"
            )
        return {
            "step": float(step),
            "policy_version": float(version),
            "reward": statistics.fmean(rewards),
            "trajectories": float(len(rewards)),
            "elapsed_s": self.steps[-1]["elapsed_s"] if self.steps else 0.0,
            "restored": 1.0,
        }

    def _keep_evaluations(self, policy_version: int) -> None:
        lines = list(read_lines(self.folder / EVALUATIONS, EvaluationLine))
        self.evaluations = [line for line in lines if line.policy_version <= policy_version]
        if len(self.evaluations) < len(lines):
            write_lines(self.folder / EVALUATIONS, self.evaluations)


def read_resumable(folder: Path) -> RunDescription:
    """What the run in ``folder`` is.

    Raises:
        ConfigError: it is none that can be resumed.
    """
    try:
        description = read_run(folder)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"{folder} is no run's folder, so there is nothing to resume: {RUN} cannot be read ({error})"
        ) from error
    if description.finished:
        steps = len(read_steps(folder))
        raise RunFinishedError(
            f"the run in {folder} is finished after {steps} steps; there is nothing to resume"
        )
    return description


class RunFinishedError(ConfigError):
    """A run that is to be resumed has come to its end already."""


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


def check_new_folder(folder: Path) -> None:
    """Says now what :meth:`RunWriter.fresh` would say of ``folder``; changes nothing.

    Raises:
        ConfigError: a new run cannot have it.
    """
    folder = folder.resolve()
    if folder.exists() and not _is_empty(folder) and (problem := _why_kept(folder)) is not None:
        raise ConfigError(problem)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _is_ours(name: str) -> bool:
    """Whether a run makes a file or folder of this name; unfinished ones of a killed process count."""
    return (
        name in _OURS or (name.startswith(".") and name.endswith(".part")) or name.startswith(f".{REPORT}.")
    )


def _was_never_begun(folder: Path) -> bool:
    """Whether a process was killed while it made the folder, before it said what the run is."""
    names = {path.name for path in folder.iterdir()}
    if RUN in names or LOCK not in names or any((folder / TRAJECTORIES).glob("*")):
        return False
    return all(name in (LOCK, TRAJECTORIES) or name.endswith(".part") for name in names)


def _why_kept(folder: Path) -> str | None:
    """Why a new run may not use what is there, or None."""
    general = f"the run folder {folder} is not an empty folder; choose another"
    if not folder.is_dir():
        return general
    if _was_never_begun(folder):
        return None
    try:
        read_run(folder)
    except (OSError, msgspec.MsgspecError):
        return general
    if newest_generation(folder) or read_steps(folder):
        steps = len(read_steps(folder))
        return f"the run folder {folder} holds a run of {steps} steps; choose another, or resume it"
    foreign = sorted(path.name for path in folder.iterdir() if not _is_ours(path.name))
    return f"{general}: it holds {', '.join(foreign[:5])}" if foreign else None


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(f"the run folder {folder} cannot be written: {error}; choose another")


def _locked(folder: Path) -> int:
    """The descriptor of the folder's lock.

    Raises:
        ConfigError: another process has it.
    """
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        raise ConfigError(
            f"the run folder {folder} is in use by process {holder or '?'}; wait for it or end it, or choose "
            "another folder"
        ) from error
    os.truncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _wait_until_free(path: Path) -> None:
    """Waits until nobody holds the lock at ``path``: a killed run's trainer may still write for a moment.

    Raises:
        ConfigError: it is held too long.
    """
    if not path.exists():
        return
    end = time.monotonic() + _FREE_WITHIN_S
    with path.open("rb") as file:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            if time.monotonic() > end:
                raise ConfigError(
                    f"{path.parent} is still being written to after {_FREE_WITHIN_S:.0f} s, by what an "
                    "earlier process of this run left; end it, then resume"
                )
            time.sleep(_FREE_POLL_S)


def _check_settings(now: dict[str, Any], then: dict[str, Any]) -> None:
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


def _cut_unfinished_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            file.truncate(whole)


def _remove(paths: Iterable[Path]) -> None:
    for path in list(paths):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
