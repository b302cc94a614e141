"""A rollout worker: what a rollout that goes wrong is told as, by the function's name and line."""

import asyncio
import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import art
from art.distributed import user_values
from art.distributed.callables import InstalledAsyncCallable
from art.distributed.rollout_worker import RolloutRequest, RolloutValue, RolloutWorker, RolloutWorkerSpec
from art.distributed.service import Call, Raised, ServiceHost, encode
from art.errors import UnlimitedAnswerWarning

SOURCE = """
import asyncio
import sys

import art


async def ask(question):
    return question


def trajectory(**fields):
    return art.Trajectory(messages_and_choices=[], reward=0.0, **fields)


async def annotated(_model, scenario, _config) -> art.Trajectory:
    return scenario


async def quoted(_model, scenario, _config) -> "art.Trajectory":
    return scenario


async def anything(_model, scenario, _config):
    return scenario


async def wrong(_model, scenario, _config):
    if scenario == "exit":
        sys.exit(3)  # line of exit
    if scenario == "cancelled":
        raise asyncio.CancelledError  # line of cancelled
    if scenario == "forgotten attribute":
        return ask("x").choices
    if scenario == "forgotten item":
        answer = ask("x")
        return answer["choices"]
    if scenario == "forgotten reward":
        return art.Trajectory(messages_and_choices=[], reward=ask("x"))
    if scenario == "forgotten return":
        return ask("x")
    if scenario == "sleep":
        await asyncio.sleep(60)
    if scenario == "metadata":
        return trajectory(metadata={"words": "a\\ud800"})
    return trajectory(logs=["\\udfff"])
"""


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "rollouts_of_a_user.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "rollouts_of_a_user"
    sys.modules.pop("rollouts_of_a_user", None)


def worker_of(name: str, function: str, *, warns: bool = True) -> RolloutWorker:
    reference = InstalledAsyncCallable.from_callable(getattr(importlib.import_module(name), function))
    return RolloutWorker(RolloutWorkerSpec(owner="w", run_id="r", function=reference, warns=warns))


def request(scenario: object, *, must_be_trajectory: bool = False) -> RolloutRequest:
    model = art.TrainableModel(name="m", project="p", base_model="b").model_dump_json().encode()
    return RolloutRequest(
        model=model,
        scenario=user_values.pack(scenario, "the scenario"),
        config=user_values.pack(None, "the configuration"),
        must_be_trajectory=must_be_trajectory,
    )


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line)


@pytest.mark.parametrize("function", ["annotated", "quoted"])
@pytest.mark.parametrize(
    ("value", "shown"), [(None, "None"), (0.5, "the float 0.5"), (["a"], "the list ['a']")]
)
async def test_what_is_annotated_as_a_trajectory_must_be_one(
    name: str, function: str, value: object, shown: str
) -> None:
    reply = await worker_of(name, function).run(request(value))
    assert isinstance(reply, Raised)
    assert reply.kind == "art.errors.TrajectoryError"
    place = f"{name}.py:{line_of(f'async def {function}')}"
    assert f"{place}) returned {shown}; expected an art.Trajectory. Write `return art.Trajectory(...)`" in (
        reply.message
    )
    assert reply.traceback == ""


async def test_other_functions_return_anything_unless_a_trajectory_is_expected(name: str) -> None:
    worker = worker_of(name, "anything")
    for value in (None, 0.5, ["a"]):
        reply = await worker.run(request(value))
        assert isinstance(reply, RolloutValue)
        assert user_values.unpack(reply.data) == value
    refused = await worker.run(request(None, must_be_trajectory=True))
    assert isinstance(refused, Raised)
    assert f"{name}.py:{line_of('async def anything')}) returned None" in refused.message


async def test_leaving_the_process_is_told_with_its_line(name: str) -> None:
    worker = worker_of(name, "wrong")
    reply = await worker.run(request("exit"))
    assert isinstance(reply, Raised)
    assert reply.kind == "SystemExit"
    assert "the rollout called sys.exit(3) (" in reply.message
    assert f"{name}.py:{line_of('# line of exit')}, in wrong" in reply.message
    assert "/art/" not in reply.traceback.replace(str(Path(__file__)), "")
    handle = await worker.submit(request("exit"))
    assert handle.failure is not None
    assert "sys.exit(3)" in str(handle.failure)


async def test_a_cancellation_that_nobody_asked_for_is_told_as_such(name: str) -> None:
    reply = await worker_of(name, "wrong").run(request("cancelled"))
    assert isinstance(reply, Raised)
    assert reply.kind == "asyncio.exceptions.CancelledError"
    assert "nobody cancelled the rollout" in reply.message
    assert f"{name}.py:{line_of('# line of cancelled')}, in wrong" in reply.message


async def test_a_cancellation_from_outside_stays_one(name: str) -> None:
    task = asyncio.ensure_future(worker_of(name, "wrong").run(request("sleep")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Cancels:
    """A service whose method raises what a cancelled one does."""

    async def now(self) -> None:
        raise asyncio.CancelledError


async def test_a_service_that_raises_it_was_not_cancelled_by_its_caller() -> None:
    reply = await ServiceHost(Cancels()).call(Call(1, "now", encode([])))
    assert isinstance(reply, Raised)
    assert reply.message == "now() raised it, though nobody cancelled it"


@pytest.mark.parametrize("scenario", ["attribute", "item", "reward", "return"])
async def test_a_forgotten_await_is_told_once(name: str, scenario: str) -> None:
    worker = worker_of(name, "wrong")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        reply = await worker.run(request(f"forgotten {scenario}"))
    assert isinstance(reply, Raised)
    assert "did you forget `await`" in reply.message + reply.traceback
    assert [str(one.message) for one in told if "never awaited" in str(one.message)] == []


@pytest.mark.parametrize(("field", "said"), [("metadata", "metadata['words']"), ("logs", "logs[0]")])
async def test_half_a_character_is_told_with_its_field(name: str, field: str, said: str) -> None:
    reply = await worker_of(name, "wrong").run(request(field))
    assert isinstance(reply, Raised)
    assert reply.kind == "art.errors.RecordError"
    assert reply.message.startswith(f"{said} is the str ")
    assert "half of a surrogate pair" in reply.message
    assert f"{name}.py:" in reply.message
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=Raised) == reply


async def test_an_error_whose_text_holds_half_a_character_can_be_sent() -> None:
    from art.distributed.service import raised

    reply = raised(ValueError("a\ud800"))
    assert reply.message == "a\\ud800"
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=Raised) == reply


@pytest.mark.parametrize("warns", [True, False])
def test_one_worker_alone_warns_of_what_is_alike_in_all(name: str, warns: bool) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        worker_of(name, "anything", warns=warns)
        warnings.warn("x", UnlimitedAnswerWarning, stacklevel=1)
    assert len(told) == int(warns)
