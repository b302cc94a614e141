"""What stands on a terminal of some width after all that the live display wrote to it."""

import io
import itertools
import re
import time

import pytest
from rich.console import Console

from art.reporting.events import (
    EvaluationEnded,
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
from art.reporting.live import LiveDisplay
from art.reporting.output import Output
from art.reporting.run_folder import EvaluationLine

WIDTHS = (40, 60, 80, 120)
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
PARTS = "rollout workers, vLLM and trainer"
FOLDER = "/home/somebody/art/runs/yes-no-maybe-20261129-184911"
END = RunEnded(
    reason="interrupted",
    doing="step 2, sampling",
    steps=1,
    duration_s=61.0,
    reward=0.5,
    rewards=1,
    run_folder=FOLDER,
    report=f"{FOLDER}/report.html",
    resume=f"art demo --resume {FOLDER}",
)
NUMBERS = {
    "reward": 0.5,
    "tokens_per_s": 68.4,
    "rollout_s": 2.04,
    "train_s": 1.26,
    "policy_version": 7.0,
    "sampler_difference_mean": 4e-6,
    "sampler_difference_p99": 1.4e-5,
}
HELD_OUT = EvaluationLine(
    name="held-out", step=0, policy_version=0, reward=0.016, trajectories=32, duration_s=5.5
)
STEP = StepEnded(step=1, metrics=NUMBERS, summary="yes 7  no 0  maybe 56", sampled_by=(6, 6))


class Screen:
    """A terminal of that width: what it shows after the bytes that were written to it."""

    def __init__(self, width: int) -> None:
        self.width, self.row, self.column = width, 0, 0
        self.cells: dict[tuple[int, int], str] = {}

    def feed(self, text: str) -> None:
        for match in re.finditer(r"\x1b\[(\??[0-9;]*)([A-Za-z])|(.)", text, re.S):
            argument, command, character = match.groups()
            if command == "A":
                self.row = max(0, self.row - int(argument or 1))
            elif command == "K":
                assert argument == "2"
                self.cells = {place: cell for place, cell in self.cells.items() if place[0] != self.row}
            elif command in ("m", "h", "l"):
                pass
            elif command:
                raise AssertionError(f"unknown sequence {match[0]!r}")
            elif character == "\r":
                self.column = 0
            elif character == "\n":
                self.row, self.column = self.row + 1, 0
            else:
                if self.column == self.width:
                    self.row, self.column = self.row + 1, 0
                self.cells[self.row, self.column] = character
                self.column += 1

    def lines(self) -> list[str]:
        """All rows down to the last that is written on."""
        last = max((row for row, _ in self.cells), default=-1)
        return [
            "".join(self.cells.get((row, column), " ") for column in range(self.width)).rstrip()
            for row in range(last + 1)
        ]


class Terminal:
    """A live display on a terminal of that width; time stands still."""

    def __init__(self, width: int) -> None:
        self.file, self.seen = io.StringIO(), 0
        self.screen = Screen(width)
        self.console = Console(
            file=self.file, force_terminal=True, width=width, height=40, _environ={"TERM": "xterm"}
        )
        self.now = 100.0
        self.display = LiveDisplay(console=self.console, clock=lambda: self.now)

    def lines(self) -> list[str]:
        """What stands there now."""
        written = self.file.getvalue()
        self.screen.feed(written[self.seen :])
        self.seen = len(written)
        return self.screen.lines()

    def wait_for_what_moves(self) -> None:
        """It is drawn some times a second."""
        end = time.monotonic() + 10
        while not any(line[0] in SPINNER for line in self.lines() if line):
            assert time.monotonic() < end, self.lines()
            time.sleep(0.01)


@pytest.fixture(params=WIDTHS)
def terminal(request: pytest.FixtureRequest):
    terminal = Terminal(request.param)
    yield terminal
    terminal.display.close()


def begin(terminal: Terminal) -> None:
    for event in (
        RunStarted(name="n", run_folder=FOLDER, settings={}),
        PhaseStarted(name=PARTS),
        Progress("12.3 s: importing vLLM"),
        PhaseEnded(name=PARTS, duration_s=25.8),
        EvaluationEnded(HELD_OUT),
        StepStarted(1, 25),
        StepSampled(1, 0.5),
        STEP,
        StepStarted(2, 25),
        Notice(
            "a line that is long enough to be wrapped on a terminal of 60 or of 40 columns, as it is said"
        ),
    ):
        terminal.display.show(event)


@pytest.mark.parametrize("typed", ["", "^C", "^C^C^C"])
def test_after_ctrl_c_nothing_that_moved_is_left(terminal: Terminal, typed: str) -> None:
    begin(terminal)
    terminal.wait_for_what_moves()
    terminal.screen.feed(typed)  # as the terminal echoes it, where the cursor is
    terminal.display.show(Stopping())
    stopped = terminal.lines()
    assert stopped[-1] == "stopping ..."
    assert not any(set(line) & set(SPINNER) for line in stopped)
    for event in (
        Progress("still ending"),
        PhaseEnded(name="x", duration_s=1.0, ok=False, stopped=True),
        END,
    ):
        terminal.display.show(event)
    lines = terminal.lines()
    assert not any(set(line) & set(SPINNER) for line in lines)
    assert "".join(lines).endswith(f"run folder: {FOLDER}")
    assert "x: stopped after 1.0 s" in lines
    said = " ".join(line.strip() for line in lines)
    assert "stopped in step 2, sampling, after 1 step and 61 s, mean reward 0.500 over the last 1" in said
    assert "^C" not in "".join(lines)


def test_no_word_is_broken(terminal: Terminal) -> None:
    begin(terminal)
    terminal.display.show(END)
    lines = terminal.lines()
    said = [line for line in lines if FOLDER[:8] not in line]
    words = set(itertools.chain.from_iterable(line.split() for line in said))
    for text in (
        f"{PARTS}: ready in 25.8 s",
        "held-out: reward 0.016 over 32 answers of policy v0 in 5.5 s",
        "a line that is long enough to be wrapped on a terminal of 60 or of 40 columns, as it is said",
        "stopped in step 2, sampling, after 1 step and 61 s, mean reward 0.500 over the last 1",
    ):
        assert set(text.split()) <= words


def test_paths_and_commands_are_left_to_the_terminal_to_wrap(terminal: Terminal) -> None:
    terminal.display.show(END)
    assert f"go on with: art demo --resume {FOLDER}\n" in re.sub(
        r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.file.getvalue()
    )


def test_what_moves_fits_and_keeps_whole_words(terminal: Terminal) -> None:
    width = terminal.screen.width
    terminal.display.show(PhaseStarted(name=PARTS))
    terminal.display.show(Progress("trainer loaded: 134.5 M parameters, 2.44 M of them trained, in 3.2 s"))
    terminal.now += 83
    first, second, *rest = terminal.display.frame().plain.split("\n")
    assert rest == ["  ready: trainer", ""]
    assert len(first) < width
    assert first[2:].startswith("rollout workers, vLLM and")
    assert re.search(r" 83 s(, 1 min 23 s in all)?$", first)
    assert width < 60 or PARTS in first
    assert len(second) < width
    assert re.fullmatch(r"  trainer loaded: 134\.5 M parameters,( 2\.44 M of)?( them)?( trained,)?…", second)


def test_a_part_s_own_clock_does_not_stand_beside_that_of_the_run(terminal: Terminal) -> None:
    terminal.display.show(PhaseStarted(name=PARTS))
    terminal.now += 20
    terminal.display.show(Progress("12.3 s: importing vLLM"))
    frame = terminal.display.frame().plain
    assert "importing vLLM" in frame
    assert "12.3 s" not in frame
    terminal.display.show(Progress("30 s, about 1.2 GB written so far"))
    assert "  about 1.2 GB written so far" in terminal.display.frame().plain
    assert "30 s" not in terminal.display.frame().plain


def test_the_time_of_a_resumed_run_goes_on(terminal: Terminal) -> None:
    resumed = RunStarted(name="n", run_folder=FOLDER, settings={}, steps_done=3, elapsed_s=300.0)
    terminal.display.show(resumed)
    terminal.display.show(StepStarted(4, 25))
    terminal.now += 7
    assert "7 s, 5 min 07 s in all" in terminal.display.frame().plain


def test_a_deadline_that_only_looked_like_a_stop_is_taken_back(terminal: Terminal) -> None:
    begin(terminal)
    terminal.display.show(Stopping())
    assert terminal.lines()[-1] == "stopping ..."
    terminal.display.show(StepStarted(3, 25))
    terminal.wait_for_what_moves()


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_said_before_and_after_a_run_breaks_no_word(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", str(width))
    title = 'art demo: SmolLM2-135M-Instruct learns to answer "maybe" (Ctrl-C ends it)'
    terminal, pipe = Tty(), io.StringIO()
    for stream in (terminal, pipe):
        Output(stream).say(f"{title}\nsecond")
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert [word for line in lines for word in line.split()] == [*title.split(), "second"]
    assert pipe.getvalue() == f"{title}\nsecond\n"
