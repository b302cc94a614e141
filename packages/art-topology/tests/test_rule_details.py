"""What the rules mean in the cases that their examples leave out."""

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology import (
    ClusterSpec,
    CpuPlacement,
    Diagnostic,
    EndpointSpec,
    GpuPlacement,
    HostSpec,
    MegatronTopologyConfig,
    ModelServiceMemberSpec,
    ModelServiceSpec,
    NcclTransportSpec,
    RuntimeTopology,
    SpecError,
    TopologyError,
    TopologySpec,
    TrainerMeshSpec,
    VllmParallelSpec,
    compile_topology,
    homogeneous_cluster,
    listeners,
    local_cluster,
    parse_topology,
)
from art_topology.diagnostics import SourceLocation
from art_topology.files import read_topology_text
from art_topology.models import ModelDescription, load_model_config
from art_topology.rule_examples import EXAMPLES
from art_topology.suggestions import apply_suggestion

UUID = "GPU-5f0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071"
IB = NcclTransportSpec(net_name="IB")


def codes(**arguments: Any) -> list[str]:
    try:
        return [found.code for found in compile_topology(**arguments).warnings]
    except TopologyError as error:
        return [found.code for found in error.diagnostics]


def one_host(*gpus: int | str, **fields: Any) -> ClusterSpec:
    host = HostSpec(host_id="a", address="10.0.0.1", cpu_slots=4, gpus=gpus)
    return ClusterSpec(hosts=(host,), **fields)


def on(host_id: str, *gpus: int | str) -> GpuPlacement:
    return GpuPlacement(host_id=host_id, gpus=gpus)


def service(*placements: GpuPlacement | CpuPlacement, **fields: Any) -> ModelServiceSpec:
    values = {"name": "policy", "base_model": "model", **fields}
    members = tuple(ModelServiceMemberSpec(placement=placement) for placement in placements)
    return ModelServiceSpec(members=members, **values)


def dense(**changes: Any) -> ModelDescription:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "intermediate_size": 96,
        "vocab_size": 100,
        "max_position_embeddings": 4096,
    }
    return load_model_config({**config, "num_key_value_heads": 6, "head_dim": 16, **changes})


def test_uuids_name_the_same_gpu_in_either_case() -> None:
    upper = "GPU-" + UUID[4:].upper()
    assert codes(cluster=one_host(UUID, upper)) == ["ART-T107"]
    assert codes(cluster=one_host(UUID), trainer=TrainerMeshSpec(placements=[on("a", upper)])) == []


def test_a_slice_of_an_old_driver_is_a_part_of_its_gpu() -> None:
    assert codes(cluster=one_host(UUID, f"MIG-{UUID}/1/0")) == ["ART-T107"]
    assert codes(cluster=one_host(f"MIG-{UUID}/1/0", f"MIG-{UUID}/2/0")) == []


def test_a_uuid_without_dashes_is_completed() -> None:
    cluster = one_host("GPU-" + UUID[4:].replace("-", ""))
    with pytest.raises(TopologyError) as caught:
        compile_topology(cluster=cluster)
    [found] = caught.value.diagnostics
    assert found.suggestion == ("cluster.hosts[0].gpus[0]", UUID)
    assert apply_suggestion(TopologySpec(cluster=cluster), found).cluster == one_host(UUID)


def test_trainer_and_service_share_gpus_only_when_they_take_turns() -> None:
    trainer = TrainerMeshSpec(placements=[on("a", 0, 1)])
    both = {"parallel": VllmParallelSpec(tp=2)}
    assert codes(cluster=one_host(0, 1), trainer=trainer, services=[service(on("a", 0, 1), **both)]) == [
        "ART-T203"
    ]
    turns = service(on("a", 0, 1), temporal_sharing=True, **both)
    assert codes(cluster=one_host(0, 1), trainer=trainer, services=[turns]) == []
    other = service(on("a", 0, 1), temporal_sharing=True, name="judge", **both)
    assert codes(cluster=one_host(0, 1), trainer=trainer, services=[turns, other]) == ["ART-T203"]


def test_a_shared_gpu_is_a_free_one_instead_or_a_matter_of_turns() -> None:
    trainer = TrainerMeshSpec(placements=[on("a", 0)])
    for gpus, suggestion in (
        ((0, 1), ("services[0].members[0].placement.gpus", [1])),
        ((0,), ("services[0].temporal_sharing", True)),
    ):
        with pytest.raises(TopologyError) as caught:
            compile_topology(cluster=one_host(*gpus), trainer=trainer, services=[service(on("a", 0))])
        assert [found.suggestion for found in caught.value.diagnostics] == [suggestion]


def test_virtual_stages_may_come_from_the_layout_alone() -> None:
    parallel = MegatronTopologyConfig(pp=2, pipeline_layout="Et|t|t|tL")
    topology = compile_topology(
        cluster=local_cluster(cpu_slots=3),
        trainer=TrainerMeshSpec(placements=[CpuPlacement(host_id="local", slots=2)], parallel=parallel),
        model=dense(num_hidden_layers=4),
    )
    assert topology.trainer is not None
    assert topology.trainer.parallel.vpp == 2
    assert topology.trainer.parallel.vpp_microbatch_group_size == 2
    assert topology.trainer.parallel.sequence_parallel is False


def test_a_layout_may_leave_the_mtp_layers_out() -> None:
    model = dense(num_hidden_layers=4, num_nextn_predict_layers=1)
    assert len(model.mtp_layers) == 1
    for layout, expected in (("Ett|ttL", []), ("Ett|ttmL", []), ("Ett|ttmmL", ["ART-T810"])):
        parallel = MegatronTopologyConfig(pp=2, pipeline_layout=layout)
        mesh = TrainerMeshSpec(placements=[CpuPlacement(host_id="local", slots=2)], parallel=parallel)
        assert codes(cluster=local_cluster(cpu_slots=3), trainer=mesh, model=model) == expected


def test_a_data_parallel_service_takes_ten_ports() -> None:
    def at(port: int, judge: int, dp: int) -> list[str]:
        policy = service(
            CpuPlacement(host_id="a", slots=2),
            parallel=VllmParallelSpec(dp=dp, tp=2 // dp),
            rendezvous=EndpointSpec(host="10.0.0.1", port=port),
        )
        other = service(
            CpuPlacement(host_id="a"), name="judge", leader=EndpointSpec(host="10.0.0.1", port=judge)
        )
        return codes(cluster=one_host(), services=[policy, other])

    assert at(5000, 5009, dp=1) == []
    assert at(5000, 5010, dp=2) == []
    assert at(5000, 5009, dp=2) == ["ART-T504"]
    assert at(5005, 5000, dp=2) == []
    assert at(65526, 1, dp=2) == []
    assert at(65527, 1, dp=2) == ["ART-T506"]


def test_the_ports_of_the_workers_are_listed_on_every_host() -> None:
    cluster = one_host(worker_port=22222, skypilot=True)
    topology = compile_topology(cluster=cluster)
    assert topology.worker_ports == (22222, 22223)
    assert [(found.endpoint.port, found.purpose) for found in listeners(topology)] == [
        (22222, "Monarch worker"),
        (22223, "SkyPilot lifecycle"),
    ]
    assert compile_topology(cluster=one_host(skypilot=True)).worker_ports == (22222, 22223)
    assert compile_topology(cluster=one_host(worker_port=7)).worker_ports == (7,)


def test_a_reserved_port_may_be_the_workers_own() -> None:
    host = HostSpec(host_id="a", address="10.0.0.1", cpu_slots=1, reserved_ports=(22222,))
    topology = compile_topology(cluster=ClusterSpec(hosts=(host,), worker_port=22222))
    assert [found.purpose for found in listeners(topology)] == ["Monarch worker"]


def test_a_scoped_address_is_escaped_in_urls() -> None:
    assert EndpointSpec(host="fe80::1%eth0", port=80).url("v1") == "http://[fe80::1%25eth0]:80/v1"
    assert EndpointSpec(host="::1", port=80).url() == "http://[::1]:80"


def test_only_services_of_the_model_are_checked_against_it() -> None:
    services = [
        service(CpuPlacement(host_id="a", slots=4), parallel=VllmParallelSpec(tp=4)),
        service(
            CpuPlacement(host_id="a", slots=4),
            parallel=VllmParallelSpec(tp=4),
            name="judge",
            base_model="another",
        ),
    ]
    host = HostSpec(host_id="a", address="10.0.0.1", cpu_slots=9)
    given = {"cluster": ClusterSpec(hosts=(host,)), "services": services, "model": dense()}
    assert codes(**given) == ["ART-T408"]  # which of the two is it?
    with pytest.raises(TopologyError) as caught:
        compile_topology(**given, model_name="another")
    assert [(found.code, found.path) for found in caught.value.diagnostics] == [
        ("ART-T801", "services[1].parallel.tp")
    ]
    same = msgspec.structs.replace(services[1], base_model="model")
    assert codes(**{**given, "services": [services[0], same]}) == ["ART-T801", "ART-T801"]


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16, 64])
def test_vllm_divides_the_padded_vocabulary(tp: int) -> None:
    model = dense(num_attention_heads=64, num_key_value_heads=64, intermediate_size=64)
    cluster = local_cluster(cpu_slots=65)
    served = service(CpuPlacement(host_id="local", slots=tp), parallel=VllmParallelSpec(tp=tp))
    assert codes(cluster=cluster, services=[served], model=model) == []  # 100 is padded to 128
    mesh = TrainerMeshSpec(
        placements=[CpuPlacement(host_id="local", slots=tp)], parallel=MegatronTopologyConfig(tp=tp)
    )
    assert codes(cluster=cluster, trainer=mesh, model=model) == (["ART-T805"] if 100 % tp else [])


def test_warnings_of_a_file_have_their_lines() -> None:
    topology = read_topology_text(EXAMPLES["ART-T206"].failing, "toml", name="c.toml").compile()
    [found] = topology.warnings
    assert found.location == SourceLocation(
        file="c.toml", line=1, column=11, width=5, text="[[cluster.hosts]]"
    )
    packed = msgspec.msgpack.encode(topology)
    assert msgspec.msgpack.decode(packed, type=RuntimeTopology) == topology
    assert msgspec.json.decode(msgspec.json.encode(topology), type=RuntimeTopology) == topology


def test_all_mistakes_of_types_and_ranges_are_told_at_once() -> None:
    text = """
[cluster]
worker_port = "22222"
bogus = 3
startup_timeout_s = -1

[[cluster.hosts]]
host_id = "a b"
addres = "10.0.0.1"
cpu_slots = 2.5
gpus = [0, "GPUX", true]

[trainer]
placements = [{ device = "gpux", host_id = "a" }, { host_id = "b" }, 5]
parallel = { tp = 0, vpp = "x" }
"""
    with pytest.raises(SpecError) as caught:
        parse_topology(text, "toml")
    assert [(found.code, found.path, found.suggestion) for found in caught.value.diagnostics] == [
        ("ART-F006", "cluster.worker_port", ("cluster.worker_port", 22222)),
        ("ART-F004", "cluster.bogus", None),
        ("ART-F007", "cluster.startup_timeout_s", None),
        ("ART-F007", "cluster.hosts[0].host_id", None),
        ("ART-F004", "cluster.hosts[0].addres", None),
        ("ART-F006", "cluster.hosts[0].cpu_slots", None),
        ("ART-F007", "cluster.hosts[0].gpus[1]", None),
        ("ART-F006", "cluster.hosts[0].gpus[2]", None),
        ("ART-F007", "trainer.placements[0].device", ("trainer.placements[0].device", "gpu")),
        ("ART-F005", "trainer.placements[1]", None),
        ("ART-F006", "trainer.placements[2]", None),
        ("ART-F007", "trainer.parallel.tp", ("trainer.parallel.tp", 1)),
        ("ART-F006", "trainer.parallel.vpp", None),
    ]
    lines = text.split("\n")
    for found in caught.value.diagnostics:
        assert found.location is not None
        assert found.location.text == lines[found.location.line - 1]


def test_the_model_of_a_file_is_found_beside_it(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_bytes(
        msgspec.json.encode({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2})
    )
    text = EXAMPLES["ART-T101"].passing
    for config, told in (("config.json", "vocab_size"), ("nowhere.json", "No such file")):
        source = read_topology_text(f'{text}\n[model]\nconfig = "{config}"\n', "toml", folder=tmp_path)
        with pytest.raises(SpecError, match=told) as caught:
            source.compile()
        for found in caught.value.diagnostics:
            assert found.code == "ART-F009"
            assert found.location is not None
            assert found.location.text == f'config = "{config}"'


def test_a_diagnostic_without_a_proposal_cannot_be_applied() -> None:
    spec = parse_topology(EXAMPLES["ART-T101"].passing, "toml")
    bare = Diagnostic(code="ART-T103", severity="error", path="cluster", message="m", hint="h")
    with pytest.raises(ValueError, match="proposes no value"):
        apply_suggestion(spec, bare)
    strange = msgspec.structs.replace(bare, suggestion=("cluster.hosts[7].host_id", "x"))
    with pytest.raises(SpecError, match="does not fit"):
        apply_suggestion(spec, strange)


def test_what_is_shown_cannot_steer_a_terminal_and_points_at_wide_characters() -> None:
    location = SourceLocation(file="a\x1b.toml", line=12, column=5, width=2, text="日本\t\x1b名前 = 1")
    found = Diagnostic(
        code="ART-T103",
        severity="error",
        path="p",
        message="m\x1b[31m",
        hint="h",
        location=msgspec.structs.replace(location, column=5),
    )
    assert "\x1b" not in found.render()
    assert location.excerpt()[1:] == ["12 | 日本 \ufffd名前 = 1", "   |       ^^^^"]


def test_a_hundred_diagnostics_are_shown_of_more() -> None:
    hosts = tuple(HostSpec(host_id="a", address=f"10.0.0.{i}") for i in range(1, 200))
    with pytest.raises(TopologyError) as caught:
        compile_topology(cluster=ClusterSpec(hosts=hosts))
    assert len(caught.value.diagnostics) == 198
    assert str(caught.value).count("ART-T101") == 100
    assert str(caught.value).endswith("... and 98 more")


def test_nccl_is_asked_for_only_by_gpus_across_hosts() -> None:
    hosts = tuple(HostSpec(host_id=name, address=f"10.0.0.{i}", gpus=(0,)) for i, name in enumerate("ab", 1))
    trainer = TrainerMeshSpec(placements=[on("a", 0), on("b", 0)])
    assert codes(cluster=ClusterSpec(hosts=hosts), trainer=trainer) == ["ART-T601"]
    assert codes(cluster=ClusterSpec(hosts=hosts, nccl_transport=IB), trainer=trainer) == ["ART-T206"]


def test_a_homogeneous_cluster_says_what_its_gpus_and_workers_are() -> None:
    cluster = homogeneous_cluster(
        ["10.0.0.1", "10.0.0.2"], cpu_slots=1, gpus_per_host=2, gpu_model="H200", worker_port=7, skypilot=True
    )
    topology = compile_topology(cluster=cluster)
    assert [host.gpu_model for host in topology.hosts] == ["H200", "H200"]
    assert topology.worker_ports == (7, 8)
    assert compile_topology(cluster=local_cluster(cpu_slots=1, gpu_model="B300")).hosts[0].gpu_model == "B300"


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_lengths_that_are_suggested_work(data: st.DataObject) -> None:
    def draw(*options: Any) -> Any:
        return data.draw(st.sampled_from(options))

    parallel = {"tp": draw(1, 2), "cp": draw(1, 2, 3), "pp": draw(1, 2, 3), "vpp": draw(None, 2)}
    if parallel["pp"] == 1:
        parallel["vpp"] = None
    elif parallel["vpp"] is not None:
        parallel["vpp_microbatch_group_size"] = parallel["pp"] + draw(0, 1, 4)
    world = parallel["tp"] * parallel["cp"] * parallel["pp"] * draw(1, 2, 3, 8)
    values = {
        "packed_sequence_length": data.draw(st.integers(100, 5000)),
        "groups_per_step": data.draw(st.integers(1, 40)),
        "group_size": data.draw(st.integers(1, 16)),
        "prompt_tokens": data.draw(st.integers(1, 2000)),
        "completion_tokens": data.draw(st.integers(1, 2000)),
        "recompute": draw("none", "full"),
        "recompute_layers": draw(None, 1, 4, 40),
        "prompt_sharing": draw(True, False),
    }
    spec = msgspec.convert(
        {
            "cluster": {"hosts": [{"host_id": "a", "address": "10.0.0.1", "cpu_slots": 200}]},
            "trainer": {
                "placements": [{"device": "cpu", "host_id": "a", "slots": world}],
                "parallel": parallel,
            },
            "workload": values,
        },
        TopologySpec,
    )

    def said(spec: TopologySpec) -> dict[str, Diagnostic]:
        try:
            found = compile_topology(
                cluster=spec.cluster, trainer=spec.trainer, model=MODEL_OF_12, workload=spec.workload
            ).warnings
        except TopologyError as error:
            found = error.diagnostics
        return {diagnostic.code: diagnostic for diagnostic in found}

    for code, found in said(spec).items():
        assert found.suggestion is not None
        assert code not in said(apply_suggestion(spec, found))


MODEL_OF_12 = dense(num_hidden_layers=12)


def test_the_largest_numbers_are_judged_in_no_time() -> None:
    hosts = tuple(
        HostSpec(host_id=f"h{i}", address=f"10.0.{i // 250}.{i % 250 + 1}", cpu_slots=2**16)
        for i in range(1000)
    )
    mesh = TrainerMeshSpec(
        placements=[CpuPlacement(host_id=host.host_id, slots=2**16) for host in hosts],
        parallel=MegatronTopologyConfig(
            tp=2**24 - 1, cp=2**24 - 3, pp=2**24, ep=7919, vpp=2**24, vpp_microbatch_group_size=1
        ),
    )
    start = time.process_time()
    found = codes(cluster=ClusterSpec(hosts=hosts), trainer=mesh, model=dense(), services=[])
    assert time.process_time() - start < 5
    assert set(found) == {"ART-T304", "ART-T308", "ART-T801", "ART-T804", "ART-T805", "ART-T806"}
