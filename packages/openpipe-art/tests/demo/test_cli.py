"""The command `art`."""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import msgspec
import pytest

import art
from art import cli
from art.checks import machine
from art.checks.packages import install_command
from art.checks.results import warned
from art.demo import command
from art.demo.yes_no_maybe.train import Settings
from art.errors import ConfigError
from art.reporting import RunFinishedError, events
from art.reporting.run_folder import RunDescription, read_run
from art.reporting.run_writer import RunWriter
from art.settings import SEEDS


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


@pytest.mark.parametrize("name", ["demo", "report", "doctor"])
def test_an_option_that_is_none_shows_the_usage_of_its_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leave:
        cli.main([name, *(["run"] if name == "report" else []), "--bogus"])
    assert leave.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: art {name} ")
    assert said.endswith(f"art {name}: error: unrecognized arguments: --bogus\n")


def test_a_slip_of_the_pen_says_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["demo", "--step", "3"])
    assert "unrecognized arguments: --step 3 (did you mean --steps?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--steps", "99999999999999999999"],
        ["--steps", "-1"],
        ["--steps", "\u00b2"],
        ["--steps", "1.5"],
        ["--seed", "-1"],
        ["--seed", str(2**32)],
        ["--seed", "1.5"],
        ["--run-dir", ""],
        ["--model", ""],
        ["--resume", ""],
        ["--run-dir", "a\nb"],
        ["--run-dir", "~nobody-of-this-name/runs"],
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_in_one_short_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leave:
        cli.main(["demo", *arguments])
    assert leave.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"art demo: error: argument {arguments[0]}: ")
    assert len(line) < 140


def test_seeds_are_those_that_every_part_takes() -> None:
    assert options("--seed", str(2**32 - 1)).seed == 2**32 - 1
    assert (0, command._HIGHEST_SEED) == SEEDS


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


@pytest.fixture(autouse=True)
def commands_are_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)


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
@pytest.mark.parametrize("given", [("--seed", "1"), ("--model", "x"), ("--run-dir", "x")])
def test_options_that_contradict_the_resumed_run_are_refused(
    tmp_path: Path, given: tuple[str, str], finished: bool
) -> None:
    run = stopped_run(tmp_path / "run", steps=7, seed=3)
    if finished:
        finish(run)
    with pytest.raises(ConfigError, match=f"leave out {given[0]} "):
        command._settings(options("--resume", str(run), *given))


def taken(folder: Path, steps: int) -> Path:
    lines = [{"step": float(step), "policy_version": 0.0, "reward": 0.5} for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(lines))
    return folder


@pytest.mark.parametrize("finished", [False, True])
def test_a_resumed_run_can_take_more_steps_than_it_was_started_for(tmp_path: Path, finished: bool) -> None:
    run = taken(stopped_run(tmp_path / "run", steps=7, seed=3), 7 if finished else 4)
    if finished:
        finish(run)
    settings = command._settings(options("--resume", str(run), "--steps", "9"))
    assert settings == Settings(steps=9, seed=3, run_dir=run, resume=True)


@pytest.mark.parametrize(("finished", "steps"), [(False, 1), (False, 4), (True, 4)])
def test_a_resumed_run_cannot_take_fewer_steps_than_it_took(
    tmp_path: Path, finished: bool, steps: int
) -> None:
    run = taken(stopped_run(tmp_path / "run", steps=7), 4)
    if finished:
        finish(run)
    told = r"the 4 steps that the run has taken already \(it was started for 7\); give more than 4"
    with pytest.raises(ConfigError, match=told):
        command._settings(options("--resume", str(run), "--steps", str(steps)))


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("steps", [5, 6, 8])
def test_any_number_above_the_steps_that_were_taken_will_do(
    tmp_path: Path, finished: bool, steps: int
) -> None:
    run = taken(stopped_run(tmp_path / "run", steps=7), 4)
    if finished:
        finish(run)
    assert command._settings(options("--resume", str(run), "--steps", str(steps))).steps == steps


def test_a_finished_run_with_the_steps_that_it_had_is_still_finished(tmp_path: Path) -> None:
    run = finish(taken(stopped_run(tmp_path / "run", steps=7), 4))
    with pytest.raises(RunFinishedError, match=r"finished after 4 steps; .* more than 7 steps"):
        command._settings(options("--resume", str(run), "--steps", "7"))


@pytest.mark.parametrize("kind", ["nothing", "file", "folder", "link to nothing"])
def test_what_is_no_runs_folder_is_told_with_what_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    place = Path("nope")
    if kind == "file":
        place.write_text("")
    elif kind == "folder":
        place.mkdir()
    elif kind == "link to nothing":
        place.symlink_to("nowhere")
    with pytest.raises(ConfigError) as caught:
        command._settings(options("--resume", "nope"))
    told = str(caught.value)
    assert told.startswith("nope is no run's folder: it ")
    assert "it lies below runs/" in told
    assert "Errno" not in told
    stopped_run(tmp_path / "runs" / "first")
    stopped_run(tmp_path / "runs" / "second one")
    with pytest.raises(ConfigError, match=r"; here are runs/second one, runs/first$"):
        command._settings(options("--resume", "nope"))


def test_a_run_whose_lines_are_damaged_is_told(tmp_path: Path) -> None:
    run = stopped_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text("[]\n")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl cannot be read"):
        command._settings(options("--resume", str(run)))


def test_a_run_with_other_settings_is_told(tmp_path: Path) -> None:
    run = stopped_run(tmp_path / "run", steps="many")
    with pytest.raises(ConfigError, match=r"run\.json are not those of art demo"):
        command._settings(options("--resume", str(run)))


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    run = finish(stopped_run(tmp_path / "run"))
    with pytest.raises(RunFinishedError, match="is finished after 0 steps"):
        command._settings(options("--resume", str(run)))


def test_another_program_s_run_is_refused(tmp_path: Path) -> None:
    run = stopped_run(tmp_path / "run", name="other")
    with pytest.raises(ConfigError, match="is of 'other', not of 'yes-no-maybe'"):
        command._settings(options("--resume", str(run)))


def test_a_run_of_a_copy_of_the_program_is_refused_with_the_command_that_goes_on_with_it(
    tmp_path: Path,
) -> None:
    run = stopped_run(tmp_path / "run")
    by = "art-monarch local --program /home/me/copied.py:main -- --steps 4 --resume --run-dir"
    for finished in (False, True):
        description = msgspec.structs.replace(read_run(run), resume_command=by, finished=finished)
        (run / "run.json").write_bytes(msgspec.json.encode(description))
        with pytest.raises(ConfigError) as caught:
            command._settings(options("--resume", str(run)))
        (told,) = str(caught.value).splitlines()
        assert told == f"the run in {run} was made by another program; go on with it by: {by} {run}"


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
        "argparse.ArgumentParser.parse_known_args = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        "art.cli.main(['demo'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_between_pythons_start_and_the_handler_of_interrupts_nothing_else_is_loaded() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "from art.cli import main\n"
        "import art.cli\n"
        "def run(_):\n"
        "    import _signal\n"
        "    print(sorted(set(sys.modules) - before), _signal.getsignal(2) == _signal.SIG_DFL)\n"
        "art.cli._run_and_flush = run\n"
        "main([])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "['art', 'art.cli'] True\n"


COMMANDS = [
    ["--help"],
    ["--version"],
    ["doctor"],
    ["doctor", "--json"],
    ["demo", "--help"],
]


def with_empty_cache(folder: Path) -> dict[str, str]:
    return os.environ | {"ART_CACHE_DIR": str(folder / "cache")}


def written_to(
    out: int | IO[str], arguments: list[str], folder: Path, *, unbuffered: bool = False
) -> subprocess.CompletedProcess[str]:
    environment = with_empty_cache(folder) | {"PYTHONUNBUFFERED": "x" * unbuffered}
    return subprocess.run(
        [sys.executable, "-m", "art.cli", *arguments],
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env=environment,
        cwd=folder,
    )


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_output_that_cannot_be_written_is_one_line(
    tmp_path: Path, arguments: list[str], unbuffered: bool
) -> None:
    with open("/dev/full", "w") as full:
        done = written_to(full, arguments, tmp_path, unbuffered=unbuffered)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line == "art: the output cannot be written: No space left on device"


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_pipe_that_nobody_reads_is_left_quietly(
    tmp_path: Path, arguments: list[str], unbuffered: bool
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = written_to(writer, arguments, tmp_path, unbuffered=unbuffered)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_closed_output_is_one_line(tmp_path: Path, arguments: list[str]) -> None:
    command_line = shlex.join([sys.executable, "-m", "art.cli", *arguments])
    done = subprocess.run(
        ["sh", "-c", f"{command_line} >&-"], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    expected = "art: standard output is closed, so there is nowhere to write to\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_other_closed_streams_do_not_matter(tmp_path: Path, closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{shlex.quote(sys.executable)} -m art.cli doctor {closed}"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, env=with_empty_cache(tmp_path),
    )  # fmt: skip
    assert done.stdout.startswith("Linux ")
    assert done.stderr == ""


def test_what_an_encoding_lacks_is_written_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "l\u00e4ufe"
    done = subprocess.run(
        [sys.executable, "-m", "art.cli", "doctor", "--run-dir", folder],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=with_empty_cache(tmp_path) | {"PYTHONIOENCODING": "ascii"},
    )
    assert "l\\xe4ufe" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["doctor", "demo"])
def test_a_current_folder_that_is_gone_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "gone").mkdir()
    art = f"{shlex.quote(sys.executable)} -P -m art.cli {name}"
    done = subprocess.run(
        ["sh", "-c", f"cd gone && rmdir ../gone && {art}"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    expected = f"art {name}: the current folder does not exist any more; change to another"
    assert done.stderr.splitlines()[-1] == expected


def test_a_user_without_a_home_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    assert cli.run(["doctor"]) == 1
    told = "art doctor: the user has no home folder here; say where it is: export HOME=/some/folder\n"
    assert capsys.readouterr().err == told
    monkeypatch.undo()
    monkeypatch.setenv("HOME", "")
    assert cli.run(["doctor"]) == 1
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    "place", ["file", "link", "loop", "loop/x", "file/x", "x" * 300, "/proc/x", "read-only/x"]
)
@pytest.mark.parametrize("option", ["--run-dir", "--model", "--resume"])
def test_odd_places_are_refused_in_a_line_and_nothing_is_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    place: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "read-only").mkdir()
    monkeypatch.setattr(
        machine, "writable", lambda folder: folder.name != "read-only" and os.access(folder, 7)
    )
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError) as caught:
        command._check(command._settings(options(option, place)))
    told = str(caught.value)
    assert "Errno" not in told
    what = {"--run-dir": "run", "--model": "model", "--resume": "is no run's folder"}[option]
    assert [line for line in told.splitlines() if what in line]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_the_help_of_the_demo_fits_the_terminal(columns: int, tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "art.cli", "demo", "--help"],
        capture_output=True, text=True, timeout=60,
        env=with_empty_cache(tmp_path) | {"COLUMNS": str(columns)},
    ).stdout  # fmt: skip
    assert max(map(len, said.splitlines())) <= columns
    words = said.split("how long, how much")[1].split()
    assert words == command.EPILOG.split("how long, how much")[1].split()
    for number in (0, 1, 2, 129, 130, 141, 143):
        assert str(number) in said.split("exit status")[1].split()


@pytest.mark.parametrize("columns", ["1", "20", "nonsense"])
def test_narrow_terminals_get_their_text(columns: str, tmp_path: Path) -> None:
    environment = with_empty_cache(tmp_path) | {"COLUMNS": columns}
    environment.pop("TERM", None)
    for arguments in (["doctor"], ["demo", "--help"]):
        done = subprocess.run(
            [sys.executable, "-m", "art.cli", *arguments],
            capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment,
        )  # fmt: skip
        assert len(done.stdout) > 500
        assert done.stderr == ""


def test_a_warning_is_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    few = warned("open files", "256 for each process", "1024", "raise it: ulimit -n 1024")
    monkeypatch.setattr("art.checks.demo_checks", lambda **_: [few])
    command._check(Settings())
    assert capsys.readouterr().err == f"art demo: {few.line()}\n"
    assert few.line().startswith("warning: open files: ")


def test_the_page_says_how_the_run_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = finish(taken(stopped_run(tmp_path / "run"), 2))
    assert cli.run(["report", str(run)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(run / "report.html"), "finished after 2 steps"]


def test_a_file_of_a_run_names_the_run_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = finish(taken(stopped_run(tmp_path / "run"), 2))
    assert cli.run(["report", str(run)]) == 0
    capsys.readouterr()
    assert cli.run(["report", str(run / "report.html")]) == 0
    assert capsys.readouterr().out.splitlines() == [str(run / "report.html"), "finished after 2 steps"]
    with pytest.raises(ConfigError, match=f"it is a file; give the folder that it is in, {run}"):
        command._settings(options("--resume", str(run / "report.html")))


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
