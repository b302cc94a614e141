"""What is shown: plain lines, a live display, lines of JSON."""

import io
import json

import msgspec
import pytest
from rich.console import Console

import art
from art.reporting import JsonDisplay, PlainDisplay, choose_display
from art.reporting.answers import answer_of, one_answer
from art.reporting.columns import COLUMNS, header, row, shown
from art.reporting.events import (
    Answer,
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
from art.reporting.run_folder import ExchangeLine, TrajectoryLine


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
    assert titles[80] == ["step", "reward", "rollout", "train", "policy", "summary"]
    assert titles[60] == ["step", "reward", "policy", "summary"]
    assert titles[40] == ["step", "reward", "rollout", "policy"]
    counts = "yes 13  no 15  maybe 23  other 13"  # as long as the demo's gets
    assert row(msgspec.structs.replace(step(12), summary=counts), 80).endswith(counts)
    for width in range(10, 130):
        assert len(row(step(12), width)) <= width
        assert len(header(width)) <= width
        assert row(step(12), width).startswith("  12")


def test_a_row_says_what_a_step_did() -> None:
    words = "7 0.500 68 2.0 s 1.3 s v6 -> v7 4.0e-06, p99 1.4e-05 yes 7 no 0 maybe 56"
    assert row(step(7), None).split() == words.split()
    assert row(step(7), 80).endswith("v6 -> v7  yes 7  no 0  maybe 56")
    assert "v6 kept  no step: equal rewards" in row(step(8, skipped=1.0, policy_version=6.0), None)
    assert "v6 kept" in row(step(8, skipped=1.0, policy_version=6.0), 80)
    mixed = StepEnded(step=9, metrics={"reward": 0.5, "policy_version": 8.0}, sampled_by=(6, 7))
    assert row(mixed, None).split() == ["9", "0.500", "-", "-", "-", "v6-7", "->", "v8", "-"]


def test_the_frame_says_what_goes_on(terminal: Terminal) -> None:
    assert "vLLM" in terminal.show(PhaseStarted(name="vLLM"))
    assert "starting the engine" in terminal.show(Progress("starting the engine"))
    terminal.counts = (100, 100)
    terminal.show(PhaseEnded(name="vLLM", duration_s=1.0), StepStarted(3, 25))
    terminal.counts = (164, 140)
    terminal.now += 4
    frame = terminal.show()
    assert "step 3 of 25  sampling 40 of 64" in frame
    assert frame.splitlines()[0].endswith("  4 s")  # and not the same again as the time in all
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
    assert "policy v6 -> v7  yes 7  no 0  maybe 56\n" in frame  # before the log-prob difference
    why = terminal.show(step(4, skipped=1.0, policy_version=6.0), StepStarted(5, 25))
    assert "policy v6 kept  yes 7  no 0  maybe 56" in why


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
    rows = [line for line in plain.split("\n") if "v6 -> v7" in line and "0.500" in line]
    assert len(rows) == 2
    assert plain.count("rollout    train      policy") == 1
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


def test_one_answer_is_shown_in_one_line(terminal: Terminal) -> None:
    terminal.show(StepStarted(3, 25), StepSampled(3, 0.5))
    frame = terminal.show(Answer("Say yes, no or maybe.", "maybe", 1.0))
    assert "\n  Say yes, no or maybe. → maybe  1\n" in frame
    long = terminal.show(Answer("word " * 30, "answer " * 30, 0.75)).splitlines()[-1]
    assert len(long) <= WIDTH
    assert long.startswith("  word word")
    assert long.endswith("…  0.75")
    assert " → answer answer" in long


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\nb", "a\r\n\tb", "a\u202eb", "a\x9bb", "a\u2028b"])
def test_nothing_of_an_answer_moves_the_cursor(text: str) -> None:
    said = answer_of(
        TrajectoryLine(step=1, group=0, reward=0.5, metadata={"prompt": f"[red]{text}", "answer": text})
    )
    assert said is not None
    for shown_text in (said.prompt.removeprefix("[red]"), said.answer):
        assert shown_text in ("a b", "a [2Jb")
    terminal = Terminal()
    frame = terminal.show(StepStarted(1, 2), said)
    terminal.display.close()
    assert f"[red]{said.answer} → {said.answer}  0.5" in frame


def test_an_answer_is_known_from_metadata_or_from_its_tokens() -> None:
    exchange = ExchangeLine(
        prompt="<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nWhich?<|im_end|>\n"
        "<|im_start|>assistant\n",
        tokens=("may", "be", "<|im_end|>"),
        logprobs=(-0.1, -0.1, -0.1),
        versions=(0, 0, 0),
    )
    line = TrajectoryLine(step=1, group=0, reward=1.0, exchanges=(exchange,))
    assert answer_of(line) == Answer("Which?", "maybe", 1.0)
    assert answer_of(TrajectoryLine(step=1, group=0, reward=1.0)) is None
    made = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}],
        reward=1.0,
    )
    assert answer_of(made) == Answer("2+2?", "4", 1.0)


def test_what_metadata_lack_is_known_from_the_exchange() -> None:
    exchange = ExchangeLine(
        prompt="<|im_start|>user\nWhich?<|im_end|>\n<|im_start|>assistant\n",
        tokens=("so", " long"),
        logprobs=(-1.0, -0.1),
        versions=(0, 0),
    )
    told = {"answer": "short"}, {"prompt": "What?"}, {"prompt": "What?", "answer": "short"}
    expected = ("Which?", "short"), ("What?", "so long"), ("What?", "short")
    said = [{"role": "user", "content": "Which?"}, {"role": "assistant", "content": "so long"}]
    for metadata, (prompt, answer) in zip(told, expected, strict=True):
        line = TrajectoryLine(step=1, group=0, reward=0.5, exchanges=(exchange,), metadata=metadata)
        assert answer_of(line) == Answer(prompt, answer, 0.5)
        made = art.Trajectory(messages_and_choices=said, reward=0.5, metadata=metadata)
        assert answer_of(made) == Answer(prompt, answer, 0.5)
    bare = TrajectoryLine(step=1, group=0, reward=0.0, metadata={"answer": "bare"})
    with_tokens = TrajectoryLine(
        step=1, group=0, reward=1.0, exchanges=(exchange,), metadata={"answer": "short"}
    )
    for number in range(3):
        assert one_answer([bare, with_tokens, bare], number) == Answer("Which?", "short", 1.0)
    assert one_answer([bare], 4) == Answer("", "bare", 0.0)


def test_a_start_says_how_long_it_takes_and_what_is_ready(terminal: Terminal) -> None:
    frame = terminal.show(
        PhaseStarted(name="parts", usually="15 to 30 s"),
        Progress("trainer loaded: 134.5 M parameters, in 3.2 s"),
        Progress("12.3 s: importing vLLM"),
    )
    assert "  usually 15 to 30 s  ready: trainer\n" in frame
    assert "importing vLLM" in frame
    assert "ready" not in terminal.show(PhaseEnded(name="parts", duration_s=20.0), StepStarted(1, 2))
    stream = io.StringIO()
    PlainDisplay(stream).show(PhaseStarted(name="parts", usually="15 to 30 s"))
    assert stream.getvalue() == "parts ... (usually 15 to 30 s)\n"


def test_an_evaluation_counts_its_answers(terminal: Terminal) -> None:
    assert "held-out  waiting for the first answer" in terminal.show(EvaluationStarted("held-out", 0))
    assert "held-out  sampling: 3 of 32 answers" in terminal.show(Progress("sampling: 3 of 32 answers"))
