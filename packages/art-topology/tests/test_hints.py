"""Hints propose what works, each proposal once; no finding follows from another."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology import Diagnostic, SpecError, TopologyError
from art_topology.commands.plan_inputs import made_up
from art_topology.commands.sources import CommandError
from art_topology.files import TopologySpec, read_topology_text
from art_topology.hardware import default_hardware
from art_topology.passes.findings import either
from art_topology.rule_examples import EXAMPLES
from art_topology.rule_examples.example import BIASED, DENSE, FP8, LINEAR, MIDDLE, MOE

MODELS = (DENSE, MOE, BIASED, LINEAR, MIDDLE, DENSE + FP8, MOE + FP8)
SIZES = st.sampled_from((1, 2, 3, 4, 5, 6, 8, 12, 16))
TRAINERS = {
    **dict.fromkeys(("tp", "cp", "pp", "vpp", "ep", "etp", "vpp_microbatch_group_size"), SIZES),
    "pipeline_layout": st.sampled_from(("Et*8L", "Ettt|tttL", "Et*4|t*4L", "Et|t|t|tL", "tt", "Et*39|t*39L")),
    "num_layers_in_first_pipeline_stage": SIZES,
    "num_layers_in_last_pipeline_stage": SIZES,
    "account_for_embedding_in_pipeline_split": st.booleans(),
    "account_for_loss_in_pipeline_split": st.booleans(),
    "sequence_parallel": st.booleans(),
}
SERVICES = {"tp": SIZES, "pp": SIZES, "dp": SIZES, "expert_parallel": st.booleans()}
LEADS = r"^(use|write|give|choose|set|divide unevenly by|leave) +"


def proposals(hint: str) -> list[str]:
    """What a hint proposes, without verbs, spaces and quotation marks."""
    return [re.sub(r"[ '\"]", "", re.sub(LEADS, "", part)) for part in re.split(r"[,;]? or ", hint)]


def said(text: str) -> tuple[Diagnostic, ...]:
    try:
        return read_topology_text(text, "toml").compile().warnings
    except (SpecError, TopologyError) as error:
        return error.diagnostics


def inline(values: dict[str, Any]) -> str:
    def written(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return f'"{value}"' if isinstance(value, str) else str(value)

    return "{ " + ", ".join(f"{key} = {written(value)}" for key, value in values.items()) + " }"


@st.composite
def topologies(draw: st.DrawFn) -> str:
    hosts, gpus = draw(st.integers(1, 3)), draw(st.sampled_from((1, 2, 3, 4, 6, 8)))
    text = '[cluster]\nnccl_transport = { net_name = "IB" }\n'
    for i in range(hosts):
        text += f'[[cluster.hosts]]\nhost_id = "h{i}"\naddress = "10.0.0.{i + 1}"\ncpu_slots = 4\n'
        text += f"gpus = {list(range(2 * gpus))}\n"
    trainer = draw(st.fixed_dictionaries({}, optional=TRAINERS))
    placed = [f'{{ device = "gpu", host_id = "h{i}", gpus = {list(range(gpus))} }}' for i in range(hosts)]
    text += f"[trainer]\nparallel = {inline(trainer)}\nplacements = [{', '.join(placed)}]\n"
    service = draw(st.fixed_dictionaries({}, optional=SERVICES))
    members = [
        f'{{ placement = {{ device = "gpu", host_id = "h{i}", gpus = {list(range(gpus, 2 * gpus))} }} }}'
        for i in range(hosts)
    ]
    text += '[[services]]\nname = "policy"\nbase_model = "m"\n'
    text += f"parallel = {inline(service)}\nmembers = [{', '.join(members)}]\n"
    text += draw(st.sampled_from(("", *MODELS)))
    if draw(st.booleans()):
        fields = {
            "packed_sequence_length": draw(st.sampled_from((1000, 1024, 4096, 4100))),
            "groups_per_step": draw(st.integers(1, 9)),
            "group_size": draw(st.integers(1, 4)),
            "prompt_tokens": draw(st.sampled_from((1, 512))),
            "completion_tokens": draw(st.sampled_from((1, 512, 4000))),
        }
        text += "[workload]\n" + "\n".join(f"{key} = {value}" for key, value in fields.items())
        text += draw(st.sampled_from(("", '\nrecompute = "full"\nrecompute_layers = 9')))
    return text


@settings(deadline=None, max_examples=150)
@given(topologies())
def test_no_hint_proposes_the_same_twice(text: str) -> None:
    for found in said(text):
        assert found.hint, found
        assert len(set(proposals(found.hint))) == len(proposals(found.hint)), found.hint


@pytest.mark.parametrize("code", EXAMPLES)
def test_no_hint_of_an_example_proposes_the_same_twice(code: str) -> None:
    for found in said(EXAMPLES[code].failing):
        assert len(set(proposals(found.hint))) == len(proposals(found.hint)), found.hint


@given(st.integers(1, 200), st.integers(1, 8))
def test_numbers_of_gpus_that_are_proposed_are_two_and_whole_hosts(gpus: int, per_host: int) -> None:
    machine = default_hardware().machine("H200")
    try:
        made_up(machine, gpus, per_host)
    except CommandError as error:
        told = re.search(r"use (.*), or another --gpus-per-host", str(error))
        assert told
        numbers = [int(number) for number in told[1].split(" or ")]
        assert len(set(numbers)) == len(numbers)
        assert all(number % per_host == 0 and number > 0 for number in numbers)
        assert max(numbers) - min(numbers) in (0, per_host)
    else:
        assert gpus % per_host == 0


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        (("use tp=2", "use tp=2"), "use tp=2"),
        (("use tp=2", "tp=16"), "use tp=2, or tp=16"),
        (("use tp=16", "use tp=1"), "use tp=16, or tp=1"),
        (("use a = 'x'", "use b=1, or divide unevenly by a = 'x'"), "use a = 'x', or b=1"),
        (("leave it out", "use 4"), "leave it out, or use 4"),
        (("", "use 4"), "use 4"),
        (("use 4", ""), "use 4"),
    ],
)
def test_alternatives_are_joined_once(given_: tuple[str, ...], told: str) -> None:
    assert either(*given_) == told


HOST = '[[cluster.hosts]]\nhost_id = "a"\naddress = "10.0.0.1"\ncpu_slots = 8\ngpus = [{gpus}]\n'
TRAINER = (
    "[trainer]\nparallel = {{ tp = {tp} }}\n"
    'placements = [{{ device = "gpu", host_id = "a", gpus = [{gpus}] }}]\n'
)


def trained(tp: int, ranks: int, heads: int, vocabulary: int) -> list[Diagnostic]:
    gpus = ", ".join(map(str, range(ranks)))
    model = DENSE.replace("num_attention_heads = 12", f"num_attention_heads = {heads}")
    model = model.replace("num_key_value_heads = 4", f"num_key_value_heads = {heads}")
    model = model.replace("vocab_size = 32000", f"vocab_size = {vocabulary}")
    return list(said(HOST.format(gpus=gpus) + TRAINER.format(tp=tp, gpus=gpus) + model))


def test_reasons_against_one_value_are_shown_together_because_each_stands_alone() -> None:
    # 3 divides neither 8 ranks, nor 16 heads, nor 32,000 tokens; with one of them mended the others stay.
    def codes(ranks: int = 8, heads: int = 16, vocabulary: int = 32_000) -> list[str]:
        return [found.code for found in trained(3, ranks, heads, vocabulary)]

    assert codes() == ["ART-T305", "ART-T801", "ART-T805"]
    assert codes(ranks=9) == ["ART-T801", "ART-T805"]
    assert codes(heads=15) == ["ART-T305", "ART-T805"]
    assert codes(vocabulary=32_001) == ["ART-T305", "ART-T801"]
    # A value that no number of ranks would save is not proposed to be kept.
    assert {found.hint for found in trained(3, 8, 16, 32_000)} == {"use tp=2"}
    [alone] = trained(3, 8, 15, 32_001)
    assert alone.hint == "use tp=1, or a multiple of 3 ranks in all"


def served(slots: int, parallel: str, model: str = "") -> list[Diagnostic]:
    member = f'{{ placement = {{ device = "cpu", host_id = "a", slots = {slots} }} }}'
    service = '[[services]]\nname = "policy"\nbase_model = "m"\n'
    return list(
        said(HOST.format(gpus="") + f"{service}parallel = {parallel}\nmembers = [{member}]\n" + model)
    )


def test_workers_that_have_no_slot_are_not_counted_against_the_division() -> None:
    [slots] = served(16, "{ tp = 8 }")
    assert slots.code == "ART-T204"
    assert [found.code for found in served(4, "{ tp = 8 }")] == ["ART-T404"]
    assert [found.code for found in served(8, "{ tp = 8 }")] == ["ART-T206"]


def test_workers_are_not_proposed_for_a_division_that_the_model_refuses() -> None:
    [works] = served(8, "{ tp = 4 }", DENSE)
    assert works.hint == "use dp=2, or place 4 workers"
    [refused] = served(8, "{ tp = 5 }", DENSE)
    assert refused.code == "ART-T404"
    assert "place 5 workers" not in refused.hint
    assert refused.suggestion is not None


def test_what_is_proposed_is_a_topology() -> None:
    [found] = served(8, "{ tp = 4 }", DENSE)
    assert found.suggestion == ("services[0].parallel.dp", 2)
    assert isinstance(read_topology_text(HOST.format(gpus=""), "toml").spec, TopologySpec)


@pytest.mark.parametrize(
    ("given_gpus", "meant"),
    [
        ("8", [0, 1, 2, 3, 4, 5, 6, 7]),
        ('"0-3"', [0, 1, 2, 3]),
        ('"0, 2"', [0, 2]),
        ('"GPU-1"', ["GPU-1"]),
        ('"all"', None),
    ],
)
def test_gpus_that_are_no_list_are_proposed_as_one(given_gpus: str, meant: list[Any] | None) -> None:
    host = f'[[cluster.hosts]]\nhost_id = "a"\naddress = "10.0.0.1"\ncpu_slots = 1\ngpus = {given_gpus}\n'
    [only] = [found for found in said(host) if found.path.endswith("gpus")]
    assert only.suggestion == (("cluster.hosts[0].gpus", meant) if meant is not None else None)
    assert "[0, 1, 2, 3" in only.hint or str(meant) in only.hint


def test_slips_of_case_and_quotation_marks_are_understood() -> None:
    text = (
        '[[cluster.hosts]]\nhost_id = "a"\naddress = "10.0.0.1"\ncpu_slots = 1\ngpus = [0, "1"]\n'
        '[trainer]\nplacements = [{ device = "GPU", host_id = "a", gpus = [0] }]\nparallel = { PP = 2 }\n'
    )
    hints = {found.path: found.hint for found in said(text)}
    assert hints["cluster.hosts[0].gpus[1]"] == "write 1"
    assert hints["trainer.placements[0].device"] == "write 'gpu'"
    assert hints["trainer.parallel.PP"] == "did you mean 'pp'?"


def test_values_are_shown_without_the_words_of_python() -> None:
    text = (
        'services = { name = "policy" }\n[[cluster.hosts]]\nhost_id = 2026-11-30\naddress = ""\n'
        "cpu_slots = 1\ngpus = []\n"
    )
    messages = " ".join(found.message for found in said(text))
    assert "2026-11-30 is a date" in messages
    assert "datetime" not in messages
    assert "'name': " not in messages
    with pytest.raises(SpecError) as caught:
        read_topology_text("cluster: {hosts: [null]}", "yaml")
    assert "null is nothing" in str(caught.value)
