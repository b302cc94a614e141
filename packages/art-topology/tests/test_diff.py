"""Diffs: every difference is told, with what it restarts; nothing else is."""

import json
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import art_topology as topo
from art_topology.diff import Part, TopologyDiff, diff_topologies
from art_topology.diff_rules import RULES
from art_topology.fingerprint import fingerprint

EVERYTHING, TRAINER, ROLLOUTS = Part("everything"), Part("trainer"), Part("rollout_workers")
POLICY, JUDGE = Part("service", "policy"), Part("service", "judge")


def hosts(count: int, **fields: Any) -> tuple[topo.HostSpec, ...]:
    fields = {"cpu_slots": 6, "gpus": tuple(range(8)), **fields}
    return tuple(topo.HostSpec(host_id=f"h{i}", address=f"10.0.0.{i + 1}", **fields) for i in range(count))


def service(name: str, host_ids: list[str], gpus: tuple[int, ...], **fields: Any) -> topo.ModelServiceSpec:
    members = tuple(
        topo.ModelServiceMemberSpec(placement=topo.GpuPlacement(host_id=host_id, gpus=gpus))
        for host_id in host_ids
    )
    fields.setdefault("parallel", topo.VllmParallelSpec(tp=len(host_ids) * len(gpus)))
    return topo.ModelServiceSpec(name=name, base_model="m", members=members, **fields)


def specification(host_count: int = 2) -> dict[str, Any]:
    """A trainer on four GPUs of each host, one service across the first two hosts and one on one GPU."""
    return {
        "cluster": topo.ClusterSpec(
            hosts=hosts(host_count),
            nccl_transport=topo.NcclTransportSpec(net_name="IB"),
            nixl_transport=topo.NixlTransportSpec(),
        ),
        "trainer": topo.TrainerMeshSpec(
            placements=[topo.GpuPlacement(host_id=f"h{i}", gpus=(0, 1, 2, 3)) for i in range(host_count)],
            parallel=topo.MegatronTopologyConfig(tp=2, ep=4),
        ),
        "services": [
            service("policy", ["h0", "h1"], (4, 5), parallel=topo.VllmParallelSpec(tp=2, pp=2)),
            service("judge", ["h1"], (7,)),
        ],
    }


def compiled(**changes: Any) -> topo.RuntimeTopology:
    return topo.compile_topology(**specification() | changes)


def cluster(**changes: Any) -> topo.ClusterSpec:
    return msgspec.structs.replace(specification()["cluster"], **changes)


def trainer(**changes: Any) -> topo.TrainerMeshSpec:
    return msgspec.structs.replace(specification()["trainer"], **changes)


def policy(**changes: Any) -> list[topo.ModelServiceSpec]:
    first, second = specification()["services"]
    return [msgspec.structs.replace(first, **changes), second]


CASES: dict[str, tuple[dict[str, Any], set[Part], str]] = {
    "a timeout": (
        {"cluster": cluster(rpc_timeout_s=16)},
        set(),
        "limit for a control message in seconds: 30.0 before, 16.0 now",
    ),
    "more CPU slots": (
        {"cluster": cluster(hosts=hosts(2, cpu_slots=7))},
        {ROLLOUTS},
        "CPU slots for rollout workers of 2 hosts (host 'h0' and host 'h1'): 0 to 5 before, 0 to 6 now",
    ),
    "a reserved port": (
        {"cluster": cluster(hosts=hosts(2, reserved_ports=(9000,)))},
        set(),
        "reserved ports of 2 hosts (host 'h0' and host 'h1'): none before, 9000 now",
    ),
    "the controller": (
        {"cluster": cluster(controller_host_id="h1")},
        {EVERYTHING},
        "host of the controller: 'h0' before, 'h1' now",
    ),
    "the network": (
        {"cluster": cluster(nccl_transport=topo.NcclTransportSpec(net_name="AWS"))},
        {TRAINER, POLICY},
        "network of NCCL: 'IB' before, 'AWS' now",
    ),
    "the metadata store": (
        {
            "cluster": cluster(
                nixl_transport=topo.NixlTransportSpec(
                    metadata_store=topo.EndpointSpec(host="10.0.0.9", port=2379)
                )
            )
        },
        {TRAINER, POLICY, JUDGE},
        "metadata store of NIXL: one of the runtime's own before, 10.0.0.9:2379 now",
    ),
    "an address": (
        {"cluster": cluster(hosts=[hosts(1)[0], msgspec.structs.replace(hosts(2)[1], address="10.0.0.77")])},
        {EVERYTHING},
        "address of host 'h1': '10.0.0.2' before, '10.0.0.77' now",
    ),
    "a host more": (
        {"cluster": cluster(hosts=hosts(3))},
        {EVERYTHING},
        "new host: 'h2' (node 2 at 10.0.0.3 with 6 CPU slots and 8 GPUs)",
    ),
    "the division of the model": (
        {"trainer": trainer(parallel=topo.MegatronTopologyConfig(tp=4, ep=4))},
        {TRAINER},
        "tensor parallelism (tp) of the trainer: 2 before, 4 now",
    ),
    "other GPUs of the trainer": (
        {
            "trainer": trainer(
                placements=[topo.GpuPlacement(host_id=f"h{i}", gpus=(0, 1, 2, 6)) for i in range(2)]
            )
        },
        {TRAINER},
        "devices of the trainer of 2 hosts (host 'h0' and host 'h1'): GPUs 0 to 3 before, GPUs 0, 1, 2 and 6 "
        "now",
    ),
    "no trainer": ({"trainer": None}, {TRAINER}, "trainer: 8 ranks on 2 hosts before, none now"),
    "requests at once": (
        {"services": policy(max_num_seqs=128)},
        {POLICY},
        "requests at once (max_num_seqs) of service 'policy': 64 before, 128 now",
    ),
    "a service's patience": (
        {"services": policy(startup_timeout_s=900)},
        set(),
        "limit for startup in seconds (startup_timeout_s) of service 'policy': 600.0 before, 900.0 now",
    ),
    "a service's parallelism": (
        {"services": policy(parallel=topo.VllmParallelSpec(tp=4))},
        {POLICY},
        "pipeline parallelism (pp) of service 'policy': 2 before, 1 now",
    ),
    "where the API listens": (
        {"services": policy(leader=topo.EndpointSpec(host="10.0.0.1", port=8000))},
        {POLICY},
        "address of the API of service 'policy': 10.0.0.1, any port before, 10.0.0.1:8000 now",
    ),
    "a service more": (
        {"services": [*policy(), service("teacher", ["h0"], (7,))]},
        {Part("service", "teacher")},
        "service 'teacher': none before, 'm' on 1 worker now",
    ),
    "a service less": (
        {"services": policy()[:1]},
        {JUDGE},
        "service 'judge': 'm' on 1 worker before, none now",
    ),
    "the order of services": (
        {"services": policy()[::-1]},
        set(),
        "order of the services: 'policy', 'judge' before, 'judge', 'policy' now",
    ),
    "turns on GPUs of its own": (
        {"services": policy(temporal_sharing=True)},
        {POLICY},
        "turns with the trainer (temporal_sharing) of service 'policy': no before, yes now",
    ),
    "the shape of a service": (
        {"services": [service("policy", ["h0"], (4, 5, 6, 7)), policy()[1]]},
        {POLICY},
        "members of service 'policy': 2 before, 1 now",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_told_with_what_it_restarts(case: str) -> None:
    changes, restarts, message = CASES[case]
    old, new = compiled(), compiled(**changes)
    diff = diff_topologies(old, new)
    assert set(diff.restarts) == restarts
    assert message in [change.message for change in diff.changes]
    assert all(change.why and change.paths for change in diff.changes)
    running = {TRAINER, POLICY, JUDGE, ROLLOUTS}
    kept = set() if EVERYTHING in restarts else running - restarts
    assert set(diff.warm) == kept
    back = diff_topologies(new, old)
    assert set(back.restarts) == restarts
    assert (back.old_fingerprint, back.new_fingerprint) == (new.fingerprint, old.fingerprint)


def test_turns_on_shared_gpus_concern_the_trainer_as_well() -> None:
    shared = [
        service("policy", ["h0", "h1"], (0, 1), parallel=topo.VllmParallelSpec(tp=2, pp=2)),
        policy()[1],
    ]
    apart, together = (
        compiled(),
        compiled(services=[msgspec.structs.replace(shared[0], temporal_sharing=True), shared[1]]),
    )
    diff = diff_topologies(apart, together)
    assert set(diff.restarts) == {TRAINER, POLICY}
    assert diff.warm == (JUDGE, ROLLOUTS)


def test_the_text_says_what_restarts_and_why() -> None:
    diff = diff_topologies(
        compiled(), compiled(services=policy(max_num_seqs=128), cluster=cluster(rpc_timeout_s=16))
    )
    assert diff.describe() == (
        "restarts service 'policy'; keeps the trainer's ranks, service 'judge' and the rollout workers warm\n"
        "- limit for a control message in seconds: 30.0 before, 16.0 now\n"
        "  restarts nothing: it is looked up the next time\n"
        "- requests at once (max_num_seqs) of service 'policy': 64 before, 128 now\n"
        "  restarts service 'policy': vLLM takes it at its start"
    )


def test_no_difference_is_no_text() -> None:
    topology = compiled()
    diff = diff_topologies(topology, compiled())
    assert not diff
    assert diff.changes == diff.restarts == ()
    assert diff.summary == diff.describe() == "no difference"
    assert diff.warm == (TRAINER, POLICY, JUDGE, ROLLOUTS)


def test_warnings_are_no_difference() -> None:
    warned = topo.Diagnostic(code="ART-T206", severity="warning", path="cluster", message="m", hint="h")
    assert not diff_topologies(compiled(), msgspec.structs.replace(compiled(), warnings=(warned,)))


def test_a_thousand_equal_changes_are_told_once() -> None:
    def many(slots: int, count: int) -> topo.RuntimeTopology:
        addresses = [f"10.0.{i // 200}.{i % 200 + 1}" for i in range(count)]
        return topo.compile_topology(cluster=topo.homogeneous_cluster(addresses, cpu_slots=slots))

    more, free = diff_topologies(many(2, 1000), many(3, 1000)).changes
    assert more.message == (
        "CPU slots of 1000 hosts (host 'host-0', host 'host-1', host 'host-2' and 997 more): 2 before, 3 now"
    )
    assert len(free.paths) == 1000
    (gone,) = diff_topologies(many(2, 1000), many(2, 990)).changes
    assert gone.message.startswith("gone hosts: 'host-990' (node 990 at 10.0.4.191 with 2 CPU slots), ")
    assert gone.message.endswith(" and 7 more")


def test_different_changes_of_many_are_told_by_example() -> None:
    five = [topo.HostSpec(host_id=f"h{i}", address=f"10.0.0.{i + 1}") for i in range(5)]
    moved = [msgspec.structs.replace(host, address=f"10.1.0.{i}") for i, host in enumerate(five)]
    (change,) = diff_topologies(
        *(topo.compile_topology(cluster=topo.ClusterSpec(hosts=hosts)) for hosts in (five, moved))
    ).changes
    assert change.message == (
        "address: of host 'h0' '10.0.0.1' before, '10.1.0.0' now; of host 'h1' '10.0.0.2' before, "
        "'10.1.0.1' now; of host 'h2' '10.0.0.3' before, '10.1.0.2' now; and of 2 more"
    )


def test_a_diff_survives_json() -> None:
    diff = diff_topologies(compiled(), compiled(services=policy(max_num_seqs=128)))
    assert msgspec.json.decode(msgspec.json.encode(diff), type=TopologyDiff) == diff


@st.composite
def topologies(draw: st.DrawFn) -> topo.RuntimeTopology:
    """Topologies of one to three hosts with a trainer, or none, and up to two services."""
    count = draw(st.integers(1, 3))
    addresses = draw(st.permutations([f"10.0.0.{i + 1}" for i in range(3)]))
    machines = [
        topo.HostSpec(
            host_id=f"h{i}",
            address=addresses[i],
            cpu_slots=draw(st.integers(0, 4)),
            gpus=tuple(range(8)),
            gpu_model=draw(st.sampled_from([None, "H200"])),
            reserved_ports=draw(st.sampled_from([(), (9000,), (9000, 9001)])),
        )
        for i in range(count)
    ]
    spec = topo.ClusterSpec(
        hosts=machines,
        controller_host_id=draw(st.sampled_from([None, *(machine.host_id for machine in machines)])),
        rpc_timeout_s=draw(st.sampled_from([30.0, 31.0])),
        nccl_transport=topo.NcclTransportSpec(net_name=draw(st.sampled_from(["IB", "AWS"]))),
        nixl_transport=topo.NixlTransportSpec(
            metadata_store=draw(st.sampled_from([None, topo.EndpointSpec(host="10.0.0.9", port=2379)]))
        ),
    )
    per_host = draw(st.sampled_from([1, 2, 4]))
    world = per_host * count
    sizes = [d for d in range(1, world + 1) if world % d == 0]
    mesh = topo.TrainerMeshSpec(
        placements=[
            topo.GpuPlacement(host_id=machine.host_id, gpus=tuple(range(per_host))) for machine in machines
        ],
        parallel=topo.MegatronTopologyConfig(
            tp=draw(st.sampled_from(sizes)), ep=draw(st.sampled_from(sizes))
        ),
    )
    services = [
        service(name, [machines[-1].host_id], (gpu,), max_num_seqs=draw(st.sampled_from([32, 64])))
        for name, gpu in draw(st.permutations([("policy", 5), ("judge", 6)]))[: draw(st.integers(0, 2))]
    ]
    return topo.compile_topology(cluster=spec, trainer=draw(st.sampled_from([mesh, None])), services=services)


@settings(max_examples=150, deadline=None)
@given(topologies(), topologies())
def test_a_diff_is_empty_exactly_when_the_fingerprints_are_equal(
    old: topo.RuntimeTopology, new: topo.RuntimeTopology
) -> None:
    assert bool(diff_topologies(old, new)) == (old.fingerprint != new.fingerprint)
    assert not diff_topologies(old, old)
    there, back = diff_topologies(old, new), diff_topologies(new, old)
    assert len(there.changes) == len(back.changes)
    assert (EVERYTHING in there.restarts) == (EVERYTHING in back.restarts)


REPLACEMENTS: tuple[Any, ...] = (
    1,
    "x",
    True,
    {"net_name": "other"},
    {"host": "10.9.9.9", "port": 1},
    {"metadata_store": None},
)


def variants(value: Any) -> Iterator[Any]:
    """Other values, some of which the field can hold."""
    match value:
        case bool():
            yield not value
        case int() | float():
            yield value + 1
            yield value / 2
        case str():
            yield value + "0"
            yield from ("float32", "tp-cp-ep-pp-dp")
        case list():
            yield value[:-1]
            yield [*value, 7] if all(isinstance(entry, int) for entry in value) else value[::-1]
        case None:
            yield from REPLACEMENTS
        case dict():
            yield None


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield from places(value, (*path, key))


def changed(topology: topo.RuntimeTopology, path: tuple[Any, ...]) -> Iterator[topo.RuntimeTopology]:
    """The topology with another value in one place, wherever that is a topology at all."""
    data = json.loads(msgspec.json.encode(topology))
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    original = parent[path[-1]]
    for value in variants(original):
        if value == original and type(value) is type(original):
            continue
        parent[path[-1]] = value
        try:
            found = msgspec.convert(data, topo.RuntimeTopology)
        except msgspec.ValidationError:
            continue
        yield msgspec.structs.replace(found, fingerprint=fingerprint(found))


def test_a_change_of_any_field_is_told() -> None:
    topology = compiled(
        trainer=trainer(
            parallel=topo.MegatronTopologyConfig(tp=2, ep=2, pp=2, vpp=2),
            rendezvous=topo.EndpointSpec(host="10.0.0.1", port=7000),
        )
    )
    told: set[str] = set()
    for path in places(json.loads(msgspec.json.encode(topology))):
        if path[0] in ("warnings", "fingerprint"):
            continue
        for other in changed(topology, path):
            if other.fingerprint == topology.fingerprint:
                continue
            diff = diff_topologies(topology, other)
            assert diff.changes, path
            where = " ".join(place for change in diff.changes for place in change.paths)
            keys = [key for key in path if isinstance(key, str)]
            # What is inside an endpoint, a device or a placement is told as a change of that.
            names = set(keys[-3:]) - {"hosts", "trainer", "services", "spec"} or set(keys)
            names |= {"host_id": {"hosts["}, "name": {"services["}}.get(keys[-1], set())
            assert any(name in where for name in names), (path, where)
            told.add(keys[-1])
    assert {"tp", "rpc_timeout_s", "gpus", "net_name", "first_rank", "order", "kv_cache_bytes"} <= told


@settings(max_examples=25, deadline=None)
@given(topology=topologies(), data=st.data())
def test_a_change_of_any_field_of_any_topology_is_told(
    topology: topo.RuntimeTopology, data: st.DataObject
) -> None:
    every = [
        path
        for path in places(json.loads(msgspec.json.encode(topology)))
        if path[0] not in ("warnings", "fingerprint")
    ]
    for path in data.draw(st.lists(st.sampled_from(every), min_size=20, max_size=20)):
        for other in changed(topology, path):
            assert bool(diff_topologies(topology, other)) == (other.fingerprint != topology.fingerprint)


STRUCTURE = {
    "RuntimeTopology": {"trainer", "warnings", "fingerprint"},
    "CompiledHost": {"host_id"},
    "CompiledTrainer": {"parallel", "layout"},
    "TrainerHost": {"host_id"},
    "CompiledService": {"spec", "members"},
    "ModelServiceSpec": {"name", "parallel"},
}
"""Fields that others are matched by, or whose own fields are compared."""


def structs_in(kind: Any) -> Iterator[type]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for found in msgspec.structs.fields(kind):
            yield from structs_in(found.type)
    for argument in typing.get_args(kind):
        yield from structs_in(argument)


def test_every_field_has_words_and_nothing_else_has() -> None:
    compared = {kind.__name__: kind for kind in structs_in(topo.RuntimeTopology)}
    assert set(RULES) <= set(compared)
    for name, rules in RULES.items():
        fields = {field.name for field in msgspec.structs.fields(compared[name])}
        assert set(rules) | STRUCTURE.get(name, set()) == fields, name


def test_a_field_without_words_is_told_as_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES["ModelServiceSpec"], "seed")
    monkeypatch.delitem(RULES["CompiledHost"], "gpu_model")
    diff = diff_topologies(
        compiled(), compiled(services=policy(seed=3), cluster=cluster(hosts=hosts(2, gpu_model="H200")))
    )
    assert [change.message for change in diff.changes] == [
        "gpu_model of 2 hosts (host 'h0' and host 'h1'): none before, 'H200' now",
        "seed of service 'policy': 0 before, 3 now",
    ]
    assert [change.restarts for change in diff.changes] == [(EVERYTHING,), (POLICY,)]
