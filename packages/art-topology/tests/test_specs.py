"""Specifications check types and ranges however they are built, and nothing else."""

from typing import Any

import msgspec
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
    TrainerMeshSpec,
    UnresolvedPortError,
    VllmParallelSpec,
    WorkloadSpec,
    homogeneous_cluster,
    local_cluster,
)

HOST = HostSpec(host_id="a", address="10.0.0.1")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: HostSpec(host_id="", address="x"), r"HostSpec\.host_id"),
        (lambda: HostSpec(host_id="a\n", address="x"), r"HostSpec\.host_id"),
        (lambda: HostSpec(host_id="a b", address="x"), r"HostSpec\.host_id"),
        (lambda: HostSpec(host_id="a", address=""), r"HostSpec\.address"),
        (lambda: HostSpec(host_id="a", address="x", cpu_slots=-1), r"HostSpec\.cpu_slots: .*>= 0.*it is -1"),
        (lambda: HostSpec(host_id="a", address="x", cpu_slots=1.5), r"HostSpec\.cpu_slots"),
        (lambda: HostSpec(host_id="a", address="x", node_rank=-1), r"HostSpec\.node_rank"),
        (lambda: HostSpec(host_id="a", address="x", gpus=("cuda:0",)), r"HostSpec\.gpus"),
        (lambda: HostSpec(host_id="a", address="x", reserved_ports=(0,)), r"HostSpec\.reserved_ports"),
        (lambda: ClusterSpec(hosts=()), r"ClusterSpec\.hosts"),
        (lambda: ClusterSpec(hosts=("a",)), r"ClusterSpec\.hosts"),
        (lambda: ClusterSpec(hosts=(HOST,), startup_timeout_s=0), r"startup_timeout_s"),
        (lambda: ClusterSpec(hosts=(HOST,), startup_timeout_s=float("inf")), r"startup_timeout_s"),
        (lambda: ClusterSpec(hosts=(HOST,), rpc_timeout_s=float("nan")), r"rpc_timeout_s"),
        (lambda: EndpointSpec(host="x", port=65536), r"EndpointSpec\.port"),
        (lambda: GpuPlacement(host_id="a", gpus=()), r"GpuPlacement\.gpus"),
        (lambda: CpuPlacement(host_id="a", slots=0), r"CpuPlacement\.slots"),
        (lambda: MegatronTopologyConfig(tp=0), r"MegatronTopologyConfig\.tp"),
        (lambda: MegatronTopologyConfig(vpp=0), r"MegatronTopologyConfig\.vpp"),
        (lambda: TrainerMeshSpec(placements=()), r"TrainerMeshSpec\.placements"),
        (lambda: TrainerMeshSpec(placements=(HOST,)), r"TrainerMeshSpec\.placements"),
        (lambda: ModelServiceSpec(name="x", base_model="m", members=()), r"ModelServiceSpec\.members"),
        (lambda: NcclTransportSpec(net_name=None), r"NcclTransportSpec\.net_name"),
        (
            lambda: WorkloadSpec(
                packed_sequence_length=64,
                groups_per_step=1,
                group_size=2,
                prompt_tokens=1,
                completion_tokens=1,
                dtype="int4",
            ),
            r"WorkloadSpec\.dtype: 'int4' is not one of 'bfloat16', 'float16', 'float32'",
        ),
        (lambda: HostSpec(host_id="a", address="\ud800"), r"HostSpec\.address: half a character"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused_by_name(build, message) -> None:
    with pytest.raises(SpecError, match=message):
        build()


def test_a_field_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="cpu_slot"):
        HostSpec(host_id="a", address="x", cpu_slot=1)
    with pytest.raises(msgspec.ValidationError, match="cpu_slot"):
        msgspec.convert({"host_id": "a", "address": "x", "cpu_slot": 1}, HostSpec)


def test_sequences_become_tuples_and_whole_seconds_become_floats() -> None:
    cluster = ClusterSpec(hosts=[HOST], startup_timeout_s=90)
    assert cluster.hosts == (HOST,)
    assert isinstance(cluster.startup_timeout_s, float)
    assert hash(cluster) == hash(ClusterSpec(hosts=(HOST,), startup_timeout_s=90.0))


def test_specs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        HOST.cpu_slots = 3  # type: ignore[misc]  # that is the point


def test_a_wrong_topology_can_be_written_down() -> None:
    twice = ClusterSpec(
        hosts=(HOST, HOST), controller_host_id="z", nccl_transport=NcclTransportSpec(net_name="")
    )
    assert len(twice.hosts) == 2
    mesh = TrainerMeshSpec(
        placements=[CpuPlacement(host_id="z", slots=3)], parallel=MegatronTopologyConfig(tp=2, vpp=2)
    )
    assert mesh.parallel.tp == 2


def test_the_default_division_is_one_rank() -> None:
    one = MegatronTopologyConfig()
    assert (one.tp, one.cp, one.ep, one.etp, one.pp) == (1, 1, 1, 1, 1)
    assert one.vpp is None


def test_placements_survive_messagepack_with_their_kind() -> None:
    mesh = TrainerMeshSpec(
        placements=[CpuPlacement(host_id="a", slots=2), GpuPlacement(host_id="b", gpus=(0, 3))]
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(mesh), type=TrainerMeshSpec) == mesh
    assert [placement.process_count for placement in mesh.placements] == [2, 2]
    assert ModelServiceMemberSpec(placement=mesh.placements[1]).host_id == "b"


@pytest.mark.parametrize(
    ("host", "authority"),
    [
        ("10.0.0.1", "10.0.0.1:80"),
        ("gpu-a.lan", "gpu-a.lan:80"),
        ("fd00::1", "[fd00::1]:80"),
        ("::1", "[::1]:80"),
    ],
)
def test_ipv6_literals_are_bracketed_in_urls(host: str, authority: str) -> None:
    endpoint = EndpointSpec(host=host, port=80)
    assert endpoint.authority() == authority
    assert endpoint.url() == f"http://{authority}"
    assert endpoint.url("/v1/models", scheme="https") == f"https://{authority}/v1/models"


def test_a_port_that_is_not_chosen_yet_has_no_url() -> None:
    open_endpoint = EndpointSpec(host="10.0.0.1")
    with pytest.raises(UnresolvedPortError, match="port 0"):
        open_endpoint.url()
    assert open_endpoint.with_port(8000).url() == "http://10.0.0.1:8000"


def test_the_local_cluster_is_one_host_on_loopback() -> None:
    cluster = local_cluster(cpu_slots=3, gpus=(0, 1), startup_timeout_s=60, rpc_timeout_s=5)
    (host,) = cluster.hosts
    assert (host.host_id, host.address, host.cpu_slots, host.gpus) == ("local", "127.0.0.1", 3, (0, 1))
    assert (cluster.startup_timeout_s, cluster.rpc_timeout_s) == (60.0, 5.0)
    assert (local_cluster(cpu_slots=1).startup_timeout_s, local_cluster(cpu_slots=1).rpc_timeout_s) == (
        90.0,
        30.0,
    )


def test_a_homogeneous_cluster_repeats_one_host() -> None:
    nccl = NcclTransportSpec(net_name="IB")
    cluster = homogeneous_cluster(
        ["10.0.0.1", "fd00::2"],
        cpu_slots=2,
        gpus_per_host=2,
        startup_timeout_s=90,
        rpc_timeout_s=30,
        nccl_transport=nccl,
        reserved_ports=[22222],
    )
    assert cluster.hosts == tuple(
        HostSpec(
            host_id=f"host-{i}",
            address=address,
            node_rank=i,
            cpu_slots=2,
            gpus=(0, 1),
            reserved_ports=(22222,),
        )
        for i, address in enumerate(["10.0.0.1", "fd00::2"])
    )
    assert cluster.nccl_transport == nccl
    with pytest.raises(SpecError, match=r"ClusterSpec\.hosts"):
        homogeneous_cluster([], cpu_slots=1)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (HostSpec, {"host_id": "a", "address": "a", "cpu_slots": 65537}),
        (CpuPlacement, {"host_id": "a", "slots": 65537}),
        (MegatronTopologyConfig, {"tp": 2**24 + 1}),
        (VllmParallelSpec, {"dp": 10**400}),
    ],
)
def test_numbers_that_would_take_all_memory_are_out_of_range(kind: type, fields: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="<="):
        kind(**fields)
