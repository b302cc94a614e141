"""A run goes on after a kill at any moment: every step is trained once, in order, and nothing is left."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from art_testing.leftovers import LeftoverChecker
from art_testing.tiny_model import make_tiny_llama

from art.reporting.generations import newest_version

PROGRAM = Path(__file__).with_name("resume_program.py")
SIGKILL = -9
STEPS = 4
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def checker() -> Iterator[LeftoverChecker]:
    with tempfile.TemporaryDirectory(prefix="art-") as temporary:  # short: sockets have to fit into it
        checker = LeftoverChecker(Path(temporary))
        yield checker
        checker.kill_all()


class Program:
    """Starts the program again and again in one run folder."""

    def __init__(self, folder: Path, model: Path, checker: LeftoverChecker) -> None:
        self.run, self._folder, self._model, self._checker = folder / "run", folder, model, checker

    def __call__(self, *, resume: bool = False, **settings: str) -> subprocess.CompletedProcess[str]:
        environment = self._checker.environment() | {
            "ART_TEST_MODEL": str(self._model),
            "ART_TEST_RUN": str(self.run),
            "ART_TEST_STEPS": str(STEPS),
            "ART_TEST_RESUME": "1" if resume else "0",
            "ART_STATE_DIR": str(self._folder / "state"),
            **{f"ART_TEST_{name.upper()}": value for name, value in settings.items()},
        }
        command = [Path(sys.executable).with_name("art-monarch"), "local", "--program", f"{PROGRAM}:main"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)

    def lines(self, name: str) -> list[dict]:
        return [json.loads(line) for line in (self.run / name).read_text().splitlines()]

    def numbers(self, step: int) -> list[int]:
        """The prompts of a step."""
        return sorted(
            {line["metadata"]["number"] for line in self.lines(f"trajectories/step-{step:04d}.jsonl")}
        )


@pytest.fixture
def program(tmp_path: Path, model: Path, checker: LeftoverChecker) -> Program:
    return Program(tmp_path, model, checker)


def events(result: subprocess.CompletedProcess[str], kind: str) -> list[dict]:
    told = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return [event for event in told if event["event"] == kind]


def assert_complete(program: Program) -> None:
    """All steps are there once and in order, each from the prompts that are its own."""
    steps = program.lines("metrics.jsonl")
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert [step["policy_version"] for step in steps] == [1, 2, 2, 3]  # step 3 has equal rewards
    assert [step["elapsed_s"] for step in steps] == sorted(step["elapsed_s"] for step in steps)
    assert [program.numbers(step) for step in range(1, STEPS + 1)] == [[2, 3], [4, 5], [6, 7], [8, 9]]
    versions = {
        version
        for step, expected in zip(range(1, STEPS + 1), (0, 1, 2, 2), strict=True)
        for line in program.lines(f"trajectories/step-{step:04d}.jsonl")
        for exchange in line["exchanges"]
        for version in exchange["versions"]
        if version != expected
    }
    assert versions == set()
    evaluated = [(line["name"], line["policy_version"]) for line in program.lines("evaluations.jsonl")]
    assert evaluated == [("held-out", 0), ("held-out", 3)]
    assert newest_version(program.run) == 3
    assert json.loads((program.run / "run.json").read_text())["finished"]
    assert (program.run / "report.html").stat().st_size > 10_000


def test_a_run_goes_on_after_a_kill_at_each_moment(program: Program, checker: LeftoverChecker) -> None:
    moments = ["start", "rollouts:1", "training:2", "trained:2", "rollouts:3", "trained:3", "training:4"]
    went_on_after = {}
    for index, moment in enumerate(moments):
        # Resumed at once: what the kill before left may be ending still.
        killed = program(kill=moment, resume=index > 0)
        assert killed.returncode == SIGKILL, killed.stdout + killed.stderr
        went_on_after[moment] = events(killed, "start")[0]["steps_done"]
    # After "trained:2" its line is written again; step 3, which moves no policy, is taken again.
    assert (went_on_after["rollouts:3"], went_on_after["training:4"]) == (2, 2)
    resumed = program(resume=True)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert_complete(program)
    assert [line["step"] for line in program.lines("metrics.jsonl") if line.get("restored")] == [2]
    checker.assert_clean(within_s=20)


def test_a_policy_that_was_not_durable_is_trained_again(program: Program, checker: LeftoverChecker) -> None:
    killed = program(kill="rollouts:4")
    assert killed.returncode == SIGKILL, killed.stderr
    checker.assert_clean(within_s=20)
    (newest,) = (program.run / "generations").glob("step-00000002-*")
    newest.rename(newest.with_name(f".stage-{newest.name}"))  # as if killed just before the rename
    lines = [{**line, "durable_version": 1.0} for line in program.lines("metrics.jsonl")]  # nor seen on disk
    with (program.run / "metrics.jsonl").open("w") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)
        file.write('{"step":4,"policy_ver')  # and in the middle of a line
    resumed = program(resume=True, kill="training:4")
    assert resumed.returncode == SIGKILL, resumed.stdout + resumed.stderr
    assert events(resumed, "start")[0]["steps_done"] == 1
    assert [event["text"] for event in events(resumed, "notice")] == [
        "metrics.jsonl ended in the middle of a line; its last 21 bytes were cut off",
        "steps 2 to 3 rolled back: the newest durable policy is v1",
    ]
    again = program(resume=True)
    assert again.returncode == 0, again.stdout + again.stderr
    assert_complete(program)
    checker.assert_clean(within_s=20)


def test_a_finished_run_goes_on_for_more_steps(program: Program, checker: LeftoverChecker) -> None:
    fewer = {"steps": str(STEPS - 2)}
    first = program(**fewer)
    assert first.returncode == 0, first.stdout + first.stderr
    again = program(resume=True, **fewer)
    assert again.returncode == 0, again.stderr
    assert "is finished after 2 steps; there is nothing to resume" in again.stdout
    assert "let it take more than 2 steps" in again.stdout
    more = program(resume=True)
    assert more.returncode == 0, more.stdout + more.stderr
    assert events(more, "start")[0]["steps_done"] == 2
    # As if it had been one run, but for the evaluation where it ended first.
    evaluations = program.run / "evaluations.jsonl"
    lines = evaluations.read_text().splitlines(keepends=True)
    assert [json.loads(line)["policy_version"] for line in lines] == [0, 2, 3]
    evaluations.write_text(lines[0] + lines[2])
    assert_complete(program)
    checker.assert_clean(within_s=20)


def test_another_adapter_or_another_model_is_refused(
    program: Program, checker: LeftoverChecker, tmp_path: Path
) -> None:
    assert program(kill="training:2").returncode == SIGKILL
    other_rank = program(resume=True, lora_rank="4")
    assert other_rank.returncode == 1
    assert "shape" in other_rank.stderr, other_rank.stderr
    other_model = program(resume=True, model=str(make_tiny_llama(tmp_path / "other", seed=1)))
    assert other_model.returncode == 1
    assert "was started with the base model" in other_model.stderr
    assert "Traceback" not in other_model.stderr
    checker.assert_clean(within_s=20)
