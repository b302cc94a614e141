"""What a run shows on the terminal and leaves in its folder.

What always holds: a step's rollouts are on disk before it is trained on and its numbers before the next step
begins; the folder is named last, however the run ends.
"""

import asyncio
import contextlib
import re
import shlex
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

import art
from art.errors import ArtError, ConfigError
from art.reporting.displays import Display, choose_display
from art.reporting.events import (
    EvaluationEnded,
    EvaluationStarted,
    Event,
    Notice,
    PhaseEnded,
    PhaseStarted,
    Progress,
    RunEnded,
    RunStarted,
    StepEnded,
    StepSampled,
    StepStarted,
)
from art.reporting.flat_rewards import FlatRewards
from art.reporting.run_folder import (
    EvaluationLine,
    PhaseLine,
    RunDescription,
    evaluation_file,
    is_step_file,
)
from art.reporting.run_writer import RunWriter
from art.reporting.trajectory_lines import (
    RecordReader,
    advantages,
    completion_tokens,
    exchanges_of,
    read_tokenizer,
    sampled_by,
    sampled_rollouts,
    trajectory_line,
)
from art.train_config import TrainConfig, TrainResult
from art.trajectories import Rollout, TrajectoryGroup

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WINDOW = 5
"""Steps that the recent reward is the mean of."""

_ABOUT_THE_FOLDER = frozenset({"run_dir", "resume"})
_EVALUATION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]*")
_READ_S = 60.0

type Summary = Callable[[Sequence[TrajectoryGroup]], str]


class Executor(RecordReader, Protocol):
    """What the report needs of :class:`art.distributed.RolloutExecutor`."""

    @property
    def counts(self) -> tuple[int, int]:
        """Rollouts that were started, and how many of them are done."""
        ...


class ReportError(ArtError):
    """The report's calls came in an order that makes no sense."""


class Phase:
    """A part of the run; ``detail`` is shown when it is done."""

    def __init__(self) -> None:
        self.detail = ""


class RunReport:
    """Owns the run's folder and the terminal while the run lasts; used as a context manager.

    A loop over it::

        for step in report.steps(25):
            groups = await art.gather_trajectory_groups(...)
            await report.sampled(groups)
            report.trained(await model.train(groups))

    Args:
        name: of the task; part of the default folder's name.
        folder: the run's folder, new or empty; by default a new one under ``runs/``.
        settings: the program's own; kept in ``run.json``. Fields ``run_dir`` and ``resume`` are left out.
        resume: go on with the run in ``folder`` from its last durable policy, with the same settings.
        summary: words for the rollouts of a step, shown in its line.
        display: by default :func:`art.reporting.choose_display`.
        resume_command: goes on with a stopped run when the folder's name is put behind it; shown then.
        token_samples: of how many rollouts of each group the tokens are kept.

    Raises:
        ConfigError: the folder is in use, cannot be written, or is no run that can be resumed.
    """

    def __init__(
        self,
        name: str,
        folder: Path | None = None,
        settings: msgspec.Struct | None = None,
        *,
        resume: bool = False,
        summary: Summary | None = None,
        display: Display | None = None,
        resume_command: str | None = None,
        token_samples: int = 4,
    ) -> None:
        self._summary = summary
        self._token_samples = token_samples
        self._resume_command = resume_command
        self._executor: Executor | None = None
        self._tokenizer: Tokenizer | None = None
        self._open_step: _OpenStep | None = None
        self._flat_rewards = FlatRewards()
        self._writer = _writer(name, folder, _plain(settings), resume)
        self._started = time.monotonic()
        self._before_s = self._writer.steps[-1]["elapsed_s"] if self._writer.steps else 0.0
        self._display = display or choose_display()
        self._show(
            RunStarted(
                name=name,
                run_folder=str(self.folder),
                settings=self._writer.description.settings,
                steps_done=self.steps_done,
                policy_version=self.policy_version,
                rewards=tuple(line["reward"] for line in self._writer.steps),
            )
        )
        for text in self._writer.notices:
            self.line(text)

    @property
    def folder(self) -> Path:
        """The run's folder, absolute."""
        return self._writer.folder

    @property
    def steps_done(self) -> int:
        """Steps that were finished, those before a resumption included."""
        return len(self._writer.steps)

    @property
    def policy_version(self) -> int:
        """The policy after the last finished step."""
        return self._writer.policy_version

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = kind is not None and issubclass(kind, asyncio.CancelledError | KeyboardInterrupt)
        reason = "finished" if kind is None else "interrupted" if stopped else "failed"
        last = self._recent()
        try:
            if kind is None:
                self._writer.set_finished()
            page = self._write_page()
            self._show(
                RunEnded(
                    reason=reason,
                    steps=self.steps_done,
                    duration_s=self._elapsed_s(),
                    reward=statistics.fmean(last) if last else None,
                    rewards=len(last),
                    run_folder=str(self.folder),
                    report=page,
                    resume=self._resume_hint() if kind is not None else None,
                )
            )
        finally:
            self._display.close()
            self._writer.close()

    def _resume_hint(self) -> str | None:
        if self._resume_command is None:
            return None
        return f"{self._resume_command} {shlex.quote(str(self.folder))}"

    def _write_page(self) -> str | None:
        """Makes `report.html` once there is a step; when it cannot be made, that is told."""
        if not self.steps_done:
            return None
        from art.reporting.page import write_report

        try:
            return str(write_report(self.folder))
        except ArtError as error:
            self.line(f"the page was not written: {error}")
            return None

    def model(self, folder: Path, name: str | None = None) -> None:
        """Says what the base model is: a Hugging Face folder, whose tokenizer gives tokens their texts.

        Raises:
            ConfigError: it cannot be read, or a resumed run was started with another.
        """
        self._writer.set_model(folder.resolve(), name)
        self._tokenizer = read_tokenizer(folder)

    def watch(self, executor: Executor) -> None:
        """Says what runs the rollouts: it is asked for their tokens and for how many are done."""
        self._executor = executor
        self._display.watch(lambda: executor.counts)

    def line(self, text: str) -> None:
        """Shows a line."""
        self._show(Notice(text))

    def progress(self, text: str) -> None:
        """Shows what goes on right now."""
        self._show(Progress(text))

    @contextlib.contextmanager
    def phase(self, name: str, *, fetches: bool = False) -> Iterator[Phase]:
        """A part of the run that is no step and may take long; ``fetches`` when it may download or build.

        Progress meanwhile is shown; in plain output only that of phases that fetch.
        """
        phase, started, ok = Phase(), time.monotonic(), False
        self._show(PhaseStarted(name=name, fetches=fetches))
        try:
            yield phase
            ok = True
        finally:
            duration_s = time.monotonic() - started
            self._show(PhaseEnded(name=name, duration_s=duration_s, detail=phase.detail, ok=ok))
        self._writer.add_phase(PhaseLine(name=name, duration_s=duration_s))

    def steps(self, limit: int, *, enough: float | None = None) -> Iterator[int]:
        """The numbers of the steps to take, from 1, or from where a resumed run goes on, to ``limit``.

        Each must be finished with :meth:`trained`. Ends early once the mean reward of the last
        :data:`WINDOW` steps is above ``enough``. After three steps in a row without training (equal rewards),
        while a better reward is known, a line says once what can help.
        """
        self._flat_rewards = FlatRewards(enough, [line["reward"] for line in self._writer.steps])
        while self.steps_done < limit and not (enough is not None and self.recent_reward() > enough):
            step = self.steps_done + 1
            self._open_step = _OpenStep(step)
            self._show(StepStarted(step, limit))
            yield step
            if self.steps_done < step:
                raise ReportError(f"step {step} was begun and not finished; call report.trained(result)")

    async def sampled(self, groups: Sequence[TrajectoryGroup], *, config: TrainConfig | None = None) -> None:
        """Keeps the rollouts of the step that was begun, before they are trained on with ``config``.

        Raises:
            ReportError: no step was begun.
            ArtError: the tokens cannot be read from the workers that hold them.
        """
        step = self._step_at_work()
        step.rollout_s = time.monotonic() - step.started
        items = [item for group in groups for item in group]
        if not items:
            raise ConfigError(f"step {step.number} has no rollouts; there is nothing to train on")
        chosen = [sampled_rollouts(group.trajectories, self._token_samples) for group in groups]
        exchanges = await exchanges_of(
            [group.trajectories for group in groups], chosen, self._tokenizer, self._executor, _READ_S
        )
        self._writer.add_trajectories(
            step.number,
            [
                trajectory_line(item, step=step.number, group=index, advantage=worth, exchanges=said)
                for index, (group, worths, saids) in enumerate(
                    zip(groups, advantages(groups, config or TrainConfig()), exchanges, strict=True)
                )
                for item, worth, said in zip(group, worths, saids, strict=True)
            ],
        )
        step.rewards = [item.reward or 0.0 for item in items]
        step.reward = statistics.fmean(step.rewards)
        tokens = [count for item in items if (count := completion_tokens(item)) is not None]
        step.tokens = sum(tokens) if tokens else None
        step.sampled_by = sampled_by(items)
        step.summary = self._summary(groups) if self._summary is not None else ""
        self._show(StepSampled(step.number, step.reward))
        step.training_since = time.monotonic()

    def trained(self, result: TrainResult) -> None:
        """Finishes the step: keeps and shows its numbers.

        Raises:
            ReportError: :meth:`sampled` was not called, or the version does not follow the last one.
        """
        step = self._step_at_work()
        if step.training_since is None:
            raise ReportError(
                f"step {step.number} was trained on and not sampled; await report.sampled(groups)"
            )
        if result.step - self.policy_version not in (0, 1):
            raise ReportError(
                f"step {step.number} led to policy v{result.step}; the run was at v{self.policy_version}"
            )
        metrics = {
            **result.metrics,
            "step": float(step.number),
            "policy_version": float(result.step),
            "reward": step.reward,
            "rollout_s": step.rollout_s,
            "train_s": time.monotonic() - step.training_since,
            "elapsed_s": self._elapsed_s(),
        }
        if step.tokens is not None:
            metrics["tokens_per_s"] = step.tokens / step.rollout_s
        self._writer.add_step(metrics)
        self._open_step = None
        self._show(
            StepEnded(step=step.number, metrics=metrics, summary=step.summary, sampled_by=step.sampled_by)
        )
        flat = self._flat_rewards.step(
            step.rewards, mean=step.reward, trained=not metrics.get("skipped", 0.0)
        )
        if flat is not None:
            self.line(flat)

    def recent_reward(self) -> float:
        """Mean reward of the last :data:`WINDOW` steps; 0 before there are that many."""
        last = self._recent()
        return statistics.fmean(last) if len(last) == WINDOW else 0.0

    async def evaluate(self, name: str, rollouts: Iterable[Awaitable[Rollout]]) -> float:
        """Runs rollouts that are not trained on, with the policy as it is now; keeps and shows their reward.

        An evaluation that a resumed run has already, of this name and policy version, is not run again.

        Args:
            name: for example ``held-out``; part of a file's name, with ``-`` for spaces.
            rollouts: run all at once. An iterator that makes them when it is asked costs nothing when they
                are not run.

        Returns:
            Their mean reward.

        Raises:
            ConfigError: there are no rollouts, or the name does not do.
            Exception: what the first rollout that failed raised; the others are cancelled.
        """
        version = self.policy_version
        file = evaluation_file(self.folder, name, version)
        if _EVALUATION_NAME.fullmatch(name) is None or is_step_file(file):
            raise ConfigError(
                f"{name!r} cannot be an evaluation's name, which is part of a file's: letters, digits, "
                "spaces and . _ -, beginning with a letter or digit and not with 'step-'"
            )
        for line in self._writer.evaluations:
            if (line.name, line.policy_version) == (name, version):
                return line.reward
            if evaluation_file(self.folder, line.name, line.policy_version) == file:
                raise ConfigError(
                    f"the evaluations {line.name!r} and {name!r} would both be kept in {file.name}"
                )
        self._show(EvaluationStarted(name, version))
        started = time.monotonic()
        items = await _all(rollouts)
        if not items:
            raise ConfigError(f"the evaluation {name!r} has no rollouts")
        done = EvaluationLine(
            name=name,
            step=self.steps_done,
            policy_version=version,
            reward=statistics.fmean(item.reward or 0.0 for item in items),
            trajectories=len(items),
            duration_s=time.monotonic() - started,
        )
        (exchanges,) = await exchanges_of(
            [items], [range(len(items))], self._tokenizer, self._executor, _READ_S
        )
        self._writer.add_evaluation(
            done,
            [
                trajectory_line(item, step=self.steps_done, group=index, exchanges=said)
                for index, (item, said) in enumerate(zip(items, exchanges, strict=True))
            ],
        )
        self._show(EvaluationEnded(done))
        return done.reward

    def _show(self, event: Event) -> None:
        self._display.show(event)

    def _elapsed_s(self) -> float:
        return self._before_s + time.monotonic() - self._started

    def _recent(self) -> list[float]:
        return [line["reward"] for line in self._writer.steps[-WINDOW:]]

    def _step_at_work(self) -> "_OpenStep":
        if self._open_step is None:
            raise ReportError("no step was begun; loop over report.steps(limit)")
        return self._open_step


class _OpenStep:
    """The step at work; its numbers are there when it was sampled."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.started = time.monotonic()
        self.training_since: float | None = None
        self.rollout_s = 0.0
        self.rewards: list[float] = []
        self.reward = 0.0
        self.tokens: float | None = None
        self.sampled_by: tuple[int, int] | None = None
        self.summary = ""


def _writer(name: str, folder: Path | None, settings: dict[str, Any], resume: bool) -> RunWriter:
    if resume:
        if folder is None:
            raise ConfigError("a run is resumed in its own folder; name it")
        return RunWriter.resumed(folder.resolve(), settings)
    description = RunDescription(
        name=name,
        art_version=art.__version__,
        model="",
        model_folder="",
        started_unix_s=time.time(),
        settings=settings,
    )
    return RunWriter.fresh((folder or _default_folder(name)).resolve(), description)


def _default_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _plain(settings: msgspec.Struct | None) -> dict[str, Any]:
    if settings is None:
        return {}
    plain: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=str)
    return {name: value for name, value in plain.items() if name not in _ABOUT_THE_FOLDER}


async def _all(rollouts: Iterable[Awaitable[Rollout]]) -> list[Rollout]:
    """Runs all; the first failure cancels the others, waits for them and is raised."""
    tasks = [asyncio.ensure_future(rollout) for rollout in rollouts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
