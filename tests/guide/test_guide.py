"""``docs/your-own-task.md`` done as it is written, in an empty folder, with the real model and vLLM."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from art_testing.leftovers import LeftoverChecker
from guide.walkthrough import INTERRUPT, Command, Step, apply, edited, first_difference, steps_of

GUIDE = Path(__file__).parents[2] / "docs" / "your-own-task.md"
COMMAND_S = 300.0
STEP_LINE = re.compile(r"^ +(\d+) +(\d\.\d{3}) .* (v\d+) ", re.MULTILINE)


class Reader:
    """Somebody who follows the guide in ``folder``, one command after the other."""

    def __init__(self, steps: list[Step], folder: Path, environment: dict[str, str]) -> None:
        self._steps = iter(steps)
        self._folder = folder
        self._environment = environment

    def goes_on_to(self, begins: str) -> str:
        """Does what comes before the next command, which must begin so, and runs that; what it printed.

        Raises:
            AssertionError: another command comes next, or it printed something else than the guide shows.
        """
        for step in self._steps:
            if isinstance(step, Command):
                assert step.text.startswith(begins), f"the guide's next command is {step.text!r}"
                begun = time.monotonic()
                printed = self._run(step)
                print(f"{time.monotonic() - begun:.0f} s: $ {step.text}")
                difference = first_difference(
                    [line for line in step.expected if line != INTERRUPT], printed.splitlines()
                )
                assert difference is None, f"$ {step.text}\n{printed}\n{difference}"
                return printed
            apply(step, self._folder)
        raise AssertionError(f"the guide ends before {begins!r}")

    def is_at_the_end(self) -> bool:
        """Whether no step is left."""
        return next(self._steps, None) is None

    def _run(self, command: Command) -> str:
        process = subprocess.Popen(
            ["bash", "-c", f"exec env {command.text}"],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines: list[str] = []
        assert process.stdout is not None
        interrupting = INTERRUPT in command.expected
        stop = threading.Timer(COMMAND_S, process.kill)
        stop.start()
        try:
            for line in process.stdout:
                lines.append(line)
                if interrupting and STEP_LINE.search(line):
                    process.send_signal(signal.SIGINT)
                    interrupting = False
            process.wait()
        finally:
            stop.cancel()
        return "".join(lines)


@pytest.fixture
def checker() -> Iterator[LeftoverChecker]:
    with tempfile.TemporaryDirectory(prefix="art-") as temporary:  # short: sockets have to fit into it
        checker = LeftoverChecker(Path(temporary))
        yield checker
        checker.kill_all()


def rewards(printed: str) -> list[float]:
    return [float(found[2]) for found in STEP_LINE.finditer(printed)]


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_does_what_it_says(tmp_path: Path, checker: LeftoverChecker) -> None:
    environment = checker.environment({**os.environ, "ART_STATE_DIR": str(tmp_path / "state")})
    environment.pop("UV_RUN_RECURSION_DEPTH", None)  # the reader has the commands on the path
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    folder = tmp_path / "task"
    folder.mkdir()
    reader = Reader(steps_of(GUIDE.read_text()), folder, environment)
    runs = folder / "runs"

    run = "art-monarch local --program train.py:main -- "

    # One file.
    assert len(rewards(reader.goes_on_to(f"{run}--folder runs/first --steps 2"))) == 2
    steps = json_lines(runs / "first" / "metrics.jsonl")
    assert [step["policy_version"] for step in steps] == [1, 2]
    assert all(step["trajectories"] == 32 and step["sampler_difference_p99"] < 1e-3 for step in steps)

    # Started in the wrong way, or on with what is not named, it says what to write.
    wrong = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert wrong.returncode == 1
    assert wrong.stderr == "start it with: art-monarch local --program train.py:main\n"

    # Prompts and reward of one's own; a stop, and on it goes; it learns, also what it is not trained on.
    begun_with = reader.goes_on_to(f"{run}--folder runs/words")
    stopped_at = len(json_lines(runs / "words" / "metrics.jsonl"))
    went_on_with = reader.goes_on_to(f"{run}--folder runs/words --resume")
    went_on = [int(found[1]) for found in STEP_LINE.finditer(went_on_with)]
    assert went_on[0] <= stopped_at + 1, "it goes on from what is durable, no later than where it stopped"
    taken = json_lines(runs / "words" / "metrics.jsonl")
    assert [step["step"] for step in taken] == list(range(1, went_on[-1] + 1))
    before, after = re.findall(r"^held-out.* reward (\d\.\d{3})", begun_with + went_on_with, re.M)
    assert float(after) > float(before)
    assert taken[0]["reward"] < 0.7
    assert sum(step["reward"] for step in taken[-3:]) / 3 > 0.85

    # What it left.
    assert {"generations", "metrics.jsonl", "trajectories"} <= set(reader.goes_on_to("ls runs").split())
    assert {"logs", "run.json"} <= {path.name for path in (runs / "first").iterdir()}
    looked = reader.goes_on_to("python look.py").splitlines()
    assert len(looked) == 16, "four rollouts of each of four groups keep their tokens"
    assert all(" turn 1 v0: " in line for line in looked)
    assert "step-0007.jsonl does not exist" in reader.goes_on_to("python look.py")

    # A second turn.
    reader.goes_on_to(f"{run}--folder runs/two-turns")
    two_turns = runs / "two-turns"
    assert [step["policy_version"] for step in json_lines(two_turns / "metrics.jsonl")] == [1, 2]
    looked = reader.goes_on_to("python look.py").splitlines()
    assert sum(" turn 1 " in line for line in looked) == sum(" turn 2 " in line for line in looked) == 24
    conversations = [
        line["exchanges"]
        for line in json_lines(two_turns / "trajectories" / "step-0002.jsonl")
        if line["exchanges"]
    ]
    for first, second in conversations:
        assert second["prompt"].startswith(first["prompt"] + "".join(first["tokens"]))
        assert "And last?" in second["prompt"].removeprefix(first["prompt"])

    # What goes wrong says so, before anything starts where it can.
    assert "no room for 12 tokens" in reader.goes_on_to(f"{run}--folder runs/long")
    assert "learning_rate" in reader.goes_on_to(f"{run}--folder runs/rate")
    assert "ZeroDivisionError" in reader.goes_on_to(f"{run}--folder runs/failed")
    assert reader.is_at_the_end()
    checker.assert_clean(within_s=10)


def test_definitions_take_the_place_of_those_of_the_same_name() -> None:
    source = (
        "import os\nfrom json import (\n    dumps,\n)\n\nA = 1\n\n\ndef f():\n    return A\n\n\nB = f()\n"
    )
    new = "C = 3\n\n\ndef g():\n    return C\n\n\nA = g()\n\n\ndef f():\n    return 2 * A\n"
    names: dict[str, Any] = {}
    exec(edited(source, new), names)
    assert (names["A"], names["B"], names["C"]) == (3, 6, 3)
    assert edited(source, new).count("def f") == 1


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        (["step 1", "...", "end after 3 s"], ["step 7", "a", "b", "end after 4.5 s"], True),
        (["step 1", "end"], ["step 1", "between", "end"], False),
        (["step 1"], ["step 1", "more"], False),
        (["step 1", "..."], ["step 1"], True),
        (["folder: /home/you/runs/x"], ["folder: /tmp/y/runs/x"], True),
        (["folder: /home/you/runs/x"], ["folder: /tmp/y/runs/z"], False),
        (["reward 0.1 turn 1 ..."], ["reward 0.5 turn 2 v0: 'A'"], True),
    ],
)
def test_numbers_may_differ_and_words_may_not(expected: list[str], printed: list[str], same: bool) -> None:
    assert (first_difference(expected, printed) is None) is same


def test_a_block_that_is_no_step_is_an_error() -> None:
    with pytest.raises(ValueError, match="neither a file nor commands"):
        steps_of("```python\nx = 1\n```\n")
