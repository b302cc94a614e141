"""What a run shows on the terminal and leaves in its folder.

What always holds: a step's rollouts are on disk before it is trained on and its numbers before the next step
begins; the folder is named last, however the run ends.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from art.errors import ArtError, ConfigError
from art.reporting.answers import answer_of, one_answer
from art.reporting.displays import Display, choose_display
from art.reporting.evaluations import evaluated, gathered
from art.reporting.events import (
    EvaluationEnded,
    EvaluationStarted,
    Event,
    Notice,
    PhaseEnded,
    PhaseStarted,
    Progress,
    RunStarted,
    StepEnded,
    StepSampled,
    StepStarted,
    Stopping,
)
from art.reporting.flat_rewards import FlatRewards
from art.reporting.open_step import OpenStep
from art.reporting.output import DisplayError
from art.reporting.run_end import WINDOW, Ending, end_run, was_stopped
from art.reporting.run_folder import EvaluationLine, PhaseLine
from art.reporting.run_opening import Opening, opened
from art.reporting.run_writer import RunWriter
from art.reporting.trajectory_lines import (
    Executor,
    TokenSource,
    evaluation_lines,
    read_tokenizer,
    step_lines,
)
from art.train_config import TrainConfig, TrainResult
from art.trajectories import Rollout, rewards_of
from art.trajectory_groups import TrajectoryGroup

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_READ_S = 60.0
_STOP_POLL_S = 0.1
_STOP_POLLS = 2

type Summary = Callable[[Sequence[TrajectoryGroup]], str]


class ReportError(ArtError):
    """The report's calls came in an order that makes no sense."""


class Phase:
    """A part of the run; ``detail`` is shown when it is done."""

    def __init__(self) -> None:
        self.detail = ""


class RunReport:
    """Owns the run's folder and the terminal while the run lasts; used as an asynchronous context manager.

    A loop over it::

        async with RunReport("my-task", Path("runs/first")) as report:
            for step in report.steps(25):
                groups = await art.gather_trajectory_groups(...)
                await report.sampled(groups)
                report.trained(await model.train(groups))

    Entering it takes the folder, and raises :class:`art.ConfigError` when it is in use, cannot be written, or
    is no run that can be resumed here, :class:`art.reporting.RunFinishedError` when that came to its end.
    Leaving it writes down how the run ended, makes the page and gives the folder back.

    Everything that shows something raises :class:`art.reporting.DisplayError` when the output cannot be
    written, after the folder has what was to be shown; everything that keeps something raises
    :class:`art.reporting.RunFolderError` when the folder cannot be written. Both mean: end the run.

    Args:
        name: of the task; part of the default folder's name.
        folder: the run's folder, new or empty; by default a new one under ``runs/``.
        settings: the program's own; kept in ``run.json``. Fields ``run_dir`` and ``resume`` are left out.
            ``steps``, if there is such a field, is the most steps the run may take.
        resume: go on with the run in ``folder`` from its last durable policy, with the same settings, but for
            ``steps``, which may be any number above the steps that were taken; a run that is finished goes on
            when it is another than before. Without such a setting :meth:`steps` decides that.
        summary: words for the rollouts of a step, shown in its line.
        display: by default :func:`art.reporting.choose_display`.
        resume_command: goes on with a stopped run when the folder's name is put behind it; shown then. For
            example ``launch.resume_command("--run-dir")``. It also says which program this is: a run is
            resumed by the program that made it, wherever both have such a command, else by one of the same
            ``name``.
        token_samples: of how many rollouts of each group the tokens are kept.
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
        self._opening = Opening(
            name=name, folder=folder, settings=settings, resume=resume, resume_command=resume_command
        )
        self._summary = summary
        self._token_samples = token_samples
        self._display = display or choose_display()
        self._executor: Executor | None = None
        self._tokenizer: Tokenizer | None = None
        self._open_step: OpenStep | None = None
        self._flat_rewards = FlatRewards()
        self._broke_in = ""
        self._opened: RunWriter | None = None
        self._stop_watch: asyncio.Task[None] | None = None
        self._started = 0.0
        self._before_s = 0.0
        self._resumed_after: int | None = None

    async def __aenter__(self) -> Self:
        try:
            writer = await opened(self._opening, self._say_that_it_waits)
        except BaseException:
            self._display.close()
            raise
        self._opened = writer
        self._started = time.monotonic()
        self._before_s = writer.elapsed_s
        self._resumed_after = self.steps_done if writer.is_resumed else None
        try:
            self._show(
                RunStarted(
                    name=self._opening.name,
                    run_folder=str(writer.folder),
                    settings=writer.description.settings,
                    steps_done=self.steps_done,
                    policy_version=self.policy_version,
                    rewards=tuple(line["reward"] for line in writer.steps),
                    elapsed_s=self._before_s,
                )
            )
            if writer.is_resumed and not self.steps_done:
                self.line(
                    "no step of this run is on disk to go on from, so it begins again from its start: "
                    f"{writer.folder}"
                )
            for text in writer.notices:
                self.line(text)
        except DisplayError as error:
            self._end(error)
            raise
        task = asyncio.current_task()
        assert task is not None  # this is a coroutine
        self._stop_watch = asyncio.create_task(self._tell_that_it_stops(task))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stop_watch is not None:
            self._stop_watch.cancel()
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        try:
            ending = Ending(error=error, doing=self._at_work(), duration_s=self._elapsed_s())
            end_run(self._writer, self._display, ending)
        finally:
            self._display.close()
            self._writer.close()

    async def _tell_that_it_stops(self, task: asyncio.Task[object]) -> None:
        """Ending the parts can take seconds, and begins where the report does not see it."""
        told = 0
        while told < _STOP_POLLS:  # a deadline that passes in the task cancels it for a moment too
            await asyncio.sleep(_STOP_POLL_S)
            told = told + 1 if task.cancelling() else 0
        with contextlib.suppress(DisplayError):  # the run stops anyway
            self._show(Stopping())

    def _say_that_it_waits(self) -> None:
        self.line("waiting until what an earlier process of this run left has ended")

    @property
    def _writer(self) -> RunWriter:
        if self._opened is None:
            raise ReportError("the report was not entered; `async with RunReport(...) as report:`")
        return self._opened

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

    def model(self, folder: Path, name: str | None = None) -> None:
        """Says what the base model is.

        Args:
            folder: a Hugging Face folder, whose tokenizer gives tokens their texts.
            name: how it is called in what is shown and kept; the folder's own by default.

        Raises:
            ConfigError: it cannot be read, or a resumed run was started with another.
        """
        self._writer.set_model(folder.resolve(), name)
        self._tokenizer = read_tokenizer(folder)

    def watch(self, executor: Executor) -> None:
        """Says what runs the rollouts: ``executor`` is asked for their tokens and for how many are done."""
        self._executor = executor
        self._display.watch(lambda: executor.counts)

    def line(self, text: str) -> None:
        """Shows ``text`` as a line.

        Raises:
            DisplayError: it cannot be written.
        """
        self._show(Notice(text))

    def progress(self, text: str) -> None:
        """Shows what goes on right now; of a text ``NAME loaded ...`` or ``NAME ready ...`` a live display
        keeps that NAME is ready until the phase ends."""
        self._show(Progress(text))

    @contextlib.contextmanager
    def phase(self, name: str, *, fetches: bool = False, usually: str = "") -> Iterator[Phase]:
        """A part of the run that is no step and may take long.

        Progress meanwhile is shown; in plain output only that of phases that fetch.

        Args:
            name: the part's, as it is shown.
            fetches: it may download or build.
            usually: how long it takes, for example ``15 to 30 s``; empty where that is not known.
        """
        phase, started = Phase(), time.monotonic()
        with self._at(name):
            self._show(PhaseStarted(name=name, fetches=fetches, usually=usually))
            try:
                yield phase
            except BaseException as error:
                duration_s, stopped = time.monotonic() - started, was_stopped(error)
                with contextlib.suppress(DisplayError):  # what ended the phase is the news
                    self._show(PhaseEnded(name=name, duration_s=duration_s, ok=False, stopped=stopped))
                raise
            duration_s = time.monotonic() - started
            self._writer.add_phase(PhaseLine(name=name, duration_s=duration_s))
            self._show(PhaseEnded(name=name, duration_s=duration_s, detail=phase.detail))

    def steps(self, limit: int, *, enough: float | None = None) -> Iterator[int]:
        """The numbers of the steps to take, from 1, or from where a resumed run goes on, to ``limit``.

        Each must be finished with :meth:`trained`. Ends early once the mean reward of the last
        :data:`WINDOW` steps is above ``enough``; of a finished run that goes on with another limit, only the
        new steps count. Of a resumed run for which there is none left to take, a line says so. After three
        steps in a row without training (equal rewards), while a better reward is known, a line says once what
        can help.

        Args:
            limit: the most steps of the whole run, those before a resumption included.
            enough: a mean reward; None to take all steps.

        Raises:
            ReportError: a step was begun and not finished.
        """
        self._flat_rewards = FlatRewards(enough, [line["reward"] for line in self._writer.steps])
        before, done = self._writer.limit_before, self.steps_done
        least = done + WINDOW if self._writer.reopened and limit != before else 0
        self._writer.set_step_limit(limit)
        while self.steps_done < limit:
            if enough is not None and self.steps_done >= least and self.recent_reward() > enough:
                if self.steps_done == self._resumed_after:
                    self.line(
                        f"no step is left to take: the mean reward of the last {WINDOW} steps is above "
                        f"{enough:g}, which is enough; to go on all the same, let the run take more than "
                        f"{limit} steps"
                    )
                break
            step = self.steps_done + 1
            self._open_step, self._broke_in = OpenStep(step), ""
            self._show(StepStarted(step, limit))
            yield step
            if self.steps_done < step:
                raise ReportError(f"step {step} was begun and not finished; call report.trained(result)")
        if limit <= done == self._resumed_after:
            self.line(
                f"no step is left to take: the run has taken {done}, and {limit} is the most; to go on, let "
                f"it take more than {done} step{'' if done == 1 else 's'}"
            )

    async def sampled(self, groups: Sequence[TrajectoryGroup], *, config: TrainConfig | None = None) -> None:
        """Keeps the rollouts of the step that was begun, before they are trained on.

        Args:
            groups: that the step is to be trained on.
            config: that they are trained with, from which their advantages follow.

        Raises:
            ConfigError: there are no rollouts, or all failed.
            ReportError: no step was begun.
            ArtError: the tokens cannot be read from the workers that hold them.
        """
        step = self._step_at_work()
        step.rollouts_are_there()
        items = [item for group in groups for item in group]
        if not items:
            raise ConfigError(f"step {step.number} has no rollouts; there is nothing to train on")
        if not rewards_of(items):
            raise ConfigError(
                f"all {len(items)} rollouts of step {step.number} failed; there is nothing to train on"
            )
        lines = await step_lines(
            groups,
            step.number,
            config or TrainConfig(),
            TokenSource(self._tokenizer, self._executor, _READ_S),
            self._token_samples,
        )
        self._writer.add_trajectories(step.number, lines)
        step.sampled(items, self._summary(groups) if self._summary is not None else "")
        self._show(StepSampled(step.number, step.reward))
        if (answer := one_answer(lines, step.number)) is not None:
            self._show(answer)

    def trained(self, result: TrainResult) -> None:
        """Finishes the step: keeps and shows its numbers, those of ``result`` among them.

        Raises:
            ReportError: :meth:`sampled` was not called, or the version does not follow the last one.
        """
        step = self._step_at_work()
        if not step.is_sampled:
            raise ReportError(
                f"step {step.number} was trained on and not sampled; await report.sampled(groups)"
            )
        if result.step - self.policy_version not in (0, 1):
            raise ReportError(
                f"step {step.number} led to policy v{result.step}; the run was at v{self.policy_version}. A "
                "step is one call of model.train(...), and all of them belong into the loop "
                "`for _ in report.steps(...)`, each followed by report.trained(result)"
            )
        metrics = step.line(result, self._elapsed_s())
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

        An evaluation that the run has already, of this name and policy version, is not run again, as after a
        resumption or where no step was taken since; a line says so.

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
        before = evaluated(self.folder, self._writer.evaluations, name, version)
        if before is not None:
            self.line(
                f"{name}: not evaluated again, policy v{version} is the same: reward {before.reward:.3f}"
            )
            return before.reward
        with self._at(name):
            self._show(EvaluationStarted(name, version))
            started = time.monotonic()
            items = await gathered(rollouts, self._answer_arrived)
            if not items:
                raise ConfigError(f"the evaluation {name!r} has no rollouts")
            done = EvaluationLine(
                name=name,
                step=self.steps_done,
                policy_version=version,
                reward=statistics.fmean(rewards_of(items)),
                trajectories=len(items),
                duration_s=time.monotonic() - started,
            )
            source = TokenSource(self._tokenizer, self._executor, _READ_S)
            self._writer.add_evaluation(done, await evaluation_lines(items, self.steps_done, source))
            self._show(EvaluationEnded(done))
        return done.reward

    def _answer_arrived(self, item: Rollout, done: int, count: int) -> None:
        self._show(Progress(f"sampling: {done} of {count} answers"))
        if (answer := answer_of(item)) is not None:
            self._show(answer)

    def _show(self, event: Event) -> None:
        self._display.show(event)

    def _elapsed_s(self) -> float:
        return self._before_s + time.monotonic() - self._started

    def _recent(self) -> list[float]:
        return [line["reward"] for line in self._writer.steps[-WINDOW:]]

    @contextlib.contextmanager
    def _at(self, what: str) -> Iterator[None]:
        """Remembers what is at work, and where an error came from until something else begins."""
        self._broke_in = ""
        try:
            yield
        except BaseException:
            self._broke_in = self._broke_in or what
            raise

    def _at_work(self) -> str:
        if self._broke_in or self._open_step is None:
            return self._broke_in
        return self._open_step.doing

    def _step_at_work(self) -> OpenStep:
        if self._open_step is None:
            raise ReportError("no step was begun; loop over report.steps(limit)")
        return self._open_step
