"""From the bytes of a file to plain values, or to diagnostics that say in which line it went wrong.

Whatever the bytes are: nothing in here raises anything but :class:`SpecError`.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Literal

from art_topology.diagnostics import Diagnostic, severity_of
from art_topology.positions import Place, SourceText, Span, path_of
from art_topology.reading import FileRefusedError, TooLargeError, read_regular
from art_topology.spec import SpecError

if TYPE_CHECKING:
    from pathlib import Path

FileFormat = Literal["toml", "yaml", "json"]

FORMATS: dict[str, FileFormat] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
"""Suffixes and the formats they stand for."""

MOST_LEVELS = 64
"""More than any topology has, less than what makes a parser give up."""

_TOML_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$| \(at end of document\)$")
_TOML_TWICE = ("Cannot overwrite", "Cannot declare", "Duplicate inline table key", "Cannot mutate")
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


def read_file(path: Path) -> tuple[SourceText, FileFormat]:
    """The text of a file and its format.

    Raises:
        SpecError: it cannot be read, is too large, is not UTF-8, or its suffix is of no format.
    """
    kind = FORMATS.get(path.suffix.lower())
    if os.path.isdir(path):
        raise _unreadable(path, "it is a folder", f"name a file in it: {', '.join(FORMATS)}")
    if kind is None:
        raise _unreadable(
            path,
            f"its suffix {path.suffix!r} says no format" if path.suffix else "it has no suffix",
            f"use one of {', '.join(FORMATS)}, or --format toml, yaml or json",
        )
    return read_file_as(path, kind), kind


def read_file_as(path: Path, kind: FileFormat) -> SourceText:
    """The text of a file whose format is known.

    Raises:
        SpecError: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        data = read_regular(path)
    except TooLargeError as error:
        source = SourceText("", str(path), _no_spans)
        raise SpecError.of(
            _diagnostic("ART-F008", str(error.strerror), "a topology is smaller", source)
        ) from error
    except FileRefusedError as error:
        hint = (
            f"name a file in it: {', '.join(FORMATS)}"
            if os.path.isdir(path)
            else "name a regular file; a topology is also read from standard input, as - with --format"
        )
        raise _unreadable(path, str(error.strerror), hint) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _unreadable(
            path, f"it cannot be read: {reason}", "name a file that exists and can be read"
        ) from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode(errors="replace")
        source = SourceText(normalized(before), str(path), _no_spans)
        message = f"not UTF-8: byte {data[error.start]:#04x} at offset {error.start} ({error.reason})"
        raise SpecError.of(
            _diagnostic("ART-F001", message, "save the file as UTF-8", source, len(source.text))
        ) from error
    return source_of(text, kind, str(path))


def source_of(text: str, kind: FileFormat, name: str | None) -> SourceText:
    """The text with the means to find keys in it.

    Raises:
        SpecError: it has half a character in it, which no file has.
    """
    text = normalized(text)
    if not text.isascii() and not _is_encodable(text):
        whole = SourceText(text.encode(errors="replace").decode(), name, _no_spans)
        at = next(i for i, character in enumerate(text) if not _is_encodable(character))
        message = "the text has half a character in it (a lone surrogate)"
        raise SpecError.of(_diagnostic("ART-F001", message, "write whole characters", whole, at))
    return SourceText(text, name, lambda normal: _spans(normal, kind))


def normalized(text: str) -> str:
    """Without a byte order mark, and with ``\\n`` at the end of its lines."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def read_values(source: SourceText, kind: FileFormat) -> Any:
    """The plain values of a text.

    Raises:
        SpecError: it is not well-formed, a key is given twice, or it is nested deeper than any topology.
    """
    try:
        values = _READERS[kind](source)
        _check_text(values, source)
    except RecursionError as error:
        raise SpecError.of(_too_deep(source)) from error
    return values


def _read_toml(source: SourceText) -> Any:
    import tomllib

    from art_topology.toml_positions import toml_duplicate

    try:
        return tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        found = _TOML_PLACE.search(str(error))
        told = str(error)[: found.start()] if found is not None else str(error)
        if told.startswith(_TOML_TWICE) and (twice := toml_duplicate(source.text)) is not None:
            raise SpecError.of(_twice(source, *twice)) from error
        at = len(source.text)
        if found is not None and found[1] is not None:
            at = source.offset(int(found[1]), int(found[2]))
        code = "ART-F003" if told.startswith(_TOML_TWICE) else "ART-F002"
        hint = "give every key once" if code == "ART-F003" else "correct the TOML here or just before"
        raise SpecError.of(_diagnostic(code, f"not TOML: {told}", hint, source, at)) from error
    except ValueError as error:
        raise SpecError.of(_huge_number(source, str(error))) from error


def _read_json(source: SourceText) -> Any:
    return read_json(source)


def read_json(source: SourceText, *, finite: bool = True) -> Any:
    """The values of a JSON text, every key given once.

    Args:
        source: The text.
        finite: Refuse NaN and Infinity, which Python writes and JSON does not have.

    Raises:
        SpecError: it is not well-formed, a key is given twice, or it is nested too deep.
    """
    import json

    from art_topology.json_positions import scan_json

    _check_json_levels(source)
    repeated = False

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        values = dict(pairs)
        repeated = repeated or len(values) != len(pairs)
        return values

    def refuse(constant: str) -> Any:
        raise _NotJsonError(constant)

    try:
        values = json.loads(
            source.text, object_pairs_hook=distinct, parse_constant=refuse if finite else None
        )
    except json.JSONDecodeError as error:
        hint = "correct the JSON here or just before"
        message = f"not JSON: {error.msg}"
        raise SpecError.of(_diagnostic("ART-F002", message, hint, source, error.pos)) from error
    except _NotJsonError as error:
        found = re.search(rf'(?<![\w"]){re.escape(error.constant)}(?![\w"])', source.text)
        message = f"not JSON: {error.constant} is no number of JSON"
        at = found.start() if found is not None else 0
        raise SpecError.of(_diagnostic("ART-F002", message, "write a finite number", source, at)) from error
    except ValueError as error:
        raise SpecError.of(_huge_number(source, str(error))) from error
    if repeated:
        _, duplicates = scan_json(source.text)
        raise SpecError.of(*(_twice(source, *found) for found in duplicates))
    return values


class _NotJsonError(Exception):
    def __init__(self, constant: str) -> None:
        super().__init__(constant)
        self.constant = constant


def _read_yaml(source: SourceText) -> Any:
    from art_topology.yaml_reading import MissingYamlError, YamlError, read_yaml

    try:
        return read_yaml(source.text, MOST_LEVELS)
    except MissingYamlError as error:
        hint = "install PyYAML, or write TOML or JSON"
        raise SpecError.of(_diagnostic("ART-F001", str(error), hint, source)) from error
    except YamlError as error:
        hints = {
            "ART-F002": "correct the YAML here or just before",
            "ART-F003": "give every key once",
            "ART-F008": "write it without anchors, or with fewer levels",
        }
        path = path_of((*error.around, error.key)) if error.key else ""
        found = _diagnostic(error.code, error.message, hints[error.code], source, error.start, path=path)
        if error.first is not None:
            found = _with_related(found, source.at(error.first, error.first + len(error.key)), path)
        raise SpecError.of(found) from error


_READERS = {"toml": _read_toml, "yaml": _read_yaml, "json": _read_json}


def _spans(text: str, kind: FileFormat) -> dict[Place, Span]:
    if kind == "toml":
        from art_topology.toml_positions import toml_spans

        return toml_spans(text)
    if kind == "json":
        from art_topology.json_positions import json_spans

        return json_spans(text)
    from art_topology.yaml_reading import yaml_spans

    return yaml_spans(text)


def _no_spans(_text: str) -> dict[Place, Span]:
    return {}


def _check_json_levels(source: SourceText) -> None:
    level = 0
    for found in _BRACKET.finditer(source.text):
        if found[0] in "[{":
            level += 1
        elif found[0] in "]}":
            level -= 1
        if level > MOST_LEVELS:
            raise SpecError.of(_too_deep(source, found.start()))


def _check_text(values: Any, source: SourceText) -> None:
    """Refuses what no encoder takes: strings with half a character (a lone surrogate), and deep nesting."""
    waiting: list[tuple[Place, Any]] = [((), values)]
    while waiting:
        place, value = waiting.pop()
        if len(place) > MOST_LEVELS:
            raise SpecError.of(_too_deep(source, source.span(place[:MOST_LEVELS])[0]))
        if isinstance(value, dict):
            waiting += [((*place, key), item) for key, item in value.items()]
            texts: list[Any] = list(value)
        elif isinstance(value, list):
            waiting += [((*place, index), item) for index, item in enumerate(value) if type(item) is not int]
            continue
        else:
            texts = [value]
        for text in texts:
            if isinstance(text, str) and not text.isascii() and not _is_encodable(text):
                path = path_of(tuple(step if isinstance(step, int) else str(step) for step in place))
                start, end = source.span(place)
                raise SpecError.of(
                    _diagnostic(
                        "ART-F006",
                        "a text has half a character in it (a lone surrogate)",
                        "write whole characters",
                        source,
                        start,
                        end,
                        path=path,
                    )
                )


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _diagnostic(
    code: str,
    message: str,
    hint: str,
    source: SourceText,
    start: int = 0,
    end: int | None = None,
    *,
    path: str = "",
) -> Diagnostic:
    return Diagnostic(
        code=code,
        severity=severity_of(code),
        path=path,
        message=message,
        hint=hint,
        location=source.at(start, end),
    )


def _unreadable(path: Path, message: str, hint: str) -> SpecError:
    source = SourceText("", str(path), _no_spans)
    return SpecError.of(_diagnostic("ART-F001", message, hint, source))


def _too_deep(source: SourceText, start: int = 0) -> Diagnostic:
    message = f"values are nested in more than {MOST_LEVELS} levels"
    return _diagnostic("ART-F008", message, "a topology has fewer", source, start)


def _huge_number(source: SourceText, told: str) -> Diagnostic:
    found = re.search(r"[0-9][0-9_]{1000,}", source.text)
    start = found.start() if found is not None else 0
    reason = f"it has {len(found[0].replace('_', '')):,} digits" if found is not None else told
    return _diagnostic(
        "ART-F007", f"a number is too large: {reason}", "write a smaller number", source, start
    )


def _twice(source: SourceText, place: Place, first: Span, second: Span) -> Diagnostic:
    path = path_of(place)
    found = _diagnostic(
        "ART-F003", f"key {place[-1]!r} is given twice", "give every key once", source, *second, path=path
    )
    return _with_related(found, source.at(*first), path)


def _with_related(found: Diagnostic, location: Any, path: str) -> Diagnostic:
    import msgspec

    return msgspec.structs.replace(found, related=(path,), related_locations=(location,))
