"""A rollout that failed has no reward: in no mean, no advantage and no line is it taken for a reward of 0."""

import importlib.util
from pathlib import Path

import pytest

import art
from art.errors import ConfigError, RolloutFailed
from art.reporting.answers import answer_of
from art.reporting.evaluations import gathered
from art.reporting.page.load import read_rollouts
from art.reporting.trajectory_lines import advantages, sampled_rollouts
from art.train_config import TrainConfig, TrainResult
from art_dataplane import RolloutError, TrajectoryRef


def failed() -> art.TrajectoryHandle:
    """As an executor hands out a rollout that raised."""
    error = RolloutError("KeyError", "'x'", "Traceback ...")
    ref = TrajectoryRef("failed", "g", "rollout worker 0", 10, 0, None, 0, 0, False, str(error))
    return art.TrajectoryHandle(reward=None, metrics={}, metadata={"answer": "none"}, ref=ref, error=error)


@pytest.fixture
def mixed(make_group) -> art.TrajectoryGroup:
    """Rewards 2, none and 4."""
    group = make_group(2.0, 4.0, version=3)
    group.trajectories.insert(1, failed())
    return group


async def test_a_step_s_numbers_are_of_the_rollouts_that_ended_well(
    open_report, mixed, stream, read_json
) -> None:
    report = await open_report()
    steps = report.steps(1)
    next(steps)
    await report.sampled([mixed])
    report.trained(TrainResult(1, {"skipped": 0.0}))
    (line,) = read_json(report.folder / "metrics.jsonl")
    assert line["reward"] == 3.0
    kept = read_json(report.folder / "trajectories" / "step-0001.jsonl")
    assert [item["reward"] for item in kept] == [2.0, None, 4.0]
    assert [item["advantage"] for item in kept] == [
        pytest.approx(-1, rel=1e-3),
        None,
        pytest.approx(1, rel=1e-3),
    ]
    assert [item["failure"] for item in kept] == ["", "KeyError: 'x'", ""]
    assert [item.reward for item in read_rollouts_of(report.folder)] == [2.0, None, 4.0]


def read_rollouts_of(folder: Path):
    from art.reporting.page.load import TrajectoryFile

    return read_rollouts(TrajectoryFile(folder / "trajectories" / "step-0001.jsonl", "step", 1))


async def test_a_step_in_which_every_rollout_failed_is_refused(open_report) -> None:
    report = await open_report()
    next(report.steps(1))
    group = art.TrajectoryGroup([])
    group.trajectories += [failed(), failed()]
    with pytest.raises(ConfigError, match="all 2 rollouts of step 1 failed"):
        await report.sampled([group])


def test_advantages_are_those_of_the_group_without_its_failures(mixed, make_group) -> None:
    without = make_group(2.0, 4.0)
    alone = art.TrajectoryGroup([])
    alone.trajectories.append(failed())
    low, none, high = advantages([alone, mixed], TrainConfig())[1]
    assert none is None
    assert [low, high] == advantages([without], TrainConfig())[0]
    assert advantages([alone], TrainConfig()) == [[None]]


def test_a_failure_is_no_middle_reward_when_samples_are_chosen(make_group) -> None:
    items = [*make_group(-1.0, 1.0), failed()]
    assert sampled_rollouts(items, 2) == (1, 2)  # the failure, below the worst, and the best


def test_an_answer_of_a_failure_has_no_reward() -> None:
    assert answer_of(failed()).reward is None


async def test_an_evaluation_ends_with_the_failure_of_a_rollout(make_group) -> None:
    async def rollout(item: art.TrajectoryHandle) -> art.TrajectoryHandle:
        return item

    good = make_group(1.0).trajectories[0]
    with pytest.raises(RolloutFailed, match="KeyError"):
        await gathered([rollout(good), rollout(failed())], lambda *_: None)


def test_the_calculator_counts_what_was_rewarded(mixed) -> None:
    path = Path(__file__).parents[4] / "examples" / "calculator" / "train.py"
    spec = importlib.util.spec_from_file_location("calculator_train", path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    assert program.summary([mixed]) == "called 2, right numbers 2, solved 2 of 2"
