"""The fingerprint is that of the meaning, whatever the way a topology was written, sent or read."""

import hashlib
import json
import os
import subprocess
import sys
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import art_topology as topo
from art_topology.diff import diff_topologies
from art_topology.fingerprint import (
    FingerprintError,
    canonical_json,
    fingerprint,
    topology_from_json,
    topology_to_json,
)


def gpu_uuids(host: int) -> list[str]:
    return [f"GPU-{uuid.UUID(int=8 * host + gpu)}" for gpu in range(8)]


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, Any]:
    """What a file would hold: a cluster of one to three hosts, a trainer on all, at most two services."""
    count = draw(st.integers(1, 3))
    per_host = draw(st.sampled_from([1, 2, 4]))
    names = [f"h{i}" for i in range(count)]
    found: dict[str, Any] = {
        "cluster": {
            "hosts": [
                {
                    "host_id": name,
                    "address": draw(st.sampled_from([f"10.0.0.{i + 1}", f"2001:db8::{i + 1}", f"node-{i}"])),
                    "cpu_slots": draw(st.integers(0, 5)),
                    "gpus": draw(st.sampled_from([list(range(8)), gpu_uuids(i)])),
                    "reserved_ports": draw(st.lists(st.integers(1, 65535), max_size=3, unique=True)),
                }
                for i, name in enumerate(names)
            ],
            "nccl_transport": {"net_name": "IB"},
            "nixl_transport": {},
            "startup_timeout_s": draw(st.sampled_from([60, 90, 90.5, 1e-3, 604800])),
        }
    }
    if draw(st.booleans()):
        found["cluster"]["controller_host_id"] = draw(st.sampled_from(names))
    placements = [
        {"device": "gpu", "host_id": host["host_id"], "gpus": host["gpus"][:per_host]}
        for host in found["cluster"]["hosts"]
    ]
    if draw(st.booleans()):
        found["trainer"] = {
            "placements": placements,
            "parallel": {"tp": draw(st.sampled_from([1, per_host]))},
        }
    last = found["cluster"]["hosts"][-1]
    found["services"] = [
        {
            "name": name,
            "base_model": "m",
            "members": [
                {"placement": {"device": "gpu", "host_id": last["host_id"], "gpus": [last["gpus"][gpu]]}}
            ],
            "gpu_memory_utilization": draw(st.sampled_from([0.9, 0.5, 1, 0.1 + 0.2])),
        }
        for name, gpu in (("policy", 6), ("judge", 7))[: draw(st.integers(0, 2))]
    ]
    return found


def compiled(data: dict[str, Any]) -> topo.RuntimeTopology:
    spec = topo.parse_topology(json.dumps(data), "json")
    return topo.compile_topology(cluster=spec.cluster, trainer=spec.trainer, services=spec.services)


def shuffled(value: Any, draw: Any) -> Any:
    """The same value with its keys in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key], draw) for key in draw(st.permutations(sorted(value)))}
    if isinstance(value, list):
        return [shuffled(entry, draw) for entry in value]
    return value


@settings(max_examples=100, deadline=None)
@given(data=inputs(), choice=st.data())
def test_a_topology_survives_json_and_messagepack_with_equal_digest(
    data: dict[str, Any], choice: st.DataObject
) -> None:
    topology = compiled(data)
    assert fingerprint(topology) == topology.fingerprint
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(topology), type=topo.RuntimeTopology)
    read = topology_from_json(topology_to_json(topology))
    loose = json.dumps(shuffled(json.loads(topology_to_json(topology)), choice.draw), indent=1)
    rearranged = topology_from_json(loose)
    assert packed == read == rearranged == topology
    assert fingerprint(packed) == fingerprint(read) == fingerprint(rearranged) == topology.fingerprint
    assert not diff_topologies(topology, packed)
    assert msgspec.convert(msgspec.to_builtins(topology), topo.RuntimeTopology) == topology


@settings(max_examples=100, deadline=None)
@given(data=inputs(), choice=st.data())
def test_the_order_of_keys_and_what_is_spelled_out_do_not_matter(
    data: dict[str, Any], choice: st.DataObject
) -> None:
    reference = compiled(data)
    spelled_out = json.loads(json.dumps(data))
    spelled_out["cluster"].setdefault("controller_host_id", data["cluster"]["hosts"][0]["host_id"])
    spelled_out["cluster"]["rpc_timeout_s"] = 30
    for i, host in enumerate(spelled_out["cluster"]["hosts"]):
        host["node_rank"] = i
        host["reserved_ports"] = host["reserved_ports"][::-1]
        if ":" in host["address"]:
            host["address"] = host["address"].upper().replace("::", ":0:0:0:0:0:")
    spelled_out["cluster"]["hosts"] = choice.draw(st.permutations(spelled_out["cluster"]["hosts"]))
    if "trainer" in spelled_out:
        parallel = spelled_out["trainer"]["parallel"]
        spelled_out["trainer"]["parallel"] = {"cp": 1, "pp": 1, "vpp": 1, "ep": 1, "etp": 1, **parallel}
    for service in spelled_out["services"]:
        service |= {"max_num_seqs": 64, "seed": 0, "parallel": {"tp": 1}}
    again = compiled(shuffled(spelled_out, choice.draw))
    assert again.fingerprint == reference.fingerprint
    assert canonical_json(again) == canonical_json(reference)
    assert not diff_topologies(reference, again)


@settings(max_examples=50, deadline=None)
@given(inputs())
def test_the_digest_is_that_of_pythons_own_json(data: dict[str, Any]) -> None:
    topology = compiled(data)
    plain = msgspec.to_builtins(topology) | {"warnings": [], "fingerprint": ""}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert canonical_json(topology).decode() == text
    assert topology.fingerprint == hashlib.sha256(b"art-topology 1\n" + text.encode()).hexdigest()


PROBE = """
import art_topology as topo
cluster = topo.homogeneous_cluster(
    ["10.0.0.1", "10.0.0.2"], cpu_slots=2, gpus_per_host=8,
    nccl_transport=topo.NcclTransportSpec(net_name="IB"), nixl_transport=topo.NixlTransportSpec(),
)
mesh = topo.TrainerMeshSpec(
    placements=[topo.GpuPlacement(host_id=f"host-{i}", gpus=tuple(range(8))) for i in range(2)],
    parallel=topo.MegatronTopologyConfig(tp=2, cp=2, pp=2, vpp=2, ep=4),
)
print(topo.compile_topology(cluster=cluster, trainer=mesh).fingerprint)
"""


def test_the_digest_is_the_same_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROBE],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "12345", "random")
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 64


def test_what_was_changed_after_compiling_is_refused() -> None:
    topology = topo.compile_topology(cluster=topo.local_cluster(cpu_slots=4))
    text = topology_to_json(topology).decode()
    assert text.startswith('{\n  "hosts": [\n')
    assert text.endswith("}\n")
    with pytest.raises(FingerprintError, match="was changed after it was compiled; change the specification"):
        topology_from_json(text.replace('"cpu_slots": 4', '"cpu_slots": 5'))
    with pytest.raises(FingerprintError, match="says its fingerprint is empty"):
        topology_from_json(text.replace(topology.fingerprint, ""))


@pytest.mark.parametrize(
    "text", ["", "{}", "[1", "null", '{"hosts": 3}', b"\xff\xfe", "[" * 100_000, '{"hosts": [{}]}']
)
def test_what_is_no_topology_is_refused(text: str | bytes) -> None:
    with pytest.raises(FingerprintError, match="this is no compiled topology"):
        topology_from_json(text)


@settings(max_examples=100, deadline=None)
@given(data=st.one_of(st.binary(max_size=200), st.text(max_size=200)))
def test_any_bytes_are_refused(data: bytes | str) -> None:
    with pytest.raises(FingerprintError):
        topology_from_json(data)
