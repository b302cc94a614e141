"""Whatever is in a file, and whatever a file is: a diagnostic with a place, never a traceback."""

import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology import Diagnostic, SpecError, TopologyError
from art_topology.files import read_topology, read_topology_text
from art_topology.readers import MOST_LEVELS
from art_topology.rule_examples import EXAMPLES
from art_topology.spec import Spec

FORMATS = ("toml", "yaml", "json")
SEEDS = [example.failing for example in EXAMPLES.values() if example.code != "ART-F008"]


def said(text: str, kind: Any) -> tuple[Diagnostic, ...]:
    """What is said about a text; any other exception than the two fails the test."""
    try:
        return read_topology_text(text, kind, name="input").compile().warnings
    except (SpecError, TopologyError) as error:
        diagnostics = error.diagnostics
    assert diagnostics
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    for found in diagnostics:
        assert found.location is not None
        assert 1 <= found.location.line <= len(lines)
        assert 1 <= found.location.column <= len(lines[found.location.line - 1]) + 1
        assert all(line.isprintable() for line in found.render().split("\n"))
        assert msgspec.json.decode(msgspec.json.encode(found), type=Diagnostic) == found
    return diagnostics


@pytest.mark.parametrize("kind", FORMATS)
@settings(deadline=None, max_examples=150)
@given(text=st.text(max_size=60) | st.text("[]{}:=,\"'\n -&*!|>%@#a1.\\\t?<", max_size=60))
def test_any_text(kind: str, text: str) -> None:
    said(text, kind)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(SEEDS), st.data())
def test_a_topology_that_was_damaged(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(start + 8, len(text))))
        new = data.draw(
            st.sampled_from(("", '"', "[", "]", "{", "=", "\n", "9" * 50, "\x00", "é", "\ud800", "-", "."))
        )
        text = text[:start] + new + text[end:]
    said(text, "toml")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from((10**400, -(10**400), math.inf, "GPU-", "10.0.0.1", "\ud800", "a", 0, 1, "\n")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def paths(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = (
        values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    )
    return [path, *(found for step, value in items for found in paths(value, (*path, step)))]


WHOLE: dict[str, Any] = {
    "cluster": {
        "hosts": [
            {"host_id": "a", "address": "10.0.0.1", "cpu_slots": 8, "gpus": [0, 1], "reserved_ports": [1]},
            {"host_id": "b", "address": "fd00::2", "node_rank": 1, "gpu_model": "H200"},
        ],
        "nccl_transport": {"net_name": "IB"},
        "nixl_transport": {"metadata_store": {"host": "etcd.lan", "port": 2379}},
        "worker_port": 22222,
        "startup_timeout_s": 5.0,
    },
    "trainer": {
        "placements": [{"device": "gpu", "host_id": "a", "gpus": [0, 1]}],
        "parallel": {"tp": 2, "pipeline_layout": "Et*8L", "sequence_parallel": True},
        "rendezvous": {"host": "10.0.0.1", "port": 29500},
    },
    "services": [
        {
            "name": "policy",
            "base_model": "m",
            "members": [{"placement": {"device": "cpu", "host_id": "a", "slots": 2}}],
            "parallel": {"tp": 2},
            "max_model_len": 4096,
            "leader": {"host": "10.0.0.1", "port": 8000},
        }
    ],
    "model": {
        "config": {
            "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4,
            "intermediate_size": 128, "vocab_size": 128, "max_position_embeddings": 4096,
        }
    },
    "workload": {
        "packed_sequence_length": 4096, "groups_per_step": 8, "group_size": 8, "prompt_tokens": 9,
        "completion_tokens": 9,
    },
}  # fmt: skip


def test_the_topology_to_start_from_has_no_faults() -> None:
    assert said(json.dumps(WHOLE), "json") == ()


@pytest.mark.parametrize("kind", ["json", "yaml"])
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_any_value_in_any_place(kind: str, data: st.DataObject) -> None:
    values = json.loads(json.dumps(WHOLE))
    for _ in range(data.draw(st.integers(1, 3))):
        *around, last = data.draw(st.sampled_from(paths(values)[1:]))
        target = values
        for step in around:
            target = target[step]
        target[last] = data.draw(VALUES)
    said(json.dumps(values) if kind == "json" else yaml.safe_dump(values), kind)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("levels", [MOST_LEVELS - 10, MOST_LEVELS + 1, 2000, 30_000])
def test_nesting(kind: str, levels: int) -> None:
    inner = "[" * levels + "]" * levels
    text = {"toml": f"x = {inner}", "yaml": f"x: {inner}", "json": f'{{"x": {inner}}}'}[kind]
    [found, *_] = said(text, kind)
    assert found.code == ("ART-F008" if levels > MOST_LEVELS else "ART-F004")
    objects = "{'a':".replace("'", '"') * levels
    assert said(objects, kind)[0].code in ("ART-F002", "ART-F008")
    dotted = ".".join("a" * min(levels, 1000))
    assert said(f"{dotted} = 1\n[{dotted}.b]", "toml")


def test_a_yaml_bomb_is_refused_before_it_goes_off() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    [found] = said("\n".join(lines), "yaml")
    assert found.code == "ART-F008"
    assert "values" in found.message


@pytest.mark.parametrize(
    "text", ["&a [*a]", "&a {b: *a}", "cluster: &a\n  hosts: [*a]", "a: &a {<<: *a}", "- &x [1, {y: *x}]"]
)
def test_a_yaml_anchor_that_refers_to_itself_is_refused(text: str) -> None:
    [found] = said(text, "yaml")
    assert found.code == "ART-F008"
    assert "itself" in found.message


@pytest.mark.parametrize(
    "text",
    [
        "a: !!int foo", "a: !!int ''", "a: !!bool foo", "a: !!float x", "a: !!timestamp x", "a: 2001-99-99",
        "a: !!binary '*'", "a: !!python/object:os.system x", "? [1]\n: 2", "a: =", "--- a\n--- b", "a: \x00",
        "a: !!omap [1]", "a: !!pairs {b: c}", "a: !!set [1]", "%YAML 9.0\n---\na", "a: *nowhere",
        "? {a: 1}\n: b", "a: 0x", "a: 1:99:99", "a: <<", "<<: 1", "a: {<<: [1]}",
    ],
)  # fmt: skip
def test_yaml_that_makes_no_sense(text: str) -> None:
    assert said(text, "yaml")[0].code.startswith("ART-F")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_of_json_is_shown_where_it_stands(number: str) -> None:
    [found] = said(f'{{"name": "NaN",\n "x": {number}}}', "json")
    assert found.code == "ART-F002"
    assert found.location is not None
    assert (found.location.line, found.location.column) == (2, 7)


@pytest.mark.parametrize("kind", FORMATS)
def test_numbers_without_end(kind: str) -> None:
    for number in ("9" * 5000, "0x" + "F" * 5000, "1e99999", "-" + "9" * 5000):
        text = {"toml": f"x = {number}", "yaml": f"x: {number}", "json": f'{{"x": {number}}}'}[kind]
        assert said(text, kind)[0].code in ("ART-F002", "ART-F004", "ART-F007")
    ports = {
        "toml": "[cluster]\nworker_port = 0x" + "F" * 5000,
        "yaml": "cluster: {worker_port: 0x" + "F" * 5000 + "}",
    }
    if kind in ports:
        assert {found.code for found in said(ports[kind], kind)} == {"ART-F005", "ART-F007"}


@pytest.mark.parametrize("suffix", [".toml", ".yaml", ".json"])
@settings(deadline=None, max_examples=60)
@given(data=st.binary(max_size=200))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, suffix: str, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / f"junk{suffix}"
    path.write_bytes(data)
    with pytest.raises(SpecError) as caught:
        read_topology(path)
    location = caught.value.diagnostics[0].location
    assert location is not None
    assert location.file == str(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    for name in (
        "missing.toml",
        "pipe.toml",
        "folder.toml",
        "loop.toml",
        "t.ini",
        "none",
        "a\0b.toml",
        "x" * 300 + ".toml",
    ):
        with pytest.raises(SpecError) as caught:
            read_topology(tmp_path / name)
        [found] = caught.value.diagnostics
        assert found.code == "ART-F001", name


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(SpecError) as caught:
        read_topology(path)
    assert [found.code for found in caught.value.diagnostics] == ["ART-F008"]


def test_bytes_that_are_no_utf8_are_shown_in_their_line(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_bytes("# é\r\na = '\xff'".encode("latin-1").replace(b"\xe9", "é".encode()))
    with pytest.raises(SpecError) as caught:
        read_topology(path)
    [found] = caught.value.diagnostics
    assert found.code == "ART-F001"
    assert found.location is not None
    assert (found.location.line, found.location.column) == (2, 6)


def test_a_byte_order_mark_and_carriage_returns_change_nothing(tmp_path: Path) -> None:
    text = EXAMPLES["ART-T103"].failing
    path = tmp_path / "t.toml"
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    with pytest.raises(TopologyError) as caught:
        read_topology(path).compile()
    [found] = caught.value.diagnostics
    assert found.location is not None
    assert (found.location.line, found.location.text) == (8, 'address = "10.0.0.1"')


class Whole(Spec, frozen=True, kw_only=True):
    """A specification made in Python, of a text."""

    text: str


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
def test_half_a_character_is_refused_in_python_too(text: str) -> None:
    with pytest.raises(SpecError, match="half a character"):
        Whole(text=text)
