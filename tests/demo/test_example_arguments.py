"""The examples take options, and refuse what they do not know."""

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import pytest

from art.distributed.program_arguments import may_read_arguments

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(params=["yes_no_maybe", "calculator"])
def example(request: pytest.FixtureRequest) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"example_{request.param}", EXAMPLES / request.param / "train.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_given_is_taken(example: ModuleType) -> None:
    assert example.settings_from([]) == example.Settings()
    settings = example.settings_from(["--steps", "3", "--seed", "7", "--run-dir", "runs/x", "--resume"])
    assert (settings.steps, settings.seed, str(settings.run_dir)) == (3, 7, "runs/x")
    assert settings.resume


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nonsense"],
        ["--steps", "0"],
        ["--steps", "x"],
        ["--step", "3"],
        ["--seed", "-1"],
        ["--resume"],
        ["5"],
    ],
)
def test_what_cannot_be_meant_is_refused(
    example: ModuleType, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leave:
        example.settings_from(arguments)
    assert leave.value.code == 2
    assert "train.py: error: " in capsys.readouterr().err


def test_the_help_says_what_each_option_is_and_its_default(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leave:
        example.settings_from(["--help"])
    assert leave.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    for option in ("--steps", "--seed", "--run-dir", "--resume"):
        assert option in said
    assert f"(default: {example.Settings().steps})" in said
    assert "(default: None)" not in said


def test_the_launcher_hands_the_arguments_over(example: ModuleType) -> None:
    assert inspect.iscoroutinefunction(example.main)
    assert may_read_arguments(example.main)
