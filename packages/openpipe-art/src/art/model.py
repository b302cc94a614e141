"""The model that is trained, as a user's program sees it and as it travels to rollout workers."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

import pydantic

from art.awaiting import must_be_awaited
from art.checked_model import CheckedModel
from art.errors import ArtError, ConfigError, SettingError
from art.settings import instance, plain_name
from art.train_config import TrainConfig, TrainResult
from art.trajectory_groups import TrajectoryGroup, checked_groups

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class Backend(Protocol):
    """What trains and serves a model; :class:`~art.backend.MegatronBackend` is one."""

    async def register(self, model: "TrainableModel") -> None:
        """Makes ``model`` ready to be sampled and trained and sets its ``inference_*`` fields.

        Raises:
            ArtError: it could not be made ready; nothing that was started is left.
        """
        ...

    async def train(
        self, model: "TrainableModel", groups: Iterable[TrajectoryGroup], *, config: TrainConfig | None = None
    ) -> TrainResult:
        """Runs one training step.

        Args:
            model: registered with this backend.
            groups: finished rollouts.
            config: the step's constants; by default those of :class:`art.TrainConfig`.

        Raises:
            ArtError: no step was taken, or it is not known how it ended; the text says which part failed.
        """
        ...


def _given(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; it must name one")
    return text


def _plain_name(text: str, info: pydantic.ValidationInfo) -> str:
    name = str(info.field_name)
    return plain_name(name, text, _NAMES[name])


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


_NAMES = {"name": "my-task", "project": "guide", "run_name": "my-task-2"}
"""Of each field that names something, one that works."""

type PlainName = Annotated[str, pydantic.AfterValidator(_plain_name)]


class TrainableModel(CheckedModel):
    """A named model that learns.

    Args:
        name: of the model within its project; the adapter is served under it. Up to 128 ASCII letters,
            digits, ``.``, ``_`` and ``-``, the first of them a letter or digit, since it names folders and
            parts of the run.
        project: what it belongs to; a name likewise.
        base_model: a Hugging Face folder or name; a path, too.
        run_name: names the run's folder, likewise; the model's name when absent.
        config: anything of the user's that rollouts need; plain data.
        inference_base_url: where it is served, for an OpenAI client. The backend sets this and the next two
            when the model is registered, and they travel with it to rollout workers.
        inference_api_key: what requests must carry.
        inference_model_name: what requests name.

    Raises:
        SettingError: a field is missing, unknown, or of a wrong type.
    """

    model_config = pydantic.ConfigDict(extra="forbid", validate_assignment=True)

    _example: ClassVar[str] = (
        "art.TrainableModel(name='my-task', project='guide', base_model='path/to/model')"
    )
    _refusal: ClassVar[type[ArtError]] = SettingError

    name: PlainName
    project: PlainName
    base_model: Annotated[str, pydantic.BeforeValidator(_as_text), pydantic.AfterValidator(_given)]
    run_name: PlainName | None = None
    config: Any = None
    inference_base_url: str | None = None
    inference_api_key: str | None = None
    inference_model_name: str | None = None
    _backend: Backend | None = pydantic.PrivateAttr(default=None)
    _client: "AsyncOpenAI | None" = pydantic.PrivateAttr(default=None)

    if TYPE_CHECKING:

        def __init__(self, *, name: str, project: str, base_model: str | Path, **rest: Any) -> None: ...

    def openai_client(self) -> "AsyncOpenAI":
        """The client for this model's server; one per process and model object.

        Raises:
            ConfigError: the model has not been registered with a backend.
        """
        if self._client is None:
            from art.model_client import ModelClient

            self._client = ModelClient(
                base_url=self._registered("inference_base_url"),
                api_key=self._registered("inference_api_key"),
                model_name=self._registered("inference_model_name"),
            )
        return self._client

    def get_inference_name(self) -> str:
        """The name to pass as ``model`` in a request.

        Raises:
            ConfigError: the model has not been registered with a backend.
        """
        return self._registered("inference_model_name")

    def forget_server(self) -> None:
        """Takes back what a backend set, when it closes: a later request then says that nothing serves."""
        self.inference_base_url = self.inference_api_key = self.inference_model_name = None
        self._client = self._backend = None

    def _registered(self, field: str) -> str:
        value: str | None = getattr(self, field)
        if value is None:
            raise ConfigError(
                f"model {self.name!r} has no {field}: it is not registered. "
                "Call `await model.register(backend)` first"
            )
        return value

    @must_be_awaited
    async def register(self, backend: Backend) -> None:
        """Registers with ``backend``, which may start a server and load the model.

        Raises:
            ArtError: the backend could not make it ready.
        """
        await backend.register(self)
        self._client = None
        self._backend = backend

    @must_be_awaited
    async def train(
        self, groups: Iterable[TrajectoryGroup], *, config: TrainConfig | None = None
    ) -> TrainResult:
        """Runs one training step through the registered backend.

        Args:
            groups: finished rollouts, whose rewards are compared within each group.
            config: the step's constants; by default those of :class:`art.TrainConfig`.

        Returns:
            The step, once the new policy is active.

        Raises:
            ConfigError: the model has not been registered with a backend.
            TrajectoryError: ``groups`` holds something else than groups.
            SettingError: ``config`` is something else than a configuration.
            ArtError: what the backend raised.
        """
        if self._backend is None:
            raise ConfigError(
                f"model {self.name!r} cannot be trained: it is not registered in this process. "
                "Call `await model.register(backend)` first"
            )
        if config is not None:
            instance("config", config, TrainConfig, "config=art.TrainConfig(learning_rate=5e-4)")
        return await self._backend.train(self, checked_groups(groups), config=config)
