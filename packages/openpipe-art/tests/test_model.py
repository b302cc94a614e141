"""The model: what a backend sets travels with it; without a backend it says what is missing."""

from collections.abc import Iterable

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


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="extra"):
        art.TrainableModel(name="a", project="b", base_model="c", base_modell="d")


@pytest.mark.parametrize(
    "wrong",
    [{"learning_rate": 0.0}, {"learning_rate": -1e-5}, {"max_grad_norm": -1.0}],
)
def test_a_train_config_checks_its_numbers(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        art.TrainConfig(**wrong)
