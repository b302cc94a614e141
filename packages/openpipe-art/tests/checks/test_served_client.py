"""A request that the server refuses for its length is told in ART's words; other refusals are OpenAI's."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import openai
import pytest

import art
from art.checks.served_client import RequestTooLongError

# What vLLM 0.32 answers.
PROMPT = (
    "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input "
    "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
    "prompt."
)
CHARACTERS = (
    "This model's maximum context length is 2048 tokens. However, your prompt contains 99999 characters "
    "(more than 32768 characters, which is the upper bound for 2048 input tokens). Please reduce the length "
    "of the input prompt."
)
ANSWER = (
    "max_tokens=5000 cannot be greater than max_model_len=max_total_tokens=2048. Please request fewer output "
    "tokens."
)
FULL = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
MESSAGES = [{"role": "user", "content": "Tell me everything about the sea and its many fishes"}]


@contextlib.asynccontextmanager
async def serving(status: int, message: str) -> AsyncIterator[art.TrainableModel]:
    """A server that answers every request in the same way, and a model that is served there."""
    body = json.dumps({"error": {"message": message, "type": "BadRequestError", "code": status}}).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        await reader.readexactly(length)
        writer.write(
            f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield art.TrainableModel(
            name="m",
            project="p",
            base_model="b",
            inference_base_url=f"http://127.0.0.1:{port}/v1",
            inference_api_key="k",
            inference_model_name="m",
        )


async def refused(status: int, message: str, *, max_tokens: int = 8) -> openai.APIStatusError:
    async with serving(status, message) as model:
        client = model.openai_client().with_options(max_retries=0)
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=max_tokens)
    return caught.value


async def test_a_prompt_that_is_too_long_is_told_with_its_beginning_and_the_next_step():
    error = await refused(400, PROMPT)
    assert isinstance(error, RequestTooLongError)
    assert isinstance(error, art.ArtError)
    assert isinstance(error, openai.BadRequestError)
    assert str(error) == (
        'a prompt ("Tell me everything about the sea and its ...") has at least 2049 tokens; 2048 tokens are '
        "served for prompt and answer together. Shorten it, or call "
        "art.init_megatron_runtime_config(packed_sequence_length=...) with more than 2048; "
        "art.check_prompt_lengths finds such prompts before a run, with their lengths"
    )
    assert error.status_code == 400


async def test_a_text_refused_by_its_characters_is_told_as_well():
    assert "has 99999 characters; 2048 tokens" in str(await refused(400, CHARACTERS))


async def test_a_prompt_that_fills_everything_is_told():
    """vLLM takes what the prompt leaves as the answer's length and then refuses a length of 0."""
    error = await refused(400, FULL)
    assert isinstance(error, RequestTooLongError)
    assert "fills all the tokens that are served" in str(error)


async def test_asking_for_no_tokens_is_the_callers_mistake():
    assert not isinstance(await refused(400, FULL, max_tokens=0), RequestTooLongError)


async def test_an_answer_that_is_too_long_is_told():
    error = await refused(400, ANSWER)
    assert isinstance(error, RequestTooLongError)
    assert str(error).startswith("max_tokens=5000 is more than the 2048 tokens that are served for prompt")


@pytest.mark.parametrize(("status", "message"), [(400, "temperature must be non-negative"), (404, PROMPT)])
async def test_other_refusals_are_openais(status, message):
    error = await refused(status, message)
    assert not isinstance(error, art.ArtError)
    assert message in str(error)
