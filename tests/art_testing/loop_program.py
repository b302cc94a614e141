"""The full loop on a tiny model, as a program for ``art-monarch local``; tests start it and read its lines.

Settings come from the environment: ``ART_TEST_MODEL`` (folder), ``ART_TEST_RUN`` (run folder),
``ART_TEST_STEPS``, ``ART_TEST_RESUME`` (1 resumes), ``ART_TEST_SAMPLING_S`` (seconds that every rollout after
the first step takes). It prints ``READY`` with the process ids of its parts, ``STEP`` after each step and
``FAILED`` when an error of ART ends it, each followed by JSON.
"""

import asyncio
import json
import os

import art
from art.distributed import ArtLaunchContext, ArtRuntime, compile_topology

WORDS = ("yes", "no", "maybe", "perhaps")
GROUPS = 3
SAMPLES = 4


async def rollout(model: art.TrainableModel, word: str, pause_s: float) -> art.Trajectory:
    """One short answer, worth more the fewer different characters it has."""
    await asyncio.sleep(pause_s)
    messages: art.Messages = [{"role": "user", "content": f"Answer {word}."}]
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_tokens=12, temperature=1.0
    )
    choice = completion.choices[0]
    answer = choice.message.content or ""
    return art.Trajectory(
        messages_and_choices=[*messages, choice],
        reward=1.0 - len(set(answer)) / 64,
        metadata={"answer": answer},
    )


def say(word: str, value: object) -> None:
    """One line for the test."""
    print(word, json.dumps(value), flush=True)


async def main(launch: ArtLaunchContext) -> None:
    """The plain synchronous loop."""
    art.init_megatron_runtime_config(topology=art.MegatronTopologyConfig(), packed_sequence_length=512)
    runtime = await ArtRuntime.start(
        launch.host_mesh,
        compile_topology(cluster=launch.homogeneous_cluster(cpu_slots=4, startup_timeout_s=120)),
    )
    try:
        rollouts = runtime.rollout_executor(rollout, target_workers=2)
        model = art.TrainableModel(
            name="tiny", project="tests", base_model=os.environ["ART_TEST_MODEL"], run_name="tiny"
        )
        backend = art.MegatronBackend(
            runtime=runtime,
            run_dir=os.environ["ART_TEST_RUN"],
            threads=1,
            resume=os.environ.get("ART_TEST_RESUME") == "1",
        )
        async with backend:
            await rollouts.start()
            await model.register(backend)
            say("READY", {handle.name: handle.pid for handle in runtime.actors.values()})
            groups: list[art.TrajectoryGroup] = []
            try:
                for number in range(int(os.environ["ART_TEST_STEPS"])):
                    pause_s = float(os.environ.get("ART_TEST_SAMPLING_S", "0")) if number else 0.0
                    groups = await art.gather_trajectory_groups(
                        art.TrajectoryGroup(
                            rollouts.submit(rollout, model, word, pause_s) for _ in range(SAMPLES)
                        )
                        for word in WORDS[:GROUPS]
                    )
                    if number == 0:
                        try:
                            await model.train([*groups, groups[0]])
                        except art.ArtError as error:
                            say("TWICE", str(error))
                    result = await model.train(groups, config=art.TrainConfig(learning_rate=1e-3))
                    say("STEP", {"step": result.step, **result.metrics})
            except art.ArtError as error:
                say("FAILED", str(error))
                raise
            try:
                if groups:
                    await model.train(groups)
            except art.ArtError as error:
                say("AGAIN", str(error))
        try:
            model.openai_client()
        except art.ArtError as error:
            say("CLOSED", str(error))
    finally:
        await runtime.close()
    say("END", None)
