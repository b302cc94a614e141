"""ART's side: the demo's rollout, task and settings in the demo's loop, with a pause after each step.

A step is timed as the demo times it: gathering, then training until the new policy is active in the server.
"""

import asyncio
import base64
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
from benchmarks.first_loop.load import used_by_part
from benchmarks.first_loop.messages import Sample
from openai.types.chat.chat_completion import Choice

import art
from art.demo import task
from art.demo.model import ensure_smollm2
from art.demo.yes_no_maybe import train
from art.distributed import ArtLaunchContext, ArtRuntime, InstalledAsyncCallable, compile_topology
from art.records import CHOICE_FIELD
from art_dataplane import TokenRecord, decode

_DURABLE_S = 60.0
_POLL_S = 0.05

RECORD = "record"
"""Metadata of a trajectory: its token record as the server sent it."""


class OurStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a step took and found; seconds, and the metrics of ``art.TrainResult``.

    ``processor_s`` is processor time by part of ART, and of all its threads.
    """

    step: int
    rollout_s: float
    train_s: float
    reward: float
    trained: bool
    metrics: dict[str, float]
    processor_s: dict[str, float]


class Started(msgspec.Struct, frozen=True):
    """What is known before the first step; ``start_s`` is from the launch to registered."""

    start_s: float
    model_path: str
    adapter_path: str


type AfterStart = Callable[[Started], Awaitable[None]]
type AfterStep = Callable[[OurStep, Sequence[str], list[list[Sample]], list[list[float]]], Awaitable[None]]
"""Called with the step, its prompts, and per group what was sampled and the rewards."""


async def rollout(
    model: art.TrainableModel, scenario: task.Scenario, config: task.Sampling
) -> art.Trajectory:
    """The demo's rollout, which also hands out the record."""
    trajectory = await train.rollout(model, scenario, config)
    choice = trajectory.messages_and_choices[-1]
    assert isinstance(choice, Choice)
    trajectory.metadata[RECORD] = (choice.model_extra or {})[CHOICE_FIELD]
    return trajectory


async def run(
    launch: ArtLaunchContext,
    *,
    steps: int,
    threads: int,
    settings: train.Settings,
    folder: Path,
    started: AfterStart,
    stepped: AfterStep,
) -> None:
    """Runs ``steps`` steps; awaits ``started`` before the first and ``stepped`` after each.

    A step's adapter is on disk before ``stepped`` is called, so nothing of ART runs meanwhile.
    """
    base_model = await ensure_smollm2()
    begun = time.monotonic()
    art.init_megatron_runtime_config(topology=art.MegatronTopologyConfig(), packed_sequence_length=2048)
    model = art.TrainableModel(name="yes-no-maybe", project="benchmark", base_model=str(base_model))
    cluster = launch.homogeneous_cluster(cpu_slots=train.ROLLOUT_WORKERS + 2)
    runtime = await ArtRuntime.start(launch.host_mesh, compile_topology(cluster=cluster))
    backend = art.MegatronBackend(runtime=runtime, run_dir=folder, seed=settings.seed, threads=threads)
    async with runtime, backend:
        executor = runtime.rollout_executor(
            InstalledAsyncCallable.from_callable(rollout), target_workers=train.ROLLOUT_WORKERS
        )
        await executor.start()
        await model.register(backend)
        start_s = time.monotonic() - begun
        await started(Started(start_s, str(base_model), str(await _durable(folder, 0))))
        prompts = task.scenario_groups(task.TRAINING_WORDINGS, samples=settings.samples, seed=settings.seed)
        for step in range(1, steps + 1):
            scenarios = list(itertools.islice(prompts, settings.prompts))
            used = used_by_part()
            gathering = time.monotonic()
            groups = await art.gather_trajectory_groups(
                art.TrajectoryGroup(
                    executor.submit(rollout, model, scenario, task.SAMPLING, group_id=f"{step}-{index}")
                    for scenario in group
                )
                for index, group in enumerate(scenarios)
            )
            gathered = time.monotonic()
            result = await model.train(groups, config=art.TrainConfig(learning_rate=settings.learning_rate))
            ended = time.monotonic()
            await _durable(folder, result.step)
            now = used_by_part()
            rewards = [[_reward(item) for item in group] for group in groups]
            report = OurStep(
                step=step,
                rollout_s=gathered - gathering,
                train_s=ended - gathered,
                reward=statistics.fmean(itertools.chain(*rewards)),
                trained=not result.metrics.get("skipped"),
                metrics=result.metrics,
                processor_s={part: seconds - used.get(part, 0.0) for part, seconds in now.items()},
            )
            recorded = [[_sample(str(item.metadata[RECORD])) for item in group] for group in groups]
            await stepped(report, [group[0].prompt for group in scenarios], recorded, rewards)


def _reward(item: art.trajectories.Rollout) -> float:
    """A benchmark compares whole steps: a rollout without a reward, which failed, ends it."""
    if item.reward is None:
        raise RuntimeError(f"a rollout failed and has no reward: {item}")
    return item.reward


def _sample(field: str) -> Sample:
    record = decode(base64.b64decode(field), TokenRecord)
    return Sample(record.prompt_ids.tolist(), record.completion_ids.tolist(), record.logprobs.tolist())


async def _durable(folder: Path, version: int) -> Path:
    """The folder of a version's adapter, once it is there.

    Raises:
        TimeoutError: it was not there in time.
    """
    deadline = time.monotonic() + _DURABLE_S
    while True:
        found = list((folder / "generations").glob(f"step-{version:08d}-*"))
        if found:
            return found[0]
        if time.monotonic() > deadline:
            raise TimeoutError(f"version {version} was not on disk within {_DURABLE_S:.0f} s")
        await asyncio.sleep(_POLL_S)
