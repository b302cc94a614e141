"""A run goes on in the program that made it, and in no other."""

from pathlib import Path

import pytest

from art.errors import ConfigError
from art.reporting import RunFinishedError
from art.reporting.run_folder import RunDescription, read_run
from art.reporting.run_program import check_program, program_of


def launched(program: Path | str, rest: str = "") -> str:
    return f"art-monarch local --program {program}:main{rest} -- --resume --run-dir"


def described(command: str, name: str = "n") -> RunDescription:
    return RunDescription(
        name=name, art_version="1", model="", model_folder="", started_unix_s=1.0, resume_command=command
    )


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (launched("/a/train.py"), "/a/train.py:main"),
        (launched("/a/train.py", " --port 4711"), "/a/train.py:main"),
        (launched("'/a b/train.py'"), "/a b/train.py:main"),
        ("art-monarch local --program pkg.train:main", "pkg.train:main"),
        ("art demo --resume", "art demo --resume"),
        ("my command -- --steps 3 --folder", "my command"),
        ("my 'open quote", "my 'open quote"),
    ],
)
def test_the_program_is_what_the_command_starts(command: str, program: str) -> None:
    assert program_of(command) == program


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    for name in ("train.py", "copied.py", "moved/train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link.py").symlink_to("train.py")
    return tmp_path


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("train.py", "train.py"),
        ("train.py", "link.py"),
        ("gone/train.py", "moved/train.py"),
    ],
)
def test_the_same_file_is_the_same_program(scripts: Path, then: str, now: str) -> None:
    made = described(launched(scripts / then, " --port 4711"), name="renamed since")
    check_program(scripts, made, "n", launched(scripts / now))


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("train.py", "copied.py"),
        ("train.py", "moved/train.py"),
        ("gone/train.py", "copied.py"),
    ],
)
def test_a_copy_is_another_program(scripts: Path, then: str, now: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_program(scripts, described(launched(scripts / then)), "n", launched(scripts / now))
    assert str(caught.value).endswith(f"go on with it by: {launched(scripts / then)} {scripts}")


def test_another_function_of_the_same_file_is_another_program(scripts: Path) -> None:
    made = described(launched(scripts / "train.py"))
    with pytest.raises(ConfigError, match="made by another program"):
        check_program(scripts, made, "n", launched(scripts / "train.py").replace(":main", ":other"))


@pytest.mark.parametrize(("then", "now"), [("", "my resume"), ("my resume", ""), ("", "")])
def test_a_program_without_a_command_is_known_by_its_task(tmp_path: Path, then: str, now: str) -> None:
    check_program(tmp_path, described(then), "n", now)
    with pytest.raises(ConfigError, match="is of 'n', not of 'other'"):
        check_program(tmp_path, described(then), "other", now)


def test_the_command_that_goes_on_is_told_as_it_is_typed_here(
    scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    then = launched(scripts / "train.py")
    with pytest.raises(ConfigError) as caught:
        check_program(scripts, described(then), "n", launched(scripts / "copied.py"))
    assert str(caught.value).endswith(f"go on with it by: uv run {then} {scripts}")


async def test_a_report_does_not_take_up_the_run_of_another_program(make_report) -> None:
    async with make_report(resume_command="art demo --resume"):
        pass
    before = None
    for _ in range(2):
        report = make_report(resume=True, resume_command=launched("/a/copied.py"))
        with pytest.raises(ConfigError, match=r"go on with it by: art demo --resume /.*/run$") as caught:
            async with report:
                pass
        assert not isinstance(caught.value, RunFinishedError)
        kept = [path.read_bytes() for path in sorted(report._opening.folder.iterdir()) if path.is_file()]
        assert before in (None, kept)
        before = kept


async def test_the_arguments_of_now_are_in_the_command_that_goes_on(make_report, tmp_path: Path) -> None:
    first, again = (f"art-monarch local --program /t.py:main -- --steps {n} --resume --f" for n in (3, 5))
    for resume, command in ((False, first), (True, again), (True, again)):
        with pytest.raises(KeyError):
            async with make_report(resume=resume, resume_command=command):
                raise KeyError
        assert read_run(tmp_path / "run").resume_command == command
