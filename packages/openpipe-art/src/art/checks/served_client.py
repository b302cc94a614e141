"""The OpenAI client of a served model: what the server refuses for its length is said in ART's words.

Everything else is OpenAI's client. The error is an :class:`openai.BadRequestError` as well, so programs that
catch that go on working.
"""

import json
import re
from typing import Any

from openai import APIStatusError, AsyncOpenAI, BadRequestError

from art.checks.prompts import first_words
from art.errors import ArtError

_LIMIT = re.compile(r"maximum context length is (\d+) tokens")
_PROMPT = re.compile(r"contains ((?:at least )?\d+) (?:input )?(tokens|characters)")
_NO_ROOM = "max_tokens must be at least 1, got 0"
"""What is said when the prompt alone has as many tokens as are served."""
_ROW = "call art.init_megatron_runtime_config(packed_sequence_length=...)"
_BEFORE = "art.check_prompt_lengths finds such prompts before a run, with their lengths"
_ANSWER = re.compile(r"(max_\w*tokens)=(\d+) cannot be greater than \D*(\d+)")


class RequestTooLongError(ArtError, BadRequestError):
    """The server has no room for a request: its prompt, or the answer it asks for, is too long."""


class ServedClient(AsyncOpenAI):
    """A client of ART's server."""

    def _make_status_error(self, err_msg: str, *, body: object, response: Any) -> APIStatusError:
        text = refusal(err_msg, response) if response.status_code == 400 else None
        if text is None:
            return super()._make_status_error(err_msg, body=body, response=response)
        return RequestTooLongError(text, response=response, body=body)


def refusal(message: str, response: Any) -> str | None:
    """What to say of a request that the server refused for its length; None when that was not the reason.

    Args:
        message: the server's.
        response: that carried it, of the HTTP library that OpenAI's client uses.
    """
    request = _request(response)
    answer = _ANSWER.search(message)
    if answer is not None:
        name, asked, limit = answer.groups()
        return (
            f"{name}={asked} is more than the {limit} tokens that are served for prompt and answer. "
            f"Ask for fewer, or {_ROW} with more than {limit}"
        )
    if _NO_ROOM in message and 0 not in (request.get("max_tokens"), request.get("max_completion_tokens")):
        return (
            f"a prompt{_shown(request)} fills all the tokens that are served for prompt and answer together. "
            f"Shorten it, or {_ROW} with more; {_BEFORE}"
        )
    limit_found = _LIMIT.search(message)
    if limit_found is None:
        return None
    limit = limit_found.group(1)
    length = _PROMPT.search(message)
    counted = f"has {length.group(1)} {length.group(2)}" if length else "is too long"
    return (
        f"a prompt{_shown(request)} {counted}; {limit} tokens are served for prompt and answer together. "
        f"Shorten it, or {_ROW} with more than {limit}; {_BEFORE}"
    )


def _shown(request: dict[str, Any]) -> str:
    messages = request.get("messages")
    return f" ({first_words(messages)})" if isinstance(messages, list) else ""


def _request(response: Any) -> dict[str, Any]:
    try:
        content = json.loads(response.request.content)
    except (RuntimeError, ValueError):  # a body that was streamed and is gone, or no JSON
        return {}
    return content if isinstance(content, dict) else {}
