"""A small language model learns to answer "maybe".

`art demo` runs this program. To change it, copy it and run the copy:

    art-monarch local --program train.py:main -- --steps 8 --seed 1
"""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec

import art
from art.checks.arguments import folder_argument, whole_number
from art.demo import task
from art.demo.model import fetched
from art.distributed import ArtLaunchContext, ArtRuntime, RolloutExecutor, compile_topology
from art.reporting import Display, RunReport

NAME = "yes-no-maybe"
ROLLOUT_WORKERS = 2
HELD_OUT = 32


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What can be varied without changing the program; :func:`settings_from` reads some from arguments.

    Args:
        model: a Hugging Face folder to train in place of SmolLM2-135M-Instruct.
        steps: the most that are taken.
        prompts: how many per step; the answers to one prompt are compared with each other.
        samples: answers to each prompt.
        learning_rate: AdamW's.
        enough: training ends early once the mean reward of the last five steps is above this.
        seed: of the prompts, the sampling and the adapter's first weights.
        run_dir: a new folder for what the run leaves; by default one under `runs/`.
        resume: go on with the run in `run_dir`, which was stopped.
    """

    model: Path | None = None
    steps: int = 25
    prompts: int = 4
    samples: int = 16
    learning_rate: float = 5e-4
    enough: float = 0.95
    seed: int = 0
    run_dir: Path | None = None
    resume: bool = False


DEFAULTS = Settings()


def settings_from(arguments: Sequence[str]) -> Settings:
    """The settings that the arguments of the program ask for; wrong ones end it with 2, ``--help`` with 0."""
    parser = argparse.ArgumentParser(
        "train.py", allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--model",
        type=folder_argument,
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="folder of a Hugging Face model to train in place of SmolLM2-135M-Instruct",
    )
    parser.add_argument(
        "--steps",
        type=lambda text: whole_number(text, 1, 100_000),
        metavar="N",
        default=DEFAULTS.steps,
        help="the most steps to take; it ends earlier once the mean reward of five steps is above "
        f"{DEFAULTS.enough}",
    )
    parser.add_argument(
        "--seed",
        type=lambda text: whole_number(text, 0, 2**32 - 1),
        metavar="N",
        default=DEFAULTS.seed,
        help="of the prompts, the sampling and the adapter's first weights",
    )
    parser.add_argument(
        "--run-dir",
        type=folder_argument,
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="a new folder for what the run leaves, or with --resume that of the run (default: under runs/)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in --run-dir, which was stopped"
    )
    settings = Settings(**vars(parser.parse_args(arguments)))
    if settings.resume and settings.run_dir is None:
        parser.error("--resume needs the folder of the run: --run-dir DIR --resume")
    return settings


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
        metadata={"prompt": scenario.prompt, "answer": answer},
    )


async def main(
    launch: ArtLaunchContext,
    settings: Settings | None = None,
    display: Display | None = None,
    resume_command: str | None = None,
) -> None:
    """The whole run: starts the parts, trains, and ends them. `art demo` gives all arguments."""
    settings = settings or settings_from(launch.arguments)
    report = RunReport(
        NAME,
        settings.run_dir,
        settings,
        resume=settings.resume,
        resume_command=resume_command or launch.resume_command("--run-dir"),
        summary=task.summary,
        display=display,
    )
    async with report:
        base_model = await fetched(report, settings.model)
        art.init_megatron_runtime_config(topology=art.MegatronTopologyConfig(), packed_sequence_length=2048)
        art.check_prompt_lengths(base_model, task.all_prompts(), max_tokens=task.SAMPLING.max_tokens)
        model = art.TrainableModel(name=NAME, project="demo", base_model=str(base_model))
        cluster = launch.homogeneous_cluster(cpu_slots=ROLLOUT_WORKERS + 2)
        runtime = await ArtRuntime.start(launch.host_mesh, compile_topology(cluster=cluster))
        backend = art.MegatronBackend(
            runtime=runtime,
            run_dir=report.folder,
            seed=settings.seed,
            resume=settings.resume,
            progress=report.progress,
            notice=report.line,
        )
        async with runtime, backend:
            executor = runtime.rollout_executor(rollout, target_workers=ROLLOUT_WORKERS)
            report.watch(executor)
            with report.phase("rollout workers, vLLM and trainer", usually="15 to 30 s"):
                await executor.start()
                report.progress("rollout workers ready")
                await model.register(backend)
            if not report.steps_done:
                await evaluate(report, executor, model, settings)
            await train(report, executor, model, settings)
            await evaluate(report, executor, model, settings)


async def train(
    report: RunReport, executor: RolloutExecutor, model: art.TrainableModel, settings: Settings
) -> None:
    """A plain loop: gathers answers, trains on them, and so on."""
    prompts = task.scenario_groups(task.TRAINING_WORDINGS, samples=settings.samples, seed=settings.seed)
    prompts = itertools.islice(prompts, settings.prompts * report.steps_done, None)
    config = art.TrainConfig(learning_rate=settings.learning_rate)
    for _ in report.steps(settings.steps, enough=settings.enough):
        groups = await art.gather_trajectory_groups(
            art.TrajectoryGroup(
                executor.submit(rollout, model, scenario, task.SAMPLING) for scenario in group
            )
            for group in itertools.islice(prompts, settings.prompts)
        )
        await report.sampled(groups, config=config)
        report.trained(await model.train(groups, config=config))


async def evaluate(
    report: RunReport, executor: RolloutExecutor, model: art.TrainableModel, settings: Settings
) -> None:
    """Asks once each of some prompts whose wordings are not trained on."""
    scenarios = task.scenario_groups(task.HELD_OUT_WORDINGS, samples=1, seed=settings.seed)
    await report.evaluate(
        "held-out",
        (
            executor.run(None, rollout, model, scenario, task.SAMPLING)
            for (scenario,) in itertools.islice(scenarios, HELD_OUT)
        ),
    )


if __name__ == "__main__":
    raise SystemExit("start it with: art-monarch local --program train.py:main")
