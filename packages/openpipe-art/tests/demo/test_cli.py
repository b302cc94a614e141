"""The command `art`."""

import argparse
import importlib.metadata
import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import art
from art import cli
from art.checks.packages import install_command
from art.demo import command
from art.demo.yes_no_maybe.train import Settings
from art.errors import ConfigError
from art.reporting import RunFinishedError, events
from art.reporting.run_folder import RunDescription, read_run
from art.reporting.run_writer import RunWriter


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


@pytest.mark.parametrize("arguments", [[], ["train"]])
def test_without_a_command_it_says_which_there_are(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(arguments)
    said = capsys.readouterr().err
    assert [name for name in ("demo", "report", "doctor") if name not in said] == []


@pytest.mark.parametrize(
    "arguments", [["--help"], ["demo", "--help"], ["report", "--help"], ["doctor", "--help"]]
)
def test_help_fits_into_80_columns(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as leave:
        cli.main(arguments)
    assert leave.value.code == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_the_help_of_the_demo_names_every_option_and_every_event(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["demo", "--help"])
    said = capsys.readouterr().out
    options = ["--model", "--steps", "--seed", "--run-dir", "--resume", "--json", "ART_CACHE_DIR"]
    kinds = [kind.__struct_config__.tag for kind in events.Event.__value__.__args__]
    assert [word for word in [*options, *kinds] if word not in said] == []


def stopped_run(folder: Path, name: str = "yes-no-maybe", **settings: object) -> Path:
    plain = {**msgspec.to_builtins(Settings(), enc_hook=str), **settings}
    kept = {key: value for key, value in plain.items() if key not in ("run_dir", "resume")}
    description = RunDescription(
        name=name, art_version="1", model="", model_folder="", started_unix_s=1.0, settings=kept
    )
    RunWriter.fresh(folder, description).close()
    return folder


def finish(folder: Path) -> Path:
    description = msgspec.structs.replace(read_run(folder), finished=True)
    (folder / "run.json").write_bytes(msgspec.json.encode(description))
    return folder


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(arguments)


def test_a_resumed_run_has_its_own_settings(tmp_path: Path) -> None:
    run = stopped_run(tmp_path / "run", steps=7, seed=3, model=str(tmp_path))
    assert command._settings(options("--resume", str(run))) == Settings(
        steps=7, seed=3, model=tmp_path, run_dir=run, resume=True
    )
    same = options("--resume", str(run), "--steps", "7", "--run-dir", str(run))
    assert command._settings(same).steps == 7


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("given", [("--steps", "8"), ("--seed", "1"), ("--model", "x"), ("--run-dir", "x")])
def test_options_that_contradict_the_resumed_run_are_refused(
    tmp_path: Path, given: tuple[str, str], finished: bool
) -> None:
    run = stopped_run(tmp_path / "run", steps=7, seed=3)
    if finished:
        finish(run)
    with pytest.raises(ConfigError, match=f"leave out {given[0]} "):
        command._settings(options("--resume", str(run), *given))


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    run = finish(stopped_run(tmp_path / "run"))
    with pytest.raises(RunFinishedError, match="is finished after 0 steps"):
        command._settings(options("--resume", str(run)))


def test_another_program_s_run_is_refused(tmp_path: Path) -> None:
    run = stopped_run(tmp_path / "run", name="other")
    with pytest.raises(ConfigError, match="is of 'other', not of art demo"):
        command._settings(options("--resume", str(run)))


def test_wrong_arguments_are_told_as_json_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "art.cli", "demo", "--json", "--steps", "0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert json.loads(done.stdout)["kind"] == "UsageError"


def test_a_page_of_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.startswith("art report: ")


def test_an_interrupt_while_it_loads_ends_it_without_a_traceback(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, art.cli\n"
        "import argparse\n"
        "argparse.ArgumentParser.parse_args = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        "art.cli.main(['demo'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


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
    assert install_command("cpu") in output.err


def test_importing_the_command_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'monarch', 'openai', 'pydantic', 'numpy', 'rich'}"
    code = f"import art.cli, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
