"""What stands behind ``--`` reaches the program, and only that."""

import subprocess
import sys
from pathlib import Path

import pytest


def art_monarch(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("art-monarch"), *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        check=False,
    )


PRINTS = "async def main(launch):\n    print(launch.arguments)\n"


@pytest.mark.parametrize(
    ("given", "received"),
    [
        ([], ()),
        (["--"], ()),
        (["--", "--steps", "5", "--", "--port", "x"], ("--steps", "5", "--", "--port", "x")),
        (["--port", "0", "--", "-h"], ("-h",)),
    ],
)
def test_what_stands_behind_two_dashes_is_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], received: tuple[str, ...]
) -> None:
    (tmp_path / "prints.py").write_text(PRINTS)
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "state"))
    result = art_monarch("local", "--program", "prints.py:main", *given, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, f"{received}\n"), result.stderr


def test_an_argument_that_the_program_refuses_is_its_own_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parses.py").write_text(
        "import argparse\n\n\nasync def main(launch):\n"
        "    parser = argparse.ArgumentParser('parses.py')\n"
        "    parser.add_argument('--steps', type=int)\n"
        "    print(parser.parse_args(launch.arguments).steps + 1)\n"
    )
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "state"))
    good = art_monarch("local", "--program", "parses.py:main", "--", "--steps=4", cwd=tmp_path)
    assert (good.returncode, good.stdout) == (0, "5\n"), good.stderr
    bad = art_monarch("local", "--program", "parses.py:main", "--", "--step", "x", cwd=tmp_path)
    assert bad.returncode == 2
    assert bad.stderr.startswith("usage: parses.py [-h] [--steps STEPS]\n")
    assert "Traceback" not in bad.stderr
