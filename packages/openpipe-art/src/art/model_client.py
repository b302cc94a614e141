"""The OpenAI client of a registered model: requests that its rollouts cannot mean are refused before they are
sent, and what is easily forgotten is told once.

Everything else is OpenAI's client, with what :mod:`art.checks.served_client` says of refused requests.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

from openai import APIStatusError, NotFoundError

from art.checks.served_client import ServedClient
from art.errors import ArtError, SettingError, UnlimitedAnswerWarning
from art.messages import content_missing
from art.user_code import shown, user_line, with_place

_LIMITS = ("max_tokens", "max_completion_tokens")
_CHAT = "/chat/completions"

_told: set[tuple[str, int]] = set()
"""The lines that were told; what the warnings module remembers is forgotten when filters change."""


class UnknownModelError(ArtError, NotFoundError):
    """A request named a model that the server does not have."""


class ModelClient(ServedClient):
    """A client of the server of one model.

    Args:
        model_name: what requests must name.
        options: as OpenAI's: ``base_url``, ``api_key``.
    """

    def __init__(self, *, model_name: str, **options: Any) -> None:
        super().__init__(**options)
        self._model_name = model_name

    def copy(self, **options: Any) -> Self:
        """As OpenAI's."""
        return super().copy(**options, _extra_kwargs={"model_name": self._model_name})

    with_options = copy

    async def post(self, path: str, *, body: Any = None, **options: Any) -> Any:
        """As OpenAI's.

        Raises:
            SettingError: the request cannot be answered as a rollout needs it; the text names the line.
        """
        if path == _CHAT and isinstance(body, Mapping):
            check_request(body)
            _tell_of_length(body)
        return await super().post(path, body=body, **options)

    def _make_status_error(self, err_msg: str, *, body: object, response: Any) -> APIStatusError:
        error = super()._make_status_error(err_msg, body=body, response=response)
        if not isinstance(error, NotFoundError) or "does not exist" not in err_msg:
            return error
        text = (
            f"the server does not have the model that a request named. Write "
            f"model=model.get_inference_name(), which is {self._model_name!r} ({err_msg})"
        )
        return UnknownModelError(text, response=response, body=body)


def _tell_of_length(body: Mapping[str, Any]) -> None:
    """Warns of an answer without a bound, once in a process for each line that asks for one."""
    if any(isinstance(body.get(name), int) for name in _LIMITS):
        return
    file, number, _ = user_line() or (__file__, 1, "")
    if (file, number) in _told:
        return
    _told.add((file, number))
    text = (
        "a request without max_tokens: its answer may fill all that packed_sequence_length leaves and take "
        "minutes. Write for example create(..., max_tokens=64)"
    )
    warnings.warn_explicit(text, UnlimitedAnswerWarning, file, number)


def check_request(body: Mapping[str, Any]) -> None:
    """Checks what a chat request says.

    Raises:
        SettingError: it asks for several answers, or a message has no content or one that is not text.
    """
    answers = body.get("n")
    if isinstance(answers, int) and answers != 1:
        raise SettingError(
            with_place(
                f"n={answers} in a request: a rollout has one answer a turn, so n must be 1. For several "
                "answers run several rollouts: art.TrajectoryGroup(executor.submit(rollout, model, x, None) "
                f"for _ in range({max(2, answers)}))"
            )
        )
    messages = body.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            continue
        if content_missing(message):
            raise SettingError(
                with_place(
                    f"messages[{index}] of a request is {shown(dict(message))}, without content. Write "
                    f'{{"role": {message.get("role", "user")!r}, "content": "..."}}'
                )
            )
        _check_text_only(index, message.get("content"))


def _check_text_only(index: int, content: object) -> None:
    if not isinstance(content, Sequence) or isinstance(content, str):
        return
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind is not None and kind not in ("text", "refusal"):
            raise SettingError(
                with_place(
                    f"messages[{index}] of a request has a part of type {shown(kind)}; ART trains and serves "
                    'text only. Write {"role": "user", "content": "..."}'
                )
            )
