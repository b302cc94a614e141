"""Where a killed run goes on. The expected answer comes from a run that is simulated up to the kill."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.errors import ConfigError
from art.reporting.resume import resume_point

STEPS = st.lists(st.booleans(), max_size=12)  # whether each step moved the policy


def lines_of(moved: list[bool]) -> list[dict[str, float]]:
    versions = itertools.accumulate(moved, initial=0)
    next(versions)
    return [
        {"step": float(step), "policy_version": float(version)}
        for step, version in enumerate(versions, start=1)
    ]


@given(moved=STEPS, next_moves=st.booleans(), data=st.data())
def test_what_is_kept_is_what_led_to_the_newest_policy(
    moved: list[bool], next_moves: bool, data: st.DataObject
) -> None:
    """Killed in step ``len(moved) + 1``, which may have moved the policy; newer generations may be absent."""
    lines = lines_of(moved)
    last = sum(moved)
    newest = data.draw(st.integers(0, last + next_moves))
    point = resume_point(lines, newest)
    every = [*moved, next_moves] if newest > last else moved
    # The longest beginning of the run after which the policy is the newest durable one.
    beginnings = [length for length in range(len(every) + 1) if sum(every[:length]) == newest]
    expected = max(beginnings) if newest <= last else min(beginnings)
    assert point.steps_done == expected
    assert point.policy_version == newest
    assert point.restored == (len(moved) + 1 if newest > last else None)
    assert point.kept == min(expected, len(moved))


@given(moved=STEPS, data=st.data())
def test_killed_again_and_again_each_step_is_taken_once_and_in_order(
    moved: list[bool], data: st.DataObject
) -> None:
    """A run of ``len(moved)`` steps, killed up to four times; ``trained`` is what its weights saw."""
    trained: list[int] = []  # by version, the step that led to it
    lines: list[dict[str, float]] = []
    for _ in range(data.draw(st.integers(0, 4), label="kills")):
        killed_in = data.draw(st.integers(len(lines), len(moved)), label="in step")
        for step in range(len(lines), killed_in):
            trained += [step] if moved[step] else []
            lines.append({"step": step + 1.0, "policy_version": float(len(trained))})
        if killed_in < len(moved) and moved[killed_in] and data.draw(st.booleans(), label="line lost"):
            trained.append(killed_in)  # and committed, so nothing before it is missing
        else:
            durable = data.draw(st.integers(0, len(trained)), label="durable")
            trained = trained[:durable]
        point = resume_point(lines, len(trained))
        lines = lines[: point.kept]
        if point.restored is not None:
            lines.append({"step": float(point.restored), "policy_version": float(point.policy_version)})
    for step in range(len(lines), len(moved)):
        trained += [step] if moved[step] else []
        lines.append({"step": step + 1.0, "policy_version": float(len(trained))})
    assert trained == [step for step, moves in enumerate(moved) if moves]
    assert lines == lines_of(moved)


def test_two_generations_without_lines_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"version 3, but metrics\.jsonl ends with version 1"):
        resume_point(lines_of([True]), 3)


@pytest.mark.parametrize(
    "lines",
    [
        [{"step": 2.0, "policy_version": 1.0}],
        [{"step": 1.0, "policy_version": 2.0}],
        [{"step": 1.0, "policy_version": 1.0}, {"step": 2.0, "policy_version": 0.0}],
        [{"step": 1.0, "policy_version": 1.0}, {"step": 1.0, "policy_version": 2.0}],
    ],
)
def test_lines_that_no_run_writes_are_refused(lines: list[dict[str, float]]) -> None:
    with pytest.raises(ConfigError, match="cannot be resumed"):
        resume_point(lines, 2)
