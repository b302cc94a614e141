"""``art demo`` itself: the reward it reaches, in which time and memory, and what it leaves."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from art_testing.leftovers import LeftoverChecker
from art_testing.memory_limit import memory_cgroup

from art.demo.model import ensure_smollm2
from art_serving import vllm_environment

GIB = 1 << 30
LIMIT_S = 480.0


@pytest.fixture
def checker() -> Iterator[LeftoverChecker]:
    with tempfile.TemporaryDirectory(prefix="art-") as temporary:  # short: sockets have to fit into it
        checker = LeftoverChecker(Path(temporary))
        yield checker
        checker.kill_all()


def test_it_learns_within_12_gib_and_eight_minutes(tmp_path: Path, checker: LeftoverChecker) -> None:
    # What is built once per machine is there before the clock starts.
    asyncio.run(ensure_smollm2(deadline_s=900))
    asyncio.run(vllm_environment(deadline_s=900))
    run = tmp_path / "run"
    command = [Path(sys.executable).with_name("art"), "demo", "--run-dir", run]
    environment = checker.environment({**os.environ, "ART_STATE_DIR": str(tmp_path / "state")})
    with memory_cgroup(12 * GIB) as group:
        begun = time.monotonic()
        result = subprocess.run(
            group.command(*map(str, command)),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
        duration_s, peak_bytes = time.monotonic() - begun, group.peak_bytes()
        print(result.stdout)
        print(f"ended after {duration_s:.0f} s, memory peak {peak_bytes / GIB:.1f} GiB")
        assert result.returncode == 0, result.stdout
        assert group.oom_kills() == 0
        checker.assert_clean(within_s=5)

    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert 5 <= len(steps) <= 25
    assert steps[0]["reward"] < 0.1
    assert sum(step["reward"] for step in steps[-5:]) / 5 > 0.95
    for step in steps:
        assert step["trajectories"] == 64
        if not step["skipped"]:
            assert step["sampler_difference_mean"] < 1e-4
            assert step["sampler_difference_p99"] < 1e-3
    assert len(list((run / "trajectories").glob("step-*.jsonl"))) == len(steps)
    newest = max(int(path.name.split("-")[1]) for path in (run / "generations").glob("step-*"))
    assert newest == steps[-1]["policy_version"]
    assert f"run folder: {run}" in result.stdout
