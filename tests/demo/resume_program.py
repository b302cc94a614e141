"""A loop on a tiny model that can be resumed, and that kills itself at a chosen moment; tests start it.

Settings come from the environment: ``ART_TEST_MODEL`` and ``ART_TEST_RUN`` (folders), ``ART_TEST_STEPS``,
``ART_TEST_RESUME`` (1 resumes), ``ART_TEST_LORA_RANK``, and ``ART_TEST_KILL``: ``MOMENT`` or
``MOMENT:STEP``, see :class:`Killer`. Step 3's rewards are all equal, so it takes no optimizer step.
"""

import os
import signal
import sys
import time
from pathlib import Path

import msgspec

import art
from art.distributed import ArtLaunchContext, ArtRuntime, InstalledAsyncCallable, compile_topology
from art.reporting import JsonDisplay, RunReport
from art.reporting.events import Event, PhaseStarted, StepSampled, StepStarted
from art.reporting.generations import newest_version

SAMPLES = 4
EQUAL_STEP = 3


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """As a user's program has them."""

    steps: int = int(os.environ["ART_TEST_STEPS"]) if "ART_TEST_STEPS" in os.environ else 5
    run_dir: Path | None = None
    resume: bool = False


class Scenario(msgspec.Struct, frozen=True):
    """One prompt; ``number`` counts the prompts of a run."""

    number: int
    equal: bool


async def rollout(model: art.TrainableModel, scenario: Scenario, _config: None) -> art.Trajectory:
    """One short answer, worth more the fewer different characters it has."""
    messages: art.Messages = [{"role": "user", "content": f"Answer {scenario.number}."}]
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_tokens=8, temperature=1.0
    )
    choice = completion.choices[0]
    answer = choice.message.content or ""
    return art.Trajectory(
        messages_and_choices=[*messages, choice],
        reward=0.5 if scenario.equal else 1.0 - len(set(answer)) / 64,
        metadata={"number": scenario.number, "answer": answer},
    )


class Killer:
    """A display that ends its process with SIGKILL at a moment.

    ``start`` while parts start, ``rollouts`` in the middle of a step's rollouts, ``training`` just before a
    step is trained, ``trained`` before its line is written and once its generation is durable.
    """

    def __init__(self, moment: str) -> None:
        self.moment, _, step = moment.partition(":")
        self.step = int(step or 0)
        self.json = JsonDisplay()

    def show(self, event: Event) -> None:
        """Tells, then kills when the moment has come."""
        self.json.show(event)
        match event:
            case PhaseStarted() if self.moment == "start":
                kill()
            case StepStarted(step=self.step) if self.moment == "rollouts":
                signal.signal(signal.SIGALRM, lambda *_: kill())
                signal.setitimer(signal.ITIMER_REAL, 0.05)
            case StepSampled(step=self.step) if self.moment == "training":
                kill()

    def watch(self, counts: object) -> None:
        """Counts are not shown."""

    def close(self) -> None:
        """Nothing is held."""

    def was_trained(self, step: int, folder: Path, version: int) -> None:
        """After the optimizer step, before its line."""
        if self.moment != "trained" or self.step != step:
            return
        deadline = time.monotonic() + 30
        while newest_version(folder) < version:
            if time.monotonic() > deadline:
                sys.exit("the generation did not become durable within 30 s")
            time.sleep(0.005)
        kill()


def kill() -> None:
    """As the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


async def main(launch: ArtLaunchContext) -> None:
    """The plain loop."""
    killer = Killer(os.environ.get("ART_TEST_KILL", ""))
    settings = Settings(
        run_dir=Path(os.environ["ART_TEST_RUN"]), resume=os.environ.get("ART_TEST_RESUME") == "1"
    )
    base_model = Path(os.environ["ART_TEST_MODEL"])
    async with RunReport(
        "tiny", settings.run_dir, settings, resume=settings.resume, display=killer
    ) as report:
        report.model(base_model)
        art.init_megatron_runtime_config(topology=art.MegatronTopologyConfig(), packed_sequence_length=512)
        runtime = await ArtRuntime.start(
            launch.host_mesh,
            compile_topology(cluster=launch.homogeneous_cluster(cpu_slots=4, startup_timeout_s=120)),
        )
        model = art.TrainableModel(name="tiny", project="tests", base_model=str(base_model))
        backend = art.MegatronBackend(
            runtime=runtime,
            run_dir=report.folder,
            threads=1,
            lora_rank=int(os.environ.get("ART_TEST_LORA_RANK", "8")),
            resume=settings.resume,
        )
        async with runtime, backend:
            executor = runtime.rollout_executor(
                InstalledAsyncCallable.from_callable(rollout), target_workers=2
            )
            report.watch(executor)
            with report.phase("parts"):
                await executor.start()
                await model.register(backend)
            if not report.steps_done:
                await report.evaluate(
                    "held-out", (executor.run(0, rollout, model, Scenario(-1, False), None) for _ in range(2))
                )
            for step in report.steps(settings.steps):
                groups = await art.gather_trajectory_groups(
                    art.TrajectoryGroup(
                        executor.submit(
                            rollout, model, Scenario(number, step == EQUAL_STEP), None, group_id=str(number)
                        )
                        for _ in range(SAMPLES)
                    )
                    for number in (2 * step, 2 * step + 1)
                )
                await report.sampled(groups)
                result = await model.train(groups, config=art.TrainConfig(learning_rate=1e-3))
                killer.was_trained(step, report.folder, result.step)
                report.trained(result)
            await report.evaluate(
                "held-out", (executor.run(0, rollout, model, Scenario(-1, False), None) for _ in range(2))
            )
