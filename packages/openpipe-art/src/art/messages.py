"""Chat messages as OpenAI writes them, with the choices a model gave in their place.

A conversation is a list in which what a model said may stand as the
:class:`openai.types.chat.chat_completion.Choice` it came in. Such a choice keeps the extra field ``art``
that ART's server adds (see :mod:`art.records`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from openai.types.chat.chat_completion import ChatCompletion, Choice
from openai.types.chat.chat_completion_message import ChatCompletionMessage
from openai.types.chat.chat_completion_message_param import ChatCompletionMessageParam
from openai.types.chat.chat_completion_tool_param import ChatCompletionToolParam

from art.errors import TrajectoryError
from art.user_code import described

type Message = ChatCompletionMessageParam
type MessageOrChoice = Message | Choice

Messages = list[ChatCompletionMessageParam]
"""A conversation in OpenAI's messages, to be sent in a request."""

MessagesAndChoices = list[ChatCompletionMessageParam | Choice]
"""A conversation in which what a model said may stand as the ``Choice`` it came in, to be trained on."""

Tools = list[ChatCompletionToolParam]
"""Tools as OpenAI's requests name them."""


def checked(items: Any) -> MessagesAndChoices:
    """Returns the items as a list in which each is a message (a mapping with ``role``) or a choice.

    A mapping with ``finish_reason`` and ``message`` is a choice that was serialized and becomes one again.

    Raises:
        ValueError: an item is neither; the text names its index.
    """
    if isinstance(items, str | bytes | Mapping | Choice) or not isinstance(items, Iterable):
        raise ValueError(
            f"messages_and_choices is {described(items)}; it must be a list of messages and choices"
        )
    result: MessagesAndChoices = []
    for index, item in enumerate(items):
        if isinstance(item, Choice):
            result.append(item)
        elif isinstance(item, Mapping) and "role" in item:
            if content_missing(item):
                raise ValueError(
                    f"messages_and_choices[{index}] is {described(dict(item))}, without content. Write "
                    f'{{"role": {item["role"]!r}, "content": "..."}}'
                )
            result.append(dict(item))  # type: ignore[arg-type]  # a TypedDict is a dict
        elif isinstance(item, Mapping) and "finish_reason" in item and "message" in item:
            result.append(Choice.model_validate(dict(item)))
        else:
            raise ValueError(f"messages_and_choices[{index}] is {_wrong(item)}")
    return result


def content_missing(message: Mapping[str, Any]) -> bool:
    """Whether a message lacks its ``content``; an assistant's may have another thing in its place."""
    if message.get("role") == "assistant":
        return not message.keys() & {"content", "tool_calls", "function_call", "refusal", "audio"}
    return message.get("content") is None


def as_messages(items: MessagesAndChoices) -> Messages:
    """Returns plain messages: each choice replaced by the assistant message it holds.

    Raises:
        TrajectoryError: an item is neither a message nor a choice; the text names its index.
    """
    return [_message_of(index, item) for index, item in enumerate(items)]


def _wrong(item: Any) -> str:
    remedy = (
        "pass its choices[0]"
        if isinstance(item, ChatCompletion)
        else 'write {"role": "assistant", "content": ...} for what the model said as text, or keep the Choice'
        if isinstance(item, ChatCompletionMessage)
        else 'for a whole ChatCompletion pass its choices[0], for a text {"role": "user", "content": ...}'
    )
    expected = "expected a message (a dict with 'role') or an openai Choice"
    return f"{described(item)}; {expected}. In its place {remedy}"


def _message_of(index: int, item: ChatCompletionMessageParam | Choice) -> ChatCompletionMessageParam:
    if not isinstance(item, Choice):
        if not isinstance(item, Mapping):
            raise TrajectoryError(f"messages_and_choices[{index}] is {_wrong(item)}")
        return item
    message: dict[str, Any] = {"role": "assistant", "content": item.message.content}
    if item.message.tool_calls:
        message["tool_calls"] = [call.model_dump() for call in item.message.tool_calls]
    return message  # type: ignore[return-value]  # a TypedDict is a dict with these keys
