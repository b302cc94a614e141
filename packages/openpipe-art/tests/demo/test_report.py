"""What a run prints and leaves in its folder."""

import io
import json
from pathlib import Path

import msgspec
import pytest

import art
from art.demo.report import RunReport
from art.errors import ConfigError
from art_dataplane import TrajectoryRef


class Settings(msgspec.Struct):
    steps: int = 2
    run_dir: Path | None = None


def handle(answer: str, reward: float, version: int = 0) -> art.TrajectoryHandle:
    ref = TrajectoryRef(
        record_id=f"r-{answer}",
        group_id="g",
        owner="rollout worker 0",
        byte_count=1,
        token_count=44,
        reward=reward,
        min_version=version,
        max_version=version,
        ok=True,
    )
    return art.TrajectoryHandle(
        reward=reward,
        metrics={"completion_tokens": 3},
        metadata={"prompt": "Say it.", "answer": answer},
        ref=ref,
        worker="rollout worker 0 (pid 1)",
    )


def groups(*answers: tuple[str, float]) -> list[art.TrajectoryGroup]:
    return [art.TrajectoryGroup([handle(*answer) for answer in answers])]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def report(tmp_path: Path, stream: io.StringIO) -> RunReport:
    return RunReport("name", tmp_path / "run", Settings(run_dir=tmp_path / "run"), stream=stream)


def test_a_step_is_one_line_with_what_a_user_wants_to_know(report: RunReport, stream: io.StringIO) -> None:
    metrics = {"sampler_difference_mean": 1.5e-6, "sampler_difference_p99": 8e-6}
    report.step(
        1,
        groups(("Maybe.", 1.0), ("yes", 0.5), ("Well,", 0.0), ("maybe", 1.0)),
        art.TrainResult(1, metrics),
        rollout_s=2.0,
        train_s=3.5,
    )
    header, line = stream.getvalue().splitlines()
    assert header.split()[:3] == ["step", "reward", "answers"]
    words = "1 0.625 yes 1 no 0 maybe 2 other 1 6 2.0 s 3.5 s v1 mean 1.5e-06 p99 8.0e-06"
    assert line.split() == words.split()


def test_metrics_and_trajectories_of_each_step_are_kept(report: RunReport) -> None:
    report.step(1, groups(("yes", 0.5)), art.TrainResult(1, {"loss": -0.25}), rollout_s=2.0, train_s=3.0)
    report.step(2, groups(("no", 0.75), ("eh", 0.0)), art.TrainResult(2), rollout_s=1.0, train_s=3.0)
    first, second = lines(report.folder / "metrics.jsonl")
    assert (first["step"], first["policy_version"], first["reward"], first["loss"]) == (1, 1, 0.5, -0.25)
    assert (second["reward"], second["tokens_per_s"]) == (0.375, 6.0)
    kept = lines(report.folder / "trajectories" / "step-0002.jsonl")
    assert [(item["answer"], item["reward"], item["step"], item["group"]) for item in kept] == [
        ("no", 0.75, 2, 0),
        ("eh", 0.0, 2, 0),
    ]
    assert kept[0]["policy_versions"] == [0, 0]
    assert json.loads((report.folder / "settings.json").read_text())["steps"] == 2


def test_a_step_without_an_update_says_so(report: RunReport, stream: io.StringIO) -> None:
    report.step(1, groups(("eh", 0.0)), art.TrainResult(0, {"skipped": 1.0}), rollout_s=1.0, train_s=0.1)
    assert stream.getvalue().endswith("v0  no step taken: equal rewards\n")


def test_the_recent_reward_is_the_mean_of_the_last_five_steps(report: RunReport) -> None:
    for step, reward in enumerate([0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 1.0], start=1):
        assert report.recent_reward() == 0.0 or step > 5
        report.step(step, groups(("x", reward)), art.TrainResult(step), rollout_s=1.0, train_s=1.0)
    assert report.recent_reward() == pytest.approx(0.8)


def break_in(report: RunReport) -> None:
    with report:
        report.step(1, groups(("no", 0.75)), art.TrainResult(1), rollout_s=1.0, train_s=1.0)
        raise RuntimeError("broken")


def test_the_folder_is_named_last_also_after_an_error(report: RunReport, stream: io.StringIO) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        break_in(report)
    *_, end, folder = stream.getvalue().splitlines()
    assert end.startswith("stopped after 1 step and 0 s, mean reward 0.750 over the last 1")
    assert folder == f"run folder: {report.folder}"


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("x")
    with pytest.raises(ConfigError, match="not an empty folder"):
        RunReport("name", tmp_path, Settings())
    assert [path.name for path in tmp_path.iterdir()] == ["old.txt"]


def test_a_phase_is_a_line_when_it_begins_and_one_when_it_ends(
    report: RunReport, stream: io.StringIO
) -> None:
    with report.phase("vLLM"):
        report.progress("soon after the start nothing more is printed")
    begin, end = stream.getvalue().splitlines()
    assert begin == "vLLM ..."
    assert end.startswith("vLLM: ready in 0.")


def test_a_phase_that_fails_is_not_called_ready(report: RunReport, stream: io.StringIO) -> None:
    with pytest.raises(OSError, match="full"), report.phase("vLLM"):
        raise OSError("full")
    assert "ready" not in stream.getvalue()
