"""Renders chat messages as the server does: with the model folder's own template, in Jinja's sandbox.

The same text as ``apply_chat_template`` of transformers gives, without loading transformers (which takes
seconds).
"""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from art.checks.packages import install_command
from art.errors import ConfigError

if TYPE_CHECKING:
    from jinja2 import Template

_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class ChatTemplate:
    """The template of one model folder.

    Args:
        folder: it holds ``chat_template.jinja``, or ``tokenizer_config.json`` with a ``chat_template``.

    Raises:
        ConfigError: it has none, or the template cannot be compiled.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        config = _read(folder / "tokenizer_config.json")
        self._sources = _template_sources(folder, config)
        self._special_tokens = _special_tokens(folder, config)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text, up to where the answer begins.

        Args:
            messages: as in a request to the server (OpenAI's form); content is text or parts of text.
            tools: as in a request.
            template_arguments: others that the template knows, as ``chat_template_kwargs`` of a request.

        Raises:
            ConfigError: the template refuses the messages, or one holds something else than text.
        """
        source = self._sources.get("tool_use" if tools else "default", self._sources["default"])
        template = _compiled(source, str(self._folder))
        try:
            seen = [_as_the_server_does(message) for message in messages]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the messages are not in OpenAI's form: {_why(error)}") from error
        try:
            return template.render(
                messages=seen,
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=True,
                **{**self._special_tokens, **(template_arguments or {})},
            )
        except Exception as error:  # a template computes: whatever fails there is its own
            raise ConfigError(
                f"the chat template of {self._folder} refuses these messages: {_why(error)}"
            ) from error


def _why(error: Exception) -> str:
    """What a template says itself in its words; of another error, which may say little, the kind too."""
    import jinja2

    said = isinstance(error, jinja2.TemplateError) and str(error)
    return said or f"{type(error).__name__}: {error}".removesuffix(": ")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _template_sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The templates by name; there is always a default one."""
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        try:
            return {"default": own_file.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{own_file} cannot be read: {error}") from error
    found = config.get("chat_template") or _read(folder / "chat_template.json").get("chat_template")
    if isinstance(found, str):
        return {"default": found}
    try:
        named = {str(entry["name"]): str(entry["template"]) for entry in found or []}
    except (TypeError, KeyError) as error:
        raise ConfigError(
            f"the chat_template of {folder} is neither a text nor a list of names and templates"
        ) from error
    if not named:
        raise ConfigError(
            f"{folder} has no chat template (neither chat_template.jinja nor one in tokenizer_config.json); "
            "take an instruction-tuned model, or put its template there"
        )
    return {"default": next(iter(named.values())), **named}


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for source in (_read(folder / "special_tokens_map.json"), config):
        for name in _SPECIAL_TOKENS:
            token = source.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                found[name] = text
    return found


def _as_the_server_does(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: parts of text joined, arguments of tool calls as objects."""
    seen = dict(message)
    content = seen.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        other = [part.get("type") for part in content if part.get("type") not in ("text", "input_text")]
        if other:
            raise ConfigError(f"a message holds {other[0]!r}; only text is served by this version")
        seen["content"] = "\n".join(part["text"] for part in content)
    if content is None:
        seen["content"] = ""
    if seen.get("tool_calls"):
        seen["tool_calls"] = [_with_arguments(call) for call in seen["tool_calls"]]
    return seen


def _with_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments) if arguments else {}
        except ValueError as error:
            raise ConfigError(f"the arguments of a tool call are no JSON: {arguments[:80]!r}") from error
    return {**call, "function": function}


@functools.cache
def _compiled(source: str, folder: str) -> "Template":
    try:
        import jinja2
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        raise ConfigError(f"chat templates need Jinja ({error}): {install_command('cpu')}") from error

    class Generation(Extension):
        """``{% generation %}`` marks what the assistant wrote; here its content is all that matters."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ConfigError(f"the chat template of {folder} cannot be compiled: {error}") from error
