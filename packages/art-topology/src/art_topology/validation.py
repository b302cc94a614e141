"""Plain values against the specifications: all that is wrong with types and ranges, not only the first.

``msgspec`` converts and stops at the first mistake. Where it finds one, :func:`explain` goes through the
values again, field by field, and lists them all.
"""

from __future__ import annotations

import datetime
import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAliasType, Union, get_args, get_origin

import msgspec

from art_topology.diagnostics import Diagnostic, severity_of
from art_topology.passes.findings import closest
from art_topology.positions import Place, path_of
from art_topology.spec import GpuId

_LAST_PORT = 65535
_NAMES = {
    dict: "a table",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    type(None): "nothing",
    datetime.date: "a date",
    datetime.datetime: "a date and time",
    datetime.time: "a time",
}


def explain(values: Any, kind: Any) -> tuple[Diagnostic, ...]:
    """Everything that keeps ``values`` from being of the type ``kind``; empty if nothing does."""
    if values is None:
        return (
            _diagnostic("ART-F006", (), "the file is empty", "`art-topology init` writes one to start from"),
        )
    return tuple(_walk(values, kind, ()))


def shown(value: Any) -> str:
    """``value`` on one line, cut short."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, dict | list) and (len(value) > 8 or isinstance(value, dict)):
        entries = "field" if isinstance(value, dict) else "entry"
        plural = f"{entries}s" if isinstance(value, dict) else "entries"
        return f"{_NAMES[type(value)]} of {len(value)} {entries if len(value) == 1 else plural}"
    if isinstance(value, datetime.date | datetime.time):
        text = str(value)
    elif isinstance(value, list):
        text = f"[{', '.join(map(shown, value))}]"
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _walk(value: Any, kind: Any, place: Place) -> Iterator[Diagnostic]:
    if isinstance(kind, TypeAliasType):
        kind = kind.__value__
    plain, metas = _without_annotations(kind)
    origin = get_origin(plain)
    if origin in (Union, types.UnionType):
        yield from _walk_union(value, kind, plain, place)
    elif isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        yield from _walk_struct(value, plain, place)
    elif origin is tuple:
        yield from _walk_list(value, get_args(plain)[0], metas, place)
    else:
        yield from _walk_leaf(value, kind, plain, metas, place)


def _without_annotations(kind: Any) -> tuple[Any, list[msgspec.Meta]]:
    metas: list[msgspec.Meta] = []
    while get_origin(kind) is Annotated:
        kind, *found = get_args(kind)
        metas += [meta for meta in found if isinstance(meta, msgspec.Meta)]
    return kind, metas


def _walk_union(value: Any, kind: Any, plain: Any, place: Place) -> Iterator[Diagnostic]:
    options = [option for option in get_args(plain) if option is not type(None)]
    if value is None and len(options) < len(get_args(plain)):
        return
    if len(options) == 1:
        yield from _walk(value, options[0], place)
        return
    structs = {option.__struct_config__.tag: option for option in options if _is_struct(option)}
    if not structs:
        fitting = [option for option in options if _accepts_type(value, option)]
        if len(fitting) == 1:
            index = _converted(int(value), kind) if _is_index(value) else None
            for found in _walk(value, fitting[0], place):
                yield found if index is None else _outside(place, "a number", value, index)
        else:
            yield from _walk_leaf(value, kind, plain, [], place)
        return
    if not isinstance(value, dict):
        if str in options and isinstance(value, str):
            return
        yield _wrong_type(place, "a table", value)
        return
    if dict in [get_origin(option) or option for option in options]:
        return
    tag_field = str(next(iter(structs.values())).__struct_config__.tag_field)
    tags = sorted(str(tag) for tag in structs)
    if tag_field not in value:
        yield _missing(place, tag_field, f"{tag_field} = {' or '.join(map(repr, tags))}")
        return
    tag = value[tag_field]
    if not isinstance(tag, str) or tag not in structs:
        yield _outside(
            (*place, tag_field), f"one of {', '.join(map(repr, tags))}", tag, closest_of(tag, tags)
        )
        return
    yield from _walk_struct(value, structs[tag], place)


def _is_index(value: Any) -> bool:
    return isinstance(value, str) and value.isdecimal() and len(value) < 7


def closest_of(value: Any, options: list[str]) -> Any:
    """The option that was most likely meant; None if none is near."""
    return closest(value, options) if isinstance(value, str) else None


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _accepts_type(value: Any, option: Any) -> bool:
    plain, _ = _without_annotations(option)
    origin = get_origin(plain) or plain
    if origin is tuple:
        return isinstance(value, list)
    return type(value) is origin


def _walk_struct(value: Any, kind: type[msgspec.Struct], place: Place) -> Iterator[Diagnostic]:
    if not isinstance(value, dict):
        yield _wrong_type(place, "a table", value)
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    tag_field = kind.__struct_config__.tag_field
    left = [name for name in fields if name not in value]
    meant = set()
    for key, item in value.items():
        if key in fields:
            yield from _walk(item, fields[key].type, (*place, key))
        elif key != tag_field:
            better = closest_of(key, left) if left else None
            meant.add(better)
            yield _unknown(place, key, better, left)
    for name in left:
        if fields[name].required and name not in meant:
            yield _missing(place, name, f"add {name}")


def _walk_list(value: Any, item: Any, metas: list[msgspec.Meta], place: Place) -> Iterator[Diagnostic]:
    if not isinstance(value, list | tuple):
        yield _wrong_type(place, "a list", value, _as_list(value, item))
        return
    least = max((meta.min_length or 0 for meta in metas), default=0)
    if len(value) < least:
        yield _diagnostic(
            "ART-F007", place, f"{_said(place)} has {len(value)} entries", f"give at least {least}"
        )
    for index, entry in enumerate(value):
        yield from _walk(entry, item, (*place, index))


_MOST_NAMED = 64
"""Entries of a list that is proposed, at most."""
_RUN = re.compile(r"\s*(\d{1,6})\s*(?:-|\.\.|:)\s*(\d{1,6})\s*")


def _as_list(value: Any, item: Any) -> list[Any] | None:
    """The list that was meant by something else: a run of indices, how many there are, texts between commas,
    or the one entry."""
    run = _RUN.fullmatch(value) if isinstance(value, str) else None
    options: list[list[Any]] = [[value]]
    if run is not None and 0 <= int(run[2]) - int(run[1]) < _MOST_NAMED:
        options = [list(range(int(run[1]), int(run[2]) + 1))]
    elif type(value) is int and item == GpuId:
        options = [list(range(value))] if 0 < value <= _MOST_NAMED else []
    elif isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        options = [[int(part) if part.isdecimal() and len(part) < 7 else part for part in parts]]
    for entries in options:
        if not any(_walk_list(entries, item, [], ())):
            return entries
    return None


def _walk_leaf(
    value: Any, kind: Any, plain: Any, metas: list[msgspec.Meta], place: Place
) -> Iterator[Diagnostic]:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        told = str(error)
    else:
        return
    if get_origin(plain) is Literal:
        options = [str(option) for option in get_args(plain)]
        better = closest_of(value, options)
        yield _outside(place, f"one of {', '.join(map(repr, options))}", value, better)
        return
    if type(value) is plain or (plain is float and type(value) is int):
        yield _outside(
            place,
            _range(metas) or told.removeprefix("Expected ").replace("`", ""),
            value,
            _clamped(value, metas),
        )
        return
    expected = _expected(plain)
    yield _wrong_type(place, expected, value, _converted(value, kind))


def _converted(value: Any, kind: Any) -> Any:
    """The value as one of the kind, if it is written like one: "2" for 2; None if it is not."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, OverflowError):
        return None


def _expected(plain: Any) -> str:
    if get_origin(plain) in (Union, types.UnionType):
        return " or ".join(_expected(_without_annotations(option)[0]) for option in get_args(plain))
    return _NAMES.get(plain) or str(plain)


def _range(metas: list[msgspec.Meta]) -> str:
    parts = []
    for meta in metas:
        if meta.ge is not None and meta.le is not None:
            parts.append(f"from {meta.ge} to {meta.le}")
        else:
            parts += [f"at least {meta.ge}"] if meta.ge is not None else []
            parts += [f"above {meta.gt}"] if meta.gt is not None else []
            parts += [f"at most {meta.le}"] if meta.le is not None else []
        if _more_than_one(meta):
            least = meta.min_length
            parts.append(f"text of {least} characters or more" if least != 1 else "a text that is not empty")
        parts += [f"text of at most {meta.max_length} characters"] if meta.max_length is not None else []
        if meta.pattern is not None:
            parts.append(str(meta.description or f"text of the form {meta.pattern}").rstrip("."))
    return ", ".join(parts)


def _more_than_one(meta: msgspec.Meta) -> bool:
    """Whether its least length has to be said: that of a name goes without saying."""
    return meta.min_length is not None and meta.pattern is None


def _clamped(value: Any, metas: list[msgspec.Meta]) -> Any:
    if isinstance(value, str) or any(meta.le == _LAST_PORT for meta in metas):
        return None  # the last port is nobody's wish
    if any(meta.gt == 0 and meta.le == 1 for meta in metas) and 1 < value <= 100:
        return value / 100  # a share, written in per cent
    for meta in metas:
        if meta.ge is not None and value < meta.ge:
            return meta.ge
        if meta.le is not None and not value <= meta.le:
            return meta.le
    return None


def _said(place: Place) -> str:
    return (
        repr(place[-1])
        if place and isinstance(place[-1], str)
        else f"entry {place[-1]}"
        if place
        else "the file"
    )


def _diagnostic(code: str, place: Place, message: str, hint: str, better: Any = None) -> Diagnostic:
    path = path_of(tuple(step if isinstance(step, int) else str(step) for step in place))
    return Diagnostic(
        code=code,
        severity=severity_of(code),
        path=path,
        message=message,
        hint=hint,
        suggestion=(path, better) if better is not None else None,
    )


def _wrong_type(place: Place, expected: str, value: Any, better: Any = None) -> Diagnostic:
    kind = _NAMES.get(type(value), "of another kind")
    given = "it" if isinstance(value, dict | list) else shown(value)
    message = f"{_said(place)} is {expected}, but {given} is {kind}"
    hint = f"write {shown(better)}" if better is not None else f"write {expected}"
    if expected == "a list" and isinstance(value, dict):
        hint = "write a list with this table in it"
        if len(place) == 1:
            hint += f": [[{place[0]}]] in TOML, - before its first key in YAML"
    elif expected == "a list" and place and place[-1] == "gpus":
        hint = hint if better is not None else "write a list, such as [0, 1, 2, 3]"
    if isinstance(value, datetime.date | datetime.time) and "a text" in expected:
        hint = "put it in quotes, so that it is a text"
    return _diagnostic("ART-F006", place, message, hint, better)


def _outside(place: Place, range_: str, value: Any, better: Any) -> Diagnostic:
    message = f"{_said(place)} cannot be {shown(value)}: it has to be {range_}"
    hint = f"write {shown(better)}" if better is not None else f"choose {range_}"
    return _diagnostic("ART-F007", place, message, hint, better)


def _missing(place: Place, name: str, hint: str) -> Diagnostic:
    where = f" in {path_of(place)}" if place else ""
    return _diagnostic("ART-F005", place, f"the field {name!r} is missing{where}", hint)


def _unknown(place: Place, key: Any, better: str | None, others: list[str]) -> Diagnostic:
    hint = (
        f"did you mean {better!r}?"
        if better is not None
        else "leave it out" + (f", or use one of {', '.join(others[:12])}" if others else "")
    )
    where = path_of(place) or "the file"
    return _diagnostic("ART-F004", (*place, key), f"{where} has no field {shown(key)}", hint)
