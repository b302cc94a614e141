"""Files say the same in TOML, YAML, JSON and Python, and nothing in them is overlooked."""

import json
import sys
from pathlib import Path

import pytest

from art_topology import (
    ClusterSpec,
    CpuPlacement,
    EndpointSpec,
    GpuPlacement,
    HostSpec,
    MegatronTopologyConfig,
    ModelServiceMemberSpec,
    ModelServiceSpec,
    NcclTransportSpec,
    SpecError,
    TopologySpec,
    TrainerMeshSpec,
    compile_topology,
    load_topology,
    parse_topology,
    topology_schema,
)
from art_topology.readers import FileFormat

IN_PYTHON = TopologySpec(
    cluster=ClusterSpec(
        hosts=(
            HostSpec(host_id="a", address="10.0.0.1", cpu_slots=2, gpus=(0, 1)),
            HostSpec(
                host_id="b",
                address="fd00::2",
                cpu_slots=2,
                gpus=("GPU-5f0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071", "GPU-6a0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071"),
            ),
        ),
        startup_timeout_s=120,
        nccl_transport=NcclTransportSpec(net_name="IB"),
    ),
    trainer=TrainerMeshSpec(
        placements=(
            GpuPlacement(host_id="a", gpus=(0, 1)),
            GpuPlacement(
                host_id="b",
                gpus=("GPU-5f0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071", "GPU-6a0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071"),
            ),
        ),
        parallel=MegatronTopologyConfig(tp=2),
    ),
    services=(
        ModelServiceSpec(
            name="judge",
            base_model="meta/tiny",
            members=(ModelServiceMemberSpec(placement=CpuPlacement(host_id="a")),),
            leader=EndpointSpec(host="10.0.0.1", port=8000),
        ),
    ),
)

TOML = """
[cluster]
startup_timeout_s = 120
nccl_transport = { net_name = "IB" }

[[cluster.hosts]]
host_id = "a"
address = "10.0.0.1"
cpu_slots = 2
gpus = [0, 1]

[[cluster.hosts]]
host_id = "b"
address = "fd00::2"
cpu_slots = 2
gpus = ["GPU-5f0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071", "GPU-6a0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071"]

[trainer]
parallel = { tp = 2 }
placements = [
  { device = "gpu", host_id = "a", gpus = [0, 1] },
  { device = "gpu", host_id = "b", gpus = [
    "GPU-5f0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071", "GPU-6a0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071"] },
]

[[services]]
name = "judge"
base_model = "meta/tiny"
leader = { host = "10.0.0.1", port = 8000 }
members = [{ placement = { device = "cpu", host_id = "a" } }]
"""

YAML = """
cluster:
  startup_timeout_s: 120
  nccl_transport: {net_name: IB}
  hosts:
    - {host_id: a, address: 10.0.0.1, cpu_slots: 2, gpus: [0, 1]}
    - host_id: b
      address: "fd00::2"
      cpu_slots: 2
      gpus: [GPU-5f0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071, GPU-6a0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071]
trainer:
  parallel: {tp: 2}
  placements:
    - {device: gpu, host_id: a, gpus: [0, 1]}
    - device: gpu
      host_id: b
      gpus: [GPU-5f0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071, GPU-6a0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071]
services:
  - name: judge
    base_model: meta/tiny
    leader: {host: 10.0.0.1, port: 8000}
    members:
      - placement: {device: cpu, host_id: a}
"""

JSON = """
{"cluster": {"startup_timeout_s": 120, "nccl_transport": {"net_name": "IB"}, "hosts": [
   {"host_id": "a", "address": "10.0.0.1", "cpu_slots": 2, "gpus": [0, 1]},
   {"host_id": "b", "address": "fd00::2", "cpu_slots": 2, "gpus": [
     "GPU-5f0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071", "GPU-6a0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071"]}]},
 "trainer": {"parallel": {"tp": 2}, "placements": [
   {"device": "gpu", "host_id": "a", "gpus": [0, 1]},
   {"device": "gpu", "host_id": "b", "gpus": [
     "GPU-5f0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071", "GPU-6a0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071"]}]},
 "services": [{"name": "judge", "base_model": "meta/tiny", "leader": {"host": "10.0.0.1", "port": 8000},
   "members": [{"placement": {"device": "cpu", "host_id": "a"}}]}]}
"""


@pytest.mark.parametrize(
    ("name", "text"), [("t.toml", TOML), ("t.yaml", YAML), ("t.yml", YAML), ("t.json", JSON)]
)
def test_every_format_says_what_python_says(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert load_topology(path) == IN_PYTHON
    assert load_topology(str(path)) == IN_PYTHON


def test_a_file_compiles() -> None:
    spec = parse_topology(TOML, "toml")
    topology = compile_topology(cluster=spec.cluster, trainer=spec.trainer, services=spec.services)
    assert topology.service("judge").leader.url() == "http://10.0.0.1:8000"


def test_an_unknown_field_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(TOML.replace("cpu_slots = 2\ngpus = [0, 1]", "cpu_slot = 2\ngpus = [0, 1]"))
    with pytest.raises(SpecError, match=r"cluster\.hosts\[0\] has no field 'cpu_slot'\n  --> .*t\.toml:9:1 "):
        load_topology(path)


def test_a_value_out_of_range_is_refused_with_its_place() -> None:
    with pytest.raises(SpecError, match=r"from 1 to 16777216\n  --> input:19:14 \(trainer\.parallel\.tp\)"):
        parse_topology(TOML.replace("tp = 2", "tp = 0"), "toml")
    with pytest.raises(SpecError, match=r"cannot be inf.*\n  --> input:3:1 \(cluster\.startup_timeout_s\)"):
        parse_topology(TOML.replace("startup_timeout_s = 120", "startup_timeout_s = inf"), "toml")
    with pytest.raises(SpecError, match="NaN is no number of JSON"):
        parse_topology(JSON.replace('"startup_timeout_s": 120', '"startup_timeout_s": NaN'), "json")


def test_a_missing_part_is_named() -> None:
    with pytest.raises(SpecError, match="the field 'cluster' is missing"):
        parse_topology("", "toml")
    with pytest.raises(SpecError, match="the file is empty"):
        parse_topology("", "yaml")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (TOML.replace("cpu_slots = 2\ngpus = [0, 1]", "cpu_slots = 2\ncpu_slots = 3"), "toml"),
        (
            YAML.replace("{host_id: a, address: 10.0.0.1, ", "{host_id: a, host_id: c, address: 10.0.0.1, "),
            "yaml",
        ),
        (JSON.replace('"cpu_slots": 2, "gpus": [0, 1]', '"cpu_slots": 2, "cpu_slots": 3'), "json"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(text: str, kind: FileFormat) -> None:
    with pytest.raises(SpecError, match=r"given twice|overwrite"):
        parse_topology(text, kind)


def test_yaml_anchors_may_repeat_a_part() -> None:
    text = YAML.replace("gpus: [0, 1]}\n    - {device", "gpus: &both [0, 1]}\n    - {device")
    text = text.replace(
        "{host_id: a, address: 10.0.0.1, cpu_slots: 2, gpus: [0, 1]}",
        "&a {host_id: a, address: 10.0.0.1, cpu_slots: 2, gpus: [0, 1]}",
    )
    assert parse_topology(text, "yaml") == IN_PYTHON


@pytest.mark.parametrize(("text", "kind"), [("a = [", "toml"), ("a: [", "yaml"), ("{", "json")])
def test_text_that_is_not_of_its_format_is_refused(text: str, kind: FileFormat) -> None:
    with pytest.raises(SpecError, match=f"not {kind.upper()}"):
        parse_topology(text, kind)


def test_a_suffix_without_a_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"\.toml, \.yaml, \.yml, \.json"):
        load_topology(tmp_path / "t.ini")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not UTF-8"):
        load_topology(path)


def test_yaml_without_pyyaml_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(SpecError, match=r"pip install 'art-topology\[yaml\]'"):
        parse_topology(YAML, "yaml")


def test_the_schema_describes_every_field_and_allows_no_other() -> None:
    schema = json.loads(json.dumps(topology_schema()))
    definitions = schema["$defs"]
    host = definitions["HostSpec"]
    assert set(host["properties"]) == set(HostSpec.__struct_fields__)
    assert set(host["required"]) == {"host_id", "address"}
    assert set(definitions["ModelServiceSpec"]["properties"]) == set(ModelServiceSpec.__struct_fields__)
    assert set(definitions["CpuPlacement"]["properties"]) == {"device", "host_id", "slots"}
    assert all(part["additionalProperties"] is False for part in definitions.values())
    assert definitions["MegatronTopologyConfig"]["properties"]["tp"]["minimum"] == 1


def test_a_key_given_twice_in_yaml_has_its_whole_path() -> None:
    text = "cluster:\n  hosts:\n    - host_id: a\n      gpus: [0]\n      gpus: [1]\n"
    with pytest.raises(SpecError) as caught:
        parse_topology(text, "yaml")
    [found] = caught.value.diagnostics
    assert (found.code, found.path) == ("ART-F003", "cluster.hosts[0].gpus")
