"""The model: what a backend sets travels with it; without a backend it says what is missing."""

import asyncio
import gc
import inspect
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import art
from art.errors import ConfigError


class RecordingBackend:
    def __init__(self) -> None:
        self.calls: list[tuple[list[art.TrajectoryGroup], art.TrainConfig | None]] = []

    async def register(self, model: art.TrainableModel) -> None:
        model.inference_base_url = "http://127.0.0.1:9/v1"
        model.inference_api_key = "key"
        model.inference_model_name = model.name

    async def train(
        self,
        model: art.TrainableModel,
        groups: Iterable[art.TrajectoryGroup],
        *,
        config: art.TrainConfig | None = None,
    ) -> art.TrainResult:
        self.calls.append((list(groups), config))
        return art.TrainResult(step=len(self.calls), metrics={"loss": 0.5})


def model() -> art.TrainableModel:
    return art.TrainableModel(name="agent", project="p", base_model="base", run_name="r", config={"n": 3})


async def test_training_goes_to_the_registered_backend() -> None:
    made, backend = model(), RecordingBackend()
    await made.register(backend)
    group = art.TrajectoryGroup([])
    config = art.TrainConfig(learning_rate=1e-4)
    assert await made.train([group], config=config) == art.TrainResult(1, {"loss": 0.5})
    assert backend.calls == [([group], config)]


async def test_the_client_points_to_the_backend_also_after_a_journey() -> None:
    made = model()
    await made.register(RecordingBackend())
    arrived = art.TrainableModel.model_validate_json(made.model_dump_json())
    client = arrived.openai_client()
    assert str(client.base_url) == "http://127.0.0.1:9/v1/"
    assert client.api_key == "key"
    assert arrived.openai_client() is client
    assert arrived.get_inference_name() == "agent"
    assert arrived.config == {"n": 3}


async def test_an_unregistered_model_says_so() -> None:
    made = model()
    with pytest.raises(ConfigError, match=r"'agent' has no inference_base_url.*register"):
        made.openai_client()
    with pytest.raises(ConfigError, match="inference_model_name"):
        made.get_inference_name()
    with pytest.raises(ConfigError, match=r"cannot be trained.*register"):
        await made.train([])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"base_modell": "d"}, r"it has no field 'base_modell'; did you mean 'base_model'\?"),
        (
            {"name": "my task"},
            r"name is 'my task'; it must have 1 to 128 ASCII .* for example name='my-task'",
        ),
        ({"name": "ünï"}, "name is 'ünï'; it must have"),
        ({"name": "a" * 300}, "name has 300 characters; it must have 1 to 128"),
        ({"project": "my project"}, "project is 'my project'; .* for example project='guide'"),
        ({"run_name": "-x"}, "run_name is '-x'; .* for example run_name='my-task-2'"),
        ({"name": "a/b"}, r"name is 'a/b'; it must have 1 to 128 ASCII"),
        ({"project": " "}, "project is empty"),
        ({"base_model": 3}, "base_model is the int 3; it must be a text in quotes"),
        ({"run_name": ".."}, r"run_name is '\.\.'"),
    ],
)
def test_wrong_fields_are_refused_with_the_line_of_the_program(fields: dict[str, object], said: str) -> None:
    line = inspect.currentframe().f_lineno + 2
    with pytest.raises(art.SettingError, match=said) as caught:
        art.TrainableModel(**{"name": "a", "project": "b", "base_model": "c", **fields})
    assert f"{__file__}:{line}, in test_wrong_fields" in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_a_missing_field_shows_how_a_model_is_made() -> None:
    with pytest.raises(art.SettingError, match=r"project is missing.*art\.TrainableModel\(name='my-task'"):
        art.TrainableModel(name="a", base_model="c")
    with pytest.raises(art.SettingError, match="takes its fields by name"):
        art.TrainableModel("a", "b", "c")


def test_a_model_s_folder_may_be_a_path() -> None:
    assert art.TrainableModel(name="a", project="b", base_model=Path("x") / "y").base_model == "x/y"


def test_an_assignment_is_checked_as_well() -> None:
    made = model()
    with pytest.raises(art.SettingError, match="it has no field 'basemodel'; did you mean 'base_model'"):
        made.basemodel = "x"
    with pytest.raises(art.SettingError, match="name is None"):
        made.name = None


async def test_a_forgotten_await_says_where_and_what(recwarn: pytest.WarningsRecorder) -> None:
    made, backend = model(), RecordingBackend()
    await made.register(backend)
    line = inspect.currentframe().f_lineno + 1
    result = made.train([art.TrajectoryGroup([])])
    with pytest.raises(
        AttributeError, match=rf"'step' of TrainableModel.train.*:{line}.*did you forget `await`"
    ):
        print(result.step)
    assert backend.calls == []
    del result
    gc.collect()
    (warning,) = recwarn.list
    assert (warning.filename, warning.lineno) == (__file__, line)
    assert str(warning.message).startswith("TrainableModel.train(...) was never awaited, so it did nothing")


async def test_a_call_that_must_be_awaited_is_a_coroutine_like_any(recwarn: pytest.WarningsRecorder) -> None:
    made, backend = model(), RecordingBackend()
    task = asyncio.create_task(made.register(backend))
    await asyncio.wait_for(task, 5)
    assert asyncio.iscoroutinefunction(made.train)
    first, second = await asyncio.gather(made.train([]), asyncio.ensure_future(made.train([])))
    assert {first.step, second.step} == {1, 2}
    with pytest.raises(
        TypeError, match=r"^TrainableModel.train\(\) has no argument 'confg'; did you mean 'config'\? \(.*\)$"
    ):
        made.train([], confg=art.TrainConfig())
    waiting = asyncio.create_task(made.train([]))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    made.train([]).close()
    gc.collect()
    assert recwarn.list == []


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (lambda: art.gather_trajectory_groups([]), r"coroutine of gather_trajectory_groups.*forget `await`"),
        (lambda: art.TrajectoryGroup([]), r"one TrajectoryGroup.*\[group\]"),
        (lambda: [3], r"groups\[0\] is the int 3"),
        (lambda: None, "groups is None"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
async def test_what_is_no_list_of_groups_is_refused(groups: Callable[[], Any], said: str) -> None:
    made = model()
    await made.register(RecordingBackend())
    with pytest.raises(art.TrajectoryError, match=said):
        await made.train(groups())
    with pytest.raises(
        art.SettingError, match=r"config is the dict .*art\.TrainConfig\(learning_rate=5e-4\)"
    ):
        await made.train([], config={"learning_rate": 1e-4})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"learning_rate": "5e-4"}, r"the str '5e-4'; .* for example learning_rate=0\.0005"),
        ({"learning_rate": 0.0}, r"is 0\.0; it must be a number above 0 and at most 1"),
        ({"learning_rate": -1e-5}, "above 0"),
        ({"learning_rate": 5.0}, "at most 1"),
        ({"learning_rate": math.nan}, "is nan"),
        ({"learning_rate": True}, "the bool True"),
        ({"learning_rate": None}, "is None"),
        ({"clip_epsilon_low": 1.5}, r"above 0 and at most 1, for example clip_epsilon_low=0\.2"),
        ({"clip_epsilon_high": math.inf}, "is inf"),
        ({"clip_epsilon_high": 0}, "above 0"),
        ({"scale_advantages": "no"}, "must be True or False"),
        ({"max_grad_norm": -1.0}, "of at least 0"),
        ({"max_grad_norm": [1]}, r"the list \[1\]"),
    ],
)
def test_a_train_config_checks_its_values(wrong: dict[str, Any], said: str) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"^{name} .*{said}.*{Path(__file__).name}"):
        art.TrainConfig(**wrong)


def test_a_train_config_takes_numpy_s_numbers_as_python_s() -> None:
    config = art.TrainConfig(learning_rate=np.float32(0.5), max_grad_norm=0)
    assert type(config.learning_rate) is float
    assert config == art.TrainConfig(learning_rate=0.5, max_grad_norm=0.0)
