"""The command `art`."""

import importlib.metadata
import importlib.util
import subprocess
import sys

import pytest

import art
from art import cli


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leave:
        cli.main(["--version"])
    assert leave.value.code == 0
    assert capsys.readouterr().out == f"art {importlib.metadata.version('openpipe-art')}\n"
    assert art.__version__ == importlib.metadata.version("openpipe-art")


@pytest.mark.parametrize("arguments", [[], ["demo", "--steps", "0"], ["demo", "--steps", "many"], ["train"]])
def test_wrong_arguments_leave_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leave:
        cli.main(arguments)
    assert leave.value.code == 2
    assert "usage: art" in capsys.readouterr().err


def test_missing_extras_are_named_with_the_command_that_mends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    absent = {"monarch", "art_trainer"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in absent else found(name) or 1
    )
    assert cli.run(["demo"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "monarch, art_trainer" in output.err
    assert "pip install 'openpipe-art[cpu]'" in output.err


def test_importing_the_command_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'monarch', 'openai', 'pydantic', 'numpy', 'rich'}"
    code = f"import art.cli, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
