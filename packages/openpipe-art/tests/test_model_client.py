"""Requests that a rollout cannot mean are refused before they are sent; what is forgotten is told once."""

import asyncio
import inspect
import json
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest

import art
from art.errors import UnlimitedAnswerWarning
from art.model_client import UnknownModelError, check_request

ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "apple"}},
    ],
}
MISSING = {"error": {"message": "The model `other` does not exist.", "type": "NotFoundError", "code": 404}}
ASKED: list[Any] = [{"role": "user", "content": "Name a fruit."}]


@pytest.fixture
async def model() -> AsyncIterator[art.TrainableModel]:
    """A model whose server has the name ``m`` alone."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        known = json.loads(await reader.readexactly(length))["model"] == "m"
        body = json.dumps(ANSWER if known else MISSING).encode()
        writer.write(
            f"HTTP/1.1 {200 if known else 404} x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield art.TrainableModel(
            name="m",
            project="p",
            base_model="b",
            inference_base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1",
            inference_api_key="k",
            inference_model_name="m",
        )


async def test_an_answer_without_a_bound_is_told_once_with_the_line(model: art.TrainableModel) -> None:
    client = model.openai_client()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
            await client.chat.completions.create(model="m", messages=ASKED)
        await client.chat.completions.create(model="m", messages=ASKED, max_tokens=5)
        await client.with_options(max_retries=0).chat.completions.create(
            model="m", messages=ASKED, max_completion_tokens=5
        )
    found = [one for one in told if one.category is UnlimitedAnswerWarning]
    assert [(one.filename, one.lineno) for one in found] == [(__file__, line)]
    assert "max_tokens=64" in str(found[0].message)


async def test_another_model_s_name_is_told_with_the_right_one(model: art.TrainableModel) -> None:
    with pytest.raises(UnknownModelError, match=r"model\.get_inference_name\(\), which is 'm'.*`other`"):
        await model.openai_client().chat.completions.create(model="other", messages=ASKED, max_tokens=5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"n": 2}, r"n=2 in a request.*n must be 1.*range\(2\)"),
        ({"n": 0}, "n=0"),
        ({"messages": [*ASKED, {"role": "user"}]}, r"messages\[1\].*without content.*\"role\": 'user'"),
        ({"messages": [{"role": "assistant"}]}, r"messages\[0\].*without content"),
        ({"messages": [{"role": "tool", "tool_call_id": "c", "content": None}]}, "without content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            r"messages\[0\] of a request has a part of type 'image_url'; ART trains and serves text only",
        ),
    ],
)
async def test_what_a_rollout_cannot_mean_is_refused(
    model: art.TrainableModel, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(art.SettingError, match=said) as caught:
        await model.openai_client().chat.completions.create(
            **{"model": "m", "messages": ASKED, "max_tokens": 5, **fields}
        )
    assert f"{__file__}:" in str(caught.value)


def test_what_openai_allows_is_let_through() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    check_request({"messages": [{"role": "assistant", "tool_calls": [call]}], "n": 1})
    check_request({"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}], "n": None})
    check_request({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]})
    check_request({"messages": [{"role": "assistant", "content": None}]})


def test_a_message_without_content_is_no_part_of_a_trajectory() -> None:
    with pytest.raises(art.TrajectoryError, match=r"messages_and_choices\[1\].*without content"):
        art.Trajectory(messages_and_choices=[*ASKED, {"role": "user"}], reward=0.0)  # type: ignore[list-item]
