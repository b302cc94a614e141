"""Files of lines that a kill, a full disk or a copy cut anywhere: what is read, told and gone on from."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import art
from art.errors import ConfigError
from art.reporting import RunReport, read_state, state_lines
from art.reporting.page import write_report
from art.reporting.run_folder import append_lines, read_lines, read_steps, unfinished_bytes

STEPS = 4


@pytest.fixture
async def whole(make_report: Callable[..., RunReport], make_group: Callable, tokenizer_folder: Path) -> Path:
    """A stopped run of four steps, two groups each; step 3 moved no policy."""
    report = make_report(folder=tokenizer_folder.parent / "whole")

    async def run() -> None:
        async with report:
            report.model(tokenizer_folder)
            for step in report.steps(STEPS):
                rewards = (0.5, 0.5) if step == 3 else (0.5, 1.0)
                await report.sampled([make_group(*rewards, version=report.policy_version)])
                version = report.policy_version + (step != 3)
                if step != 3:
                    make_group.add_generation(report.folder, version)
                report.trained(art.TrainResult(version, {"loss": float("nan")} if step == 2 else {}))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await run()
    return report.folder


def cuts(data: bytes) -> range:
    """The lengths that leave the last two lines out at any byte, up to all but the last."""
    return range(len(b"".join(data.splitlines(keepends=True)[:-2])), len(data))


async def test_metrics_cut_at_every_byte_of_their_last_two_lines(
    whole: Path, make_report: Callable[..., RunReport], tmp_path: Path
) -> None:
    data = (whole / "metrics.jsonl").read_bytes()
    for length in cuts(data):
        folder = tmp_path / "cut"
        shutil.copytree(whole, folder)
        metrics = folder / "metrics.jsonl"
        metrics.write_bytes(data[:length])
        finished = data[:length].count(b"\n")
        torn = length - data[:length].rfind(b"\n") - 1
        # Reading leaves the unfinished line out and says so.
        assert unfinished_bytes(metrics) == torn
        assert len(read_steps(folder)) == finished
        state = read_state(folder)
        said = "metrics.jsonl ends in the middle of a line, which is left out"
        assert (state.steps, said in state_lines(state)) == (finished, torn > 0)
        assert (said in write_report(folder).read_text()) == (torn > 0)
        # Going on cuts it off and says so; the step whose policy is on disk is not taken again.
        report = make_report(folder=folder, resume=True)
        async with report:
            assert (report.steps_done, report.policy_version) == (STEPS, 3)
            assert unfinished_bytes(metrics) == 0
            again = [json.loads(line) for line in metrics.read_text().splitlines()]
            assert [(line["step"], line["policy_version"]) for line in again] == [
                (1, 1),
                (2, 2),
                (3, 2),
                (4, 3),
            ]
            assert [line.get("restored", 0) for line in again] == [0] * finished + [1] * (STEPS - finished)
        shutil.rmtree(folder)


async def test_two_lost_lines_that_moved_the_policy_are_refused(
    whole: Path, make_report: Callable[..., RunReport]
) -> None:
    metrics = whole / "metrics.jsonl"
    data = metrics.read_bytes()
    metrics.write_bytes(data[: len(data.splitlines(keepends=True)[0])])
    kept = [
        metrics,
        whole / "run.json",
        *(whole / "trajectories" / f"step-000{step}.jsonl" for step in (1, 4)),
    ]
    before = [path.read_bytes() for path in kept]
    with pytest.raises(ConfigError, match=r"generation is of policy version 3, .* ends with version 1"):
        async with make_report(folder=whole, resume=True):
            pass
    assert [path.read_bytes() for path in kept] == before


async def test_trajectories_cut_at_every_byte_of_their_last_two_lines(
    whole: Path, make_report: Callable[..., RunReport], tmp_path: Path, stream
) -> None:
    name = "trajectories/step-0004.jsonl"
    data = (whole / name).read_bytes()
    assert len(data.splitlines()) == 2
    for length in cuts(data):
        folder = tmp_path / "cut"
        shutil.copytree(whole, folder)
        (folder / name).write_bytes(data[:length])
        torn = length - data[:length].rfind(b"\n") - 1
        said = f"{name} ends in the middle of a line, which is left out"
        page = write_report(folder).read_text()
        assert (said in page) == (torn > 0)
        stream.seek(0)
        stream.truncate()
        async with make_report(folder=folder, resume=True) as report:
            assert report.steps_done == STEPS
            assert (folder / name).read_bytes() == data[: length - torn]
        told = f"{name} ended in the middle of a line; its last {torn} bytes were cut off"
        assert (told in stream.getvalue()) == (torn > 0)
        shutil.rmtree(folder)


async def test_a_finished_line_that_is_damaged_is_named(whole: Path, make_report) -> None:
    metrics = whole / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join([lines[0], b'{"step":\n', *lines[2:]]))
    with pytest.raises(ConfigError, match=r"line 2 of .*metrics\.jsonl cannot be read"):
        async with make_report(folder=whole, resume=True):
            pass


def test_a_number_that_is_not_finite_does_not_end_a_run(whole: Path) -> None:
    assert "loss" not in read_steps(whole)[1]
    assert len(read_steps(whole)) == STEPS


@given(
    lines=st.lists(st.binary(max_size=9).filter(lambda line: b"\n" not in line)), tail=st.binary(max_size=9)
)
def test_unfinished_bytes_are_what_follows_the_last_newline(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("lines") / "lines"
    data = b"".join(line + b"\n" for line in lines) + tail
    path.write_bytes(data)
    assert unfinished_bytes(path) == len(data.rsplit(b"\n", 1)[-1])


@pytest.mark.parametrize("tail", [0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3 << 16])
def test_a_long_unfinished_line_is_measured_across_blocks(tmp_path: Path, tail: int) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"{}\n" + b"x" * tail)
    assert unfinished_bytes(path) == tail
    path.write_bytes(b"x" * tail)
    assert unfinished_bytes(path) == tail
    assert unfinished_bytes(tmp_path / "nothing") == 0


def test_a_line_that_cannot_be_appended_whole_is_taken_back(tmp_path: Path) -> None:
    """A disk that is full in the middle of a line: a limit on the size of files does the same."""
    import resource
    import signal

    path = tmp_path / "lines"
    append_lines(path, [{"number": 1.0}])
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for room in range(1, 12):
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
            with pytest.raises(OSError, match="File too large"):
                append_lines(path, [{"number": 2.0, "more": 3.0}])
            assert path.read_bytes() == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    append_lines(path, [{"number": 2.0}])
    assert list(read_lines(path, dict[str, float])) == [{"number": 1.0}, {"number": 2.0}]
