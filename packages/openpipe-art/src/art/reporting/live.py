"""The live display of a run on a terminal: a few lines that change, below the lines that stay.

What always holds: a finished step, phase or evaluation is a line that stays. What changes is never wider than
:data:`WIDTH` characters, so it stays whole when the terminal is made narrower, has an empty line below it,
where the terminal writes ``^C``, and is gone as soon as the run is told to stop. The cursor is never hidden,
so no way to end the process can leave it so. Words are not broken; paths and commands are left to the
terminal to wrap, so that they can be copied.
"""

import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from art.reporting.columns import difference, header, policy, row, shown
from art.reporting.displays import Counts, event_lines, phase_line
from art.reporting.events import (
    Answer,
    ErrorRaised,
    EvaluationEnded,
    EvaluationStarted,
    Event,
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
from art.reporting.output import Output, wrapped

WIDTH = 59
_REFRESH_HZ = 8
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_SPINNER = "|/-\\"
_ASCII_BARS = "_.-=+*#@"
_READY = re.compile(r"^(?P<part>[^:.,]{1,30}?) (?:is |are )?(?:loaded|ready)\b")
_CLOCK = re.compile(r"^[0-9]+(?:\.[0-9]+)? s[:,] +")


class LiveDisplay:
    """Owns the terminal from the first event to :meth:`close`.

    Args:
        stream: of the terminal.
        console: in place of one made for ``stream``.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output = Output(stream or sys.stdout) if console is None else None
        self._console = console or Console(file=cast("TextIO", self._output), highlight=False)
        self._clock = clock
        self._unicode = (self._console.encoding or "").lower().startswith("utf")
        self._began = clock()
        self._what, self._doing, self._since = "", "", clock()
        self._counts: Counts | None = None
        self._counted_from: tuple[int, int] | None = None
        self._rewards: list[float] = []
        self._last: StepEnded | None = None
        self._answer: Answer | None = None
        self._usually = ""
        self._ready: list[str] = []
        self._columns: tuple[str, ...] = ()
        self._summarized = False
        self._live: Live | None = None
        self._stopping = self._closed = False

    def watch(self, counts: Counts) -> None:
        """Shows how many rollouts of a step are done."""
        self._counts = counts

    def show(self, event: Event) -> None:
        """Prints what stays and changes what moves."""
        if isinstance(event, PhaseStarted | StepStarted | EvaluationStarted):
            self._stopping = False
        if self._live is None and not (self._closed or self._stopping):
            self._start()
        match event:
            case RunStarted():
                self._rewards = list(event.rewards)
                self._began -= event.elapsed_s
            case PhaseStarted():
                self._begin(event.name, "", usually=event.usually)
            case Progress():
                self._doing, self._counted_from = _CLOCK.sub("", event.text, count=1), None
                if (ready := _READY.match(self._doing)) is not None and ready["part"] not in self._ready:
                    self._ready.append(ready["part"])
            case Answer():
                self._answer = event
            case StepStarted():
                self._begin(f"step {event.step} of {event.limit}", "sampling", counting=True)
            case StepSampled():
                self._doing, self._counted_from = "training", None
            case EvaluationStarted():
                self._begin(event.name, "waiting for the first answer")
            case StepEnded():
                self._last = event
                self._rewards.append(event.metrics["reward"])
                self._print_step(event)
            case PhaseEnded():
                style = "dim" if event.ok or event.stopped else "red"
                self._print(self._wrapped(phase_line(event)), style=style)
            case Stopping():
                self._stopping = True
                self._remove()
                self._print("stopping ...", style="dim")
        if isinstance(event, PhaseEnded | StepEnded | EvaluationEnded):
            self._begin("", "")
        if isinstance(event, RunEnded):
            self.close()
        for number, line in enumerate(event_lines(event)):
            keeps = isinstance(event, RunEnded) and number > 0
            self._print(line if keeps else self._wrapped(line), style=_style(event))
        if self._output is not None:
            self._output.check()

    def close(self) -> None:
        """Removes what moves; the lines stay."""
        self._closed = True
        self._remove()

    def _remove(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _start(self) -> None:
        self._live = Live(
            console=self._console,
            get_renderable=self.frame,
            refresh_per_second=_REFRESH_HZ,
            transient=True,
            vertical_overflow="crop",
        )
        self._live.start()
        self._console.show_cursor(True)

    def _begin(self, what: str, doing: str, *, counting: bool = False, usually: str = "") -> None:
        self._since, self._usually, self._ready = self._clock(), usually, []
        self._counted_from = self._counts() if counting and self._counts is not None else None
        self._what, self._doing = what, doing

    def _print_step(self, event: StepEnded) -> None:
        width = self._console.width
        self._summarized = self._summarized or bool(event.summary)
        columns = tuple(column.title for column in shown(width, summary=self._summarized))
        if columns != self._columns:
            self._columns = columns
            self._print(header(width, summary=self._summarized), style="dim")
        self._print(row(event, width))

    def _print(self, line: str, style: str = "") -> None:
        self._console.print(Text(line, style=style), soft_wrap=True)

    def _wrapped(self, text: str) -> str:
        return wrapped(text, self._console.width)

    def frame(self) -> Text:
        """What moves, at most :data:`WIDTH` characters wide, and an empty line."""
        width = min(WIDTH, self._console.width - 1)
        lines = self._activity(width) if self._what or self._doing else []
        if self._last is not None:
            lines += self._numbers(self._last, width)
        if self._answer is not None:
            lines.append(self._said(self._answer, width))
        for line in lines:
            self._shorten(line, width)
        return Text("\n").join([*lines, Text()]) if lines else Text()

    def _shorten(self, line: Text, width: int) -> None:
        """Cuts behind a word where one ends in the second half, else anywhere."""
        if line.cell_len <= width:
            return
        line.truncate(width - 1)
        space = line.plain.rfind(" ")
        if space > width // 2:
            line.right_crop(len(line.plain) - space)
        line.append("…" if self._unicode else "")

    def _activity(self, width: int) -> list[Text]:
        """What is at work and since when, and, where there is no room beside it, what it does just now."""
        now = self._clock()
        spinner = _SPINNER if self._unicode else _ASCII_SPINNER
        turn = spinner[int(now * _REFRESH_HZ) % len(spinner)]
        first = Text.assemble((turn, "cyan"), " ", (self._what, "bold"))
        since = f"  {now - self._since:.0f} s"
        doing = Text(f"  {self._doing} {self._counted()}".rstrip())
        right = f"{since}, {_duration(now - self._began)} in all"
        if first.cell_len + len(right) > width or int(now - self._began) == int(now - self._since):
            right = since
        beside = first.cell_len + doing.cell_len + len(right) <= width
        if beside:
            first.append(doing)
        room = max(width - len(right), 8)
        self._shorten(first, room)
        first.pad_right(room - first.cell_len)
        below = [doing] if self._doing and not beside else []
        told = [f"usually {self._usually}"] if self._usually else []
        told += [f"ready: {', '.join(self._ready)}"] if self._ready else []
        return [first.append(right, style="dim"), *below, *([_fitting(told, width)] if told else [])]

    def _counted(self) -> str:
        """How many of the rollouts that were started are done."""
        base = self._counted_from
        if base is None or self._counts is None:
            return ""
        started, done = (now - then for now, then in zip(self._counts(), base, strict=True))
        return f"{done} of {started}" if started else ""

    def _numbers(self, event: StepEnded, width: int) -> list[Text]:
        metrics = event.metrics
        reward = Text.assemble("  reward ", (f"{metrics['reward']:.3f}", "bold green"), "  ")
        reward.append(sparkline(self._rewards, width - len(reward), self._unicode), style="green")
        speed = [f"{metrics['tokens_per_s']:.0f} tokens/s"] if "tokens_per_s" in metrics else []
        speed += [
            f"{label} {metrics[name]:.1f} s"
            for label, name in (("rollout", "rollout_s"), ("train", "train_s"))
            if name in metrics
        ]
        said = [f"policy {policy(event)}"]
        if event.summary:
            said.append(event.summary)
        if (apart := difference(event)) != "-":
            said.append(apart if metrics.get("skipped") else f"log-prob difference {apart}")
        return [reward, _fitting(speed, width), _fitting(said, width)]

    def _written(self, text: str) -> str:
        return text if self._unicode else text.encode("ascii", "backslashreplace").decode()

    def _said(self, said: Answer, width: int) -> Text:
        """What was asked, what was said, and its reward."""
        arrow, more = ("→", "…") if self._unicode else ("->", "..")
        reward = "  failed" if said.reward is None else f"  {said.reward:g}"
        room = width - len(reward) - len(arrow) - 4
        prompt, answer = (self._written(text) for text in (said.prompt or "?", said.answer or "(nothing)"))
        answer = _cut(answer, max(room // 2, room - len(prompt)), more)
        prompt = _cut(prompt, room - len(answer), more)
        return Text.assemble("  ", (prompt, "dim"), f" {arrow} ", (answer, "cyan"), reward)


def _cut(text: str, most: int, more: str) -> str:
    return text if len(text) <= most else text[: max(most - len(more), 0)] + more


def _fitting(parts: Sequence[str], width: int) -> Text:
    """As many of the parts as there is room for, from the first."""
    text = ""
    for part in parts:
        if text and len(text) + 2 + len(part) > width:
            break
        text += f"  {part}"
    return Text(text)


def sparkline(values: Sequence[float], width: int, unicode: bool = True) -> str:
    """The last ``width`` values as bars between the lowest and the highest of them."""
    bars = _BARS if unicode else _ASCII_BARS
    last = list(values)[-max(width, 0) :] if width > 0 else []
    if not last:
        return ""
    low, span = min(last), max(last) - min(last)
    if span <= 0:
        return bars[0] * len(last)
    return "".join(bars[round((value - low) / span * (len(bars) - 1))] for value in last)


def _duration(seconds: float) -> str:
    """``42 s``, ``3 min 07 s``, ``2 h 05 min``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def _style(event: Event) -> str:
    if isinstance(event, ErrorRaised):
        return "red"
    return "bold" if isinstance(event, EvaluationEnded | RunEnded) else ""
