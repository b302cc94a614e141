"""One process: import art_topology, specify, compile, answer."""

import sys

from benchmarks.rank_layout.task import (
    DENSE,
    EXPERT,
    GPUS_PER_HOST,
    Stopwatch,
    peak_bytes,
    ranks_asked,
    say,
    sizes,
)


def main() -> None:
    """Takes the number of hosts."""
    hosts = int(sys.argv[1])
    watch = Stopwatch()
    with watch("import"):
        import art_topology as topo
    wanted = sizes(hosts)
    addresses = [f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}" for i in range(1, hosts + 1)]
    with watch("specify"):
        cluster = topo.homogeneous_cluster(
            addresses,
            cpu_slots=8,
            gpus_per_host=GPUS_PER_HOST,
            nccl_transport=topo.NcclTransportSpec(net_name="IB"),
            nixl_transport=topo.NixlTransportSpec(),
        )
        parallel = topo.MegatronTopologyConfig(**{name: wanted[name] for name in ("tp", "cp", "pp", "ep")})
        placements = [
            topo.GpuPlacement(host_id=host.host_id, gpus=tuple(range(GPUS_PER_HOST)))
            for host in cluster.hosts
        ]
        trainer = topo.TrainerMeshSpec(placements=placements, parallel=parallel)
    with watch("compile"):
        topology = topo.compile_topology(cluster=cluster, trainer=trainer)
    assert topology.trainer is not None
    layout = topology.trainer.layout
    asked = ranks_asked(layout.world_size)
    with watch("answer"):
        answers = [layout.groups_of(rank) for rank in asked]
    peak = peak_bytes()
    groups = [{name: list(found[name]) for name in (*DENSE, *EXPERT)} for found in answers]
    say(watch, groups, peak_bytes=peak, ranks=layout.world_size, families=len(topo.GROUP_FAMILIES))


if __name__ == "__main__":
    main()
