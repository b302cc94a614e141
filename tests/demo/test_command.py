"""What `art demo` refuses, as a user sees it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_what_is_no_run_is_refused_in_one_line_also_as_json(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "art.cli", "demo", "--json", "--resume", tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    (told,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (told["event"], told["kind"]) == ("error", "ConfigError")
    assert f"{tmp_path} is no run's folder" in told["message"]
    assert done.stderr == f"art demo: {told['message']}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_finished_says_so_and_is_no_error(tmp_path: Path) -> None:
    run = {
        "name": "yes-no-maybe", "art_version": "1", "model": "", "model_folder": "", "started_unix_s": 1.0,
        "settings": {"steps": 1, "seed": 0}, "finished": True,
    }  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps(run))
    done = subprocess.run(
        [sys.executable, "-m", "art.cli", "demo", "--resume", tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(
        f"the run in {tmp_path} is finished after 0 steps; there is nothing to resume. "
        "To go on with it, let it take more than 1 step, for example --steps 11\n"
    )


def test_a_folder_with_other_things_in_it_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("mine")
    done = subprocess.run(
        [sys.executable, "-m", "art.cli", "demo", "--run-dir", tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr == f"art demo: the run folder {tmp_path} is not an empty folder; choose another\n"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.md"]


def test_a_folder_without_a_model_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "art.cli", "demo", "--model", tmp_path, "--run-dir", tmp_path / "run"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize("where", ["full", "closed pipe"])
def test_output_that_cannot_be_written_ends_it_with_one_line_before_anything_starts(
    tmp_path: Path, where: str, more: list[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "art.cli", "demo", "--run-dir", tmp_path / "run", *more],
            stdout=full if where == "full" else writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    os.close(writer)
    (line,) = done.stderr.splitlines()
    if where == "full":
        assert done.returncode == 1
        assert line.startswith("art demo: the output cannot be written")
    else:
        assert done.returncode == 141
        assert line == "art demo: nobody reads the output any more, so the run was stopped"
    assert not (tmp_path / "run" / "generations").exists()
