"""Programs that cannot start, or cannot say what they have to say, end with one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


PRINTS = "async def main(launch):\n    print('x' * 100_000, flush=True)\n"


@pytest.mark.parametrize(("source", "arguments"), [(GOOD, ["--help"]), (PRINTS, [])])
def test_output_that_cannot_be_written_is_one_line(
    tmp_path: Path, source: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text(source)
    command = [sys.executable, "-P", "-m", "art.distributed.monarch_cli", "local"]
    command += ["--program", "train.py:main", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60
        )
    said = "art-monarch: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_start_that_takes_too_long_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text(GOOD)
    result = art_monarch("local", "--program", "train.py:main", "--startup-timeout", "0.01", cwd=tmp_path)
    assert result.returncode == 1
    assert "within the 0.01 s of startup_timeout_s (art-monarch's --startup-timeout)" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("limit", [8, 16, 31, 64, 127])
def test_too_few_open_files_are_one_line(tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text(GOOD)
    done = subprocess.run(
        [
            *("bash", "-c", f'ulimit -n {limit}; exec "$0" "$@"', sys.executable, "-P", "-m"),
            *("art.distributed.monarch_cli", "local", "--program", "train.py:main"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "ulimit -n 1024" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_program_is_told_how_it_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "train.py").write_text(
        "async def main(launch):\n    print(launch.resume_command('--run-dir'))\n    assert launch.arguments"
    )
    done = art_monarch(
        "local", "--program", "a folder/train.py:main", "--startup-timeout", "120", "--", "--seed", "1",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"art-monarch local --program '{tmp_path}/a folder/train.py:main' --startup-timeout 120 "
        "-- --seed 1 --resume --run-dir\n"
    )


def test_a_run_with_nothing_left_to_do_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text(
        "from art.reporting import RunFinishedError\n"
        "async def main(launch):\n    raise RunFinishedError('it is finished')\n"
    )
    done = art_monarch("local", "--program", "train.py:main", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "it is finished\n", "")
