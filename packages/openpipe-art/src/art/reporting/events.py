"""What happens in a run, as the displays are told of it.

The JSON of these structs, one line each, is what `art demo --json` writes; the field ``event`` names the
kind.
"""

import msgspec

from art.reporting.run_folder import EvaluationLine


class RunStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="start"):
    """The run's folder is there.

    Args:
        name: the task's.
        run_folder: absolute.
        settings: the program's own.
        steps_done: that a resumed run goes on from; 0 in a new one.
        policy_version: that it goes on from.
        rewards: of the steps that are done.
        elapsed_s: seconds that these steps took, with all else up to then.
    """

    name: str
    run_folder: str
    settings: dict[str, object]
    steps_done: int = 0
    elapsed_s: float = 0.0
    policy_version: int = 0
    rewards: tuple[float, ...] = ()


class PhaseStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="phase_started"):
    """A part of the run that is no step begins.

    Args:
        name: the part's.
        fetches: it may download or build.
        usually: how long it takes, in words with their unit (``15 to 30 s``); empty where that is not known.
    """

    name: str
    fetches: bool = False
    usually: str = ""


class PhaseEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="phase"):
    """It is done, or was stopped or failed.

    Args:
        name: the part's.
        duration_s: seconds that it took.
        detail: with what it ended; may be empty.
        ok: it came to its end.
        stopped: it ended with the run, which was stopped; ``ok`` is false then, too.
    """

    name: str
    duration_s: float
    detail: str = ""
    ok: bool = True
    stopped: bool = False


class Progress(msgspec.Struct, frozen=True, tag_field="event", tag="progress"):
    """What goes on in the phase: ``text`` is a line for people."""

    text: str


class Notice(msgspec.Struct, frozen=True, tag_field="event", tag="notice"):
    """A line for the user, ``text``."""

    text: str


class Answer(msgspec.Struct, frozen=True, tag_field="event", tag="answer"):
    """One of the answers that were just sampled, to look at: some of an evaluation, one of each step.

    Args:
        prompt: what was asked, on one line and shortened; may be empty.
        answer: what was said, likewise.
        reward: of the rollout; None when it failed.
    """

    prompt: str
    answer: str
    reward: float | None


class StepStarted(msgspec.Struct, frozen=True, tag_field="event", tag="step_started"):
    """Step ``step`` of at most ``limit`` begins with its rollouts."""

    step: int
    limit: int


class StepSampled(msgspec.Struct, frozen=True, tag_field="event", tag="step_sampled"):
    """The rollouts of ``step`` are there, with the mean ``reward``; it is trained on now."""

    step: int
    reward: float


class StepEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="step"):
    """A step is done.

    Args:
        step: from 1.
        metrics: the step's line in the run folder, see :data:`art.reporting.run_folder.StepLine`.
        summary: of its rollouts, as the program words it.
        sampled_by: lowest and highest policy version that sampled the tokens that were trained on.
    """

    step: int
    metrics: dict[str, float]
    summary: str = ""
    sampled_by: tuple[int, int] | None = None


class EvaluationStarted(msgspec.Struct, frozen=True, tag_field="event", tag="evaluation_started"):
    """Answers that are not trained on are sampled: the evaluation ``name``, of ``policy_version``."""

    name: str
    policy_version: int


class EvaluationEnded(msgspec.Struct, frozen=True, tag_field="event", tag="evaluation"):
    """They are there; ``line`` is that of the run folder."""

    line: EvaluationLine


class Stopping(msgspec.Struct, frozen=True, tag_field="event", tag="stopping"):
    """The run was told to stop, by Ctrl-C for example; its parts are ended now, which may take seconds."""


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="end"):
    """The run ended, however it did.

    Args:
        reason: ``finished``, ``interrupted`` (a signal) or ``failed``.
        doing: what was at work when it was stopped, for example ``step 5, training``; may be empty.
        steps: that were finished.
        duration_s: seconds of the run, the time before a resumption included.
        reward: mean of the last :data:`art.reporting.WINDOW` steps; None without a step.
        rewards: how many steps that is the mean of.
        run_folder: absolute.
        report: the page that was written, absolute; None without a step.
        resume: the command that goes on with a run that was stopped, if the program has one and a step is on
            disk to go on from.
    """

    reason: str
    doing: str = ""
    steps: int
    duration_s: float
    reward: float | None
    rewards: int
    run_folder: str
    report: str | None = None
    resume: str | None = None


class ErrorRaised(msgspec.Struct, frozen=True, tag_field="event", tag="error"):
    """Why a run failed, or why none was started; the last event then, after :class:`RunEnded` if any.

    Args:
        kind: the error's type.
        message: its text.
    """

    kind: str
    message: str


type Event = (
    RunStarted
    | PhaseStarted
    | PhaseEnded
    | Progress
    | Answer
    | Notice
    | StepStarted
    | StepSampled
    | StepEnded
    | EvaluationStarted
    | EvaluationEnded
    | Stopping
    | RunEnded
    | ErrorRaised
)
"""What a display is told: any of these."""
