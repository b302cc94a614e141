"""Prompts are counted as the server will, and all that are too long come in one error.

transformers' own ``apply_chat_template`` is what is compared with.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import art
from art import megatron_config
from art.checks import chat_template, prompts
from art.checks.chat_template import ChatTemplate
from art.checks.prompts import PromptCounter, check_prompt_lengths
from art.errors import ArtError, ConfigError, PromptLengthError

# With what larger templates do: a namespace, a loop from the end, tests, filters, tools, thoughts cut out.
WITH_TOOLS = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "You may call these:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role not in ["system", "user", "assistant", "tool"] %}
        {{- raise_exception('there is no role ' + message.role) }}
    {%- endif %}
    {%- if message.role == "system" and loop.first %}{% continue %}{% endif %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}{% generation %}{{ content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\n<call>{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}</call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}{% endgeneration %}{{ '\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\n<result>' + message.content + '</result><|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather <now> & here, in °C",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is it like in Köln?"},
    {
        "role": "assistant",
        "content": "<think>\nhm\n</think>\n\nI look.",
        "tool_calls": [
            {
                "id": "1",
                "type": "function",
                "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "11 °C, rain"},
    {"role": "user", "content": "And tomorrow?"},
]
TEXT = st.text(max_size=40)
CHAT = st.builds(
    lambda system, users, answers: [
        *([{"role": "system", "content": system}] if system is not None else []),
        *(
            {"role": role, "content": text}
            for pair in zip(users, answers, strict=False)
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ),
        {"role": "user", "content": users[-1]},
    ],
    st.none() | TEXT,
    st.lists(TEXT, min_size=1, max_size=4),
    st.lists(TEXT, max_size=3),
)
ONE_FOLDER = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)


@pytest.fixture(autouse=True)
def fresh_state(monkeypatch):
    monkeypatch.setattr(megatron_config, "_config", None)
    monkeypatch.setattr(megatron_config, "_taken", False)
    yield
    prompts._counter.cache_clear()
    chat_template._compiled.cache_clear()


@functools.lru_cache(maxsize=1)
def reference(folder: Path):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def rendered(tokenizer, messages, **more) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **more)


def counted(tokenizer, messages, **more) -> int:
    return len(
        tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_dict=True, **more
        )["input_ids"]
    )


@ONE_FOLDER
@given(chat=CHAT)
def test_a_simple_template_renders_as_in_transformers(model_folder, chat):
    folder = made_once(model_folder)
    tokenizer = reference(folder)
    assert ChatTemplate(folder).render(chat) == rendered(tokenizer, chat)
    assert PromptCounter(folder).count(chat) == counted(tokenizer, chat)


@ONE_FOLDER
@given(chat=CHAT, tools=st.booleans())
def test_a_template_with_tools_and_thoughts_renders_as_in_transformers(model_folder, chat, tools):
    folder = made_once(model_folder, template=WITH_TOOLS)
    tokenizer = reference(folder)
    given_tools = TOOLS if tools else None
    assert ChatTemplate(folder).render(chat, tools=given_tools) == rendered(
        tokenizer, chat, tools=given_tools
    )
    assert PromptCounter(folder).count(chat, tools=given_tools) == counted(tokenizer, chat, tools=given_tools)


def made_once(make, **more) -> Path:
    made = getattr(make, "made", None)
    if made is None:
        made = make.made = make(**more)
    return made


@pytest.mark.parametrize("arguments", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
def test_turns_with_tool_calls_and_template_arguments(model_folder, arguments):
    folder = model_folder(template=WITH_TOOLS)
    tokenizer = reference(folder)
    mine = ChatTemplate(folder).render(TURNS, tools=TOOLS, template_arguments=arguments)
    assert mine == rendered(tokenizer, TURNS, tools=TOOLS, **arguments)
    assert '"city": "Köln"' in mine
    assert "hm" not in mine


def test_arguments_of_a_tool_call_may_be_text_as_in_a_request(model_folder):
    folder = model_folder(template=WITH_TOOLS)
    as_text = json.loads(json.dumps(TURNS))
    function = as_text[2]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(function["arguments"])
    assert ChatTemplate(folder).render(as_text) == ChatTemplate(folder).render(TURNS)
    function["arguments"] = "{broken"
    with pytest.raises(ConfigError, match="no JSON"):
        ChatTemplate(folder).render(as_text)


def test_parts_of_text_are_joined_and_pictures_refused(model_folder):
    template = ChatTemplate(model_folder())
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "one\ntwo<|im_end|>" in template.render([{"role": "user", "content": parts}])
    with pytest.raises(ConfigError, match="'image_url'"):
        template.render([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])


@pytest.mark.parametrize(
    ("content", "told"), [([{"type": "text"}], "KeyError: 'text'"), (["one"], "AttributeError: ")]
)
def test_messages_of_another_form_are_not_blamed_on_the_template(model_folder, content, told):
    template = ChatTemplate(model_folder())
    with pytest.raises(ConfigError, match=f"^the messages are not in OpenAI's form: {told}"):
        template.render([{"role": "user", "content": content}])


def test_a_template_in_a_file_of_its_own_comes_first(model_folder):
    folder = model_folder()
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    assert ChatTemplate(folder).render([{"role": "user", "content": "x"}]) == "<|endoftext|>x"


def test_a_template_for_tools_is_taken_when_there_are_tools(model_folder):
    folder = model_folder(template=None)
    for stray in folder.glob("chat_template*"):
        stray.unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with {{ tools|length }}"},
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    template = ChatTemplate(folder)
    message = [{"role": "user", "content": "x"}]
    assert (template.render(message), template.render(message, tools=TOOLS)) == ("plain", "with 1")


@pytest.mark.parametrize("source", ["{% for %}", "{{ unclosed", "{% nothing %}"])
def test_a_template_that_cannot_be_compiled_is_named(model_folder, source):
    folder = model_folder()
    (folder / "chat_template.jinja").write_text(source)
    with pytest.raises(ConfigError, match="cannot be compiled"):
        ChatTemplate(folder).render([{"role": "user", "content": "x"}])


def test_a_template_cannot_reach_outside_its_sandbox(model_folder):
    folder = model_folder()
    (folder / "chat_template.jinja").write_text("{{ messages.append(1) }}")
    with pytest.raises(ConfigError, match="refuses"):
        ChatTemplate(folder).render([{"role": "user", "content": "x"}])


def test_what_a_template_refuses_is_said_in_its_words(model_folder):
    with pytest.raises(ConfigError, match="there is no role critic"):
        ChatTemplate(model_folder(template=WITH_TOOLS)).render([{"role": "critic", "content": "x"}])


def test_a_model_without_a_template_is_named(model_folder):
    with pytest.raises(ConfigError, match="has no chat template"):
        check_prompt_lengths(model_folder(template=None), ["x"], max_tokens=1)


def test_a_tokenizer_that_cannot_be_read_is_named(model_folder):
    folder = model_folder()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        check_prompt_lengths(folder, ["x"], max_tokens=1)


def test_what_fits_is_counted(model_folder):
    folder = model_folder()
    given_prompts = ["a", [{"role": "user", "content": "b" * 50}]]
    lengths = art.check_prompt_lengths(folder, given_prompts, max_tokens=8, limit=200)
    tokenizer = reference(folder)
    expected = [counted(tokenizer, [{"role": "user", "content": text}]) for text in ("a", "b" * 50)]
    assert lengths.tokens == tuple(expected)
    assert (lengths.longest, lengths.limit, lengths.max_tokens) == (max(expected), 200, 8)


def test_a_prompt_and_its_answer_fill_the_row_exactly(model_folder):
    folder = model_folder()
    longest = check_prompt_lengths(folder, ["word " * 20], max_tokens=1, limit=1000).longest
    check_prompt_lengths(folder, ["word " * 20], max_tokens=8, limit=longest + 8)
    with pytest.raises(PromptLengthError) as caught:
        check_prompt_lengths(folder, ["word " * 20], max_tokens=9, limit=longest + 8)
    assert (caught.value.longest, caught.value.limit) == (longest + 9, longest + 8)


def test_all_that_are_too_long_come_in_one_error_the_longest_first(model_folder):
    folder = model_folder()
    texts = ["short", "Tell me a long story about " + "x" * 300, "fine", "An even longer one: " + "y" * 900]
    with pytest.raises(PromptLengthError) as caught:
        check_prompt_lengths(folder, texts, max_tokens=8, limit=100)
    tokenizer = reference(folder)
    lengths = [counted(tokenizer, [{"role": "user", "content": text}]) for text in texts]
    lines = str(caught.value).splitlines()
    assert lines[0] == "2 of 4 prompts leave no room for 8 tokens of answer in the 100 tokens of a row:"
    assert lines[1].startswith(f'- prompt 3 has {lengths[3]} tokens: "An even longer one: yyy')
    assert lines[2].startswith(f'- prompt 1 has {lengths[1]} tokens: "Tell me a long story about')
    assert f"packed_sequence_length={lengths[3] + 8}" in lines[3]
    assert max(len(line) for line in lines) < 200


def test_hundreds_of_them_are_counted_and_ten_are_shown(model_folder):
    with pytest.raises(PromptLengthError) as caught:
        check_prompt_lengths(model_folder(), ["z" * 200] * 300, max_tokens=8, limit=50)
    assert len(str(caught.value).splitlines()) == 13
    assert "- and 290 more" in str(caught.value)


def test_beyond_the_models_positions_a_longer_row_is_not_offered(model_folder):
    folder = model_folder(max_position_embeddings=64)
    with pytest.raises(PromptLengthError, match="was made for 64") as caught:
        check_prompt_lengths(folder, ["z" * 200], max_tokens=8)
    assert caught.value.limit == 64
    assert "packed_sequence_length" not in str(caught.value)


def test_the_configured_row_is_the_limit(model_folder):
    art.init_megatron_runtime_config(packed_sequence_length=77)
    assert check_prompt_lengths(model_folder(), ["x"], max_tokens=1).limit == 77


def test_an_answer_of_no_tokens_is_refused(model_folder):
    with pytest.raises(ConfigError, match="at least 1 token"):
        check_prompt_lengths(model_folder(), ["x"], max_tokens=0)


def test_a_name_in_place_of_a_folder_is_refused():
    with pytest.raises(ArtError, match="'org/name' is no folder"):
        check_prompt_lengths("org/name", ["x"], max_tokens=1)


def test_no_prompts_are_no_mistake(model_folder):
    assert check_prompt_lengths(model_folder(), [], max_tokens=1).longest == 0


def test_neither_torch_nor_transformers_is_loaded(model_folder):
    code = (
        "import sys, art\n"
        f"art.check_prompt_lengths({str(model_folder())!r}, ['x'], max_tokens=1)\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'openai'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
