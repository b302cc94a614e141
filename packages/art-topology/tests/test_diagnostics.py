"""Everything that is wrong is said at once, and reads well."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology import (
    RULES,
    Diagnostic,
    TopologyError,
    TopologySpec,
    compile_topology,
)


def valid() -> dict[str, Any]:
    """Three hosts, a trainer on two of them, two services; with something for each mistake to spoil."""
    return {
        "cluster": {
            "hosts": [
                {
                    "host_id": f"h{i}",
                    "address": f"10.0.0.{i + 1}",
                    "node_rank": i,
                    "cpu_slots": 4,
                    "gpus": list(range(8)),
                    "reserved_ports": [22222, 22223],
                }
                for i in range(3)
            ],
            "controller_host_id": "h2",
            "nccl_transport": {"net_name": "IB"},
            "nixl_transport": {"metadata_store": {"host": "10.0.9.9", "port": 2379}},
        },
        "trainer": {
            "placements": [{"device": "gpu", "host_id": h, "gpus": [0, 1, 2, 3]} for h in ("h0", "h1")],
            "parallel": {"tp": 2, "cp": 2, "pp": 2, "ep": 4, "vpp": 2, "vpp_microbatch_group_size": 4},
            "rendezvous": {"host": "10.0.0.1", "port": 29500},
        },
        "services": [
            {
                "name": "policy",
                "base_model": "m",
                "members": [
                    {"placement": {"device": "gpu", "host_id": h, "gpus": [4, 5, 6, 7]}} for h in ("h0", "h1")
                ],
                "parallel": {"tp": 4, "pp": 2},
                "leader": {"host": "10.0.0.1", "port": 8000},
                "rendezvous": {"host": "10.0.0.1", "port": 8001},
            },
            {
                "name": "judge",
                "base_model": "j",
                "members": [{"placement": {"device": "cpu", "host_id": "h2", "slots": 2}}],
                "parallel": {"tp": 2},
            },
        ],
    }


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(values: Any) -> None:
        for step in path[:-1]:
            values = values[step]
        values[path[-1]] = value

    return change


# Mistakes of which none touches what another needs.
MISTAKES = {
    "ART-T104": put("cluster", "controller_host_id", value="nowhere"),
    "ART-T106": put("cluster", "hosts", 2, "address", value="127.0.0.1"),
    "ART-T203": put("services", 0, "members", 1, "placement", "gpus", value=[3, 4, 5, 6]),
    "ART-T204": put("cluster", "hosts", 2, "cpu_slots", value=1),
    "ART-T305": put("trainer", "parallel", "tp", value=3),
    "ART-T306": put("trainer", "parallel", "ep", value=3),
    "ART-T308": put("trainer", "parallel", "vpp_microbatch_group_size", value=1),
    "ART-T401": put("services", 1, "name", value="policy"),
    "ART-T404": put("services", 1, "parallel", "dp", value=2),
    "ART-T405": put("services", 1, "max_lora_rank", value=9),
    "ART-T501": put("services", 0, "rendezvous", "host", value="::1"),
    "ART-T503": put("trainer", "rendezvous", "host", value="10.0.0.2"),
    "ART-T504": put("services", 0, "leader", "port", value=22222),
    "ART-T505": put("cluster", "nixl_transport", "metadata_store", "port", value=0),
    "ART-T602": put("cluster", "nccl_transport", "net_name", value="socket"),
}


def compiled(values: dict[str, Any]) -> Any:
    spec = msgspec.convert(values, TopologySpec)
    return compile_topology(cluster=spec.cluster, trainer=spec.trainer, services=spec.services)


def test_the_unspoilt_input_compiles() -> None:
    assert compiled(valid()).warnings == ()


@settings(max_examples=150, deadline=None)
@given(st.sets(st.sampled_from(sorted(MISTAKES)), min_size=1))
def test_all_mistakes_are_reported_at_once_and_nothing_else(codes: set[str]) -> None:
    values = valid()
    for code in codes:
        MISTAKES[code](values)
    with pytest.raises(TopologyError) as caught:
        compiled(values)
    assert sorted(found.code for found in caught.value.diagnostics) == sorted(codes)


def test_every_diagnostic_points_into_the_input() -> None:
    values = valid()
    for spoil in MISTAKES.values():
        spoil(values)
    with pytest.raises(TopologyError) as caught:
        compiled(values)
    spec = msgspec.convert(values, TopologySpec)
    assert len(caught.value.diagnostics) == len(MISTAKES)
    for found in caught.value.diagnostics:
        for path in (found.path, *found.related):
            value: Any = spec
            for step in path.replace("[", ".[").split("."):
                value = value[int(step[1:-1])] if step.startswith("[") else getattr(value, step)
        assert found.hint
        assert found.code in RULES


def test_the_message_has_the_numbers() -> None:
    values = valid()
    MISTAKES["ART-T305"](values)
    MISTAKES["ART-T204"](values)
    with pytest.raises(TopologyError) as caught:
        compiled(values)
    slots, division = caught.value.diagnostics
    assert "1 CPU slots" in slots.message
    assert "2 are placed" in slots.message
    assert "the 4 ranks of each of 2 stages" in division.message
    assert "tp*cp = 3*2 = 6" in division.message
    assert "a multiple of 12 ranks" in division.hint


def test_an_error_reads_like_that_of_a_compiler() -> None:
    values = valid()
    MISTAKES["ART-T401"](values)
    MISTAKES["ART-T602"](values)
    with pytest.raises(TopologyError) as caught:
        compiled(values)
    assert str(caught.value) == (
        "the topology has 2 errors\n"
        "\n"
        "error[ART-T401]: a second model service has the name 'policy'\n"
        "  --> services[1].name\n"
        "   :: services[0].name\n"
        "  help: give every service a name of its own, such as 'policy-2'\n"
        "\n"
        "error[ART-T602]: the NCCL network 'socket' is the slow fallback over TCP\n"
        "  --> cluster.nccl_transport.net_name\n"
        '  help: use the name under which the network registers with NCCL, such as "IB"'
    )


def test_warnings_are_counted_apart() -> None:
    fields = {"path": "cluster", "message": "m", "hint": "h"}
    error = Diagnostic(code="ART-T101", severity="error", **fields)
    warning = Diagnostic(code="ART-T206", severity="warning", **fields)
    assert str(TopologyError((error, warning))).startswith("the topology has 1 error and 1 warning\n")


def test_a_thousand_wrong_hosts_are_listed_briefly() -> None:
    values = valid()
    values["cluster"]["hosts"] = [
        {
            "host_id": f"h{i}",
            "address": f"10.0.{i // 200}.{i % 200 + 1}",
            "node_rank": 7,
            "gpus": list(range(8)),
        }
        for i in range(1000)
    ]
    with pytest.raises(TopologyError) as caught:
        compiled(values)
    (ranks,) = (found for found in caught.value.diagnostics if found.code == "ART-T102")
    assert "0, 1, 2, 3, 4, 5 and 993 more are missing" in ranks.message
