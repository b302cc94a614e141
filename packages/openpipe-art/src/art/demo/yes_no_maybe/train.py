"""A small language model learns to answer "maybe".

`art demo` runs this program. To change it, copy it and run the copy:

    art-monarch local --program train.py:main
"""

import asyncio
import itertools
import time
from pathlib import Path

import msgspec

import art
from art.demo import task
from art.demo.model import ensure_smollm2
from art.demo.report import RunReport
from art.distributed import ArtLaunchContext, ArtRuntime, InstalledAsyncCallable, compile_topology

ROLLOUT_WORKERS = 2


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What can be varied without changing the program.

    Args:
        steps: the most that are taken.
        prompts: how many per step; the answers to one prompt are compared with each other.
        samples: answers to each prompt.
        learning_rate: AdamW's.
        enough: training ends early once the mean reward of the last five steps is above this.
        seed: of the prompts, the sampling and the adapter's first weights.
        run_dir: a new folder for what the run leaves; by default one under `runs/`.
    """

    steps: int = 25
    prompts: int = 4
    samples: int = 16
    learning_rate: float = 5e-4
    enough: float = 0.95
    seed: int = 0
    run_dir: Path | None = None


DEFAULTS = Settings()


async def rollout(
    model: art.TrainableModel, scenario: task.Scenario, config: task.Sampling
) -> art.Trajectory:
    """Asks the model once. Runs in a worker process, many at a time."""
    messages: art.Messages = [{"role": "user", "content": scenario.prompt}]
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=messages,
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        seed=scenario.seed,
    )
    choice = completion.choices[0]
    answer = choice.message.content or ""
    return art.Trajectory(
        messages_and_choices=[*messages, choice],
        reward=task.reward(answer),
        metrics={"completion_tokens": completion.usage.completion_tokens if completion.usage else 0},
        metadata={"prompt": scenario.prompt, "answer": answer},
    )


async def main(launch: ArtLaunchContext, settings: Settings = DEFAULTS) -> None:
    """The whole run: a plain loop that gathers answers and trains on them."""
    with RunReport("yes-no-maybe", settings.run_dir, settings) as report:
        with report.phase("model SmolLM2-135M-Instruct"):
            base_model = await ensure_smollm2(progress=report.progress)
        art.init_megatron_runtime_config(topology=art.MegatronTopologyConfig(), packed_sequence_length=2048)
        model = art.TrainableModel(name="yes-no-maybe", project="demo", base_model=str(base_model))
        cluster = launch.homogeneous_cluster(cpu_slots=ROLLOUT_WORKERS + 2)
        runtime = await ArtRuntime.start(launch.host_mesh, compile_topology(cluster=cluster))
        async with (
            runtime,
            art.MegatronBackend(
                runtime=runtime, run_dir=report.folder, seed=settings.seed, progress=report.progress
            ) as backend,
        ):
            executor = runtime.rollout_executor(
                InstalledAsyncCallable.from_callable(rollout), target_workers=ROLLOUT_WORKERS
            )
            with report.phase("rollout workers, vLLM and trainer"):
                await executor.start()
                await model.register(backend)
            prompts = task.scenario_groups(
                task.TRAINING_WORDINGS, samples=settings.samples, seed=settings.seed
            )
            for step in range(1, settings.steps + 1):
                started = time.monotonic()
                groups = await art.gather_trajectory_groups(
                    art.TrajectoryGroup(
                        executor.submit(rollout, model, scenario, task.SAMPLING, group_id=f"{step}-{index}")
                        for scenario in group
                    )
                    for index, group in enumerate(itertools.islice(prompts, settings.prompts))
                )
                sampled = time.monotonic()
                result = await model.train(
                    groups, config=art.TrainConfig(learning_rate=settings.learning_rate)
                )
                report.step(
                    step, groups, result, rollout_s=sampled - started, train_s=time.monotonic() - sampled
                )
                if report.recent_reward() > settings.enough:
                    break
            with report.phase("wordings it was not trained on"):
                held_out = itertools.islice(
                    task.scenario_groups(task.HELD_OUT_WORDINGS, samples=1, seed=settings.seed), 32
                )
                answers = await asyncio.gather(
                    *(
                        executor.run(index % ROLLOUT_WORKERS, rollout, model, scenario, task.SAMPLING)
                        for index, (scenario,) in enumerate(held_out)
                    )
                )
            report.held_out(answers)
