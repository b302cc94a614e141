"""Every rule of the compiler: an input that breaks it alone, and one that keeps it.

The wrong input must yield exactly one diagnostic, so each case also shows that nothing is reported
that merely follows.
"""

from typing import Any

import pytest

from art_topology import (
    RULES,
    ClusterSpec,
    CpuPlacement,
    EndpointSpec,
    GpuPlacement,
    HostSpec,
    MegatronTopologyConfig,
    ModelServiceMemberSpec,
    ModelServiceSpec,
    NcclTransportSpec,
    NixlTransportSpec,
    TopologyError,
    TrainerMeshSpec,
    VllmParallelSpec,
    compile_topology,
)

IB = NcclTransportSpec(net_name="IB")
GPU_4E = "GPU-4e0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071"
GPU_5F = "GPU-5f0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071"


def host(name: str, address: str, **fields: Any) -> HostSpec:
    return HostSpec(host_id=name, address=address, **{"cpu_slots": 8, "gpus": tuple(range(8)), **fields})


A, B, C = host("a", "10.0.0.1"), host("b", "10.0.0.2"), host("c", "10.0.0.3")


def cluster(*hosts: HostSpec, **fields: Any) -> ClusterSpec:
    return ClusterSpec(hosts=hosts, **{"nccl_transport": IB, **fields})


def on_gpus(host_id: str, *gpus: int) -> GpuPlacement:
    return GpuPlacement(host_id=host_id, gpus=gpus)


def on_cpu(host_id: str, slots: int = 1) -> CpuPlacement:
    return CpuPlacement(host_id=host_id, slots=slots)


def trainer(*placements: GpuPlacement | CpuPlacement, **fields: Any) -> TrainerMeshSpec:
    endpoint = fields.pop("rendezvous", None)
    return TrainerMeshSpec(
        placements=placements, parallel=MegatronTopologyConfig(**fields), rendezvous=endpoint
    )


def service(*placements: GpuPlacement | CpuPlacement, name: str = "model", **fields: Any) -> ModelServiceSpec:
    members = tuple(ModelServiceMemberSpec(placement=placement) for placement in placements)
    workers = sum(placement.process_count for placement in placements)
    fields = {"parallel": VllmParallelSpec(tp=workers), **fields}
    return ModelServiceSpec(name=name, base_model="meta/tiny", members=members, **fields)


def at(address: str, port: int = 0) -> EndpointSpec:
    return EndpointSpec(host=address, port=port)


def given(*hosts: HostSpec, trainer: Any = None, services: Any = (), **fields: Any) -> dict[str, Any]:
    return {"cluster": cluster(*hosts, **fields), "trainer": trainer, "services": services}


FOUR_AND_FOUR = (on_gpus("a", 0, 1, 2, 3), on_gpus("b", 0, 1, 2, 3))
DATA_OVER_STAGES = VllmParallelSpec(tp=2, pp=2, dp=2, expert_parallel=True)

# (code, path of the diagnostic, wrong input, right input)
CASES = [
    (
        "ART-T101",
        "cluster.hosts[1].host_id",
        given(A, host("a", "10.0.0.2")),
        given(A, host("a2", "10.0.0.2")),
    ),
    (
        # What is placed on the host that should have the second name is not reported as well.
        "ART-T101",
        "cluster.hosts[1].host_id",
        given(A, host("a", "10.0.0.2"), trainer=trainer(*FOUR_AND_FOUR, tp=2)),
        given(A, B, trainer=trainer(*FOUR_AND_FOUR, tp=2)),
    ),
    (
        "ART-T102",
        "cluster.hosts[1].node_rank",
        given(host("a", "10.0.0.1", node_rank=1), host("b", "10.0.0.2", node_rank=1)),
        given(host("a", "10.0.0.1", node_rank=1), host("b", "10.0.0.2", node_rank=0)),
    ),
    (
        "ART-T102",
        "cluster.hosts[1].node_rank",
        given(host("a", "10.0.0.1", node_rank=0), host("b", "10.0.0.2", node_rank=2)),
        given(host("a", "10.0.0.1"), host("b", "10.0.0.2")),
    ),
    (
        # The order of the placements cannot be judged.
        "ART-T102",
        "cluster.hosts[1].node_rank",
        given(
            host("a", "10.0.0.1", node_rank=1),
            host("b", "10.0.0.2", node_rank=1),
            trainer=trainer(on_cpu("b"), on_cpu("a")),
        ),
        given(
            host("a", "10.0.0.1", node_rank=1),
            host("b", "10.0.0.2", node_rank=0),
            trainer=trainer(on_cpu("b"), on_cpu("a")),
        ),
    ),
    ("ART-T103", "cluster.hosts[1].address", given(A, host("b", "10.0.0.1")), given(A, B)),
    (
        "ART-T103",
        "cluster.hosts[1].address",
        given(host("a", "fd00::1"), host("b", "FD00:0:0:0::1")),
        given(host("a", "fd00::1"), host("b", "fd00::2")),
    ),
    (
        "ART-T103",
        "cluster.hosts[1].address",
        given(host("a", "gpu-a.lan"), host("b", "GPU-A.lan.")),
        given(host("a", "gpu-a.lan"), host("b", "gpu-b.lan")),
    ),
    (
        "ART-T104",
        "cluster.controller_host_id",
        given(A, B, controller_host_id="z"),
        given(A, B, controller_host_id="b"),
    ),
    *(
        ("ART-T105", "cluster.hosts[0].address", given(host("a", wrong)), given(host("a", right)))
        for wrong, right in [
            ("http://10.0.0.1", "10.0.0.1"),
            ("10.0.0.1:22222", "10.0.0.1"),
            ("[fd00::1]", "fd00::1"),
            ("10.0.0", "10.0.0.0"),
            ("10.0.0.256", "10.0.0.255"),
            ("gpu a", "gpu-a"),
            (" gpu-a", "gpu-a.example.org"),
            ("-gpu", "gpu"),
            ("x" * 64, "x" * 63),
        ]
    ),
    ("ART-T106", "cluster.hosts[0].address", given(host("a", "127.0.0.1"), B), given(host("a", "127.0.0.1"))),
    ("ART-T106", "cluster.hosts[0].address", given(host("a", "::1"), B), given(host("a", "::1"))),
    ("ART-T106", "cluster.hosts[0].address", given(host("a", "localhost"), B), given(host("a", "localhost"))),
    (
        "ART-T106",
        "cluster.hosts[0].address",
        given(host("a", "localhost.localdomain"), B),
        given(host("a", "gpu-a.localdomain"), B),
    ),
    ("ART-T106", "cluster.hosts[0].address", given(host("a", "::ffff:127.0.0.1"), B), given(A, B)),
    ("ART-T106", "cluster.hosts[0].address", given(host("a", "0.0.0.0")), given(A)),
    ("ART-T106", "cluster.hosts[0].address", given(host("a", "::")), given(A)),
    (
        # The default endpoints are on the same address, and so are those that repeat it.
        "ART-T106",
        "cluster.hosts[0].address",
        given(
            host("a", "127.0.0.1"),
            B,
            trainer=trainer(on_cpu("a"), on_cpu("b"), rendezvous=at("127.0.0.1")),
            services=[service(on_cpu("a"), leader=at("127.0.0.1"))],
        ),
        given(
            A,
            B,
            trainer=trainer(on_cpu("a"), on_cpu("b"), rendezvous=at("10.0.0.1")),
            services=[service(on_cpu("a"), leader=at("10.0.0.1"))],
        ),
    ),
    (
        "ART-T107",
        "cluster.hosts[0].gpus",
        given(host("a", "10.0.0.1", gpus=(0, 1, 1))),
        given(host("a", "10.0.0.1", gpus=(0, 1, 2))),
    ),
    (
        "ART-T107",
        "cluster.hosts[0].gpus",
        given(host("a", "10.0.0.1", gpus=(0, GPU_5F))),
        given(host("a", "10.0.0.1", gpus=(GPU_4E, GPU_5F))),
    ),
    (
        "ART-T201",
        "trainer.placements[1].host_id",
        given(A, B, trainer=trainer(on_cpu("a"), on_cpu("z"))),
        given(A, B, trainer=trainer(on_cpu("a"), on_cpu("b"))),
    ),
    (
        "ART-T201",
        "services[1].members[0].placement.host_id",
        given(A, services=[service(on_cpu("a")), service(on_cpu("b"), name="other")]),
        given(A, services=[service(on_cpu("a")), service(on_cpu("a"), name="other")]),
    ),
    (
        "ART-T202",
        "trainer.placements[0].gpus",
        given(A, trainer=trainer(on_gpus("a", 7, 8, 9))),
        given(A, trainer=trainer(on_gpus("a", 5, 6, 7))),
    ),
    (
        "ART-T203",
        "services[0].members[0].placement.gpus",
        given(A, trainer=trainer(on_gpus("a", 0, 1, 2)), services=[service(on_gpus("a", 1, 2, 3))]),
        given(A, trainer=trainer(on_gpus("a", 0, 1, 2)), services=[service(on_gpus("a", 3, 4, 5))]),
    ),
    (
        "ART-T203",
        "services[1].members[0].placement.gpus",
        given(A, services=[service(on_gpus("a", 0)), service(on_gpus("a", 0), name="judge")]),
        given(A, services=[service(on_gpus("a", 0)), service(on_gpus("a", 1), name="judge")]),
    ),
    (
        "ART-T203",
        "trainer.placements[0].gpus",
        given(A, trainer=trainer(on_gpus("a", 3, 3))),
        given(A, trainer=trainer(on_gpus("a", 3, 4))),
    ),
    (
        "ART-T204",
        "cluster.hosts[0].cpu_slots",
        given(A, trainer=trainer(on_cpu("a", 4)), services=[service(on_cpu("a", 5))]),
        given(A, trainer=trainer(on_cpu("a", 4)), services=[service(on_cpu("a", 3))]),
    ),
    (
        # Whether the NCCL network is needed cannot be judged.
        "ART-T205",
        "trainer.placements[1]",
        given(A, B, trainer=trainer(on_gpus("a", 0), on_cpu("b")), nccl_transport=None),
        given(A, B, trainer=trainer(on_cpu("a"), on_cpu("b")), nccl_transport=None),
    ),
    (
        "ART-T301",
        "trainer.placements[1].host_id",
        given(A, trainer=trainer(on_gpus("a", 0), on_gpus("a", 1, 2), tp=2)),
        given(A, trainer=trainer(on_gpus("a", 0, 1), tp=2)),
    ),
    (
        # 7 ranks are not what is meant, so their division is not judged.
        "ART-T302",
        "trainer.placements[1]",
        given(A, B, trainer=trainer(on_gpus("a", 0, 1, 2, 3), on_gpus("b", 0, 1, 2), tp=4)),
        given(A, B, trainer=trainer(*FOUR_AND_FOUR, tp=4)),
    ),
    (
        # The odd one out is named, not merely the first that differs.
        "ART-T302",
        "trainer.placements[0]",
        given(A, B, C, trainer=trainer(on_cpu("a"), on_cpu("b", 2), on_cpu("c", 2))),
        given(A, B, C, trainer=trainer(on_cpu("a", 2), on_cpu("b", 2), on_cpu("c", 2))),
    ),
    (
        "ART-T303",
        "trainer.placements[2]",
        given(A, B, C, trainer=trainer(on_cpu("a"), on_cpu("c"), on_cpu("b"))),
        given(A, B, C, trainer=trainer(on_cpu("a"), on_cpu("b"), on_cpu("c"))),
    ),
    (
        "ART-T304",
        "trainer.parallel.pp",
        given(A, trainer=trainer(on_gpus("a", 0, 1, 2, 3), pp=3, tp=2, ep=2)),
        given(A, trainer=trainer(on_gpus("a", 0, 1, 2, 3, 4, 5), pp=3, tp=2, ep=2)),
    ),
    (
        "ART-T305",
        "trainer.parallel.cp",
        given(A, trainer=trainer(on_gpus("a", *range(8)), pp=2, tp=2, cp=4)),
        given(A, trainer=trainer(on_gpus("a", *range(8)), pp=2, tp=2, cp=2)),
    ),
    (
        "ART-T306",
        "trainer.parallel.ep",
        given(A, trainer=trainer(on_gpus("a", *range(8)), ep=3)),
        given(A, trainer=trainer(on_gpus("a", *range(8)), ep=4, etp=2)),
    ),
    (
        "ART-T307",
        "trainer.parallel.vpp",
        given(A, trainer=trainer(on_gpus("a", 0, 1), vpp=2, vpp_microbatch_group_size=1)),
        given(A, trainer=trainer(on_gpus("a", 0, 1), pp=2, vpp=2, vpp_microbatch_group_size=2)),
    ),
    (
        "ART-T308",
        "trainer.parallel.vpp_microbatch_group_size",
        given(A, trainer=trainer(on_gpus("a", 0, 1), pp=2, vpp_microbatch_group_size=2)),
        given(A, trainer=trainer(on_gpus("a", 0, 1), pp=2, vpp=3, vpp_microbatch_group_size=2)),
    ),
    (
        "ART-T308",
        "trainer.parallel.vpp_microbatch_group_size",
        given(A, trainer=trainer(on_gpus("a", 0, 1, 2, 3), pp=4, vpp=2, vpp_microbatch_group_size=3)),
        given(A, trainer=trainer(on_gpus("a", 0, 1, 2, 3), pp=4, vpp=2, vpp_microbatch_group_size=5)),
    ),
    (
        "ART-T401",
        "services[2].name",
        given(A, services=[service(on_cpu("a"), name=name) for name in ("x", "y", "x")]),
        given(A, services=[service(on_cpu("a"), name=name) for name in ("x", "y", "z")]),
    ),
    (
        "ART-T402",
        "services[0].members[1].placement.host_id",
        given(A, services=[service(on_gpus("a", 0, 1), on_gpus("a", 2, 3))]),
        given(A, services=[service(on_gpus("a", 0, 1, 2, 3))]),
    ),
    (
        "ART-T403",
        "services[0].members[1].placement",
        given(A, B, services=[service(on_gpus("a", 0, 1, 2), on_gpus("b", 0))]),
        given(A, B, services=[service(on_gpus("a", 0, 1), on_gpus("b", 0, 1))]),
    ),
    (
        "ART-T404",
        "services[0].parallel",
        given(A, services=[service(on_gpus("a", 0, 1, 2), parallel=VllmParallelSpec(tp=2, pp=2))]),
        given(A, services=[service(on_gpus("a", 0, 1, 2, 3), parallel=VllmParallelSpec(tp=2, pp=2))]),
    ),
    (
        "ART-T405",
        "services[0].max_lora_rank",
        given(A, services=[service(on_cpu("a"), max_lora_rank=12)]),
        given(A, services=[service(on_cpu("a"), max_lora_rank=16)]),
    ),
    (
        "ART-T405",
        "services[0].max_lora_rank",
        given(A, services=[service(on_cpu("a"), max_lora_rank=1024)]),
        given(A, services=[service(on_cpu("a"), max_lora_rank=512)]),
    ),
    (
        "ART-T501",
        "services[0].leader.host",
        given(A, B, services=[service(on_cpu("a"), on_cpu("b"), leader=at("127.0.0.1"))]),
        given(A, B, services=[service(on_cpu("a"), on_cpu("b"), leader=at("10.0.0.1"))]),
    ),
    (
        # Rollout workers of the other host dial the API of a service with a single member, too.
        "ART-T501",
        "services[0].leader.host",
        given(A, B, services=[service(on_cpu("a"), leader=at("localhost"))]),
        given(A, services=[service(on_cpu("a"), leader=at("localhost"))]),
    ),
    (
        "ART-T501",
        "services[0].rendezvous.host",
        given(A, B, services=[service(on_cpu("a"), on_cpu("b"), rendezvous=at("::1"))]),
        given(A, B, services=[service(on_cpu("a"), rendezvous=at("::1"))]),
    ),
    (
        "ART-T501",
        "trainer.rendezvous.host",
        given(A, B, trainer=trainer(on_cpu("a"), on_cpu("b"), rendezvous=at("127.0.0.1"))),
        given(A, B, trainer=trainer(on_cpu("a"), rendezvous=at("127.0.0.1"))),
    ),
    (
        "ART-T501",
        "cluster.nixl_transport.metadata_store.host",
        given(A, B, nixl_transport=NixlTransportSpec(metadata_store=at("127.0.0.1", 2379))),
        given(A, nixl_transport=NixlTransportSpec(metadata_store=at("127.0.0.1", 2379))),
    ),
    (
        "ART-T502",
        "services[0].leader.host",
        given(A, services=[service(on_cpu("a"), leader=at("0.0.0.0"))]),
        given(A, services=[service(on_cpu("a"), leader=at("10.0.0.1"))]),
    ),
    (
        "ART-T502",
        "trainer.rendezvous.host",
        given(A, trainer=trainer(on_cpu("a"), rendezvous=at("tcp://10.0.0.1"))),
        given(A, trainer=trainer(on_cpu("a"), rendezvous=at("10.0.0.1", 29500))),
    ),
    (
        "ART-T503",
        "trainer.rendezvous.host",
        given(A, B, trainer=trainer(on_cpu("a"), on_cpu("b"), rendezvous=at("10.0.0.2"))),
        given(A, B, trainer=trainer(on_cpu("a"), on_cpu("b"), rendezvous=at("192.168.7.1"))),
    ),
    (
        "ART-T504",
        "services[1].leader.port",
        given(
            A,
            B,
            services=[
                service(on_cpu("a"), leader=at("10.0.0.1", 8000)),
                service(on_cpu("a"), name="judge", leader=at("10.0.0.1", 8000)),
            ],
        ),
        given(
            A,
            B,
            services=[
                service(on_cpu("a"), leader=at("10.0.0.1", 8000)),
                service(on_cpu("b"), name="judge", leader=at("10.0.0.2", 8000)),
            ],
        ),
    ),
    (
        "ART-T504",
        "trainer.rendezvous.port",
        given(
            host("a", "10.0.0.1", reserved_ports=[22222]),
            trainer=trainer(on_cpu("a"), rendezvous=at("10.0.0.1", 22222)),
        ),
        given(
            host("a", "10.0.0.1", reserved_ports=[22222]),
            trainer=trainer(on_cpu("a"), rendezvous=at("10.0.0.1", 22223)),
        ),
    ),
    (
        "ART-T504",
        "services[0].rendezvous.port",
        given(
            A,
            B,
            services=[
                service(on_cpu("a"), on_cpu("b"), leader=at("10.0.0.1", 9), rendezvous=at("10.0.0.1", 9))
            ],
        ),
        given(
            A,
            B,
            services=[service(on_cpu("a"), on_cpu("b"), leader=at("10.0.0.1"), rendezvous=at("10.0.0.1"))],
        ),
    ),
    (
        # A metadata store that runs on a reserved port is what the port is reserved for.
        "ART-T504",
        "trainer.rendezvous.port",
        given(
            A,
            trainer=trainer(on_cpu("a"), rendezvous=at("10.0.0.1", 2379)),
            nixl_transport=NixlTransportSpec(metadata_store=at("10.0.0.1", 2379)),
        ),
        given(
            host("a", "10.0.0.1", reserved_ports=[2379]),
            nixl_transport=NixlTransportSpec(metadata_store=at("10.0.0.1", 2379)),
        ),
    ),
    (
        "ART-T505",
        "cluster.nixl_transport.metadata_store.port",
        given(A, nixl_transport=NixlTransportSpec(metadata_store=at("etcd.lan"))),
        given(A, nixl_transport=NixlTransportSpec(metadata_store=at("etcd.lan", 2379))),
    ),
    (
        "ART-T601",
        "cluster.nccl_transport",
        given(A, B, trainer=trainer(*FOUR_AND_FOUR), nccl_transport=None),
        given(A, B, trainer=trainer(*FOUR_AND_FOUR)),
    ),
    (
        "ART-T601",
        "cluster.nccl_transport",
        given(A, B, services=[service(on_gpus("a", 0), on_gpus("b", 0))], nccl_transport=None),
        given(
            A, B, services=[service(on_gpus("a", 0)), service(on_gpus("b", 0), name="y")], nccl_transport=None
        ),
    ),
    *(
        (
            "ART-T602",
            "cluster.nccl_transport.net_name",
            given(A, B, nccl_transport=NcclTransportSpec(net_name=name)),
            given(A, B, nccl_transport=NcclTransportSpec(net_name="SocketPlugin")),
        )
        for name in ("Socket", "socket", " Socket\n")
    ),
    *(
        (
            "ART-T603",
            "cluster.nccl_transport.net_name",
            given(A, B, nccl_transport=NcclTransportSpec(net_name=name)),
            given(A, B, nccl_transport=NcclTransportSpec(net_name="AWS_Libfabric")),
        )
        for name in ("I B", "IB ", "", "\t")
    ),
    (
        "ART-T701",
        "trainer.parallel.ep",
        given(A, B, trainer=trainer(*FOUR_AND_FOUR, ep=8)),
        given(A, B, trainer=trainer(*FOUR_AND_FOUR, ep=8), nixl_transport=NixlTransportSpec()),
    ),
    (
        # Hosts of three ranks cut expert groups of two, although no group is larger than a host.
        "ART-T701",
        "trainer.parallel.ep",
        given(A, B, trainer=trainer(on_cpu("a", 3), on_cpu("b", 3), ep=2)),
        given(A, B, trainer=trainer(on_cpu("a", 4), on_cpu("b", 4), ep=2)),
    ),
    (
        # Expert tensor parallelism alone dispatches no tokens.
        "ART-T701",
        "trainer.parallel.ep",
        given(A, B, trainer=trainer(*FOUR_AND_FOUR, ep=2, etp=4)),
        given(A, B, trainer=trainer(*FOUR_AND_FOUR, etp=8)),
    ),
    (
        "ART-T701",
        "services[0].parallel.expert_parallel",
        given(
            A,
            B,
            services=[service(*FOUR_AND_FOUR, parallel=VllmParallelSpec(tp=8, expert_parallel=True))],
        ),
        given(
            A,
            B,
            services=[service(*FOUR_AND_FOUR, parallel=VllmParallelSpec(tp=4, pp=2, expert_parallel=True))],
        ),
    ),
    (
        # vLLM numbers pipeline stages inside of data-parallel replicas, so a stage is spread over both hosts.
        "ART-T701",
        "services[0].parallel.expert_parallel",
        given(
            A,
            B,
            services=[
                service(*FOUR_AND_FOUR, parallel=VllmParallelSpec(tp=2, pp=2, dp=2, expert_parallel=True))
            ],
        ),
        given(
            A,
            B,
            services=[
                service(*FOUR_AND_FOUR, parallel=VllmParallelSpec(tp=2, pp=2, dp=2, expert_parallel=True))
            ],
            nixl_transport=NixlTransportSpec(),
        ),
    ),
]

NO_SLOT_LEFT = given(
    host("a", "10.0.0.1", cpu_slots=2), trainer=trainer(on_cpu("a")), services=[service(on_cpu("a"))]
)
ONE_SLOT_LEFT = given(
    host("a", "10.0.0.1", cpu_slots=3), trainer=trainer(on_cpu("a")), services=[service(on_cpu("a"))]
)

case_ids = [f"{code}-{i}" for i, (code, *_) in enumerate(CASES)]


@pytest.mark.parametrize(("code", "path", "wrong", "_right"), CASES, ids=case_ids)
def test_an_input_that_breaks_one_rule_yields_one_diagnostic(
    code: str, path: str, wrong: dict[str, Any], _right: dict[str, Any]
) -> None:
    with pytest.raises(TopologyError) as caught:
        compile_topology(**wrong)
    found = [(d.code, d.path, d.severity) for d in caught.value.diagnostics if d.severity == "error"]
    assert found == [(code, path, "error")]


@pytest.mark.parametrize(("code", "_path", "_wrong", "right"), CASES, ids=case_ids)
def test_the_same_input_put_right_compiles(
    code: str, _path: str, _wrong: dict[str, Any], right: dict[str, Any]
) -> None:
    topology = compile_topology(**right)
    assert {host.host_id for host in topology.hosts} == {host.host_id for host in right["cluster"].hosts}


def test_a_cluster_whose_slots_are_all_taken_compiles_with_a_warning() -> None:
    warnings = compile_topology(**NO_SLOT_LEFT).warnings
    assert [(w.code, w.severity, w.path) for w in warnings] == [("ART-T206", "warning", "cluster.hosts")]
    assert "all 2 CPU slots" in warnings[0].message
    assert compile_topology(**ONE_SLOT_LEFT).warnings == ()


def test_a_cluster_without_slots_and_without_workloads_gets_no_warning() -> None:
    assert compile_topology(**given(host("a", "10.0.0.1", cpu_slots=0))).warnings == ()


def test_every_case_is_of_a_rule() -> None:
    assert {code for code, *_ in CASES} <= set(RULES)
