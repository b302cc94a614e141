"""When a run is said to stand still, and when not."""

import statistics

import pytest

from art.reporting.flat_rewards import FlatRewards


def told(*steps: tuple[float, ...], enough: float | None = None, before: tuple[float, ...] = ()) -> list[str]:
    """What is said over steps of these rewards, each a group; equal ones train nothing."""
    watch = FlatRewards(enough, before)
    lines = (
        watch.step(rewards, mean=statistics.fmean(rewards), trained=len(set(rewards)) > 1)
        for rewards in steps
    )
    return [line for line in lines if line is not None]


FLAT = [(0.3, 0.3)] * 3


@pytest.mark.parametrize(
    ("steps", "enough", "known"),
    [
        ([(0.0, 1.0), *FLAT], None, "the best of this run is 1.000"),
        ([(0.0, 0.3), *FLAT], 0.95, "the program calls 0.950 enough"),
        (FLAT, None, "as was every reward of this run"),
        ([(-2.0, -1.0), *[(-1.5, -1.5)] * 3], None, "the best of this run is -1.000"),
        ([*FLAT, *FLAT], 0.95, "the program calls 0.950 enough"),
    ],
)
def test_below_the_best_known_reward_it_is_said_once(
    steps: list[tuple[float, ...]], enough: float | None, known: str
) -> None:
    (line,) = told(*steps, enough=enough)
    assert known in line


@pytest.mark.parametrize(
    ("steps", "enough", "before"),
    [
        ([(0.0, 1.0), *[(1.0, 1.0)] * 9], None, ()),
        ([(0.0, 0.3), *FLAT], None, ()),
        ([(0.0, 1.0), *[(0.96, 0.96)] * 3], None, ()),
        ([(0.0, 1.0), *[(0.9, 0.9)] * 3], 0.9, ()),
        ([(1.0, 1.0)] * 3, 0.95, ()),
        ([(1.0, 1.0)] * 3, None, (0.2, 0.9)),
        ([(0.0, 1.0), *FLAT[:2], (0.3, 0.4), *FLAT[:2]], None, ()),
    ],
    ids=["best", "best known", "nearly", "enough", "enough at once", "resumed", "not in a row"],
)
def test_a_run_that_has_arrived_is_not_disturbed(
    steps: list[tuple[float, ...]], enough: float | None, before: tuple[float, ...]
) -> None:
    assert told(*steps, enough=enough, before=before) == []
