"""SIGKILL for each part in turn: the error names the part and its cause, and nothing is left."""

import re
from pathlib import Path

import pytest
from art_testing.leftovers import LeftoverChecker
from art_testing.loop_run import LoopRun, engine_pid, kill

MANY = 10_000
NAMED_WITHIN_S = 20
GONE_WITHIN_S = 20


def victim_of(part: str, pids: dict[str, int]) -> int:
    if part == "engine":
        return engine_pid(pids["model service tiny"])
    return pids[{"trainer": "trainer rank 0 of tiny", "rollout worker": "rollout worker 0"}[part]]


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("trainer", r"trainer rank 0 of tiny \(pid {pid}\) died: killed by SIGKILL"),
        ("engine", r"model service 'tiny'.*engine core \(pid {pid}\).*SIGKILL"),
        ("rollout worker", r"rollout worker 0 \(pid {pid}\) died: killed by SIGKILL"),
    ],
)
def test_a_killed_part_is_named_with_its_cause(
    tiny_model: Path, tmp_path: Path, checker: LeftoverChecker, part: str, named: str
) -> None:
    with LoopRun(tiny_model, tmp_path / "run", checker, MANY) as run:
        pids = run.ready()
        run.step()
        victim = victim_of(part, pids)
        kill(victim)
        assert run.end(NAMED_WITHIN_S) == 1, run.output
        last = run.output[run.output.rindex("art-monarch: ") :]
        assert re.search(named.format(pid=victim), last, re.DOTALL), run.output
        checker.assert_clean(within_s=GONE_WITHIN_S)


def test_a_killed_controller_leaves_nothing_and_the_next_start_says_so(
    tiny_model: Path, tmp_path: Path, checker: LeftoverChecker
) -> None:
    run_dir = tmp_path / "run"
    with LoopRun(tiny_model, run_dir, checker, MANY) as run:
        run.ready()
        run.step()
        last = run.step()["step"]
        kill(run.process.pid)
        run.end(5)
        checker.assert_clean(within_s=GONE_WITHIN_S)
    durable = max(int(path.name.split("-")[1]) for path in (run_dir / "generations").glob("step-*"))
    assert durable >= last - 2, "durability may lag behind by the snapshots that are in flight"
    with LoopRun(tiny_model, run_dir, checker, 1, resume=True) as again:
        again.ready()
        assert again.step()["step"] == durable + 1, "the run goes on from its last durable generation"
        assert again.end(30) == 0, again.output
        assert f"pid {run.process.pid}" in again.output, again.output
        checker.assert_clean(within_s=5)
