"""Who may write into a run's folder."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable
from pathlib import Path

import pytest

from art.errors import ConfigError
from art.reporting import check_new_folder
from art.reporting.run_folder import PhaseLine, RunDescription, append_lines, read_run
from art.reporting.run_writer import RunWriter, model_digest

DESCRIPTION = RunDescription(
    name="n", art_version="1", model="", model_folder="", started_unix_s=1.0, settings={"steps": 4}
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def resumed(folder: Path, **settings: object) -> RunWriter:
    return asyncio.run(RunWriter.resumed(folder, settings or {"steps": 4}, name="n"))


async def turns_while(opening: Awaitable[RunWriter]) -> int:
    """How often the event loop came round, at most every 10 ms, while a folder was opened."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    counting = asyncio.create_task(count())
    try:
        (await opening).close()
    finally:
        counting.cancel()
    return turns


def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("x")
    with pytest.raises(ConfigError, match="not an empty folder"):
        RunWriter.fresh(tmp_path, DESCRIPTION)
    assert [path.name for path in tmp_path.iterdir()] == ["old.txt"]


def test_a_file_in_place_of_the_folder_is_refused(folder: Path) -> None:
    folder.write_text("x")
    with pytest.raises(ConfigError, match="not an empty folder"):
        RunWriter.fresh(folder, DESCRIPTION)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot be written"):
        RunWriter.fresh(tmp_path / "file" / "run", DESCRIPTION)


def test_a_run_that_never_finished_a_step_gives_its_folder_to_the_next(folder: Path) -> None:
    first = RunWriter.fresh(folder, DESCRIPTION)
    first.add_phase(PhaseLine(name="start", duration_s=1.0))
    (folder / "logs").mkdir()
    (folder / "logs" / "engine.log").write_text("it failed")
    (folder / "generations").mkdir()
    (folder / "generations" / ".lock").touch()
    first.close()
    check_new_folder(folder)
    second = RunWriter.fresh(folder, DESCRIPTION)
    assert second.notices == [
        f"the run folder {folder} held a run that ended before its first step; it is used again"
    ]
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "run.json", "trajectories"]
    second.close()


@pytest.mark.parametrize("left", [[".lock"], [".lock", "trajectories/"], [".lock", ".run.json.part"]])
def test_what_a_process_left_that_was_killed_while_it_made_the_folder_is_used_again(
    folder: Path, left: list[str]
) -> None:
    folder.mkdir()
    for name in left:
        (folder / name).mkdir() if name.endswith("/") else (folder / name).write_text("{")
    RunWriter.fresh(folder, DESCRIPTION).close()
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "run.json", "trajectories"]


def test_unfinished_files_of_a_killed_process_go_when_it_is_resumed(folder: Path) -> None:
    RunWriter.fresh(folder, DESCRIPTION).close()
    for name in (".run.json.part", ".metrics.jsonl.part", "trajectories/.step-0001.jsonl.part"):
        (folder / name).write_text("{")
    resumed(folder).close()
    assert list(folder.rglob("*.part")) == []


def test_a_run_with_a_step_or_a_policy_keeps_its_folder(folder: Path) -> None:
    writer = RunWriter.fresh(folder, DESCRIPTION)
    writer.close()
    generation = folder / "generations" / f"step-00000001-{1:032x}"
    generation.mkdir(parents=True)
    with pytest.raises(ConfigError, match="holds a run of 0 steps; choose another, or resume it"):
        check_new_folder(folder)
    generation.rmdir()
    append_lines(folder / "metrics.jsonl", [{"step": 1.0, "policy_version": 0.0}])
    with pytest.raises(ConfigError, match="holds a run of 1 steps"):
        RunWriter.fresh(folder, DESCRIPTION)


def test_a_run_whose_steps_cannot_be_read_keeps_its_folder(folder: Path) -> None:
    RunWriter.fresh(folder, DESCRIPTION).close()
    (folder / "metrics.jsonl").write_text("[]\n")
    with pytest.raises(ConfigError, match="is not an empty folder; choose another"):
        check_new_folder(folder)


def test_a_folder_with_files_of_the_user_s_beside_a_run_is_kept(folder: Path) -> None:
    RunWriter.fresh(folder, DESCRIPTION).close()
    (folder / "notes.md").write_text("mine")
    with pytest.raises(ConfigError, match=r"it holds notes\.md"):
        RunWriter.fresh(folder, DESCRIPTION)
    assert (folder / "notes.md").read_text() == "mine"


@pytest.mark.parametrize("how", ["fresh", "resumed"])
def test_one_process_has_the_folder_until_it_is_killed(folder: Path, how: str) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from art.reporting.run_folder import RunDescription\n"
        "from art.reporting.run_writer import RunWriter\n"
        "RunWriter.fresh(Path(sys.argv[1]), RunDescription(name='n', art_version='1', model='',"
        " model_folder='', started_unix_s=1.0, settings={'steps': 4}))\n"
        "print('held', flush=True)\ntime.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"

        def take() -> RunWriter:
            if how == "fresh":
                return RunWriter.fresh(folder, DESCRIPTION)
            return resumed(folder)

        with pytest.raises(ConfigError, match=f"in use by process {holder.pid}"):
            take()
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
        take().close()
    finally:
        holder.kill()
        holder.wait(10)


def test_a_resumption_waits_for_what_still_writes_generations(folder: Path) -> None:
    RunWriter.fresh(folder, DESCRIPTION).close()
    (folder / "generations").mkdir()
    code = (
        "import fcntl, sys, time\nfile = open(sys.argv[1], 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\ntime.sleep(1)"
    )
    lock = folder / "generations" / ".lock"
    holder = subprocess.Popen([sys.executable, "-c", code, lock], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    begun, waits = time.monotonic(), []
    turns = asyncio.run(
        turns_while(RunWriter.resumed(folder, {"steps": 4}, lambda: waits.append("told"), name="n"))
    )
    assert time.monotonic() - begun > 0.5
    assert turns > 20, "everything else on the loop goes on meanwhile"
    assert waits == ["told"]
    assert holder.wait(10) == 0


def test_unfinished_lines_are_cut_before_anything_is_appended(folder: Path) -> None:
    writer = RunWriter.fresh(folder, DESCRIPTION)
    writer.add_phase(PhaseLine(name="start", duration_s=1.0))
    writer.close()
    with (folder / "phases.jsonl").open("ab") as file:
        file.write(b'{"name":"roll')
    writer = resumed(folder)
    writer.add_phase(PhaseLine(name="start", duration_s=2.0))
    assert [line.count(b"}") for line in (folder / "phases.jsonl").read_bytes().splitlines()] == [1, 1]
    writer.close()


def test_the_lock_is_given_back_when_a_resumption_is_refused(folder: Path) -> None:
    RunWriter.fresh(folder, DESCRIPTION).close()
    for _ in range(2):
        with pytest.raises(ConfigError, match="seed is 1 now and None in the run"):
            resumed(folder, steps=4, seed=1)
    resumed(folder).close()


def test_a_model_is_known_by_its_files(tokenizer_folder: Path) -> None:
    digest = model_digest(tokenizer_folder)
    weights = tokenizer_folder / "model.safetensors"
    assert model_digest(tokenizer_folder) == digest
    os.utime(weights, (1, 1))
    assert model_digest(tokenizer_folder) == digest
    weights.write_bytes(weights.read_bytes()[:-1] + b"X")
    assert model_digest(tokenizer_folder) != digest
    (tokenizer_folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"config\.json"):
        model_digest(tokenizer_folder)


def test_the_description_survives_a_resumption(folder: Path, tokenizer_folder: Path) -> None:
    writer = RunWriter.fresh(folder, DESCRIPTION)
    writer.set_model(tokenizer_folder, "Tiny")
    writer.close()
    writer = resumed(folder)
    writer.set_end(None)
    writer.close()
    description = read_run(folder)
    assert (description.started_unix_s, description.model, description.finished) == (1.0, "Tiny", True)
