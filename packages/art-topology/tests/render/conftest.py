"""Topologies of many shapes."""

import random
from collections.abc import Callable

import pytest

from art_topology import (
    ClusterSpec,
    CpuPlacement,
    GpuPlacement,
    HostSpec,
    MegatronTopologyConfig,
    ModelServiceMemberSpec,
    ModelServiceSpec,
    NcclTransportSpec,
    NixlTransportSpec,
    RuntimeTopology,
    TrainerMeshSpec,
    VllmParallelSpec,
    compile_topology,
)

EIGHT = tuple(range(8))


def make(
    trained: int,
    served: int,
    parallel: MegatronTopologyConfig | None = None,
    service: VllmParallelSpec | None = None,
    *,
    gpus: int = 8,
    idle: int = 0,
    name: str = "policy",
    base_model: str = "org/model",
) -> RuntimeTopology:
    """Whole hosts for a trainer, others for a service, and idle ones."""
    hosts = tuple(
        HostSpec(
            host_id=f"node-{i}",
            address=f"10.{i >> 8}.{i & 255}.1",
            cpu_slots=16,
            gpus=tuple(range(gpus)),
            gpu_model="H200",
        )
        for i in range(trained + served + idle)
    )
    every = tuple(range(gpus))
    places = [GpuPlacement(host_id=host.host_id, gpus=every) for host in hosts]
    members = [ModelServiceMemberSpec(placement=place) for place in places[trained : trained + served]]
    services = []
    if served:
        division = service or VllmParallelSpec(tp=gpus, dp=served)
        services.append(
            ModelServiceSpec(name=name, base_model=base_model, members=members, parallel=division)
        )
    return compile_topology(
        cluster=ClusterSpec(
            hosts=hosts, nccl_transport=NcclTransportSpec(net_name="IB"), nixl_transport=NixlTransportSpec()
        ),
        trainer=TrainerMeshSpec(placements=places[:trained], parallel=parallel or MegatronTopologyConfig())
        if trained
        else None,
        services=services,
    )


@pytest.fixture(scope="session")
def topology_of() -> Callable[..., RuntimeTopology]:
    return make


@pytest.fixture(scope="session")
def cpu_topology() -> RuntimeTopology:
    host = HostSpec(host_id="laptop", address="127.0.0.1", cpu_slots=4)
    return compile_topology(
        cluster=ClusterSpec(hosts=(host,)),
        trainer=TrainerMeshSpec(placements=[CpuPlacement(host_id="laptop")]),
        services=[
            ModelServiceSpec(
                name="policy",
                base_model="org/tiny",
                members=[ModelServiceMemberSpec(placement=CpuPlacement(host_id="laptop"))],
            )
        ],
    )


@pytest.fixture(scope="session")
def shared_topology() -> RuntimeTopology:
    """Trainer and service take turns on four GPUs."""
    host = HostSpec(host_id="one", address="10.0.0.1", cpu_slots=4, gpus=(0, 1, 2, 3))
    place = GpuPlacement(host_id="one", gpus=(0, 1, 2, 3))
    return compile_topology(
        cluster=ClusterSpec(hosts=(host,)),
        trainer=TrainerMeshSpec(placements=[place], parallel=MegatronTopologyConfig(tp=2)),
        services=[
            ModelServiceSpec(
                name="policy",
                base_model="org/tiny",
                members=[ModelServiceMemberSpec(placement=place)],
                parallel=VllmParallelSpec(tp=4),
                temporal_sharing=True,
            )
        ],
    )


@pytest.fixture(scope="session")
def random_topologies() -> list[RuntimeTopology]:
    """Sixty of them, of all sizes and divisions."""
    chance, found = random.Random(4), []

    def pick() -> int:
        return chance.choice([1, 1, 2, 4])

    while len(found) < 60:
        gpus = chance.choice([1, 2, 4, 8, 16, 40])
        trained, served = chance.choice([0, 1, 2, 3, 6, 20]), chance.choice([0, 1, 2, 9])
        idle = chance.choice([0, 0, 1, 15])
        if trained + served + idle == 0:
            continue
        parallel = MegatronTopologyConfig(tp=pick(), cp=pick(), ep=pick(), pp=pick())
        if trained and (
            (trained * gpus) % (parallel.tp * parallel.cp * parallel.pp)
            or (trained * gpus) % (parallel.ep * parallel.pp)
            or (parallel.tp > 1 and gpus % parallel.tp)
        ):
            continue
        name = chance.choice(["policy", "a-judge-with-a-name-that-is-much-too-long-for-a-cell", "x"])
        found.append(
            make(
                trained,
                served,
                parallel,
                gpus=gpus,
                idle=idle,
                name=name,
                base_model=chance.choice(["o/m", "Ж" * 90]),
            )
        )
    return found
