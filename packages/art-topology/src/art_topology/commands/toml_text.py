"""Specifications as TOML that a person reads: only what differs from the defaults, tables in sections."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from art_topology.files import TopologySpec
from art_topology.spec import Spec

_WIDTH = 100


def plain_values(spec: Any) -> Any:
    """A specification as plain values, without fields that have their default."""
    if isinstance(spec, Spec):
        config = spec.__struct_config__
        values: dict[str, Any] = {config.tag_field: config.tag} if config.tag_field is not None else {}
        for field in msgspec.structs.fields(spec):
            value = getattr(spec, field.name)
            if field.required or value != field.default:
                values[field.name] = plain_values(value)
        return values
    if isinstance(spec, tuple | list):
        return [plain_values(value) for value in spec]
    if isinstance(spec, dict):
        return {key: plain_values(value) for key, value in spec.items()}
    return spec


def topology_toml(spec: TopologySpec, *, head: str = "", comments: Mapping[str, str] | None = None) -> str:
    """A topology as the text of a TOML file.

    Args:
        spec: The topology.
        head: A comment at its beginning, without ``#``.
        comments: Comments above the first section of these names, such as ``cluster.hosts``.
    """
    values = plain_values(spec)
    told = dict(comments or {})
    blocks = [_commented(head)] if head else []
    for name in ("model", "workload", "cluster", "trainer", "services"):
        value = values.get(name)
        if value:
            blocks += _sections(name, value, told)
    return "\n\n".join(blocks) + "\n"


def toml_string(text: str) -> str:
    """A basic string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _commented(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.split("\n"))


def _sections(name: str, value: Any, comments: dict[str, str]) -> list[str]:
    """The section of a table or of a list of tables, and below it those of ``cluster.hosts``."""
    comment = comments.pop(name, "")
    above = [_commented(comment)] if comment else []
    if isinstance(value, list):
        blocks = [_section(f"[[{name}]]", entry) for entry in value]
        return ["\n".join([*above, blocks[0]]), *blocks[1:]]
    below = {key: value[key] for key in ("hosts",) if isinstance(value.get(key), list)}
    own = {key: entry for key, entry in value.items() if key not in below}
    found = ["\n".join([*above, _section(f"[{name}]", own)])] if own else []
    for key, entries in below.items():
        found += _sections(f"{name}.{key}", entries, comments)
    return found


def _section(header: str, values: dict[str, Any]) -> str:
    return "\n".join(
        [header, *(f"{_key(key)} = {_value(value, len(key) + 3)}" for key, value in values.items())]
    )


def _value(value: Any, column: int) -> str:
    """One value; a list of tables that is too long for a line gets a line for each."""
    text = _inline(value)
    if isinstance(value, list) and value and isinstance(value[0], dict) and column + len(text) > _WIDTH:
        return "[\n" + "".join(f"  {_inline(entry)},\n" for entry in value) + "]"
    return text


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(
            f"{_key(key)} = {_inline(entry)}" for key, entry in value.items() if entry is not None
        )
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return toml_string(value)
    return repr(value)


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _inline(key)
