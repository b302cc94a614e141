"""``examples/calculator``: its parts, the run of a copy, and that both turns are trained on as sampled."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from art_testing.leftovers import LeftoverChecker

EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator" / "train.py"
PROGRAM = Path(__file__).with_name("turns_program.py")
RUN_S = 300.0
TURN = "\n<|im_start|>tool\n{result}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("calculator_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checker() -> Iterator[LeftoverChecker]:
    with tempfile.TemporaryDirectory(prefix="art-") as temporary:  # short: sockets have to fit into it
        checker = LeftoverChecker(Path(temporary))
        yield checker
        checker.kill_all()


def run(program: Path, checker: LeftoverChecker, folder: Path, *arguments: str) -> str:
    """What ``art-monarch local`` prints for the program, started in ``folder``."""
    environment = checker.environment({**os.environ, "ART_STATE_DIR": str(folder / "state")})
    command = Path(sys.executable).with_name("art-monarch")
    result = subprocess.run(
        [command, "local", "--program", f"{program}:main", "--", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S,
    )
    assert result.returncode == 0, result.stdout
    checker.assert_clean(within_s=5)
    return result.stdout


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("[multiply(a=47, b=85)]", "multiply", {"a": 47, "b": 85}),
        (" [multiply(b=2, a=1)]\n", "multiply", {"a": 1, "b": 2}),
        ("[divide(x=1)]", "divide", {"x": 1}),
        ("[multiply()]", "multiply", {}),
    ],
)
def test_a_call_becomes_that_of_the_protocol(
    example: ModuleType, text: str, name: str, arguments: dict[str, int]
) -> None:
    call = example.parse_call(text)
    assert (call.type, call.function.name) == ("function", name)
    assert json.loads(call.function.arguments) == arguments


@pytest.mark.parametrize(
    "text",
    ["", "3995", "multiply(a=47, b=85)", "[multiply(47, 85)]", "[multiply(a=4)] or so", "[multiply(a=x)]"],
)
def test_anything_else_is_no_call(example: ModuleType, text: str) -> None:
    assert example.parse_call(text) is None


def test_what_a_conversation_is_worth(example: ModuleType) -> None:
    problem = example.Problem(a=47, b=85, wording="What is {a} times {b}?", seed=0)

    def worth(call: str, answer: str | None) -> float:
        parsed = example.parse_call(call)
        reward: float = example.reward_of(problem, example.run_tool(parsed) if parsed else None, answer)
        return reward

    assert worth("3995", None) == 0.0
    assert worth("[divide(a=47, b=85)]", "error") == 0.0
    assert worth("[multiply(a=47, b=58)]", "2726") == 0.2
    assert worth("[multiply(a=85, b=47)]", "It is 3995") == 0.5
    assert worth("[multiply(a=85, b=47)]", "3995") == 1.0


def test_settings_are_arguments(example: ModuleType) -> None:
    assert example.settings_from(()) == example.Settings()
    given = ("--steps", "5", "--learning-rate", "1e-4", "--run-dir", "runs/x", "--resume")
    assert example.settings_from(given) == example.Settings(
        steps=5, learning_rate=1e-4, run_dir="runs/x", resume=True
    )
    with pytest.raises(SystemExit):
        example.settings_from(("--step-size", "5"))


def test_each_setting_has_help_and_its_default(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        example.settings_from(("--help",))
    assert ended.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "--steps INT the most steps to take;" in printed
    assert "--run-dir STR a new folder for what the run leaves, or with --resume that of the run" in printed
    assert "--resume go on with the run in --run-dir, which was stopped" in printed
    for default in ("4", "12", "0.0005", "0.95", "0"):
        assert f"(default: {default})" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--steps", "0"), "--steps 0 must be at least 1"),
        (("--samples", "1"), "--samples 1 must be at least 2"),
        (("--seed", "-1"), "--seed -1 must be at least 0"),
        (("--learning-rate", "0"), "--learning-rate 0.0 must be above 0 and at most 1"),
        (("--enough", "nan"), "--enough nan must be above 0 and at most 1"),
        (("--resume",), "--resume needs the folder of the run: --run-dir DIR --resume"),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    example: ModuleType, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        example.settings_from(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_started_as_a_script_it_says_how_to_start_it() -> None:
    started = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=RUN_S)
    assert started.returncode == 1
    assert started.stderr == "start it with: art-monarch local --program train.py:main\n"


def test_held_out_problems_share_no_number_and_no_wording_with_training(example: ModuleType) -> None:
    assert not set(example.NUMBERS) & set(example.HELD_OUT_NUMBERS)
    assert not set(example.WORDINGS) & set(example.HELD_OUT_WORDINGS)
    groups = list(islice(example.problem_groups(example.WORDINGS, example.NUMBERS, samples=3, seed=1), 20))
    assert groups == list(
        islice(example.problem_groups(example.WORDINGS, example.NUMBERS, samples=3, seed=1), 20)
    )
    assert all(len({problem.question for problem in group}) == 1 for group in groups)


def test_a_copy_runs_elsewhere_and_trains_on_both_turns(tmp_path: Path, checker: LeftoverChecker) -> None:
    folder = Path(shutil.copytree(EXAMPLE.parent, tmp_path / "elsewhere"))
    settings = ["--steps", "2", "--problems", "4", "--samples", "4", "--seed", "0", "--run-dir", "run"]
    printed = run(folder / "train.py", checker, folder, *settings)
    assert printed.count("held-out numbers: reward") == 2
    steps = json_lines(folder / "run" / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2]
    called = 0
    version = 0
    for step in steps:
        lines = json_lines(folder / "run" / "trajectories" / f"step-{step['step']:04.0f}.jsonl")
        assert len(lines) == 16
        trained = 0
        for line in lines:
            result, exchanges = line["metadata"]["result"], line["exchanges"]
            assert all(set(exchange["versions"]) == {version} for exchange in exchanges)
            if line["advantage"] is not None:
                trained += sum(len(exchange["tokens"]) for exchange in exchanges)
            if result is None:
                assert len(exchanges) == 1
                assert line["reward"] == 0
                continue
            called += 1
            first, second = exchanges
            said = first["prompt"] + "".join(first["tokens"])
            assert second["prompt"] == said + TURN.format(result=result)
        # Every token of both turns has its entry in the loss, and the trainer sees it as it was sampled.
        if not step["skipped"]:
            assert step["loss_entries"] == trained
            assert step["sampler_difference_max"] < 1e-3
        version = int(step["policy_version"])
    assert called > 0
    assert version > 0


def test_a_second_turn_is_trained_as_sampled_whether_it_continues_the_first_or_not(
    tmp_path: Path, checker: LeftoverChecker
) -> None:
    shutil.copy(EXAMPLE, tmp_path / "train.py")
    program = Path(shutil.copy(PROGRAM, tmp_path))
    printed = run(program, checker, tmp_path, str(tmp_path / "run")).splitlines()
    said = {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in printed if line[:4] in ("RECO", "STEP")}
    groups, step = json.loads(said["RECORDS"]), json.loads(said["STEP"])

    entries = logical = 0
    nodes: set[tuple[int, ...]] = set()
    continued = {"example": 0, "other": 0}
    for group in groups:
        if len(set(group["rewards"])) == 1:
            continue
        for exchanges in group["exchanges"]:
            entries += sum(len(completion) for _, completion in exchanges)
            sequences = [prompt + completion for prompt, completion in exchanges]
            if len(sequences) == 2 and exchanges[1][0][: len(sequences[0])] == sequences[0]:
                continued[group["form"]] += 1
                del sequences[0]
            logical += sum(map(len, sequences))
            # What a row computes: every distinct beginning of a sequence once, without the last token.
            nodes |= {tuple(tokens[:end]) for tokens in sequences for end in range(1, len(tokens))}
    assert continued["example"] > 0
    assert continued["other"] == 0
    assert any(group["form"] == "other" and len(set(group["rewards"])) > 1 for group in groups)

    assert step["step"] == 1
    assert step["loss_entries"] == entries == step["sampler_difference_count"]
    assert step["logical_tokens"] == logical
    assert step["physical_tokens"] == len(nodes)
    assert step["sampler_difference_max"] < 1e-3, (
        "the trainer computes what the sampler computed, turn by turn"
    )
