"""What a user's own mistake in a rollout or a program says: the line, the scenario, what to write instead."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = """
import asyncio, json, sys
import art
from art.distributed import ArtLaunchContext, ArtRuntime, compile_topology

MESSAGES: art.Messages = [{"role": "user", "content": "Name a fruit."}]


async def judge(answer: str) -> float:
    return 1.0


async def made(reward: float) -> art.Trajectory:
    return art.Trajectory(messages_and_choices=MESSAGES, reward=reward)


async def rollout(model: art.TrainableModel, scenario: str, _config: None) -> art.Trajectory:
    if scenario == "nan":
        return art.Trajectory(messages_and_choices=MESSAGES, reward=float("nan"))  # line of nan
    if scenario == "text":
        return art.Trajectory(messages_and_choices=MESSAGES, reward="good")  # line of text
    if scenario == "none":
        return art.Trajectory(messages_and_choices=MESSAGES, reward=None)  # line of none
    if scenario == "later":
        trajectory = art.Trajectory(messages_and_choices=MESSAGES, reward=0.0)
        trajectory.reward = float("inf")  # line of later
        return trajectory
    if scenario == "no choice":
        return art.Trajectory(messages_and_choices=MESSAGES, reward=1.0)  # line of no choice
    if scenario == "metadata":
        trajectory = art.Trajectory(messages_and_choices=MESSAGES, reward=1.0)  # line of metadata
        trajectory.metadata["words"] = ["a"]
        trajectory.messages_and_choices.append("yes")
        return trajectory
    if scenario == "reward of a coroutine":
        return art.Trajectory(messages_and_choices=[], reward=judge("x"))  # line of reward of a coroutine
    if scenario == "coroutine":
        return made(1.0)
    if scenario == "number":
        return 3
    if scenario == "use of a coroutine":
        return judge("x").choices  # line of use of a coroutine
    if scenario == "exit":
        sys.exit(3)  # line of exit
    if scenario == "cancellation":
        raise asyncio.CancelledError  # line of cancellation
    if scenario == "nothing":
        return
    raise KeyError(scenario)


async def main(launch: ArtLaunchContext) -> None:
    topology = compile_topology(cluster=launch.homogeneous_cluster(cpu_slots=2))
    async with await ArtRuntime.start(launch.host_mesh, topology) as runtime:
        executor = runtime.rollout_executor(rollout, target_workers=1)
        model = art.TrainableModel(name="m", project="p", base_model="b")
        for scenario in SCENARIOS:
            try:
                (await executor.submit(rollout, model, scenario, None)).raise_for_error()
            except art.RolloutFailed as error:
                print("SAID", json.dumps([scenario, str(error)]), flush=True)
        for scenario in ("coroutine", "nothing"):
            try:
                await executor.run(None, rollout, model, scenario, None)
            except art.RolloutFailed as error:
                print("SAID", json.dumps([f"run {scenario}", str(error)]), flush=True)
        LAST
"""

IN_USER_CODE = {  # scenario: what its message holds; the line is that of the mistake
    "nan": r"reward is nan; it must be a finite number, for example reward=1\.0",
    "text": r"reward is the str 'good'; it must be a finite number, for example reward=1\.0",
    "none": r"reward is None.*Begin with reward=0\.0",
    "later": "reward is inf",
    "reward of a coroutine": r"reward is a coroutine of judge\(\.\.\.\).*did you forget `await`",
    "exit": r"SystemExit: the rollout called sys\.exit\(3\)",
    "cancellation": r"nobody cancelled the rollout itself",
    "use of a coroutine": r"'coroutine' object has no attribute 'choices'(.|\n)*did you forget `await`\?$",
}
AFTER_IT = {  # found out when the function has returned: no frame of the user's is left
    "no choice": r"returned what cannot be trained on: .* holds no openai Choice.*Put completion\.choices",
    "metadata": r"messages_and_choices\[1\] is the str 'yes'",
}
RETURNED = {
    "coroutine": r"returned a coroutine of made\(\.\.\.\).*forget `await`\?.*Write `return await \.\.\.`",
    "number": r"returned the int 3; expected an art\.Trajectory\. Write `return art\.Trajectory",
    "nothing": r"returned None; expected an art\.Trajectory\. Write `return art\.Trajectory",
}


def line_of(scenario: str) -> int:
    (line,) = [
        number
        for number, text in enumerate(PROGRAM.splitlines(), 1)
        if text.endswith(f"# line of {scenario}")
    ]
    return line


def said(launched: Any) -> dict[str, str]:
    """What the program was told, by scenario."""
    lines = [line.split(" ", 1)[1] for line in launched.output.splitlines() if line.startswith("SAID ")]
    return dict(json.loads(line) for line in lines)


def test_each_mistake_in_a_rollout_names_its_line_and_the_remedy(launch: Callable[..., Any]) -> None:
    scenarios = [*IN_USER_CODE, *AFTER_IT, *RETURNED]
    launched = launch(PROGRAM.replace("SCENARIOS", repr(scenarios)).replace("LAST", "pass"))
    assert launched.wait(90) == 0, launched.errors
    texts = said(launched)
    assert set(texts) == {*scenarios, "run coroutine", "run nothing"}
    assert "never awaited" not in launched.errors + launched.output
    definition = PROGRAM.splitlines().index(
        "async def rollout(model: art.TrainableModel, scenario: str, _config: None) -> art.Trajectory:"
    )
    for scenario in scenarios:
        text = texts[scenario]
        assert re.match(
            rf"rollout failed in rollout worker 0 \(pid \d+\) on scenario '{scenario}': ", text
        ), text
        assert not re.search(r'File "\S*/(art|art_dataplane|pydantic)/', text), text
    for scenario, words in IN_USER_CODE.items():
        assert re.search(words, texts[scenario]), texts[scenario]
        assert f'program.py", line {line_of(scenario)}, in rollout' in texts[scenario], texts[scenario]
    for scenario, words in AFTER_IT.items():
        text = texts[scenario]
        assert re.search(words, text), text
        assert f"program.py:{line_of(scenario)}, in rollout)" in text, text
        assert "Traceback" not in text
        assert "\n" not in text
    by_run = {f"run {scenario}": RETURNED[scenario] for scenario in ("coroutine", "nothing")}
    for scenario, words in {**RETURNED, **by_run}.items():
        text = texts[scenario]
        assert re.search(words, text), text
        assert f"rollout ({launched.folder.parent}/program.py:{definition + 1}) returned" in text, text
        assert "Traceback" not in text


FORGOTTEN = {
    "groups = art.gather_trajectory_groups([]); groups[0]": "an item of gather_trajectory_groups",
    "executor.run(None, rollout, model, 'x', None).reward": "'reward' of RolloutExecutor.run",
    "[h for h in executor.records([], deadline_s=1)]": "iteration over RolloutExecutor.records",
    "(await model.train(art.gather_trajectory_groups([])))": "",
}


@pytest.mark.parametrize("statement", FORGOTTEN)
def test_a_forgotten_await_in_the_program_is_asked_for(launch: Callable[..., Any], statement: str) -> None:
    launched = launch(PROGRAM.replace("SCENARIOS", "[]").replace("LAST", statement))
    assert launched.wait(90) == 1, launched.output
    if FORGOTTEN[statement]:
        assert FORGOTTEN[statement] in launched.errors
        assert "did you forget `await`?" in launched.errors
        line = PROGRAM.splitlines().index("        LAST") + 1
        assert f"program.py:{line})" in launched.errors
    else:  # the model is not registered, which is told first
        assert "is not registered" in launched.errors


def test_a_rollout_that_is_not_async_says_how_to_write_it(launch: Callable[..., Any]) -> None:
    source = (
        PROGRAM.replace("async def rollout(", "def rollout(")
        .replace("SCENARIOS", "[]")
        .replace("LAST", "pass")
    )
    launched = launch(source)
    assert launched.wait(90) == 1
    assert "art-monarch: rollout is not an async function" in launched.errors
    assert "write `async def rollout(...)`" in launched.errors
    assert "Traceback" not in launched.errors
