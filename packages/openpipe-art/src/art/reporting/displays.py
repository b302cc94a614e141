"""What a run shows while it lasts: plain lines, a live display on a terminal, or lines of JSON.

Displays raise one error, :class:`art.reporting.DisplayError`, when what they write to fails, and from then on
with every event.
"""

import os
import sys
from collections.abc import Callable
from typing import Protocol, TextIO

import msgspec

from art.reporting.columns import header, row
from art.reporting.events import (
    ErrorRaised,
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
    Stopping,
)
from art.reporting.output import Output

type Counts = Callable[[], tuple[int, int]]
"""How many rollouts were started and how many of them are done, since there is somebody who counts."""


class Display(Protocol):
    """Shows events in the order in which they come; all calls come from one thread."""

    def show(self, event: Event) -> None:
        """Shows one ``event``.

        Raises:
            DisplayError: it cannot be written.
        """
        ...

    def watch(self, counts: Counts) -> None:
        """Gives what counts rollouts; it may be called from any thread."""
        ...

    def close(self) -> None:
        """Leaves the terminal as it was and raises nothing; a second call does nothing."""
        ...


def choose_display(stream: TextIO | None = None) -> Display:
    """A live display when ``stream`` (standard output) is a terminal that can show one, else plain lines.

    ``TERM=dumb`` and an empty ``TERM`` count as a terminal that cannot; ``NO_COLOR`` takes the colours away.
    """
    stream = stream or sys.stdout
    if stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown"):
        from art.reporting.live import LiveDisplay

        return LiveDisplay(stream)
    return PlainDisplay(stream)


class PlainDisplay:
    """Lines for a log: the same ones in the same order in every run of a program that has all it fetches.

    What a phase says while it downloads or builds comes as it is said; what goes on otherwise is not shown.

    Args:
        stream: for text; standard output by default. It stays open.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._output = Output(stream or sys.stdout)
        self._fetches = False
        self._header = ""
        self._summarized = False

    def show(self, event: Event) -> None:
        """Prints what of ``event`` is worth a line.

        Raises:
            DisplayError: it cannot be written.
        """
        match event:
            case PhaseStarted():
                self._fetches = event.fetches
                usually = f" (usually {event.usually})" if event.usually else ""
                self._line(f"{event.name} ...{usually}")
            case PhaseEnded():
                self._fetches = False
                self._line(phase_line(event))
            case Progress():
                if self._fetches:
                    self._line(f"  {event.text}")
            case StepEnded():
                self._summarized = self._summarized or bool(event.summary)
                if (titles := header(None, summary=self._summarized)) != self._header:
                    self._header = titles
                    self._line(titles)
                self._line(row(event, None))
            case EvaluationStarted():
                self._line(f"{event.name} ...")
            case Stopping():
                self._line("stopping ...")
            case _:
                for line in event_lines(event):
                    self._line(line)

    def watch(self, counts: Counts) -> None:
        """Counts are not shown."""

    def close(self) -> None:
        """Nothing is held."""

    def _line(self, text: str) -> None:
        self._output.line(text)


class JsonDisplay:
    """One JSON object per line for each event; see :mod:`art.reporting.events`.

    Args:
        stream: for text; standard output by default. It stays open.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._output = Output(stream or sys.stdout)
        self._encoder = msgspec.json.Encoder(enc_hook=str)

    def show(self, event: Event) -> None:
        """Writes ``event``.

        Raises:
            DisplayError: it cannot be written.
        """
        self._output.line(self._encoder.encode(event).decode())

    def watch(self, counts: Counts) -> None:
        """Counts are not shown."""

    def close(self) -> None:
        """Nothing is held."""


def phase_line(event: PhaseEnded) -> str:
    """How a phase ended."""
    if event.stopped:
        return f"{event.name}: stopped after {event.duration_s:.1f} s"
    if not event.ok:
        return f"{event.name}: failed after {event.duration_s:.1f} s"
    detail = f" ({event.detail})" if event.detail else ""
    return f"{event.name}: ready in {event.duration_s:.1f} s{detail}"


def event_lines(event: Event) -> list[str]:
    """The lines of what is shown alike everywhere."""
    match event:
        case RunStarted(steps_done=0) | StepStarted() | StepSampled() | EvaluationStarted() | Stopping():
            return []
        case RunStarted():
            return [
                f"resuming after step {event.steps_done}, from policy v{event.policy_version}: "
                f"{event.run_folder}"
            ]
        case Notice():
            return [event.text]
        case EvaluationEnded(line=line):
            return [
                f"{line.name}: reward {line.reward:.3f} over {line.trajectories} answers of policy "
                f"v{line.policy_version} in {line.duration_s:.1f} s"
            ]
        case ErrorRaised():
            return [event.message]
        case RunEnded():
            return _end_lines(event)
    return []


def _end_lines(event: RunEnded) -> list[str]:
    how = {"finished": "ended", "interrupted": "stopped"}.get(event.reason, event.reason)
    where = f" in {event.doing}," if event.doing else ""
    steps = "1 step" if event.steps == 1 else f"{event.steps} steps"
    reward = (
        f", mean reward {event.reward:.3f} over the last {event.rewards}" if event.reward is not None else ""
    )
    lines = [f"{how}{where} after {steps} and {event.duration_s:.0f} s{reward}"]
    if event.report is not None:
        lines.append(f"report: {event.report}")
    if event.resume is not None:
        lines.append(f"go on with: {event.resume}")
    return [*lines, f"run folder: {event.run_folder}"]
