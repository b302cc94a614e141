"""One training step on conversations of two turns, for ``art-monarch local``; run it beside the calculator
example's ``train.py``.

Some are the example's. In the others the second prompt shows the first answer in another form than it was
sampled in, so that it does not continue it. Prints ``RECORDS`` (the token ids of all exchanges, group by
group) and ``STEP`` (the step's metrics), both followed by JSON.
"""

import json

import train

import art
from art.demo.model import ensure_smollm2
from art.distributed import ArtLaunchContext, ArtRuntime, compile_topology

SAMPLES = 6


async def rollout(model: art.TrainableModel, problem: train.Problem, form: str) -> art.Trajectory:
    """The example's rollout, or two turns of which the second shows the first in capital letters."""
    if form == "example":
        return await train.rollout(model, problem, None)
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": problem.question}], reward=0.0
    )
    first = await train.ask(model, trajectory, train.CALL_TOKENS, problem.seed)
    said = first.message.content or ""
    shown: art.Messages = [
        {"role": "user", "content": problem.question},
        {"role": "assistant", "content": f" {said.upper()}"},
        {"role": "user", "content": "Are you sure?"},
    ]
    other = art.Trajectory(messages_and_choices=shown, reward=0.0)
    second = await train.ask(model, other, train.ANSWER_TOKENS, problem.seed)
    trajectory.messages_and_choices.append(second)
    trajectory.reward = float(len(said))
    return trajectory


async def main(launch: ArtLaunchContext) -> None:
    """Samples, trains once and says what it saw."""
    base_model = await ensure_smollm2()
    art.init_megatron_runtime_config(packed_sequence_length=1024)
    model = art.TrainableModel(name="turns", project="tests", base_model=str(base_model))
    runtime = await ArtRuntime.start(
        launch.host_mesh, compile_topology(cluster=launch.homogeneous_cluster(cpu_slots=4))
    )
    (run_dir,) = launch.arguments
    async with runtime, art.MegatronBackend(runtime=runtime, run_dir=run_dir) as backend:
        executor = runtime.rollout_executor(rollout, target_workers=2)
        await executor.start()
        await model.register(backend)
        problems = train.problem_groups(train.WORDINGS, train.NUMBERS, samples=SAMPLES, seed=0)
        forms = ("example", "example", "example", "other")
        groups = await art.gather_trajectory_groups(
            art.TrajectoryGroup(executor.submit(rollout, model, problem, form) for problem in group)
            for form, group in zip(forms, problems, strict=False)
        )
        said = []
        for form, group in zip(forms, groups, strict=True):
            records = await executor.records(list(group), deadline_s=30)
            said.append(
                {
                    "form": form,
                    "rewards": [record.reward for record in records],
                    "exchanges": [
                        [
                            [each.prompt_ids.tolist(), each.completion_ids.tolist()]
                            for each in record.exchanges
                        ]
                        for record in records
                    ],
                }
            )
        print("RECORDS", json.dumps(said), flush=True)
        result = await model.train(groups, config=art.TrainConfig(learning_rate=5e-4))
        print("STEP", json.dumps({"step": result.step, **result.metrics}), flush=True)
