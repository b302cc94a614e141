"""What is shown: plain lines, a live display, lines of JSON."""

import io
import json

import pytest
from rich.console import Console

from art.reporting import JsonDisplay, PlainDisplay, choose_display
from art.reporting.columns import COLUMNS, header, row, shown
from art.reporting.events import (
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
from art.reporting.live import WIDTH, LiveDisplay, sparkline


def step(number: int, **metrics: float) -> StepEnded:
    numbers = {
        "reward": 0.5,
        "tokens_per_s": 68.4,
        "rollout_s": 2.04,
        "train_s": 1.26,
        "policy_version": 7.0,
        "sampler_difference_mean": 4e-6,
        "sampler_difference_p99": 1.4e-5,
    }
    return StepEnded(
        step=number, metrics=numbers | metrics, summary="yes 7  no 0  maybe 56", sampled_by=(6, 6)
    )


END = RunEnded(
    reason="interrupted",
    steps=1,
    duration_s=61.0,
    reward=0.5,
    rewards=1,
    run_folder="/run",
    report="/run/report.html",
)


class Terminal:
    """A live display on a recorded console; time stands still."""

    def __init__(self, width: int = 80, encoding: str = "utf-8") -> None:
        self.raw = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        self.console = Console(file=self.raw, force_terminal=True, width=width, height=24, _environ={})
        self.now = 100.0
        self.counts = (0, 0)
        self.display = LiveDisplay(console=self.console, clock=lambda: self.now)
        self.display.watch(lambda: self.counts)

    def show(self, *events: Event) -> str:
        """Shows events and returns what moves then, without styles."""
        for event in events:
            self.display.show(event)
        return self.display.frame().plain

    def written(self) -> str:
        self.display.close()
        self.raw.flush()
        return self.raw.buffer.getvalue().decode(self.raw.encoding)


@pytest.fixture
def terminal():
    terminal = Terminal()
    yield terminal
    terminal.display.close()


def test_a_row_fits_and_drops_what_matters_least() -> None:
    titles = {width: [column.title for column in shown(width)] for width in (40, 60, 80, 120, None)}
    assert titles[None] == titles[120] == [column.title for column in COLUMNS]
    assert titles[80] == ["step", "reward", "tokens/s", "rollout", "train", "policy", "log-prob difference"]
    assert titles[60] == ["step", "reward", "rollout", "policy", "log-prob difference"]
    for width in range(10, 130):
        assert len(row(step(12), width)) <= width
        assert len(header(width)) <= width
        assert row(step(12), width).startswith("  12")


def test_a_row_says_what_a_step_did() -> None:
    words = "7 0.500 68 2.0 s 1.3 s v6 -> v7 4.0e-06, p99 1.4e-05 yes 7 no 0 maybe 56"
    assert row(step(7), None).split() == words.split()
    assert row(step(8, skipped=1.0, policy_version=6.0), 80).endswith("v6  no step: equal rewards")
    mixed = StepEnded(step=9, metrics={"reward": 0.5, "policy_version": 8.0}, sampled_by=(6, 7))
    assert row(mixed, 80).split() == ["9", "0.500", "-", "-", "-", "v6-7", "->", "v8", "-"]


def test_the_frame_says_what_goes_on(terminal: Terminal) -> None:
    assert "vLLM" in terminal.show(PhaseStarted(name="vLLM"))
    assert "starting the engine" in terminal.show(Progress("starting the engine"))
    terminal.counts = (100, 100)
    terminal.show(PhaseEnded(name="vLLM", duration_s=1.0), StepStarted(3, 25))
    terminal.counts = (164, 140)
    terminal.now += 4
    frame = terminal.show()
    assert "step 3 of 25  sampling 40 of 64" in frame
    assert "4 s, 4 s in all" in frame
    assert "step 3 of 25  training" in terminal.show(StepSampled(3, 0.5))
    assert "publishing v4" in terminal.show(Progress("publishing v4"))


def test_the_frame_keeps_the_last_numbers_and_a_sparkline(terminal: Terminal) -> None:
    frame = terminal.show(
        RunStarted(name="n", run_folder="/run", settings={}, steps_done=2, rewards=(0.0, 0.25)),
        StepStarted(3, 25),
        StepSampled(3, 0.5),
        step(3),
        StepStarted(4, 25),
    )
    assert "reward 0.500  ▁▅█" in frame or "reward 0.500  ▁▄█" in frame
    assert "68 tokens/s  rollout 2.0 s  train 1.3 s" in frame
    assert "policy v6 -> v7  log-prob difference 4.0e-06, p99 1.4e-05" in frame
    why = terminal.show(step(4, skipped=1.0, policy_version=6.0), StepStarted(5, 25))
    assert "policy v6  no step: equal rewards" in why


@pytest.mark.parametrize("width", [200, 80, 60, 40, 20])
def test_no_line_of_the_frame_is_wider_than_the_terminal(width: int) -> None:
    terminal = Terminal(width)
    long = "converting the weights to a Hugging Face folder " * 3
    frames = [
        terminal.show(PhaseStarted(name=long), Progress(long)),
        terminal.show(PhaseEnded(name="x", duration_s=1.0), StepStarted(1, 25), step(1), StepStarted(2, 25)),
    ]
    terminal.display.close()
    for line in "\n".join(frames).splitlines():
        assert len(line) <= min(WIDTH, width - 1), line


def test_finished_steps_stay_and_the_frame_goes(terminal: Terminal) -> None:
    terminal.show(StepStarted(1, 2), step(1), StepStarted(2, 2), step(2), END)
    plain = terminal.written()
    rows = [line for line in plain.split("\n") if "4.0e-06, p99 1.4e-05" in line and "0.500" in line]
    assert len(rows) == 2
    assert plain.count("log-prob difference\n") <= plain.count("log-prob difference")
    assert plain.rstrip().endswith("run folder: /run\x1b[0m")
    assert plain.index("stopped after 1 step and 61 s") > plain.index("0.500")


def test_the_cursor_is_shown_while_the_display_lives(terminal: Terminal) -> None:
    terminal.show(StepStarted(1, 2))
    terminal.raw.flush()
    written = terminal.raw.buffer.getvalue().decode()
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")


def test_without_unicode_everything_is_ascii() -> None:
    terminal = Terminal(encoding="ascii")
    terminal.show(StepStarted(1, 2), step(1), StepStarted(2, 2), Progress("x" * 200))
    assert terminal.display.frame().plain.isascii()
    assert terminal.written().isascii()


def test_a_sparkline_spans_its_lowest_and_highest_value() -> None:
    assert sparkline([0, 1], 10) == "▁█"
    assert sparkline([0.2, 0.9, 0.2], 2) == "█▁"
    assert sparkline([0.5, 0.5], 10) == "▁▁"
    assert sparkline([], 10) == sparkline([1, 2], 0) == ""
    assert len(sparkline(list(range(100)), 30)) == 30


def test_plain_lines_do_not_depend_on_how_long_things_take() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    for event in (
        PhaseStarted(name="vLLM"),
        *(Progress(f"{second} s: importing") for second in range(60)),
        PhaseEnded(name="vLLM", duration_s=60.0),
        EvaluationStarted("held-out", 0),
        StepStarted(1, 2),
        StepSampled(1, 0.5),
        step(1),
        Notice("a line"),
        END,
    ):
        display.show(event)
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == [
        "vLLM", "vLLM:", "held-out", "step", "1", "a", "stopped", "report:", "run",
    ]  # fmt: skip


def test_every_event_is_one_object_of_json() -> None:
    stream = io.StringIO()
    display = JsonDisplay(stream)
    for event in (PhaseStarted(name="two\nlines"), step(1), END):
        display.show(event)
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["event"] for event in told] == ["phase_started", "step", "end"]
    assert told[1]["metrics"]["reward"] == 0.5
    assert (told[2]["reason"], told[2]["run_folder"]) == ("interrupted", "/run")


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "term", "expected"),
    [
        (io.StringIO(), "xterm", PlainDisplay),
        (Tty(), "xterm-256color", LiveDisplay),
        (Tty(), "dumb", PlainDisplay),
        (Tty(), "", PlainDisplay),
    ],
)
def test_the_display_is_chosen_by_what_the_terminal_can(monkeypatch, stream, term: str, expected) -> None:
    monkeypatch.setenv("TERM", term)
    assert type(choose_display(stream)) is expected


def test_no_color_takes_the_colours_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Tty()
    display = choose_display(stream)
    display.show(StepStarted(1, 2))
    display.show(step(1))
    display.close()
    colours = {f"\x1b[{code}m" for code in (*range(30, 38), *range(90, 98))}
    assert not [colour for colour in colours if colour in stream.getvalue()]
