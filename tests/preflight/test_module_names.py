"""A file beside a program that would be imported in place of another module is named, without a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "async def main(launch):\n    print('it ran')\n"


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [Path(sys.executable).with_name(arguments[0]), *arguments[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("name", ["random.py", "torch.py", "msgspec.py"])
def test_a_program_beside_such_a_file_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    folder, elsewhere = tmp_path / "my task", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / name).write_text("raise SystemExit('imported by mistake')\n")
    program = f"{folder / 'train.py'}:main"
    done = run(elsewhere, "art-monarch", "local", "--program", program)
    assert done.returncode != 0
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert f"{folder / name} would be imported in place of" in line
    assert f"rename {name}" in line


def test_the_demo_is_refused_where_workers_would_find_such_a_file(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("")
    done = run(tmp_path, "art", "demo")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f"{tmp_path / 'random.py'} would be imported in place of Python's own module random" in line
    assert [path.name for path in tmp_path.iterdir()] == ["random.py"]
