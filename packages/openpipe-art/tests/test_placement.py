"""What the topology leaves out is placed and compiled before anything starts."""

import msgspec
import pytest

from art.distributed.placement import _completed, place
from art.errors import ConfigError
from art_topology import (
    CpuPlacement,
    EndpointSpec,
    MegatronTopologyConfig,
    ModelServiceMemberSpec,
    ModelServiceSpec,
    TopologyError,
    TrainerMeshSpec,
    compile_topology,
    local_cluster,
)

HERE = CpuPlacement(host_id="local")


def placed(topology, *, name="policy", rank=8, parallel=MegatronTopologyConfig()):  # noqa: B008 - frozen
    return place(
        topology,
        parallel=parallel,
        service_name=name,
        base_model="/models/tiny",
        max_model_len=512,
        max_lora_rank=rank,
        dtype="float32",
        seed=3,
    )


def service(name="policy", **more):
    members = (ModelServiceMemberSpec(placement=HERE),)
    return ModelServiceSpec(name=name, base_model="/models/tiny", members=members, **more)


def test_an_empty_topology_gets_a_trainer_and_a_service():
    result = placed(compile_topology(cluster=local_cluster(cpu_slots=2)))
    assert (result.trainer_host, result.service_host) == (0, 0)
    assert (result.service.name, result.service.base_model) == ("policy", "/models/tiny")
    assert (result.service.max_model_len, result.service.dtype, result.service.seed) == (512, "float32", 3)


@pytest.mark.parametrize(("rank", "served"), [(1, 1), (8, 8), (9, 16), (512, 512)])
def test_the_server_takes_the_next_rank_that_it_knows(rank, served):
    result = placed(compile_topology(cluster=local_cluster(cpu_slots=2)), rank=rank)
    assert result.service.max_lora_rank == served


def test_a_rank_beyond_the_servers_is_refused():
    with pytest.raises(ConfigError, match="513"):
        placed(compile_topology(cluster=local_cluster(cpu_slots=2)), rank=513)


def test_what_listens_is_known_before_anything_starts():
    leader = EndpointSpec(host="127.0.0.1", port=5005)
    topology = compile_topology(
        cluster=local_cluster(cpu_slots=2),
        trainer=TrainerMeshSpec(placements=(HERE,)),
        services=(service(leader=leader),),
    )
    ports = {port: purpose for host, port, purpose in placed(topology).listeners if host == "127.0.0.1"}
    assert ports == {0: "the trainer's rendezvous", 5005: "the API of 'policy'"}


def test_too_few_slots_are_a_topology_error():
    with pytest.raises(TopologyError, match="slot"):
        placed(compile_topology(cluster=local_cluster(cpu_slots=1)))


def test_what_the_topology_names_is_used():
    topology = compile_topology(
        cluster=local_cluster(cpu_slots=2),
        trainer=TrainerMeshSpec(placements=(HERE,)),
        services=(service(max_num_seqs=7),),
    )
    assert placed(topology).service.max_num_seqs == 7


def test_a_service_of_another_name_is_not_taken_silently():
    topology = compile_topology(cluster=local_cluster(cpu_slots=2), services=(service("judge"),))
    with pytest.raises(ConfigError, match="judge"):
        placed(topology)


def test_half_a_topology_is_refused():
    topology = compile_topology(cluster=local_cluster(cpu_slots=2), services=(service(),))
    with pytest.raises(ConfigError, match="name both"):
        placed(topology)


def test_more_ranks_than_this_version_runs_are_refused():
    with pytest.raises((ConfigError, TopologyError), match="2"):
        placed(compile_topology(cluster=local_cluster(cpu_slots=4)), parallel=MegatronTopologyConfig(tp=2))


@pytest.mark.parametrize("skypilot", [False, True])
def test_nothing_of_the_cluster_is_lost_when_it_is_completed(skypilot):
    (host,) = local_cluster(cpu_slots=2).hosts
    cluster = msgspec.structs.replace(
        local_cluster(cpu_slots=2),
        hosts=(msgspec.structs.replace(host, gpus=(0,), gpu_model="H200", reserved_ports=(5001,)),),
        startup_timeout_s=17.0,
        rpc_timeout_s=3.0,
        worker_port=22333,
        skypilot=skypilot,
    )
    before = compile_topology(cluster=cluster)
    trainer = TrainerMeshSpec(placements=(HERE,))
    after = _completed(before, trainer, service())
    asked = compile_topology(cluster=cluster, trainer=trainer, services=(service(),))
    assert after == asked
    assert after.hosts[0].gpu_model == "H200"
    assert after.worker_ports == ((22333, 22334) if skypilot else (22333,))
