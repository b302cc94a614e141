"""SIGKILL for each part in turn: the error names the part and its cause, and nothing is left."""

import re
import time
from pathlib import Path

import pytest
from art_testing.leftovers import LeftoverChecker
from art_testing.loop_run import LoopRun, engine_pid, kill

from art.distributed.cleanup import sweep_dead_runs
from art.distributed.registry import Registry

MANY = 10_000
NOTICED_WITHIN_S = 3.0  # two seconds, and one for a machine that is busy
NAMED_WITHIN_S = 20
GONE_WITHIN_S = 20


SAMPLING_S = 120.0


def victim_of(part: str, pids: dict[str, int]) -> int:
    if part == "engine":
        return engine_pid(pids["model service tiny"])
    names = {
        "trainer": "trainer rank 0 of tiny",
        "packing worker": "packing worker tiny",
        "rollout worker": "rollout worker 0",
    }
    return pids[names[part]]


KILLED = [
    ("trainer", r"trainer rank 0 of tiny \(pid {pid}\) died: killed by SIGKILL.*dmesg.*with resume"),
    ("packing worker", r"packing worker tiny \(pid {pid}\) died: killed by SIGKILL.*dmesg.*with resume"),
    ("engine", r"model service 'tiny'.*engine core \(pid {pid}\).*SIGKILL"),
    ("rollout worker", r"rollout worker 0 \(pid {pid}\) died: killed by SIGKILL"),
]


@pytest.mark.parametrize(("part", "named"), KILLED)
def test_a_killed_part_is_named_with_its_cause_and_nothing_else_is_told(
    tiny_model: Path, tmp_path: Path, checker: LeftoverChecker, part: str, named: str
) -> None:
    with LoopRun(tiny_model, tmp_path / "run", checker, MANY) as run:
        pids = run.ready()
        run.step()
        victim = victim_of(part, pids)
        kill(victim)
        assert run.end(NAMED_WITHIN_S) == 1, run.output
        assert run.output.count("art-monarch: ") == 1, run.output
        last = run.output[run.output.rindex("art-monarch: ") :]
        assert re.search(named.format(pid=victim), last, re.DOTALL), run.output
        assert "closed with failures" not in run.output
        assert "durability" not in last
        checker.assert_clean(within_s=GONE_WITHIN_S)


@pytest.mark.parametrize(("part", "named"), KILLED)
def test_a_part_that_is_killed_while_sampling_runs_is_noticed_at_once(
    tiny_model: Path, tmp_path: Path, checker: LeftoverChecker, part: str, named: str
) -> None:
    with LoopRun(tiny_model, tmp_path / "run", checker, MANY, sampling_s=SAMPLING_S) as run:
        pids = run.ready()
        run.step()
        victim = victim_of(part, pids)
        kill(victim)
        killed = time.monotonic()
        text = run.failed(NAMED_WITHIN_S)
        assert time.monotonic() - killed < NOTICED_WITHIN_S, run.output
        assert re.search(named.format(pid=victim), text, re.DOTALL), text
        assert run.end(NAMED_WITHIN_S) == 1, run.output
        checker.assert_clean(within_s=GONE_WITHIN_S)


def test_a_killed_custodian_is_replaced_while_the_run_goes_on(
    tiny_model: Path, tmp_path: Path, checker: LeftoverChecker
) -> None:
    with LoopRun(tiny_model, tmp_path / "run", checker, MANY) as run:
        run.ready()
        run.step()
        (entry,) = Registry(tmp_path / "state").runs()
        assert entry.custodian is not None
        kill(entry.custodian.pid)
        run.step()
        run.step()
        gone = rf"custodian of run {entry.run_id} \(pid {entry.custodian.pid}\).* was killed by SIGKILL"
        said = f"{gone}; another took its place"
        assert re.search(said, run.output), run.output
        kill(run.process.pid)
        run.end(5)
        checker.assert_clean(within_s=GONE_WITHIN_S)
        (report,) = sweep_dead_runs(Registry(tmp_path / "state"))
        assert report.swept_by == "custodian"


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
