"""Tools in requests: calls are found with a parser, and without one the refusal says what to do."""

import json

import openai
import pytest

from art_serving import EngineOptions, LocalLauncher, MemberError, ModelService

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOOL_CALL_ID = 127
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            },
        },
    }
]


async def ask(client, tokens, **more):
    """One chat whose answer is made of the ``tokens`` alone."""
    answer = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "w11 w12"}],
        max_tokens=1,
        tools=TOOLS,
        extra_body={"allowed_token_ids": tokens},
        **more,
    )
    return answer.choices[0]


async def test_with_a_parser_a_call_comes_as_one_and_keeps_its_tokens(
    environment, make_spec, record_of, tmp_path
):
    async with await ModelService.start(
        make_spec("caller"),
        LocalLauncher(environment),
        log_folder=tmp_path,
        options=EngineOptions(tool_parser="hermes"),
    ) as service:
        client = openai.AsyncOpenAI(base_url=service.base_url, api_key=service.api_key, max_retries=0)
        async with client:
            choice = await ask(client, [TOOL_CALL_ID])
            (call,) = choice.message.tool_calls
            assert call.function.name == "multiply"
            assert json.loads(call.function.arguments) == {"a": 3, "b": 4}
            assert choice.finish_reason == "tool_calls"
            record = record_of(choice)
            assert record.completion_ids.tolist() == [TOOL_CALL_ID]
            assert len(record.logprobs) == 1

            choice = await ask(client, [20])
            assert not choice.message.tool_calls
            assert choice.message.content.strip() == "w20"
            assert record_of(choice).completion_ids.tolist() == [20]


async def test_without_a_parser_tools_are_refused_with_what_to_do(openai_client, record_of):
    with pytest.raises(
        openai.BadRequestError, match=r"MegatronBackend\(tool_parser='hermes'\).*tool_choice='none'"
    ):
        await ask(openai_client, [TOOL_CALL_ID])
    with pytest.raises(openai.BadRequestError, match="tools need a parser"):
        await ask(openai_client, [TOOL_CALL_ID], tool_choice="required")
    choice = await ask(openai_client, [TOOL_CALL_ID], tool_choice="none")
    assert '"multiply"' in choice.message.content
    assert record_of(choice).completion_ids.tolist() == [TOOL_CALL_ID]


async def test_a_parser_that_does_not_exist_is_refused_with_those_that_do(environment, make_spec, tmp_path):
    with pytest.raises(
        MemberError, match=r"there is no tool parser 'hermess'; vLLM has .*hermes, .*pythonic"
    ):
        await ModelService.start(
            make_spec("wrong"),
            LocalLauncher(environment),
            log_folder=tmp_path,
            options=EngineOptions(tool_parser="hermess"),
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threads": 0}, "threads is 0; it must be a whole number from 1 to 4096, for example threads=2"),
        ({"threads": "2"}, "threads is '2'"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0"),
        ({"block_size": 1.5}, "block_size is 1.5"),
        ({"prefix_caching": "yes"}, "prefix_caching is 'yes'; it must be True or False"),
        ({"stall_timeout_s": float("nan")}, "stall_timeout_s is nan"),
        ({"stall_timeout_s": True}, "stall_timeout_s is True"),
        ({"tool_parser": ""}, "tool_parser is ''"),
        ({"tool_parser": 3}, "tool_parser is 3"),
    ],
)
async def test_options_are_checked(options, said):
    with pytest.raises(ValueError, match=f"EngineOptions.{said}"):
        EngineOptions(**options)
