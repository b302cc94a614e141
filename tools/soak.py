"""Runs the demo with several seeds and writes the table of what each reached: ``nox -s soak``.

Each run is the command that a user types, one after the other, in a folder of its own. The exit status is 1
when one of them failed or missed the reward, and the table says which.
"""

import argparse
import datetime
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from art.reporting import run_folder

ENOUGH = 0.95
WINDOW = 5
LIMIT_S = 900.0


class SeedResult(msgspec.Struct, frozen=True):
    """What one run reached.

    Args:
        seed: of the run.
        exit_status: of the command; the rest is of what it left.
        duration_s: of the whole command, start-up included.
        rewards: of each step on the training wordings.
        held_out_before, held_out_after: rewards on wordings that were not trained on; ``None`` when absent.
        difference_mean: the largest mean difference of log-probs between trainer and sampler in any step.
    """

    seed: int
    exit_status: int
    duration_s: float
    rewards: tuple[float, ...]
    held_out_before: float | None
    held_out_after: float | None
    difference_mean: float | None

    @property
    def last(self) -> float:
        """Mean reward of the last steps."""
        return statistics.fmean(self.rewards[-WINDOW:]) if self.rewards else 0.0

    @property
    def reached(self) -> bool:
        """Whether the run ended well and reached the reward."""
        return self.exit_status == 0 and len(self.rewards) >= WINDOW and self.last > ENOUGH


def main() -> int:
    """The command; 0 when every seed reached the reward."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0 (default 5)")
    parser.add_argument("--runs", type=Path, required=True, help="a new folder for the runs")
    parser.add_argument("--table", type=Path, help="where the table is written as Markdown")
    options = parser.parse_args()
    options.runs.mkdir(parents=True)
    results = []
    for seed in range(options.seeds):
        results.append(one_seed(seed, options.runs / f"seed-{seed}"))
        print(row(results[-1]), flush=True)
    text = page(results)
    print(text)
    if options.table is not None:
        options.table.write_text(text)
    return 0 if all(result.reached for result in results) else 1


def one_seed(seed: int, folder: Path) -> SeedResult:
    """Runs the demo; its output goes to the terminal."""
    begun = time.monotonic()
    command = [
        str(Path(sys.executable).with_name("art")),
        "demo",
        "--seed",
        str(seed),
        "--run-dir",
        str(folder),
    ]
    print(f"$ art demo --seed {seed}", flush=True)
    exit_status = subprocess.run(command, timeout=LIMIT_S).returncode
    duration_s = time.monotonic() - begun
    steps = run_folder.read_steps(folder)
    evaluations = list(run_folder.read_lines(folder / run_folder.EVALUATIONS, run_folder.EvaluationLine))
    before = [line.reward for line in evaluations if line.policy_version == 0]
    after = [line.reward for line in evaluations if line.policy_version > 0]
    return SeedResult(
        seed=seed,
        exit_status=exit_status,
        duration_s=duration_s,
        rewards=tuple(step["reward"] for step in steps),
        held_out_before=before[0] if before else None,
        held_out_after=after[-1] if after else None,
        difference_mean=max(
            (step["sampler_difference_mean"] for step in steps if "sampler_difference_mean" in step),
            default=None,
        ),
    )


def row(result: SeedResult) -> str:
    """One line of the table."""
    first = f"{result.rewards[0]:.3f}" if result.rewards else "-"
    cells = (
        str(result.seed),
        first,
        f"{result.last:.3f}",
        str(len(result.rewards)),
        _number(result.held_out_before, ".3f"),
        _number(result.held_out_after, ".3f"),
        _number(result.difference_mean, ".1e"),
        f"{result.duration_s:.0f} s",
        "yes" if result.reached else f"no (exit status {result.exit_status})",
    )
    return f"| {' | '.join(cells)} |"


def page(results: list[SeedResult]) -> str:
    """The table as a page."""
    reached = sum(result.reached for result in results)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    lines = [
        "# Does it learn with every seed?",
        "",
        f"`uv run nox -s soak` runs `art demo` with {len(results)} seeds, one after the other. {reached} of "
        f"{len(results)} reached a mean reward above {ENOUGH} over their last {WINDOW} steps. A seed decides "
        "the prompts, the sampling and the adapter's first weights. Held-out wordings are never trained on; "
        "they are answered once before the first step and once after the last.",
        "",
        f"Written by that command on {today}: {os.cpu_count()} cores ({platform.machine()}), no GPU.",
        "",
        "| seed | reward, step 1 | last 5 steps | steps | held out, before | held out, after "
        "| largest mean log-prob difference | whole command | reached |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(row, results),
        "",
    ]
    return "\n".join(lines)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


if __name__ == "__main__":
    raise SystemExit(main())
