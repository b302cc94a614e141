"""Whether prompts leave room for their answers: counted with the model's own template and tokenizer.

All prompts that are too long come in one error, before any process starts.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from art.calls import checked_call
from art.checks.chat_template import ChatTemplate
from art.checks.model_facts import folder_problem, read_config
from art.checks.packages import install_command
from art.errors import ConfigError, PromptLengthError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SHOWN = 10
_WORDS = 8

type Prompt = str | Sequence[Mapping[str, Any]]


class PromptLengths(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted.

    Args:
        tokens: of each prompt, the template's own included.
        limit: tokens of a prompt and its answer together.
        max_tokens: tokens of an answer.
    """

    tokens: tuple[int, ...]
    limit: int
    max_tokens: int

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt; 0 when there is none."""
        return max(self.tokens, default=0)


@checked_call
def check_prompt_lengths(
    base_model: str | Path,
    prompts: Iterable[Prompt],
    *,
    max_tokens: int,
    limit: int | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_arguments: Mapping[str, Any] | None = None,
) -> PromptLengths:
    """Counts the tokens of every prompt and checks that its answer has room.

    Call it once the model's folder is there and before anything starts. It loads the tokenizer (some tenths
    of a second) and neither torch nor transformers. Of a conversation over several turns give the longest
    prompt that you expect: what is sampled along the way cannot be known before.

    Args:
        base_model: the model's folder.
        prompts: each the messages of a request, or a string for one user message.
        max_tokens: tokens of an answer, as the rollouts will ask for, at least 1.
        limit: tokens that a prompt and its answer may have together; by default the configured
            ``packed_sequence_length``, or fewer where the model was made for fewer.
        tools: as the requests will carry them; they are part of the prompt.
        template_arguments: for the chat template, as ``chat_template_kwargs`` of a request.

    Returns:
        The length of every prompt, in tokens.

    Raises:
        PromptLengthError: it lists the prompts that are too long, by index and first words, with lengths.
        ConfigError: the folder is no complete model, its template refuses a prompt, or its tokenizer is of
            another model.
    """
    if max_tokens < 1:
        raise ConfigError(f"max_tokens is {max_tokens}; an answer has at least 1 token")
    given = list(prompts)
    counter = PromptCounter.of(base_model)
    room = limit if limit is not None else configured_limit(base_model)
    ids = [counter.ids(prompt, tools=tools, template_arguments=template_arguments) for prompt in given]
    _check_vocabulary(base_model, ids)
    tokens = tuple(len(prompt_ids) for prompt_ids in ids)
    long = [index for index, count in enumerate(tokens) if count + max_tokens > room]
    if long:
        raise _too_long(given, tokens, long, max_tokens, room, model_positions(base_model))
    return PromptLengths(tokens=tokens, limit=room, max_tokens=max_tokens)


class PromptCounter:
    """Counts tokens as the server of a model folder will. Get one with :meth:`of`.

    Args:
        folder: of the model.

    Raises:
        ConfigError: it is no complete model folder.
    """

    def __init__(self, folder: Path) -> None:
        problem = folder_problem(folder)
        if problem is not None:
            raise ConfigError(f"base_model {problem}")
        self._template = ChatTemplate(folder)
        self._tokenizer = _tokenizer(folder / "tokenizer.json")

    @staticmethod
    def of(folder: str | Path) -> "PromptCounter":
        """The counter of a folder; loaded once per process."""
        return _counter(str(folder))

    def count(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> int:
        """Tokens of one prompt, up to where the answer begins.

        Raises:
            ConfigError: the template refuses the prompt.
        """
        return len(self.ids(prompt, tools=tools, template_arguments=template_arguments))

    def ids(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of one prompt, up to where the answer begins.

        Raises:
            ConfigError: the template refuses the prompt.
        """
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        text = self._template.render(messages, tools=tools, template_arguments=template_arguments)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


@functools.lru_cache(maxsize=4)
def _counter(folder: str) -> PromptCounter:
    return PromptCounter(Path(folder))


def _tokenizer(path: Path) -> "Tokenizer":
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise ConfigError(f"counting tokens needs {error.name}: {install_command('cpu')}") from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise ConfigError(f"{path} cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def configured_limit(base_model: str | Path) -> int:
    """Tokens of a prompt and its answer together: the configured ``packed_sequence_length``, which is fixed
    from then on, or fewer where the model was made for fewer."""
    from art.megatron_config import get_megatron_runtime_config

    configured = get_megatron_runtime_config().packed_sequence_length
    return min(configured, model_positions(base_model) or configured)


def _check_vocabulary(base_model: str | Path, prompts: Sequence[Sequence[int]]) -> None:
    """Every prompt must have tokens, and every token a row in the embedding.

    Raises:
        ConfigError: one has none.
    """
    if not all(prompts):
        raise ConfigError(
            f"the chat template of {base_model} renders nothing; put the template of an instruction-tuned "
            "model there"
        )
    vocabulary = _number(base_model, "vocab_size")
    highest = max((max(ids, default=0) for ids in prompts), default=0)
    if vocabulary is not None and highest >= vocabulary:
        raise ConfigError(
            f"the tokenizer of {base_model} gives token {highest}, and the model has {vocabulary} tokens "
            "(vocab_size in config.json): tokenizer.json is of another model; take the one that belongs to it"
        )


def model_positions(base_model: str | Path) -> int | None:
    """``max_position_embeddings`` of the model, None where its ``config.json`` does not say."""
    return _number(base_model, "max_position_embeddings")


def _number(base_model: str | Path, name: str) -> int | None:
    """A whole number in the model's ``config.json``, None where it has none of that name."""
    value = read_config(Path(base_model)).get(name)
    return value if isinstance(value, int) else None


def _too_long(
    prompts: Sequence[Prompt],
    tokens: Sequence[int],
    long: Sequence[int],
    max_tokens: int,
    room: int,
    positions: int | None,
) -> PromptLengthError:
    longest = max(tokens[index] for index in long) + max_tokens
    number = f"{len(long)} of {len(prompts)} prompts leave" if len(prompts) > 1 else "the prompt leaves"
    lines = [f"{number} no room for {max_tokens} tokens of answer in the {room} tokens of a row:"]
    lines += [
        f"- prompt {index} has {tokens[index]} tokens: {first_words(prompts[index])}"
        for index in sorted(long, key=lambda index: -tokens[index])[:_SHOWN]
    ]
    if len(long) > _SHOWN:
        lines.append(f"- and {len(long) - _SHOWN} more")
    lines.append(length_remedy(longest, positions))
    return PromptLengthError("\n".join(lines), longest, room)


def length_remedy(longest: int, positions: int | None) -> str:
    """The next step when ``longest`` tokens are needed; ``positions`` is what the model was made for."""
    if positions is not None and longest > positions:
        return f"Shorten them, or ask for fewer tokens: the model was made for {positions}, not for {longest}"
    return (
        f"Call art.init_megatron_runtime_config(packed_sequence_length={longest}) or more, shorten the "
        "prompts, or ask for fewer tokens"
    )


def first_words(prompt: Prompt) -> str:
    """The beginning of a prompt's last message, for people."""
    text = prompt if isinstance(prompt, str) else _last_text(prompt)
    words = text.split()
    shown = " ".join(words[:_WORDS])[:80]
    return f'"{shown}{" ..." if len(words) > _WORDS or len(" ".join(words)) > 80 else ""}"'


def _last_text(messages: Sequence[Mapping[str, Any]]) -> str:
    for message in reversed(messages):
        content = message.get("content")
        if isinstance(content, str):
            return content
        if content:
            return " ".join(str(part.get("text", "")) for part in content)
    return ""
