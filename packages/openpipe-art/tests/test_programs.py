"""Program references: what is wrong with one is said in one message, with exit code 2 and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import art
from art.checks.packages import install_command
from art.distributed.errors import RemoteError
from art.distributed.launch import ArtLaunchContext
from art.distributed.monarch_cli import error_texts
from art.distributed.programs import Program, absolute_reference, parse_program

GOOD = "async def main(launch):\n    pass\n"


def art_monarch(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "art.distributed.monarch_cli", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=60,
        check=False,
    )


def test_a_script_gives_its_folder_and_its_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GOOD)
    assert parse_program(f"{tmp_path}/train.py:main") == Program("train", "main", str(tmp_path))


def test_a_module_is_left_to_the_import_path() -> None:
    assert parse_program("my_package.train:main") == Program("my_package.train", "main")


@pytest.mark.parametrize("given", ["train.py", "./train.py", "../folder/train.py"])
def test_a_reference_is_made_to_mean_the_same_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert absolute_reference(f"{given}:main") == f"{folder}/train.py:main"
    assert absolute_reference("my_package.train:main") == "my_package.train:main"


def test_a_link_to_a_script_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to("train.py")
    assert absolute_reference(f"{tmp_path}/link.py:main") == f"{tmp_path}/link.py:main"


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ((), ""),
        (("--steps", "4", "--folder", "runs/a"), "--steps 4 "),
        (("--folder=runs/a", "--name", "two words", "--resume"), "--name 'two words' "),
        (("--folder", "--resume", "--resume", "--steps", "4"), "--steps 4 "),
    ],
)
def test_a_run_goes_on_with_the_arguments_of_its_program(arguments: tuple[str, ...], kept: str) -> None:
    launch = ArtLaunchContext(None, arguments=arguments, command="art-monarch local --program /a/t.py:main")
    expected = f"art-monarch local --program /a/t.py:main -- {kept}--resume --folder"
    assert launch.resume_command("--folder") == expected
    assert msgspec.structs.replace(launch, command="").resume_command("--folder") is None


@pytest.mark.parametrize(
    ("source", "reference", "text"),
    [
        (GOOD, "train.py", "is not FILE_OR_MODULE:FUNCTION"),
        (GOOD, "train.py:", "is not FILE_OR_MODULE:FUNCTION"),
        (GOOD, "missing.py:main", "there is no script"),
        (GOOD, "no-such:main", "neither a script (.py) nor a module name"),
        (GOOD, "no_such_module:main", "there is no module 'no_such_module'"),
        (GOOD, "train.py:other", "has no function 'other'"),
        ("def main(launch): pass\n", "train.py:main", "is not an async function"),
        ("async def main(): pass\n", "train.py:main", "must take one argument, the ArtLaunchContext"),
        ("import nothing_like_this\n", "train.py:main", "No module named 'nothing_like_this'"),
        ("1 / 0\n", "train.py:main", "ZeroDivisionError: division by zero"),
        ("def (\n", "train.py:main", "SyntaxError"),
    ],
)
def test_a_bad_reference_is_one_message_and_exit_code_2(
    tmp_path: Path, source: str, reference: str, text: str
) -> None:
    (tmp_path / "train.py").write_text(source)
    result = art_monarch("local", "--program", reference, cwd=tmp_path)
    assert result.returncode == 2
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_script_may_not_hide_behind_another_modules_name(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text(GOOD)
    result = art_monarch("local", "--program", "json.py:main", cwd=tmp_path)
    assert result.returncode == 2
    assert "that name belongs to" in result.stderr


@pytest.mark.parametrize("options", [["--port", "x"], ["--port", "70000"], ["--startup-timeout", "0"]])
def test_bad_options_are_refused(tmp_path: Path, options: list[str]) -> None:
    result = art_monarch("local", "--program", "train.py:main", *options, cwd=tmp_path)
    assert result.returncode == 2
    assert options[1] in result.stderr


def test_only_what_works_is_listed(tmp_path: Path) -> None:
    result = art_monarch("--help", cwd=tmp_path)
    assert "local" in result.stdout
    for later in ("ssh", "skypilot", "worker"):
        assert later not in result.stdout
        assert art_monarch(later, cwd=tmp_path).returncode == 2


def test_without_monarch_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GOOD)
    code = (
        "import sys; sys.modules['monarch'] = sys.modules['monarch.actor'] = None\n"
        f"from art.distributed.monarch_cli import run\n"
        f"sys.exit(run(['local', '--program', {str(tmp_path / 'train.py')!r} + ':main']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "ART_STATE_DIR": str(tmp_path / "state")},
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert install_command("distributed") in result.stderr
    assert "Traceback" not in result.stderr
    assert list((tmp_path / "state").glob("runs/*")) == []


def test_an_unknown_option_says_where_those_of_the_program_stand(tmp_path: Path) -> None:
    result = art_monarch("local", "--program", "train.py:main", "--steps", "5", cwd=tmp_path)
    assert result.returncode == 2
    assert "unrecognized arguments: --steps 5 (those of the program stand behind `--`)" in result.stderr


def test_the_help_says_how_a_program_gets_arguments(tmp_path: Path) -> None:
    assert "[-- ARGUMENT ...]" in art_monarch("local", "--help", cwd=tmp_path).stdout


def test_the_users_line_is_shown_and_not_that_of_art(tmp_path: Path) -> None:
    (tmp_path / "rates.py").write_text(
        "import art\n\n\ndef config():\n    return art.TrainConfig(learning_rate=-1)\n\n\nCONFIG = config()\n"
    )
    result = art_monarch("local", "--program", "rates.py:main", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == (
        "art-monarch: rates cannot be imported: SettingError: learning_rate is -1; it must be a number above "
        f"0 and at most 1, for example learning_rate=0.0005 ({tmp_path}/rates.py:5, in config)\n"
    )


def test_a_module_of_the_standard_library_beside_the_script_is_told_to_be_renamed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import random\n\nrandom.Random\n" + GOOD)
    (tmp_path / "random.py").write_text("")
    result = art_monarch("local", "--program", "train.py:main", cwd=tmp_path)
    assert result.returncode == 2
    assert "would be imported in place of Python's own module random" in result.stderr
    assert "rename random.py" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_the_version_is_told(tmp_path: Path) -> None:
    assert art_monarch("--version", cwd=tmp_path).stdout == f"art-monarch {art.__version__}\n"


def test_a_slip_of_the_pen_says_what_was_meant(tmp_path: Path) -> None:
    assert "(did you mean local?)" in art_monarch("locl", cwd=tmp_path).stderr
    assert (
        "(did you mean --port?)"
        in art_monarch("local", "--program", "a.py:main", "--prot", "1", cwd=tmp_path).stderr
    )


def test_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GOOD)
    command = [sys.executable, "-P", "-m", "art.distributed.monarch_cli", "local"]
    command += ["--program", "train.py:main", "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60
        )
    said = "art-monarch: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_an_error_of_art_in_another_process_is_its_message() -> None:
    died = RemoteError("service", "start", "art_serving.errors.MemberError", "it died: why", "Traceback ...")
    assert error_texts(died) == ["it died: why"]
    other = RemoteError("service", "start", "builtins.KeyError", "'x'", "Traceback ...")
    assert "Traceback" in error_texts(other)[0]
