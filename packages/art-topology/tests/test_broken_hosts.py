"""An unreadable field of a host hides the rules that ask for it, and no other; nothing made up is shown."""

import json
import tomllib
from typing import Any

import pytest

from art_topology import Diagnostic, SpecError, TopologyError
from art_topology.files import read_topology_text
from art_topology.rule_examples import EXAMPLES

RULES = [code for code in EXAMPLES if code.startswith("ART-T")]
ASKS_FOR = {
    "host_id": {
        "ART-T101", "ART-T104", "ART-T201", "ART-T202", "ART-T203", "ART-T204", "ART-T206", "ART-T208",
        "ART-T303", "ART-T315", "ART-T503", "ART-T504", "ART-T909", "ART-T910", "ART-T911", "ART-T912",
    },
    "address": {"ART-T103", "ART-T105", "ART-T106", "ART-T110", "ART-T503"},
    "gpus": {"ART-T107", "ART-T108", "ART-T109", "ART-T202"},
}  # fmt: skip
"""The rules of which the example asks for the field of the first host."""
BROKEN = {
    "host_id": [5, "", "a b", None],
    "address": [5, "", ["10.0.0.1"]],
    "gpus": [[True], "x", [0, -1], 8],
}


def said(values: dict[str, Any]) -> tuple[Diagnostic, ...]:
    try:
        return read_topology_text(json.dumps(values), "json", name="input").compile().warnings
    except (SpecError, TopologyError) as error:
        return error.diagnostics


def rules(found: tuple[Diagnostic, ...]) -> set[str]:
    return {each.code for each in found if each.code.startswith("ART-T")}


@pytest.mark.parametrize("code", RULES)
@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BROKEN.items() for value in values]
)
def test_rules_that_do_not_ask_for_a_broken_field_of_a_host_report(field: str, value: Any, code: str) -> None:
    values = tomllib.loads(EXAMPLES[code].failing)
    values["cluster"]["hosts"][0][field] = value
    found = said(values)
    assert found[0].code in ("ART-F006", "ART-F007")
    assert rules(found) == ({code} - ASKS_FOR[field])
    assert "unreadable" not in "".join(f"{each.message}{each.hint}{each.suggestion}" for each in found)
    assert all(each.location is not None for each in found)


@pytest.mark.parametrize("code", RULES)
@pytest.mark.parametrize("name", ["host_id", "address"])
def test_a_field_of_a_host_that_is_missing_or_misspelt_is_like_a_broken_one(name: str, code: str) -> None:
    values = tomllib.loads(EXAMPLES[code].failing)
    host = values["cluster"]["hosts"][0]
    value = host.pop(name)
    found = said(values)
    assert [each.code for each in found if each.code.startswith("ART-F")] == ["ART-F005"]
    assert rules(found) == ({code} - ASKS_FOR[name])
    host[name.replace("d", "", 1)] = value
    found = said(values)
    assert [each.code for each in found if each.code.startswith("ART-F")] == ["ART-F004"]
    assert "did you mean" in found[0].hint
    assert rules(found) == ({code} - ASKS_FOR[name])


def test_an_unreadable_host_is_told_by_its_number() -> None:
    hosts = [
        {"host_id": "a", "address": "10.0.0.1", "cpu_slots": 1},
        {"host_id": 7, "address": "10.0.0.1", "gpus": [0, 0]},
        "host-c",
    ]
    found = said({"cluster": {"hosts": hosts}})
    assert [(each.code, each.path) for each in found] == [
        ("ART-F006", "cluster.hosts[1].host_id"),
        ("ART-F006", "cluster.hosts[2]"),
        ("ART-T103", "cluster.hosts[1].address"),
        ("ART-T107", "cluster.hosts[1].gpus"),
    ]
    assert found[2].message == "hosts 'a' and number 2 have the same address 10.0.0.1"
    assert found[3].message == "host number 2 lists 0 more than once"


def test_the_address_that_is_unknown_is_not_proposed() -> None:
    hosts = [
        {"host_id": "a", "address": 1, "gpus": [0]},
        {"host_id": "b", "address": "10.0.0.2", "gpus": [0]},
    ]
    trainer = {
        "placements": [{"device": "gpu", "host_id": name, "gpus": [0]} for name in "ab"],
        "rendezvous": {"host": "127.0.0.1", "port": 29500},
    }
    cluster = {"hosts": hosts, "nccl_transport": {"net_name": "IB"}}
    _, loopback = said({"cluster": cluster, "trainer": trainer})
    assert (loopback.code, loopback.suggestion) == ("ART-T501", None)
    assert loopback.hint == "give the address that others dial"
    readable = {"cluster": {**cluster, "hosts": [{**hosts[0], "address": "10.0.0.1"}, hosts[1]]}}
    [better] = said({**readable, "trainer": trainer})
    assert better.hint == "give the address that others dial, 10.0.0.1"


def test_gpus_that_cannot_be_read_are_those_that_placements_name() -> None:
    def topology(gpus: Any) -> dict[str, Any]:
        placements = [{"device": "gpu", "host_id": "a", "gpus": [0, 1, 1]}]
        hosts = [{"host_id": "a", "address": "10.0.0.1", "gpus": gpus, "cpu_slots": 1}]
        return {"cluster": {"hosts": hosts}, "trainer": {"placements": placements}}

    assert rules(said(topology([0, "x"]))) == {"ART-T203"}
    [_, twice] = said(topology([0, 1, 2, "x"]))
    assert twice.code == "ART-T203"
    assert twice.suggestion == ("trainer.placements[0].gpus", [0, 1, 2])
