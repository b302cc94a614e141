"""``python -m benchmarks.first_loop``; run from the repository's root."""

import argparse
import asyncio
import importlib.metadata
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from benchmarks import table
from benchmarks.first_loop.counts import count
from benchmarks.first_loop.messages import PlainResult, PlainSettings, PlainStep, Sample

if TYPE_CHECKING:
    from benchmarks.first_loop.ours import OurStep, Started
    from benchmarks.first_loop.report import Pair

    from art.distributed import ArtLaunchContext

ROOT = Path(__file__).resolve().parents[2]
_STARTUP_TIMEOUT_S = 120.0
_STEP_TIMEOUT_S = 300.0
_LINE_BYTES = 1 << 24


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs both loops; returns an exit status."""
    options = _parser().parse_args(arguments)
    from art.distributed import monarch_cli
    from art.distributed.programs import Program

    program = Program("benchmarks.first_loop.ours", "run", str(ROOT))
    with monarch_cli.Signals() as signals:
        benchmark = _Benchmark(options)
        try:
            asyncio.run(
                monarch_cli.run_local(program, benchmark.run, signals, startup_timeout_s=_STARTUP_TIMEOUT_S)
            )
        except (asyncio.CancelledError, KeyboardInterrupt):
            if signals.received is None:
                raise
            return 128 + signals.received
    benchmark.conclude()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = table.parser(
        "first_loop", "The demo's task in a plain loop of transformers and peft, step by step beside ART's."
    )
    parser.add_argument("--steps", type=int, default=12, metavar="N", help="default 12")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts, sampling and adapter")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument(
        "--own-samples",
        action="store_true",
        help="the plain loop draws its own answers instead of generating those that ART sampled",
    )
    return parser


class _Benchmark:
    """One run: the plain loop's process waits while ART takes a step, and ART while it takes the same one."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._pairs: list[Pair] = []
        self._started: Started | None = None
        self._process: asyncio.subprocess.Process

    async def run(self, launch: "ArtLaunchContext") -> None:
        from benchmarks.first_loop import ours

        from art.demo.yes_no_maybe import train

        options = self._options
        settings = train.Settings(steps=options.steps, seed=options.seed)
        self._learning_rate = settings.learning_rate
        print("starting ART ...", flush=True)
        with tempfile.TemporaryDirectory(prefix="first-loop-") as folder:
            self._process = await self._spawn()
            try:
                await ours.run(
                    launch,
                    steps=options.steps,
                    threads=options.threads,
                    settings=settings,
                    folder=Path(folder) / "run",
                    started=self._prepare,
                    stepped=self._step,
                )
            finally:
                self._process.kill()
                await self._process.wait()

    async def _spawn(self) -> asyncio.subprocess.Process:
        """The plain loop's process; it loads nothing before its settings come."""
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.first_loop.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(self._options.threads),
                "OMP_WAIT_POLICY": "PASSIVE",  # as ART's processes: else a busy machine makes it far slower
                "HF_HUB_OFFLINE": "1",
            },
            limit=_LINE_BYTES,
        )

    async def _ask(self, message: msgspec.Struct) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")
        async with asyncio.timeout(_STEP_TIMEOUT_S):
            answer = await self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the plain loop ended with {await self._process.wait()}; its error is above")
        return answer

    async def _prepare(self, started: "Started") -> None:
        from benchmarks.first_loop import load, report

        from art import TrainConfig

        self._started = started
        print(f"ART is up after {started.start_s:.1f} s; loading the plain loop ...", flush=True)
        config = TrainConfig()
        await self._ask(
            PlainSettings(
                model_path=started.model_path,
                adapter_path=started.adapter_path,
                learning_rate=self._learning_rate,
                clip_low=config.clip_epsilon_low,
                clip_high=config.clip_epsilon_high,
                max_grad_norm=config.max_grad_norm,
                threads=self._options.threads,
            )
        )
        print(report.HEADER, flush=True)
        self._before = load.usage()

    async def _step(
        self,
        ours: "OurStep",
        prompts: Sequence[str],
        recorded: list[list[Sample]],
        rewards: list[list[float]],
    ) -> None:
        from benchmarks.first_loop import load, report

        from art.demo import task

        asked = PlainStep(
            prompts=list(prompts),
            samples=len(recorded[0]),
            max_tokens=task.SAMPLING.max_tokens,
            recorded=None if self._options.own_samples else recorded,
        )
        plain = msgspec.json.decode(await self._ask(asked), type=PlainResult)
        pair = report.Pair(ours, plain, count(recorded, rewards))
        self._pairs.append(pair)
        print(report.line(pair), flush=True)
        self._others = load.others_share(self._before, load.usage())

    def conclude(self) -> None:
        """Prints the medians and writes the file."""
        from benchmarks.first_loop import report

        summary = report.summarize(self._pairs)
        print(report.text(summary))
        print(f"  other processes used {100 * self._others:.0f}% of the processors meanwhile")
        differences = [pair.plain.difference for pair in self._pairs if pair.plain.difference is not None]
        if differences:
            print(
                "  log-probs of the same tokens under both policies differ by "
                f"{differences[0]:.1e} on the first step and {max(differences):.1e} at most (mean per step)"
            )
        print(report.parts(self._pairs))
        table.write(
            self._options.json,
            report.rows(self._pairs),
            {
                "options": {"steps": self._options.steps, "seed": self._options.seed}
                | {"threads": self._options.threads, "own_samples": self._options.own_samples},
                "versions": {
                    name: importlib.metadata.version(name)
                    for name in ("openpipe-art", "torch", "transformers", "peft")
                },
                "machine": {"platform": platform.platform(), "cpus": len(os.sched_getaffinity(0))},
                "others_share": self._others,
                "start_s": self._started.start_s if self._started else None,
                "summary": summary,
                "steps": self._pairs,
            },
        )


if __name__ == "__main__":
    raise SystemExit(main())
