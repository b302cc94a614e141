"""What compiles: places, defaults, order, fingerprint, and that it survives a journey as MessagePack."""

import hashlib
import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import art_topology as topo


def hosts(count: int, **fields: Any) -> tuple[topo.HostSpec, ...]:
    fields = {"cpu_slots": 6, "gpus": (0, 1, 2, 3), **fields}
    return tuple(topo.HostSpec(host_id=f"h{i}", address=f"10.0.0.{i + 1}", **fields) for i in range(count))


def full_input() -> dict[str, Any]:
    """Two hosts; a trainer on the GPUs of both, one service on two CPU hosts and one on a single GPU."""
    return {
        "cluster": topo.ClusterSpec(
            hosts=hosts(2),
            controller_host_id="h1",
            startup_timeout_s=120,
            rpc_timeout_s=15,
            nccl_transport=topo.NcclTransportSpec(net_name="IB"),
            nixl_transport=topo.NixlTransportSpec(),
        ),
        "trainer": topo.TrainerMeshSpec(
            placements=[topo.GpuPlacement(host_id=f"h{i}", gpus=(2, 0)) for i in range(2)],
            parallel=topo.MegatronTopologyConfig(tp=2, ep=4, vpp=1),
        ),
        "services": [
            topo.ModelServiceSpec(
                name="policy",
                base_model="m",
                members=[
                    topo.ModelServiceMemberSpec(placement=topo.CpuPlacement(host_id=h, slots=2))
                    for h in ("h1", "h0")
                ],
                parallel=topo.VllmParallelSpec(tp=2, pp=2),
                leader=topo.EndpointSpec(host="10.0.0.2", port=8000),
            ),
            topo.ModelServiceSpec(
                name="judge",
                base_model="j",
                members=[topo.ModelServiceMemberSpec(placement=topo.GpuPlacement(host_id="h0", gpus=(3,)))],
            ),
        ],
    }


def test_a_cluster_alone_compiles() -> None:
    topology = topo.compile_topology(cluster=topo.homogeneous_cluster(["10.0.0.1", "10.0.0.2"], cpu_slots=2))
    assert [(h.host_id, h.node_rank, h.address, h.free_cpu_slots) for h in topology.hosts] == [
        ("host-0", 0, "10.0.0.1", (0, 1)),
        ("host-1", 1, "10.0.0.2", (0, 1)),
    ]
    assert topology.controller.host_id == "host-0"
    assert (topology.startup_timeout_s, topology.rpc_timeout_s) == (90.0, 30.0)
    assert topology.trainer is None
    assert topology.services == ()
    assert topo.listeners(topology) == ()


def test_one_host_carries_everything() -> None:
    topology = topo.compile_topology(
        cluster=topo.local_cluster(cpu_slots=4),
        trainer=topo.TrainerMeshSpec(placements=[topo.CpuPlacement(host_id="local")]),
        services=[
            topo.ModelServiceSpec(
                name="policy",
                base_model="m",
                members=[topo.ModelServiceMemberSpec(placement=topo.CpuPlacement(host_id="local"))],
            )
        ],
    )
    trainer, service = topology.trainer, topology.service("policy")
    assert trainer is not None
    assert trainer.ranks == (
        topo.TrainerRank(rank=0, host_id="local", local_rank=0, device=topo.CpuDevice(0)),
    )
    assert trainer.device_kind == service.device_kind == "cpu"
    assert service.members[0].devices == (topo.CpuDevice(1),)
    assert service.rendezvous is None
    assert topology.hosts[0].free_cpu_slots == (2, 3)


def test_hosts_stand_in_node_order_and_the_controller_is_any_of_them() -> None:
    a, b, c = hosts(3)
    cluster = topo.ClusterSpec(
        hosts=[msgspec.structs.replace(host, node_rank=rank) for host, rank in ((a, 2), (b, 0), (c, 1))]
    )
    topology = topo.compile_topology(cluster=cluster)
    assert [host.host_id for host in topology.hosts] == ["h1", "h2", "h0"]
    assert topology.controller_host_id == "h1"
    moved = msgspec.structs.replace(cluster, controller_host_id="h0")
    assert topo.compile_topology(cluster=moved).controller.node_rank == 2


def test_ranks_and_members_get_their_devices() -> None:
    topology = topo.compile_topology(**full_input())
    trainer = topology.trainer
    assert trainer is not None
    assert [(r.rank, r.host_id, r.local_rank, r.device) for r in trainer.ranks] == [
        (0, "h0", 0, topo.GpuDevice(2)),
        (1, "h0", 1, topo.GpuDevice(0)),
        (2, "h1", 0, topo.GpuDevice(2)),
        (3, "h1", 1, topo.GpuDevice(0)),
    ]
    assert (trainer.world_size, trainer.ranks_per_host, trainer.device_kind) == (4, 2, "gpu")
    layout = trainer.layout
    assert (layout.tp, layout.dp, layout.ep, layout.expert_dp) == (2, 2, 4, 1)
    policy = topology.service("policy")
    assert [(m.member_index, m.host_id, m.address, m.devices) for m in policy.members] == [
        (0, "h1", "10.0.0.2", (topo.CpuDevice(0), topo.CpuDevice(1))),
        (1, "h0", "10.0.0.1", (topo.CpuDevice(0), topo.CpuDevice(1))),
    ]
    assert topology.service("judge").members[0].devices == (topo.GpuDevice(3),)
    assert [host.free_cpu_slots for host in topology.hosts] == [(2, 3, 4, 5), (2, 3, 4, 5)]


def test_what_is_left_out_is_filled_in() -> None:
    topology = topo.compile_topology(**full_input())
    trainer, policy, judge = topology.trainer, *topology.services
    assert trainer is not None
    assert trainer.rendezvous == topo.EndpointSpec(host="10.0.0.1", port=0)
    assert trainer.parallel.vpp is None
    assert policy.leader.url("v1") == "http://10.0.0.2:8000/v1"
    assert policy.rendezvous == topo.EndpointSpec(host="10.0.0.2", port=0)
    assert judge.leader == topo.EndpointSpec(host="10.0.0.1", port=0)
    assert judge.rendezvous is None
    assert judge.spec.leader == judge.leader


def test_virtual_stages_get_their_microbatch_group() -> None:
    def parallel(**fields: Any) -> topo.MegatronTopologyConfig:
        placement = topo.CpuPlacement(host_id="local", slots=4)
        mesh = topo.TrainerMeshSpec(
            placements=[placement], parallel=topo.MegatronTopologyConfig(pp=4, **fields)
        )
        trainer = topo.compile_topology(cluster=topo.local_cluster(cpu_slots=5), trainer=mesh).trainer
        assert trainer is not None
        return trainer.parallel

    assert parallel(vpp=2).vpp_microbatch_group_size == 4
    assert parallel(vpp=2, vpp_microbatch_group_size=6).vpp_microbatch_group_size == 6
    assert parallel().vpp_microbatch_group_size is None


def test_listeners_say_who_listens_where() -> None:
    found = topo.listeners(topo.compile_topology(**full_input()))
    assert [(x.purpose, x.host_id, x.endpoint.host, x.endpoint.port) for x in found] == [
        ("NIXL metadata store", "h1", "10.0.0.2", 0),
        ("trainer rendezvous", "h0", "10.0.0.1", 0),
        ("API of policy", "h1", "10.0.0.2", 8000),
        ("rendezvous of policy", "h1", "10.0.0.2", 0),
        ("API of judge", "h0", "10.0.0.1", 0),
    ]
    reserving = topo.homogeneous_cluster(["10.0.0.1"], cpu_slots=1, reserved_ports=[22222])
    assert [
        (x.purpose, x.endpoint.authority()) for x in topo.listeners(topo.compile_topology(cluster=reserving))
    ] == [("reserved port", "10.0.0.1:22222")]


def test_what_is_not_there_is_named_with_what_is() -> None:
    topology = topo.compile_topology(**full_input())
    with pytest.raises(KeyError, match="no host 'x'; there are h0, h1"):
        topology.host("x")
    with pytest.raises(KeyError, match="no model service 'x'; there are: policy, judge"):
        topology.service("x")
    assert topology.trainer is not None
    with pytest.raises(IndexError, match="rank 4 of a trainer with 4 ranks"):
        topology.trainer.rank(4)


def test_a_compiled_topology_survives_messagepack() -> None:
    topology = topo.compile_topology(**full_input())
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(topology), type=topo.RuntimeTopology)
    assert again == topology
    assert again.service("policy").leader.url() == "http://10.0.0.2:8000"


def test_a_compiled_topology_is_frozen() -> None:
    topology = topo.compile_topology(**full_input())
    with pytest.raises(AttributeError):
        topology.controller_host_id = "h0"  # type: ignore[misc]  # that is the point
    assert hash(topology) == hash(topo.compile_topology(**full_input()))


def test_the_fingerprint_is_that_of_the_meaning() -> None:
    given_input = full_input()
    cluster: topo.ClusterSpec = given_input["cluster"]
    reference = topo.compile_topology(**given_input).fingerprint
    assert len(reference) == 64
    a, b = cluster.hosts
    spelled_out = (
        msgspec.structs.replace(b, node_rank=1, address="10.0.0.2"),
        msgspec.structs.replace(a, node_rank=0),
    )
    same = {**given_input, "cluster": msgspec.structs.replace(cluster, hosts=spelled_out)}
    same["trainer"] = msgspec.structs.replace(
        given_input["trainer"],
        rendezvous=topo.EndpointSpec(host="10.0.0.1"),
        parallel=topo.MegatronTopologyConfig(tp=2, ep=4),
    )
    assert topo.compile_topology(**same).fingerprint == reference


@pytest.mark.parametrize(
    "change",
    [
        {"rpc_timeout_s": 16},
        {"controller_host_id": "h0"},
        {"nccl_transport": topo.NcclTransportSpec(net_name="IB2")},
        {
            "nixl_transport": topo.NixlTransportSpec(
                metadata_store=topo.EndpointSpec(host="10.0.0.9", port=2379)
            )
        },
        {"hosts": hosts(2, cpu_slots=7)},
        {"hosts": hosts(3)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_fingerprint_changes_with_every_part(change: dict[str, Any]) -> None:
    given_input = full_input()
    changed = {**given_input, "cluster": msgspec.structs.replace(given_input["cluster"], **change)}
    assert topo.compile_topology(**changed).fingerprint != topo.compile_topology(**given_input).fingerprint


def test_the_fingerprint_is_the_digest_of_plain_json() -> None:
    topology = topo.compile_topology(cluster=topo.local_cluster(cpu_slots=1))
    host = {
        "host_id": "local",
        "node_rank": 0,
        "address": "127.0.0.1",
        "cpu_slots": 1,
        "free_cpu_slots": [0],
        "gpus": [],
        "reserved_ports": [],
        "gpu_model": None,
    }
    plain = {
        "hosts": [host],
        "controller_host_id": "local",
        "startup_timeout_s": 90.0,
        "rpc_timeout_s": 30.0,
        "trainer": None,
        "services": [],
        "nccl_transport": None,
        "nixl_transport": None,
        "worker_ports": [],
        "warnings": [],
        "fingerprint": "",
    }
    text = "art-topology 1\n" + json.dumps(plain, sort_keys=True, separators=(",", ":"))
    assert topology.fingerprint == hashlib.sha256(text.encode()).hexdigest()


@st.composite
def meshes(draw: st.DrawFn) -> tuple[int, int, topo.MegatronTopologyConfig]:
    host_count = draw(st.integers(1, 4))
    tp, cp, pp, dp = (draw(st.sampled_from([1, 2, 3])) for _ in range(4))
    world = tp * cp * pp * dp * host_count
    stage = world // pp
    ep = draw(st.sampled_from([d for d in range(1, stage + 1) if stage % d == 0]))
    vpp = draw(st.sampled_from([None, 2])) if pp > 1 else None
    return host_count, world // host_count, topo.MegatronTopologyConfig(tp=tp, cp=cp, pp=pp, ep=ep, vpp=vpp)


@settings(max_examples=60, deadline=None)
@given(mesh=meshes(), on_gpu=st.booleans())
def test_every_rank_gets_a_device_of_its_own(
    mesh: tuple[int, int, topo.MegatronTopologyConfig], on_gpu: bool
) -> None:
    host_count, per_host, parallel = mesh
    cluster = topo.homogeneous_cluster(
        [f"10.1.0.{i}" for i in range(1, host_count + 1)],
        cpu_slots=per_host,
        gpus_per_host=per_host,
        nccl_transport=topo.NcclTransportSpec(net_name="IB"),
        nixl_transport=topo.NixlTransportSpec(),
    )
    placements = [
        topo.GpuPlacement(host_id=f"host-{i}", gpus=tuple(range(per_host)))
        if on_gpu
        else topo.CpuPlacement(host_id=f"host-{i}", slots=per_host)
        for i in range(host_count)
    ]
    mesh_spec = topo.TrainerMeshSpec(placements=placements, parallel=parallel)
    topology = topo.compile_topology(cluster=cluster, trainer=mesh_spec)
    trainer = topology.trainer
    assert trainer is not None
    assert trainer.world_size == host_count * per_host
    assert [rank.rank for rank in trainer.ranks] == list(range(trainer.world_size))
    assert Counter(rank.host_id for rank in trainer.ranks) == {
        f"host-{i}": per_host for i in range(host_count)
    }
    assert len({(rank.host_id, rank.device) for rank in trainer.ranks}) == trainer.world_size
    node_order = [topology.host(rank.host_id).node_rank for rank in trainer.ranks]
    assert node_order == sorted(node_order)
    layout = trainer.layout
    assert layout.tp * layout.cp * layout.dp * layout.pp == trainer.world_size
    assert layout.etp * layout.ep * layout.expert_dp * layout.pp == trainer.world_size
    assert all(len(host.free_cpu_slots) == (per_host if on_gpu else 0) for host in topology.hosts)
