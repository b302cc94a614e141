"""One mistake is one finding, with a way out that works."""

import re
from pathlib import Path
from typing import Any

import pytest

from art_topology import (
    Diagnostic,
    SpecError,
    TopologyError,
    apply_suggestion,
    parse_topology,
)
from art_topology.files import read_topology_text

LLAMA_405B = """
[model.config]
model_type = "llama"
hidden_size = 16384
num_hidden_layers = 126
num_attention_heads = 128
num_key_value_heads = 8
intermediate_size = 53248
vocab_size = 128256
max_position_embeddings = 131072
"""
WORKLOAD = """
[workload]
packed_sequence_length = 65536
groups_per_step = 32
group_size = 16
prompt_tokens = 1024
completion_tokens = 4096
"""


def found(text: str, folder: Path | str = ".") -> tuple[Diagnostic, ...]:
    """Everything that is said about a file."""
    try:
        return read_topology_text(text, "toml", folder=folder).compile().warnings
    except (TopologyError, SpecError) as error:
        return error.diagnostics


def cluster(hosts: int, gpu: str = "", slots: int = 8, gpus: str = "[0, 1, 2, 3, 4, 5, 6, 7]") -> str:
    lines = ["[cluster]", 'nccl_transport = { net_name = "IB" }', "nixl_transport = {}"]
    for host in range(hosts):
        lines += [
            "[[cluster.hosts]]",
            f'host_id = "n{host}"',
            f'address = "10.0.0.{host + 1}"',
            f"cpu_slots = {slots}",
            f"gpus = {gpus}",
        ]
        lines += [f'gpu_model = "{gpu}"'] if gpu else []
    return "\n".join(lines) + "\n"


def trainer(hosts: int, parallel: str, gpus: str = "[0, 1, 2, 3, 4, 5, 6, 7]") -> str:
    placed = ", ".join(f'{{ device = "gpu", host_id = "n{host}", gpus = {gpus} }}' for host in range(hosts))
    return f"[trainer]\nplacements = [{placed}]\nparallel = {{ {parallel} }}\n"


def service(more: str = "", gpus: str = "[0, 1, 2, 3, 4, 5, 6, 7]", host: str = "n0") -> str:
    members = f'[{{ placement = {{ device = "gpu", host_id = "{host}", gpus = {gpus} }} }}]'
    return f'[[services]]\nname = "policy"\nbase_model = "Qwen/Qwen3-8B"\nmembers = {members}\n{more}\n'


def codes(text: str) -> list[str]:
    return [each.code for each in found(text)]


def test_what_explain_says_cannot_fit_is_no_topology() -> None:
    text = cluster(2, "B300") + trainer(2, "cp = 8") + LLAMA_405B + WORKLOAD
    [only] = found(text)
    assert only.code == "ART-T909"
    assert re.search(r"needs about 3,085 GiB, but a B300 has 269 .*gradients 1,512", only.message)
    assert codes(text.replace("B300", "B3000")) == ["ART-T111"]  # nothing is known of that one


def test_a_layout_that_fits_is_found() -> None:
    small = LLAMA_405B.replace("126", "24")
    [only] = found(cluster(2, "B300") + trainer(2, "cp = 8") + small + WORKLOAD)
    assert only.code == "ART-T909"
    assert only.suggestion is not None
    spec = parse_topology(cluster(2, "B300") + trainer(2, "cp = 8") + small + WORKLOAD, "toml")
    mended = apply_suggestion(spec, only)
    source = read_topology_text(cluster(2, "B300") + trainer(2, "cp = 8") + small + WORKLOAD, "toml")
    source.spec = mended
    assert source.compile().warnings == ()


def test_a_service_that_does_not_fit_is_refused_and_divided() -> None:
    [only] = found(cluster(1, "H200") + service("parallel = { dp = 8 }") + LLAMA_405B + WORKLOAD)
    assert only.code == "ART-T911"
    [cache] = found(cluster(1, "H200") + service(f"parallel = {{ dp = 8 }}\nkv_cache_bytes = {10**12}"))
    assert (cache.code, cache.path) == ("ART-T911", "services[0].kv_cache_bytes")


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ("", ["ART-T811"]),
        ('rope_scaling = { rope_type = "yarn", factor = 4.0 }\n', ["ART-T811"]),
        ('rope_scaling = { rope_type = "dynamic", factor = 4.0 }\n', []),
        ('rope_scaling = { type = "linear", factor = 2.0 }\n', []),
    ],
)
def test_vllm_refuses_lengths_beyond_the_positions(scaling: str, expected: list[str]) -> None:
    model = LLAMA_405B.replace("131072", "4096") + scaling
    text = cluster(1) + service("parallel = { tp = 8 }\nmax_model_len = 8192") + model
    assert codes(text) == expected
    assert all(each.severity == "error" for each in found(text))


def test_a_workload_beyond_the_positions_is_refused_by_its_service_and_doubted_without_one() -> None:
    model = LLAMA_405B.replace("131072", "4096")
    [refused] = found(cluster(1) + service("parallel = { tp = 8 }") + model + WORKLOAD)
    assert (refused.code, refused.severity) == ("ART-T903", "error")
    assert refused.suggestion == ("workload.completion_tokens", 4096 - 1024)
    [doubted] = found(cluster(1) + trainer(1, "tp = 8") + model + WORKLOAD)
    assert (doubted.code, doubted.severity) == ("ART-T813", "warning")


def test_gpus_that_placements_name_are_meant_where_one_is_listed_twice() -> None:
    [only] = found(cluster(1, gpus="[0, 1, 2, 3, 4, 5, 6, 6]") + trainer(1, "tp = 8"))
    assert only.code == "ART-T107"
    assert only.suggestion == ("cluster.hosts[0].gpus", [0, 1, 2, 3, 4, 5, 6, 7])
    assert codes(cluster(1, gpus="[0, 1, 0]") + trainer(1, "tp = 1", "[99]")) == ["ART-T107", "ART-T202"]


def test_too_many_cpu_slots_do_not_break_the_division_too() -> None:
    placed = ", ".join(f'{{ device = "cpu", host_id = "n{host}", slots = 99 }}' for host in range(2))
    text = cluster(2, slots=16) + f"[trainer]\nplacements = [{placed}]\nparallel = {{ tp = 2, cp = 2 }}\n"
    assert codes(text) == ["ART-T204", "ART-T204"]


def test_a_second_host_of_the_same_name_gets_the_name_that_placements_use() -> None:
    text = cluster(2).replace('host_id = "n1"', 'host_id = "n0"') + trainer(2, "tp = 8")
    [only] = found(text)
    assert only.code == "ART-T101"
    assert only.suggestion == ("cluster.hosts[1].host_id", "n1")


def test_a_wrong_tp_of_a_service_is_one_finding() -> None:
    model = LLAMA_405B.replace("128256", "128255")
    [only] = found(cluster(1) + service("parallel = { tp = 5 }") + model)
    assert only.code == "ART-T404"


def test_an_odd_cp_is_changed_and_not_the_row() -> None:
    six = "[0, 1, 2, 3, 4, 5]"
    [only] = found(cluster(1) + trainer(1, "cp = 3", six) + WORKLOAD)
    assert only.code == "ART-T901"
    assert only.suggestion == ("trainer.parallel.cp", 2)
    assert codes(cluster(1) + trainer(1, "cp = 3") + WORKLOAD) == ["ART-T305"]


def test_the_host_that_says_a_wrong_node_rank_is_named() -> None:
    text = cluster(4).replace('host_id = "n1"', 'host_id = "n1"\nnode_rank = 3')
    [only] = found(text)
    assert (only.code, only.path) == ("ART-T102", "cluster.hosts[1].node_rank")
    assert only.suggestion == ("cluster.hosts[1].node_rank", 1)


def test_the_gpu_that_was_meant_is_proposed() -> None:
    [only] = found(cluster(1, "H20O"))
    assert only.code == "ART-T111"
    assert "H200" in only.hint


def test_a_model_name_that_no_service_has_is_said() -> None:
    model = LLAMA_405B.replace("[model.config]", '[model]\nname = "Qwen/Qwen3-8b"\n[model.config]')
    [only] = found(cluster(1) + service("parallel = { tp = 8 }") + model)
    assert only.code == "ART-T408"
    assert only.suggestion == ("model.name", "Qwen/Qwen3-8B")


def test_a_folder_without_config_and_a_model_of_another_kind_say_so(tmp_path: Path) -> None:
    [missing] = found(cluster(1) + '[model]\nconfig = "."\n', tmp_path)
    assert missing.code == "ART-F009"
    assert "config.json" in missing.message
    gpt: dict[str, Any] = {"model_type": "gpt2", "n_head": 12, "n_layer": 12, "n_embd": 768}
    text = "\n".join(f"{key} = {value!r}" for key, value in gpt.items())
    [refused] = found(cluster(1) + f"[model.config]\n{text}\n")
    assert refused.code == "ART-F009"
    assert "n_head" in refused.message
    assert "missing" not in refused.message


def test_a_mistake_of_type_does_not_hide_the_rules() -> None:
    text = (
        cluster(2).replace("[cluster]", '[cluster]\nrpc_timeout_s = "soon"').replace("10.0.0.2", "10.0.0.1")
    )
    assert codes(text + trainer(2, "tp = 3")) == ["ART-F006", "ART-T103", "ART-T305"]


def test_what_may_follow_from_a_mistake_of_type_is_not_said() -> None:
    double = cluster(2).replace("10.0.0.2", "10.0.0.1")
    assert codes(double + trainer(2, 'tp = "x"') + service(host="n9")) == [
        "ART-F006",
        "ART-T103",
        "ART-T201",
        "ART-T404",
    ]
    slots = double.replace("cpu_slots = 8", "cpu_slots = -1", 1)
    assert codes(slots + trainer(2, "tp = 2")) == ["ART-F007", "ART-T103"]
    # Without its hosts nothing is known of a topology.
    assert codes("[cluster]\nhosts = 7\n" + trainer(2, "tp = 3")) == ["ART-F006"]


def test_findings_of_services_after_a_broken_one_have_their_own_places() -> None:
    text = cluster(1) + service("max_num_seqs = 0") + service("max_lora_rank = 17").replace("policy", "judge")
    broken, *others = found(text)
    assert (broken.code, broken.path) == ("ART-F007", "services[0].max_num_seqs")
    assert [(each.code, each.path) for each in others] == [
        ("ART-T405", "services[1].max_lora_rank"),
        ("ART-T404", "services[1].parallel"),
    ]
    assert all(each.location is not None for each in others)
    assert others[0].location is not None
    assert "17" in others[0].location.text


def test_hints_about_ranges_can_be_followed() -> None:
    text = cluster(1) + service("parallel = { tp = 8 }\ngpu_memory_utilization = 90")
    [share] = found(text)
    assert share.suggestion == ("services[0].gpu_memory_utilization", 0.9)
    port = 'parallel = { tp = 8 }\nleader = { host = "10.0.0.1", port = 70000 }'
    [beyond] = found(cluster(1) + service(port))
    assert (beyond.suggestion, beyond.hint) == (None, "choose from 0 to 65535")


def test_a_date_of_yaml_is_told_from_a_text() -> None:
    text = "cluster: {hosts: [{host_id: 2026-01-02, address: 10.0.0.1}]}"
    with pytest.raises(SpecError, match=r"is a date\n(.*\n)*.*put it in quotes"):
        parse_topology(text, "yaml")


def test_hints_do_not_repeat_themselves() -> None:
    text = cluster(1) + trainer(1, "cp = 3", "[0, 1, 2, 3, 4, 5]") + WORKLOAD
    [only] = found(text)
    assert only.hint == "use cp=2, or rows of 65538 tokens"


def test_a_model_that_cannot_be_read_hides_no_other_finding(tmp_path: Path) -> None:
    """What is said beside ART-F009 is what is said where the topology names no model."""
    topology = cluster(2).replace("10.0.0.2", "10.0.0.1").replace(
        'net_name = "IB"', 'net_name = "Socket"'
    ) + service("parallel = { tp = 4 }")
    without = [(each.code, each.path) for each in found(topology)]
    assert len(without) >= 2
    for model in ('config = "nowhere"', 'config = { model_type = "zork", ssm_cfg = { layer = "m" } }'):
        beside = found(f"{topology}\n[model]\n{model}\n", tmp_path)
        assert {each.code for each in beside if each.path == "model.config"} == {"ART-F009"}
        assert [(each.code, each.path) for each in beside if each.code != "ART-F009"] == without


def test_each_reason_why_a_model_cannot_be_read_stands_alone(tmp_path: Path) -> None:
    config = '{ model_type = "llama", hidden_size = 64, num_hidden_layers = 2, vocab_size = 100 }'
    missing = found(f"{cluster(1)}\n[model]\nconfig = {config}\n", tmp_path)
    assert [each.message.split()[5] for each in missing] == ["num_attention_heads", "intermediate_size"]
    assert all("add it" in each.hint for each in missing)


HOSTS = """
[[cluster.hosts]]
host_id = "a"
address = "10.0.0.1"
cpu_slots = 4
gpus = [0, 1, 2, 3, 4, 5, 6, 7]
[[cluster.hosts]]
host_id = "b"
address = "10.0.0.2"
cpu_slots = 4
gpus = [0, 1, 2, 3{more}]
[cluster]
nccl_transport = {{ net_name = "IB" }}
[trainer]
placements = [
  {{ device = "gpu", host_id = "a", gpus = [0, 1, 2, 3, 4, 5, 6, 7] }},
  {{ device = "gpu", host_id = "b", gpus = [0, 1, 9] }},
]
"""


def test_a_placement_is_never_filled_up_with_gpus_that_its_host_lacks() -> None:
    [unequal] = [each for each in found(HOSTS.format(more=", 4, 5, 6, 7")) if each.code == "ART-T302"]
    assert unequal.suggestion == ("trainer.placements[1].gpus", [0, 1, 2, 3, 4, 5, 6, 7])
    [short] = [each for each in found(HOSTS.format(more="")) if each.code == "ART-T302"]
    assert short.suggestion is None
    assert "at most 4" in short.hint


REQUESTS = """
[model.config]
model_type = "llama"
hidden_size = 1024
num_hidden_layers = 4
num_attention_heads = 8
intermediate_size = 2048
vocab_size = 128256
max_position_embeddings = 8192
[workload]
packed_sequence_length = 65536
groups_per_step = 32
group_size = 16
prompt_tokens = 1024
completion_tokens = 16384
"""


@pytest.mark.parametrize(("longest", "completion"), [(4096, 3072), (8192, 7168)])
def test_completions_are_shortened_to_what_a_service_takes(longest: int, completion: int) -> None:
    text = cluster(1) + service(f"parallel = {{ tp = 8 }}\nmax_model_len = {longest}") + REQUESTS
    [only] = found(text)
    assert only.code == "ART-T903"
    assert only.suggestion == ("workload.completion_tokens", completion)
    assert not found(text.replace("completion_tokens = 16384", f"completion_tokens = {completion}"))


def test_a_service_too_short_for_the_prompt_takes_two_changes() -> None:
    text = cluster(1) + service("parallel = { tp = 8 }\nmax_model_len = 100") + REQUESTS
    [only] = found(text)
    assert only.suggestion is None
    assert "7168" in only.hint
    assert "max_model_len=8192" in only.hint
    changed = text.replace("completion_tokens = 16384", "completion_tokens = 7168")
    assert not found(changed.replace("max_model_len = 100", "max_model_len = 8192"))


def test_the_same_finding_about_two_services_of_one_name_is_told_once() -> None:
    both = service("parallel = { tp = 8 }") + service("parallel = { tp = 8 }")
    codes = [each.code for each in found(cluster(2) + both + REQUESTS)]
    assert codes.count("ART-T903") == 1
    assert codes.count("ART-T401") == 1


def test_turns_are_proposed_only_where_they_would_do() -> None:
    trainer = '[trainer]\nplacements = [{ device = "gpu", host_id = "n0", gpus = [0, 1] }]\n'
    member = '{{ placement = {{ device = "gpu", host_id = "n0", gpus = {} }} }}'
    head = '[[services]]\nname = "policy"\nbase_model = "m/m"\nparallel = {{ tp = {} }}\nmembers = [{}]\n'
    once = cluster(1, gpus="[0, 1]") + trainer + head.format(2, member.format("[0, 1]"))
    [only] = found(once)
    assert only.code == "ART-T203"
    assert only.suggestion == ("services[0].temporal_sharing", True)
    members = ", ".join([member.format("[0, 1]")] * 2)
    twice = found(cluster(1, gpus="[0, 1]") + trainer + head.format(4, members))
    assert all("temporal_sharing" not in each.hint for each in twice if each.code == "ART-T203")


def test_offload_is_proposed_where_it_makes_a_trainer_fit() -> None:
    sizes = LLAMA_405B.replace("16384", "8192").replace("126", "80").replace("= 128\n", "= 64\n")
    sizes = sizes.replace("53248", "28672")
    gpus = '[{ device = "gpu", host_id = "n0", gpus = [0, 1, 2, 3, 4, 5, 6, 7] }]'
    work = WORKLOAD.replace("65536", "8192")
    text = cluster(1, "H100") + f"[trainer]\nplacements = {gpus}\nparallel = {{ tp = 8 }}\n" + sizes + work
    [only] = [each for each in found(text) if each.code == "ART-T909"]
    assert 'offload = ["optimizer"]' in only.hint
    assert 'recompute = "full"' in only.hint
    fixed = text.replace("[workload]", '[workload]\noffload = ["optimizer"]\nrecompute = "full"')
    assert not [each for each in found(fixed) if each.code == "ART-T909"]
