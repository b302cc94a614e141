"""Topologies in files: TOML, YAML and JSON, all with the names that the Python specifications have.

Unknown fields and repeated keys are refused: a misspelt option never becomes a default.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from art_topology.cluster import ClusterSpec
from art_topology.serving import ModelServiceSpec
from art_topology.spec import Spec, SpecError
from art_topology.trainer import TrainerMeshSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FileFormat = Literal["toml", "yaml", "json"]

_FORMATS: dict[str, FileFormat] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}


class TopologySpec(Spec, frozen=True, kw_only=True):
    """What one file holds: the arguments of :func:`~art_topology.compile_topology`.

    Args:
        cluster: The hosts.
        trainer: The trainer's ranks, if the program trains.
        services: The model services.
    """

    cluster: ClusterSpec
    trainer: TrainerMeshSpec | None = None
    services: tuple[ModelServiceSpec, ...] = ()


def load_topology(path: str | Path) -> TopologySpec:
    """Reads a file.

    Args:
        path: Its suffix says the format: ``.toml``, ``.yaml``, ``.yml`` or ``.json``; UTF-8.

    Raises:
        OSError: the file cannot be read.
        SpecError: it has another suffix, is not well-formed, has fields that do not exist or repeated keys,
            or values of the wrong type or range; or PyYAML is missing for YAML.
    """
    from pathlib import Path

    path = Path(path)
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise SpecError(f"{path}: the suffix says the format; it is one of {', '.join(_FORMATS)}")
    try:
        return parse_topology(path.read_text(encoding="utf-8"), kind)
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8: {error}") from error
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error


def parse_topology(text: str, kind: FileFormat) -> TopologySpec:
    """Reads the text of a file.

    Args:
        text: What the file holds.
        kind: Its format: "toml", "yaml" or "json".

    Raises:
        SpecError: the text is not well-formed, has fields that do not exist or repeated keys, or values of
            the wrong type or range; or PyYAML is missing for YAML.
    """
    values = _PARSERS[kind](text)
    try:
        return msgspec.convert(values, TopologySpec)
    except msgspec.ValidationError as error:
        raise SpecError(str(error).replace("`$.", "`")) from error


def topology_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of :class:`TopologySpec`, for editors and other tools."""
    return msgspec.json.schema(TopologySpec)


def _parse_toml(text: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"not TOML: {error}") from error


def _parse_json(text: str) -> Any:
    import json

    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except json.JSONDecodeError as error:
        raise SpecError(f"not JSON: {error}") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise SpecError(f"key {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return values


def _parse_yaml(text: str) -> Any:
    try:
        yaml = importlib.import_module("yaml")
    except ModuleNotFoundError as error:
        raise SpecError("reading YAML needs PyYAML: pip install 'art-topology[yaml]'") from error
    try:
        _refuse_repeated_keys(yaml.compose(text, Loader=yaml.SafeLoader))
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError(f"not YAML: {error}") from error


def _refuse_repeated_keys(root: Any) -> None:
    """PyYAML keeps the last of equal keys, so they are looked for in its node graph."""
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen or isinstance(node.value, str):
            continue
        seen.add(id(node))
        if node.id == "sequence":
            waiting.extend(node.value)
            continue
        names: set[str] = set()
        for key, value in node.value:
            if key.id == "scalar" and key.value in names:
                raise SpecError(f"key {key.value!r} is given twice, again in line {key.start_mark.line + 1}")
            if key.id == "scalar":
                names.add(key.value)
            waiting += [key, value]


_PARSERS: dict[FileFormat, Callable[[str], Any]] = {
    "toml": _parse_toml,
    "yaml": _parse_yaml,
    "json": _parse_json,
}
