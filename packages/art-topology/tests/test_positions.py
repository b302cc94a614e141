"""Positions of keys: whatever a parser accepts, the scanner finds every key of it at its own text."""

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology.json_positions import json_spans, scan_json
from art_topology.positions import SourceText, path_of, place_of
from art_topology.toml_positions import MalformedError, toml_duplicate, toml_spans
from art_topology.yaml_reading import yaml_spans

BARE = st.text("abcXYZ019_-", min_size=1, max_size=4)
TEXT = st.text(max_size=6)


def places(values: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every key and index of plain values, the outer before the inner."""
    items: Any = ()
    if isinstance(values, dict):
        items = values.items()
    elif isinstance(values, list):
        items = enumerate(values)
    for step, value in items:
        yield (*place, step)
        yield from places(value, (*place, step))


def basic(text: str) -> str:
    """A TOML basic string."""
    return json.dumps(text, ensure_ascii=True).replace("\x7f", "\\u007f") if _is_whole(text) else '""'


def _is_whole(text: str) -> bool:
    return all(ord(c) < 0x10000 and not 0xD800 <= ord(c) < 0xE000 for c in text)


@st.composite
def toml_keys(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(("bare", "bare", "basic", "literal")))
    if kind == "bare":
        return draw(BARE)
    if kind == "basic":
        return basic(draw(TEXT))
    return "'" + draw(st.text('ab c#=.[]"\\é', max_size=5)) + "'"


@st.composite
def toml_values(draw: st.DrawFn, depth: int = 2) -> str:
    kinds = ["number", "basic", "literal", "block", "literal block", "date", "true", "float"]
    kind = draw(st.sampled_from(kinds + ["array", "table"] * (depth > 0)))
    space = draw(st.sampled_from(("", " ", "  ")))
    match kind:
        case "number":
            return draw(st.sampled_from(("0", "-17", "1_000", "0xFF", "+3", "0b10")))
        case "float":
            return draw(st.sampled_from(("1.5", "-0.0", "6e+23", "inf", "nan")))
        case "date":
            return draw(
                st.sampled_from(("1979-05-27", "1979-05-27 07:32:00", "07:32:00", "1979-05-27T00:00:00Z"))
            )
        case "true":
            return draw(st.sampled_from(("true", "false")))
        case "basic":
            return basic(draw(TEXT))
        case "literal":
            return "'" + draw(st.text('ab #=,]}"\\', max_size=6)) + "'"
        case "block":
            inner = draw(
                st.sampled_from(("", "\n", 'a"b', "x # no comment\n[no.table]\nno = key", '""', "\\\n  a"))
            )
            return f'"""{inner}"""'
        case "literal block":
            inner = draw(st.sampled_from(("", "\nno = 1\n", "a'b", "''", "\\")))
            return f"'''{inner}'''"
        case "array":
            items = draw(st.lists(toml_values(depth=depth - 1), max_size=3))
            line = draw(st.sampled_from(("", "\n", " # a comment, ]\n")))
            comma = draw(st.sampled_from(("", ","))) if items else ""
            return f"[{line}{space}" + f"{space},{line}".join(items) + f"{line}{comma}{line}]"
        case _:
            pairs = draw(st.lists(st.tuples(toml_keys(), toml_values(depth=depth - 1)), max_size=3))
            return "{" + space + ", ".join(f"{key}{space}= {value}" for key, value in pairs) + space + "}"


@st.composite
def toml_documents(draw: st.DrawFn) -> str:
    lines = []
    for _ in range(draw(st.integers(0, 7))):
        keys = draw(st.sampled_from((".", " . "))).join(draw(st.lists(toml_keys(), min_size=1, max_size=3)))
        kind = draw(st.sampled_from(("pair", "pair", "pair", "table", "array", "comment", "blank")))
        end = draw(st.sampled_from(("", " # [comment]", "\t")))
        match kind:
            case "pair":
                lines.append(f"{keys} = {draw(toml_values())}{end}")
            case "table":
                lines.append(f"[{keys}]{end}")
            case "array":
                lines.append(f"  [[ {keys} ]]{end}")
            case "comment":
                lines.append("# a = 1")
            case _:
                lines.append("")
    return "\n".join(lines) + draw(st.sampled_from(("", "\n")))


@settings(deadline=None, max_examples=600)
@given(toml_documents())
def test_every_key_of_a_toml_document_is_found_at_its_text(text: str) -> None:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    spans = toml_spans(text)
    for place in places(values):
        start, end = spans[place]
        shown = text[start:end]
        if isinstance(place[-1], str):
            assert tomllib.loads(f"{shown} = 0") == {place[-1]: 0}
        else:
            assert 0 <= start < end <= len(text)
    assert set(spans) == set(places(values))


@settings(deadline=None, max_examples=600)
@given(st.one_of(toml_documents(), st.text("[]{}='\"\n,.#a1 \\", max_size=40), st.text(max_size=40)))
def test_the_toml_scanner_survives_any_text(text: str) -> None:
    found = toml_duplicate(text)
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert found is None


def test_a_scanner_that_was_promised_toml_says_where_it_was_not() -> None:
    for text in ("= 1", "a", "a = ", "a = [1", "a = {b", "[a"):
        with pytest.raises(MalformedError):
            toml_spans(text)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300)
@given(JSON, st.sampled_from((None, 0, 3, "\t")), st.booleans())
def test_every_key_of_a_json_document_is_found_at_its_text(values: Any, indent: Any, plain: bool) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=plain)
    spans, duplicates = scan_json(text)
    assert duplicates == []
    assert set(spans) == set(places(values))
    for place, (start, end) in spans.items():
        found = json.loads(text[start:end])
        if isinstance(place[-1], str):
            assert found == place[-1]
        else:
            value = values
            for step in place:
                value = value[step]
            assert found == value


def test_keys_that_json_repeats_are_all_found() -> None:
    text = '{"a": {"b": 1, "b": [2], "\\u0062": 3}, "a": 4}'
    _, duplicates = scan_json(text)
    assert [(place, text[slice(*first)], text[slice(*second)]) for place, first, second in duplicates] == [
        (("a", "b"), '"b"', '"b"'),
        (("a", "b"), '"b"', '"\\u0062"'),
        (("a",), '"a"', '"a"'),
    ]
    assert json_spans('{"a": 1}') == {("a",): (1, 4)}


@settings(deadline=None, max_examples=300)
@given(
    st.recursive(
        st.booleans() | st.integers() | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(BARE, inner, max_size=3),
        max_leaves=10,
    ),
    st.booleans(),
)
def test_every_key_of_a_yaml_document_is_found_at_its_text(values: Any, flow: bool) -> None:
    text = yaml.safe_dump(values, default_flow_style=flow, allow_unicode=True)
    found = yaml_spans(text)
    assert set(found) == {
        tuple(str(s) if isinstance(s, str) else s for s in place) for place in places(values)
    }
    for place, (start, end) in found.items():
        if isinstance(place[-1], str):
            # Read as text: some keys look like numbers and are none, such as 0b_, and PyYAML fails on them.
            assert yaml.load(text[start:end], yaml.BaseLoader) == place[-1]


def test_what_yaml_merges_is_found_where_it_was_written() -> None:
    text = "base: &base {a: 1, b: 2}\nderived:\n  <<: *base\n  b: 3\n"
    spans = yaml_spans(text)
    assert spans["derived", "a"] == spans["base", "a"]
    assert text[slice(*spans["derived", "b"])] == "b"
    assert spans["derived", "b"][0] > text.index("<<")


def test_paths_and_places_are_the_same_thing() -> None:
    for path in ("", "cluster", "cluster.hosts[3].gpus[0]", "services[12].members[0].placement.host_id"):
        assert path_of(place_of(path)) == path
    assert place_of("a.b[1].c") == ("a", "b", 1, "c")


def test_a_place_that_is_not_in_the_text_is_shown_at_what_is_around_it() -> None:
    source = SourceText("[cluster]\nx = 1\n", "c.toml", toml_spans)
    location = source.locate("cluster.nccl_transport.net_name")
    assert (location.line, location.column, location.width, location.text) == (1, 2, 7, "[cluster]")
    nowhere = source.locate("trainer.parallel")
    assert (nowhere.line, nowhere.column, nowhere.width) == (1, 1, 0)


@given(st.text("ab\n\té日", max_size=30), st.integers(0, 40), st.integers(0, 40))
def test_a_location_leads_back_to_its_offset(text: str, start: int, end: int) -> None:
    source = SourceText(text, None, toml_spans)
    location = source.at(start, end)
    assert source.offset(location.line, location.column) == min(start, len(text))
    assert location.text == text.split("\n")[location.line - 1]
    assert 0 <= location.width <= len(location.text)
