"""From valid topologies at random: one fault yields its code and no other, two faults yield both.

So no diagnostic is a mere consequence of another, and none hides another. Every value that is proposed
clears the diagnostic that proposes it.
"""

import copy
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from art_topology import Diagnostic, TopologyError, TopologySpec, compile_topology
from art_topology.models import ModelDescription, load_model_config
from art_topology.suggestions import apply_suggestion

# All sizes are divided by whatever ranks are divided into here, and by 7, which divides no number of ranks.
MODEL = {
    "model_type": "qwen3_moe",
    "hidden_size": 840,
    "num_hidden_layers": 1680,
    "num_attention_heads": 840,
    "num_key_value_heads": 840,
    "head_dim": 8,
    "intermediate_size": 161280,
    "num_experts": 1680,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 161280,
    "vocab_size": 53760,
    "max_position_embeddings": 100_000,
}
WORKLOAD = {
    "packed_sequence_length": 53760,
    "groups_per_step": 1000,
    "group_size": 8,
    "prompt_tokens": 512,
    "completion_tokens": 512,
    "lora_rank": 8,
}


class Draw:
    """Choices of hypothesis, in the words of this test."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def one_of(self, options: Any) -> Any:
        return self._data.draw(st.sampled_from(list(options)))

    def chance(self) -> bool:
        return self._data.draw(st.booleans())


def divisors(total: int) -> list[int]:
    return [d for d in range(1, total + 1) if total % d == 0]


def valid(draw: Draw) -> dict[str, Any]:
    """A topology without faults: hosts a, b, c ... with a trainer on some of their GPUs and services."""
    count, gpus = draw.one_of((1, 2, 3, 4)), draw.one_of((2, 4, 8))
    hosts = [
        {"host_id": "abcd"[i], "address": f"10.0.0.{i + 1}", "cpu_slots": 64, "gpus": list(range(gpus))}
        for i in range(count)
    ]
    if draw.chance():
        for i, host in enumerate(hosts):
            host["node_rank"] = i
    values: dict[str, Any] = {
        "cluster": {
            "hosts": hosts,
            "controller_host_id": hosts[-1]["host_id"],
            "nccl_transport": {"net_name": "IB"},
            "nixl_transport": {},
            "worker_port": 22222,
        },
        "services": [],
    }
    per_host = draw.one_of(d for d in divisors(gpus) if d < gpus)
    trained = draw.one_of(range(1, count + 1))
    values["trainer"] = {
        "placements": [
            {"device": "gpu", "host_id": host["host_id"], "gpus": list(range(per_host))}
            for host in hosts[:trained]
        ],
        "parallel": parallel(draw, trained * per_host, per_host),
    }
    width = draw.one_of(divisors(gpus - per_host))
    members = draw.one_of(divisors(count))
    values["services"].append(
        {
            "name": "policy",
            "base_model": "model",
            "members": [
                {
                    "placement": {
                        "device": "gpu",
                        "host_id": host["host_id"],
                        "gpus": list(range(gpus - width, gpus)),
                    }
                }
                for host in hosts[:members]
            ],
            "parallel": {"tp": width, "dp": members, "expert_parallel": draw.chance()},
            "leader": {"host": hosts[0]["address"], "port": 8000},
            "max_lora_rank": 16,
        }
    )
    values["services"].append(
        {
            "name": "judge",
            "base_model": "model",
            "members": [
                {"placement": {"device": "cpu", "host_id": host["host_id"], "slots": 2}} for host in hosts[:2]
            ],
            "parallel": {"tp": 2, "pp": min(2, count)},
            "leader": {"host": hosts[0]["address"], "port": 9000},
        }
    )
    if draw.chance():
        values["model"] = {"config": dict(MODEL)}
    if draw.chance():
        values["workload"] = dict(WORKLOAD)
    return values


def parallel(draw: Draw, world: int, per_host: int) -> dict[str, Any]:
    pp = draw.one_of(divisors(world))
    tp = draw.one_of(d for d in divisors(world // pp) if per_host % d == 0)
    cp = draw.one_of(divisors(world // pp // tp))
    etp = draw.one_of(d for d in divisors(world // pp) if per_host % d == 0)
    ep = draw.one_of(divisors(world // pp // etp))
    found = {"tp": tp, "cp": cp, "pp": pp, "ep": ep, "etp": etp}
    if pp > 1 and draw.chance():
        found["vpp"] = 5
    return found


def diagnostics(values: dict[str, Any]) -> tuple[Diagnostic, ...]:
    return compiled(msgspec.convert(values, TopologySpec))


def compiled(spec: TopologySpec) -> tuple[Diagnostic, ...]:
    try:
        return compile_topology(
            cluster=spec.cluster,
            trainer=spec.trainer,
            services=spec.services,
            model=described(json.dumps(spec.model.config)) if spec.model is not None else None,
            workload=spec.workload,
        ).warnings
    except TopologyError as error:
        return error.diagnostics


@cache
def described(config: str) -> ModelDescription:
    return load_model_config(json.loads(config))


def errors(values: dict[str, Any]) -> set[str]:
    return {found.code for found in diagnostics(values) if found.severity == "error"}


# Each fault changes a valid topology, or does nothing where it is not possible: (code, area, change).
# Faults of different areas have nothing to do with each other.
type Fault = tuple[str, str, Callable[[dict[str, Any], Draw], bool]]
FAULTS: dict[str, Fault] = {}


def fault(code: str, area: str) -> Callable[..., Any]:
    def register(change: Callable[[dict[str, Any], Draw], bool]) -> Callable[..., Any]:
        FAULTS[change.__name__] = (code, area, change)
        return change

    return register


def hosts_of(values: dict[str, Any]) -> list[dict[str, Any]]:
    return values["cluster"]["hosts"]


@fault("ART-T101", "ids")
def a_host_id_is_repeated(values: dict[str, Any], draw: Draw) -> bool:
    hosts = hosts_of(values)
    if len(hosts) < 2:
        return False
    hosts[1]["host_id"] = hosts[0]["host_id"]
    return True


@fault("ART-T102", "order")
def a_node_rank_is_too_large(values: dict[str, Any], draw: Draw) -> bool:
    draw.one_of(hosts_of(values))["node_rank"] = 17
    return True


@fault("ART-T103", "addresses")
def an_address_is_repeated(values: dict[str, Any], draw: Draw) -> bool:
    hosts = hosts_of(values)
    hosts[-1]["address"] = hosts[0]["address"]
    return len(hosts) > 1


@fault("ART-T104", "controller")
def the_controller_is_nowhere(values: dict[str, Any], draw: Draw) -> bool:
    values["cluster"]["controller_host_id"] = "nowhere"
    return True


@fault("ART-T105", "addresses")
def an_address_has_a_port(values: dict[str, Any], draw: Draw) -> bool:
    draw.one_of(hosts_of(values)[1:] or [{}])["address"] = "10.0.0.9:22222"
    return len(hosts_of(values)) > 1


@fault("ART-T106", "addresses")
def an_address_is_loopback(values: dict[str, Any], draw: Draw) -> bool:
    draw.one_of(hosts_of(values)[1:] or [{}])["address"] = draw.one_of(
        ("127.0.0.1", "::1", "localhost", "0.0.0.0")
    )
    return len(hosts_of(values)) > 1


@fault("ART-T110", "addresses")
def an_address_is_of_many(values: dict[str, Any], draw: Draw) -> bool:
    draw.one_of(hosts_of(values)[1:] or [{}])["address"] = draw.one_of(
        ("239.1.1.1", "fe80::1", "169.254.1.1")
    )
    return len(hosts_of(values)) > 1


@fault("ART-T107", "gpus")
def a_gpu_is_listed_twice(values: dict[str, Any], draw: Draw) -> bool:
    draw.one_of(hosts_of(values))["gpus"].append(0)
    return True


@fault("ART-T108", "uuids")
def a_uuid_is_cut_short(values: dict[str, Any], draw: Draw) -> bool:
    hosts_of(values).append(
        {
            "host_id": "spare",
            "address": "10.0.0.77",
            "gpus": ["GPU-5f0c1a3d"],
            "node_rank": len(hosts_of(values)),
        }
    )
    return True


@fault("ART-T109", "uuids")
def a_uuid_is_in_two_hosts(values: dict[str, Any], draw: Draw) -> bool:
    first = len(hosts_of(values))
    for i in (0, 1):
        uuid = "GPU-5f0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f6071"
        hosts_of(values).append(
            {"host_id": f"spare{i}", "address": f"10.0.1.{i}", "gpus": [uuid], "node_rank": first + i}
        )
    return True


@fault("ART-T201", "trainer")
def a_placement_is_nowhere(values: dict[str, Any], draw: Draw) -> bool:
    draw.one_of(values["trainer"]["placements"])["host_id"] = "nowhere"
    return True


@fault("ART-T202", "trainer")
def a_gpu_does_not_exist(values: dict[str, Any], draw: Draw) -> bool:
    draw.one_of(values["trainer"]["placements"])["gpus"][0] = 99
    return True


@fault("ART-T203", "service 0")
def a_gpu_is_given_out_twice(values: dict[str, Any], draw: Draw) -> bool:
    values["services"][0]["members"][0]["placement"]["gpus"][0] = 0
    return True


@fault("ART-T204", "slots")
def slots_do_not_suffice(values: dict[str, Any], draw: Draw) -> bool:
    hosts_of(values)[0]["cpu_slots"] = draw.one_of((0, 1))
    return True


@fault("ART-T302", "trainer")
def a_host_has_fewer_ranks(values: dict[str, Any], draw: Draw) -> bool:
    placements = values["trainer"]["placements"]
    if len(placements) < 2 or len(placements[0]["gpus"]) < 2:
        return False
    draw.one_of(placements)["gpus"].pop()
    return True


@fault("ART-T303", "trainer")
def placements_are_out_of_order(values: dict[str, Any], draw: Draw) -> bool:
    values["trainer"]["placements"].reverse()
    return len(values["trainer"]["placements"]) > 1


@fault("ART-T304", "trainer")
def stages_do_not_divide_the_ranks(values: dict[str, Any], draw: Draw) -> bool:
    values["trainer"]["parallel"]["pp"] = 7
    return True


@fault("ART-T305", "trainer")
def cp_does_not_divide_the_ranks(values: dict[str, Any], draw: Draw) -> bool:
    values["trainer"]["parallel"]["cp"] = 7
    return True


@fault("ART-T306", "trainer")
def ep_does_not_divide_the_ranks(values: dict[str, Any], draw: Draw) -> bool:
    values["trainer"]["parallel"]["ep"] = 7
    return True


@fault("ART-T307", "trainer")
def there_are_virtual_stages_only(values: dict[str, Any], draw: Draw) -> bool:
    values["trainer"]["parallel"]["vpp"] = 2
    return values["trainer"]["parallel"]["pp"] == 1


@fault("ART-T308", "trainer")
def a_microbatch_group_is_too_small(values: dict[str, Any], draw: Draw) -> bool:
    values["trainer"]["parallel"]["vpp_microbatch_group_size"] = 1
    return True


@fault("ART-T310", "trainer")
def tokens_are_divided_by_one(values: dict[str, Any], draw: Draw) -> bool:
    values["trainer"]["parallel"]["sequence_parallel"] = True
    return values["trainer"]["parallel"]["tp"] == 1


@fault("ART-T311", "trainer")
def experts_without_sequence_parallelism(values: dict[str, Any], draw: Draw) -> bool:
    chosen = values["trainer"]["parallel"]
    chosen["sequence_parallel"] = False
    return chosen["tp"] > 1 and ("model" in values or chosen["ep"] * chosen["etp"] > 1)


@fault("ART-T312", "trainer")
def a_layout_cannot_be_read(values: dict[str, Any], draw: Draw) -> bool:
    values["trainer"]["parallel"]["pipeline_layout"] = draw.one_of(("Et*|L", "tE|L" * 3, "no layout"))
    return True


@fault("ART-T313", "trainer")
def layers_are_divided_in_two_ways(values: dict[str, Any], draw: Draw) -> bool:
    values["trainer"]["parallel"] |= {
        "num_layers_in_first_pipeline_stage": 5,
        "account_for_loss_in_pipeline_split": True,
    }
    return True


@fault("ART-T314", "trainer")
def an_end_has_no_whole_virtual_stages(values: dict[str, Any], draw: Draw) -> bool:
    values["trainer"]["parallel"]["num_layers_in_first_pipeline_stage"] = 7
    return "vpp" in values["trainer"]["parallel"]


@fault("ART-T401", "names")
def a_name_is_repeated(values: dict[str, Any], draw: Draw) -> bool:
    values["services"][1]["name"] = values["services"][0]["name"]
    return True


@fault("ART-T402", "service 1")
def two_members_are_on_a_host(values: dict[str, Any], draw: Draw) -> bool:
    members = values["services"][1]["members"]
    members[-1]["placement"]["host_id"] = members[0]["placement"]["host_id"]
    return len(members) > 1


@fault("ART-T403", "service 1")
def a_member_has_more_workers(values: dict[str, Any], draw: Draw) -> bool:
    members = values["services"][1]["members"]
    draw.one_of(members)["placement"]["slots"] = 3
    return len(members) > 1


@fault("ART-T404", "service 1")
def a_service_has_too_few_workers(values: dict[str, Any], draw: Draw) -> bool:
    values["services"][1]["parallel"]["dp"] = draw.one_of((2, 3, 4))
    return True


@fault("ART-T405", "ranks of adapters")
def a_rank_is_not_vllms(values: dict[str, Any], draw: Draw) -> bool:
    values["services"][1]["max_lora_rank"] = draw.one_of((12, 100, 1000))
    return True


@fault("ART-T501", "leader 1")
def a_leader_is_on_loopback(values: dict[str, Any], draw: Draw) -> bool:
    values["services"][1]["leader"]["host"] = draw.one_of(("127.0.0.1", "localhost", "::1"))
    return len(hosts_of(values)) > 1


@fault("ART-T502", "leader 1")
def a_leader_cannot_be_dialed(values: dict[str, Any], draw: Draw) -> bool:
    values["services"][1]["leader"]["host"] = draw.one_of(("0.0.0.0", "http://10.0.0.1", "[fd00::1]", "::"))
    return True


@fault("ART-T503", "leader 1")
def a_leader_is_elsewhere(values: dict[str, Any], draw: Draw) -> bool:
    hosts = hosts_of(values)
    values["services"][1]["leader"]["host"] = hosts[-1]["address"]
    return len(hosts) > 1


@fault("ART-T504", "leader 1")
def a_port_is_taken(values: dict[str, Any], draw: Draw) -> bool:
    values["services"][1]["leader"]["port"] = draw.one_of((8000, 22222))
    return True


@fault("ART-T505", "store")
def a_store_has_no_port(values: dict[str, Any], draw: Draw) -> bool:
    values["cluster"]["nixl_transport"] = {"metadata_store": {"host": "etcd.lan"}}
    return True


@fault("ART-T506", "rendezvous")
def a_port_has_no_room_behind_it(values: dict[str, Any], draw: Draw) -> bool:
    first = values["services"][0]
    first["rendezvous"] = {"host": hosts_of(values)[0]["address"], "port": 65530}
    return first["parallel"]["dp"] > 1


def spans(values: dict[str, Any]) -> bool:
    return len(values["trainer"]["placements"]) > 1 or len(values["services"][0]["members"]) > 1


@fault("ART-T601", "nccl")
def no_network_is_named(values: dict[str, Any], draw: Draw) -> bool:
    del values["cluster"]["nccl_transport"]
    return spans(values)


@fault("ART-T602", "nccl")
def the_network_is_sockets(values: dict[str, Any], draw: Draw) -> bool:
    values["cluster"]["nccl_transport"]["net_name"] = draw.one_of(("Socket", "socket ", "SOCKET"))
    return True


@fault("ART-T603", "nccl")
def the_network_is_two_words(values: dict[str, Any], draw: Draw) -> bool:
    values["cluster"]["nccl_transport"]["net_name"] = draw.one_of(("I B", "", "IB\n"))
    return True


@fault("ART-T701", "store")
def experts_cross_hosts_without_nixl(values: dict[str, Any], draw: Draw) -> bool:
    del values["cluster"]["nixl_transport"]
    chosen, placements = values["trainer"]["parallel"], values["trainer"]["placements"]
    return chosen["ep"] > 1 and len(placements[0]["gpus"]) % (chosen["ep"] * chosen["etp"]) != 0


def model_fault(code: str, field: str, value: int, needs: Callable[[dict[str, Any]], bool]) -> None:
    def change(values: dict[str, Any], draw: Draw) -> bool:
        if "model" not in values:
            return False
        config = values["model"]["config"]
        config[field] = value
        if field == "num_attention_heads":
            config["num_key_value_heads"] = value
        return needs(values)

    FAULTS[f"the model has {field}={value}"] = (code, "model", change)


def tp_of(values: dict[str, Any]) -> int:
    return values["trainer"]["parallel"]["tp"]


model_fault("ART-T801", "num_attention_heads", 841, lambda values: True)
model_fault("ART-T802", "num_key_value_heads", 3, lambda values: True)
model_fault("ART-T805", "vocab_size", 53761, lambda values: tp_of(values) > 1)
model_fault("ART-T807", "num_experts", 839, lambda values: values["trainer"]["parallel"]["ep"] > 1)
model_fault("ART-T809", "num_hidden_layers", 1679, lambda values: values["trainer"]["parallel"]["pp"] > 1)


def workload_fault(code: str, field: str, value: int, needs: Callable[[dict[str, Any]], bool]) -> None:
    def change(values: dict[str, Any], draw: Draw) -> bool:
        if "workload" not in values:
            return False
        values["workload"][field] = value
        return needs(values)

    FAULTS[f"the workload has {field}={value}"] = (code, "workload", change)


def divides_rows(values: dict[str, Any]) -> bool:
    chosen = values["trainer"]["parallel"]
    return bool(chosen["tp"] * chosen["cp"] > 1)


workload_fault("ART-T901", "packed_sequence_length", 53761, divides_rows)
workload_fault("ART-T902", "completion_tokens", 60000, lambda values: True)
workload_fault("ART-T904", "lora_rank", 32, lambda values: True)
workload_fault("ART-T907", "recompute_layers", 5, lambda values: True)

QUIET = settings(
    deadline=None, max_examples=12, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_topologies_to_start_from_have_no_errors(data: st.DataObject) -> None:
    assert errors(valid(Draw(data))) == set()


@pytest.mark.parametrize("name", FAULTS)
@QUIET
@given(data=st.data())
def test_one_fault_yields_its_code_and_no_other(name: str, data: st.DataObject) -> None:
    draw = Draw(data)
    values = valid(draw)
    code, _, change = FAULTS[name]
    assume(change(values, draw))
    assume(is_fault(name, values))
    assert errors(values) == {code}


def is_fault(name: str, values: dict[str, Any]) -> bool:
    """Whether numbers that are changed by the model break something: written out again, by brute force."""
    chosen = values["trainer"]["parallel"]
    sizes = [chosen["tp"], *(service["parallel"]["tp"] for service in values["services"])]
    if name.endswith("num_attention_heads=841"):
        return any(841 % tp for tp in sizes)
    if name.endswith("num_key_value_heads=3"):
        return any(3 % tp and tp % 3 for tp in sizes)
    if name.endswith("num_experts=839"):
        return all(
            service["parallel"]["tp"] * service["parallel"].get("dp", 1) <= 839
            for service in values["services"]
        )
    return True


@settings(
    deadline=None,
    max_examples=250,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_two_faults_in_different_places_yield_both(data: st.DataObject) -> None:
    draw = Draw(data)
    values = valid(draw)
    first, second = draw.one_of(FAULTS), draw.one_of(FAULTS)
    codes = set()
    assume(FAULTS[first][1] != FAULTS[second][1])
    assume(not interfere(FAULTS[first][1], FAULTS[second][1]))
    for name in (first, second):
        code, _, change = FAULTS[name]
        codes.add(code)
        assume(change(values, draw) and is_fault(name, values))
    assert errors(values) == codes


def interfere(*areas: str) -> bool:
    """Places that are one in truth: an id in doubt, a list of GPUs, sizes of one division."""
    pairs = [
        {"ids", "order"}, {"ids", "trainer"}, {"ids", "service 0"}, {"ids", "service 1"}, {"ids", "slots"},
        {"ids", "leader 1"}, {"ids", "rendezvous"}, {"ids", "controller"}, {"ids", "uuids"},
        {"order", "uuids"},
        {"order", "trainer"}, {"addresses", "leader 1"}, {"trainer", "service 0"}, {"trainer", "model"},
        {"trainer", "workload"}, {"trainer", "nccl"}, {"trainer", "store"}, {"service 1", "slots"},
        {"service 1", "model"}, {"ids", "addresses"}, {"store", "model"}, {"workload", "ranks of adapters"},
    ]  # fmt: skip
    return set(areas) in pairs


@settings(
    deadline=None, max_examples=250, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
@given(st.data())
def test_what_is_suggested_clears_what_suggests_it(data: st.DataObject) -> None:
    draw = Draw(data)
    values = copy.deepcopy(valid(draw))
    _, _, change = FAULTS[draw.one_of(FAULTS)]
    assume(change(values, draw))
    spec = msgspec.convert(values, TopologySpec)
    for found in compiled(spec):
        if found.suggestion is not None:
            after = {(other.code, other.path) for other in compiled(apply_suggestion(spec, found))}
            assert (found.code, found.path) not in after, found
