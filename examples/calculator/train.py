"""A small language model learns to use a calculator: two turns and a tool call, and both turns are trained.

    art-monarch local --program train.py:main

In its first turn the model is to call a tool, ``[multiply(a=47, b=85)]``. The rollout runs the tool and gives
the result back as a message of the role ``tool``; in its second turn the model is to answer with the number.
"""

import argparse
import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from openai.types.chat import ChatCompletionMessageFunctionToolCall as ToolCall
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_message_function_tool_call import Function

import art
from art.demo.model import ensure_smollm2, ensure_vllm
from art.distributed import ArtLaunchContext, ArtRuntime, compile_topology
from art.reporting import RunReport

ROLLOUT_WORKERS = 2
HELD_OUT = 32
CALL_TOKENS = 20
ANSWER_TOKENS = 8

TOOLS: art.Tools = [
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "The product of two whole numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
]

# SmolLM2's chat template leaves tools out, so the prompt shows one use. The call is written as Llama 4 writes
# it ("pythonic"): few tokens, which the untrained model gets right now and then.
PROMPT: art.Messages = [
    {"role": "system", "content": "Use the calculator, then answer."},
    {"role": "user", "content": "What is 12 times 34?"},
    {"role": "assistant", "content": "[multiply(a=12, b=34)]"},
    {"role": "tool", "tool_call_id": "call_0", "content": "408"},
    {"role": "assistant", "content": "408"},
]
CALL = re.compile(r"\[(\w+)\(((?:\w+=\d+(?:, )?)*)\)\]")

NUMBERS = range(12, 70)
WORDINGS = ("What is {a} times {b}?", "What is {a} * {b}?", "Multiply {a} by {b}.")
HELD_OUT_NUMBERS = range(70, 99)
HELD_OUT_WORDINGS = ("How much is {a} times {b}?", "What do you get for {a} x {b}?")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What can be varied from outside: ``art-monarch local --program train.py:main -- --steps 5 --seed 1``.

    Args:
        steps: the most that are taken.
        problems: how many per step; the attempts at one problem are compared with each other.
        samples: attempts at each problem.
        learning_rate: AdamW's.
        enough: training ends early once the mean reward of the last five steps is above this.
        seed: of the problems, the sampling and the adapter's first weights.
        run_dir: a new folder for what the run leaves; by default one under `runs/`.
        resume: go on with the run in `run_dir`, which was stopped.
    """

    steps: int = 25
    problems: int = 4
    samples: int = 12
    learning_rate: float = 5e-4
    enough: float = 0.95
    seed: int = 0
    run_dir: str = ""
    resume: bool = False


HELP = {
    "steps": "the most steps to take; it ends earlier once five steps' mean reward is above --enough",
    "problems": "how many per step; the attempts at one problem are compared with each other",
    "samples": "attempts at each problem",
    "learning_rate": "AdamW's",
    "enough": "mean reward of five steps at which training ends",
    "seed": "of the problems, the sampling and the adapter's first weights",
    "run_dir": "a new folder for what the run leaves, or with --resume that of the run; empty: under runs/",
    "resume": "go on with the run in --run-dir, which was stopped",
}


def settings_from(arguments: Sequence[str]) -> Settings:
    """The settings, each replaced by the argument of its name where there is one: ``--steps 5 --seed 1``."""
    parser = argparse.ArgumentParser(
        "train.py", allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for field in msgspec.structs.fields(Settings):
        option, kind = f"--{field.name.replace('_', '-')}", type(field.default)
        if kind is bool:
            parser.add_argument(option, action="store_true", help=HELP[field.name])
        else:
            parser.add_argument(
                option, type=kind, default=field.default, help=HELP[field.name], metavar=kind.__name__.upper()
            )
    settings = Settings(**vars(parser.parse_args(arguments)))
    for name, least in (("steps", 1), ("problems", 1), ("samples", 2), ("seed", 0)):
        if getattr(settings, name) < least:
            parser.error(f"--{name} {getattr(settings, name)} must be at least {least}")
    for name in ("learning_rate", "enough"):
        if not 0 < getattr(settings, name) <= 1:
            option = f"--{name.replace('_', '-')}"
            parser.error(f"{option} {getattr(settings, name)} must be above 0 and at most 1")
    if settings.resume and not settings.run_dir:
        parser.error("--resume needs the folder of the run: --run-dir DIR --resume")
    return settings


class Problem(msgspec.Struct, frozen=True):
    """What one rollout is asked, and the seed that it is sampled with."""

    a: int
    b: int
    wording: str
    seed: int

    @property
    def question(self) -> str:
        """The user's message."""
        return self.wording.format(a=self.a, b=self.b)


def problem_groups(
    wordings: Sequence[str], numbers: Sequence[int], *, samples: int, seed: int
) -> Iterator[tuple[Problem, ...]]:
    """Endless groups of ``samples`` equal problems that differ in their sampling seeds."""
    generator = random.Random(seed)
    while True:
        a, b, wording = generator.choice(numbers), generator.choice(numbers), generator.choice(wordings)
        yield tuple(Problem(a, b, wording, generator.getrandbits(31)) for _ in range(samples))


def parse_call(text: str) -> ToolCall | None:
    """The tool call that ``text`` is, as the OpenAI protocol has it, or None."""
    match = CALL.fullmatch(text.strip())
    if match is None:
        return None
    name, arguments = match[1], dict(pair.split("=") for pair in match[2].split(", ") if pair)
    function = Function(name=name, arguments=json.dumps({key: int(arguments[key]) for key in arguments}))
    return ToolCall(id="call_1", type="function", function=function)


def run_tool(call: ToolCall) -> str:
    """Runs the tool; what is wrong with the call is the result, too, for the model to read."""
    arguments = json.loads(call.function.arguments)
    if call.function.name != "multiply" or arguments.keys() != {"a", "b"}:
        return "error: the only tool is multiply(a, b)"
    return str(arguments["a"] * arguments["b"])


def reward_of(problem: Problem, result: str | None, answer: str | None) -> float:
    """0.2 for a call that the tool can run, 0.3 more for the right numbers, 0.5 more for the right answer."""
    if result is None or result.startswith("error"):
        return 0.0
    product = str(problem.a * problem.b)
    if result != product:
        return 0.2
    return 1.0 if answer == product else 0.5


async def ask(model: art.TrainableModel, trajectory: art.Trajectory, max_tokens: int, seed: int) -> Choice:
    """One turn of the model: samples what comes next and appends it to the conversation."""
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=trajectory.messages(),
        max_tokens=max_tokens,
        temperature=1.0,
        seed=seed,
    )
    choice = completion.choices[0]
    trajectory.messages_and_choices.append(choice)
    return choice


async def rollout(model: art.TrainableModel, problem: Problem, _config: None) -> art.Trajectory:
    """One conversation: question, tool call, result, answer. Runs in a worker process, many at a time."""
    trajectory = art.Trajectory(
        messages_and_choices=[*PROMPT, {"role": "user", "content": problem.question}], tools=TOOLS, reward=0.0
    )
    first = await ask(model, trajectory, CALL_TOKENS, problem.seed)
    call, result, answer = parse_call(first.message.content or ""), None, None
    if call is not None:
        first.message.tool_calls = [call]
        result = run_tool(call)
        trajectory.messages_and_choices.append({"role": "tool", "tool_call_id": call.id, "content": result})
        answer = (await ask(model, trajectory, ANSWER_TOKENS, problem.seed)).message.content
    trajectory.reward = reward_of(problem, result, answer)
    trajectory.metadata = {
        "question": problem.question,
        "call": first.message.content,
        "result": result,
        "answer": answer,
    }
    return trajectory


def summary(groups: Sequence[art.TrajectoryGroup]) -> str:
    """What the rollouts of a step came to; one that failed has no reward and is not counted."""
    rewards = [item.reward for group in groups for item in group if item.reward is not None]
    called, right, solved = (sum(reward >= worth for reward in rewards) for worth in (0.2, 0.5, 1.0))
    return f"called {called}, right numbers {right}, solved {solved} of {len(rewards)}"


async def main(launch: ArtLaunchContext) -> None:
    """The whole run: a plain loop that gathers conversations and trains on them."""
    settings = settings_from(launch.arguments)
    folder = Path(settings.run_dir) if settings.run_dir else None
    async with RunReport(
        "calculator",
        folder,
        settings,
        resume=settings.resume,
        resume_command=launch.resume_command("--run-dir"),
        summary=summary,
    ) as report:
        with report.phase("model", fetches=True):
            base_model = await ensure_smollm2(progress=report.progress)
        with report.phase("vLLM for CPUs", fetches=True):
            await ensure_vllm(progress=report.progress)
        report.model(base_model)
        art.init_megatron_runtime_config(topology=art.MegatronTopologyConfig(), packed_sequence_length=2048)
        model = art.TrainableModel(name="calculator", project="examples", base_model=str(base_model))
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
            with report.phase("rollout workers, vLLM and trainer"):
                await executor.start()
                await model.register(backend)

            async def evaluate() -> None:
                """Numbers and wordings that are not trained on, each tried once."""
                held_out = problem_groups(HELD_OUT_WORDINGS, HELD_OUT_NUMBERS, samples=1, seed=settings.seed)
                await report.evaluate(
                    "held-out numbers",
                    (
                        executor.run(None, rollout, model, problem, None)
                        for (problem,) in itertools.islice(held_out, HELD_OUT)
                    ),
                )

            await evaluate()
            problems = problem_groups(WORDINGS, NUMBERS, samples=settings.samples, seed=settings.seed)
            problems = itertools.islice(problems, settings.problems * report.steps_done, None)
            for _ in report.steps(settings.steps, enough=settings.enough):
                groups = await art.gather_trajectory_groups(
                    art.TrajectoryGroup(executor.submit(rollout, model, problem, None) for problem in group)
                    for group in itertools.islice(problems, settings.problems)
                )
                await report.sampled(groups)
                report.trained(
                    await model.train(groups, config=art.TrainConfig(learning_rate=settings.learning_rate))
                )
            await evaluate()


if __name__ == "__main__":
    raise SystemExit("start it with: art-monarch local --program train.py:main")
