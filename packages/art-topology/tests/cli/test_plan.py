"""``plan`` shows what the planner found and writes what passes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from art_topology.cluster import ClusterSpec, HostSpec
from art_topology.commands import plan_next
from art_topology.commands.documents.plan import PlanDocument
from art_topology.commands.plan import MEMORY_MARGIN
from art_topology.commands.plan_inputs import DEFAULT_WORKLOAD
from art_topology.files import read_topology
from art_topology.models import load_model_config, parameters
from art_topology.planner import plan
from art_topology.planner import problem as planner_problem

Run = Callable[..., Any]

GPUS = ("--gpu", "H200", "--gpus", "16")


def test_it_finds_what_the_library_finds(art: Run, model_file: Path) -> None:
    document = msgspec.json.decode(
        art("plan", "--model", model_file, *GPUS, "--limit", 5, "--json").out, type=PlanDocument
    )
    hosts = tuple(
        HostSpec(host_id=f"h{i}", address=f"10.0.0.{i + 1}", gpus=tuple(range(8)), gpu_model="H200")
        for i in range(2)
    )
    model = load_model_config(model_file)
    report = plan(model=model, cluster=ClusterSpec(hosts=hosts), workload=DEFAULT_WORKLOAD, limit=5)
    assert [row.name for row in document.plans] == [found.layout.name for found in report.ranked]
    assert [row.score for row in document.plans] == pytest.approx([found.score for found in report.ranked])
    assert document.parameters == parameters(model).total
    assert document.searched == report.searched
    first, best = document.plans[0], report.ranked[0]
    assert first.trainer_memory_bytes == sum(part.bytes or 0 for part in first.trainer_memory)
    assert first.trainer_step_s == pytest.approx(sum(part.exposed_s or 0 for part in first.trainer_time))
    assert first.rollout_s == pytest.approx(best.cost.rollout.rollout_s)
    assert {row.code for row in document.rejected} == {found.code for found in report.rejected}


def test_every_number_is_explained(art: Run, model_file: Path) -> None:
    rows = art("plan", "--model", model_file, *GPUS, "--limit", 3, "--json").json["plans"]
    shown = art("plan", "--model", model_file, *GPUS, "--why", 2).out
    assert f"plan 2: {rows[1]['name']}" in shown
    for name in ("trainer_time", "rollout_time", "trainer_memory", "service_memory"):
        for part in rows[1][name]:
            assert part["why"] in shown
    done = art("plan", "--model", model_file, *GPUS, "--why", 900)
    assert done.code == 0 or "there are" in done.err


def test_reasons_are_shown(art: Run, model_file: Path) -> None:
    report = art("plan", "--model", model_file, *GPUS, "--json").json
    shown = art("plan", "--model", model_file, *GPUS, "--rejected").out
    assert report["rejected"]
    for row in report["rejected"]:
        assert row["code"] in shown
        assert row["reason"] in shown


@pytest.mark.parametrize("gpus", [2, 8, 24])
def test_what_is_written_passes(art: Run, model_file: Path, folder: Path, gpus: int) -> None:
    (folder / "out").mkdir()
    done = art("plan", "--model", "config.json", "--gpu", "H200", "--gpus", gpus, "--write", "out/run.toml")
    assert done.code == 0
    assert art("check", "--strict", "out/run.toml").code == 0
    source = read_topology("out/run.toml")
    best = art("plan", "--model", "config.json", "--gpu", "H200", "--gpus", gpus, "--json").json["plans"][0]
    topology = source.compile()
    assert topology.trainer is not None
    assert topology.trainer.world_size == best["trainer_gpus"]
    assert source.spec.services[0].base_model == "org/small-moe"
    model = source.model()
    assert model is not None
    assert len(model.layers) == 16
    # What was planned can be planned again, from the file alone.
    again = art("plan", "--cluster", "out/run.toml", "--json")
    assert again.code == 0
    assert again.json["plans"][0]["name"] == best["name"]


def test_written_files_are_kept_and_printed_ones_are_alone(art: Run, model_file: Path, folder: Path) -> None:
    given = ("plan", "--model", "config.json", *GPUS)
    (folder / "run.toml").write_text("mine")
    assert art(*given, "--write", "run.toml").code == 2
    assert (folder / "run.toml").read_text() == "mine"
    assert art(*given, "--write", "run.toml", "--force", "--choose", 2).code == 0
    printed = art(*given, "--write", "-", "--base-model", "org/other")
    (folder / "printed.toml").write_text(printed.out)
    assert art("check", "printed.toml").code == 0
    assert read_topology("printed.toml").spec.services[0].base_model == "org/other"
    assert art(*given, "--write", "-", "--json").code == 2
    assert art(*given, "--write", "run.yaml").code == 2


def test_a_cluster_from_a_file_keeps_its_hosts(art: Run, model_file: Path, cluster_file: Path) -> None:
    done = art("plan", "--model", "config.json", "--cluster", "cluster.toml", "--write", "run.toml")
    assert done.code == 0
    before, after = read_topology("cluster.toml").spec, read_topology("run.toml").spec
    assert before.cluster.hosts == after.cluster.hosts
    assert art("plan", "--model", "config.json", "--cluster", "cluster.toml", "--gpus", 8).code == 2


def test_options_replace_fields_of_the_workload(art: Run, model_file: Path, folder: Path) -> None:
    (folder / "step.toml").write_text(
        "packed_sequence_length = 8192\ngroups_per_step = 8\ngroup_size = 8\nprompt_tokens = 256\n"
        "completion_tokens = 512\n"
    )
    given = ("plan", "--model", "config.json", *GPUS, "--workload", "step.toml", "--json")
    found = art(*given, "--group-size", 4, "--lora-rank", 32).json["workload"]
    assert (found["group_size"], found["lora_rank"], found["groups_per_step"]) == (4, 32, 8)
    default = art("plan", "--model", "config.json", *GPUS, "--json", "--full-weights").json["workload"]
    assert default["lora_rank"] is None
    long = art(
        "plan",
        "--model",
        "config.json",
        *GPUS,
        "--json",
        "--completion-tokens",
        39_000,
        "--prompt-tokens",
        1900,
    ).json["workload"]
    assert long["packed_sequence_length"] == 65_536
    beyond = art("plan", "--model", "config.json", *GPUS, "--completion-tokens", 100_000)
    assert beyond.code == 2
    assert "1,024 + 100,000 = 101,024 tokens" in beyond.err
    assert "40,960" in beyond.err
    assert art(*given, "--full-weights", "--lora-rank", 8).code == 2
    assert art(*given, "--dtype", "int4").code == 2


def test_a_network_is_taken_from_the_table_or_a_file(art: Run, model_file: Path, folder: Path) -> None:
    given = ("plan", "--model", "config.json", *GPUS, "--json")
    assert art(*given, "--network", "roce-400").json["network"] == "RoCE-400"
    wrong = art(*given, "--network", "pigeons")
    assert wrong.code == 2
    assert "RoCE-400" in wrong.json["message"]
    (folder / "mine.toml").write_text(
        '[links.Slow]\nkind = "network"\nbandwidth_bytes_per_s = 1e9\nlatency_s = 1e-4\n'
        'source = { title = "measured" }\n'
    )
    assert art(*given, "--hardware", "mine.toml", "--network", "Slow").json["network"] == "Slow"
    assert art(*given, "--hardware", "nowhere.toml").code == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--cluster FILE, or --gpu NAME"),
        (("--gpu", "H200"), "--gpus N"),
        (("--gpu", "H200", "--gpus", "12", "--gpus-per-host", "8"), "use 8 or 16"),
        (("--gpu", "Abacus", "--gpus", "8"), "no GPU 'Abacus'"),
        (("--gpu", "H200", "--gpus", "1000000"), "at most 131,072"),
        (("--gpu", "H200", "--gpus", "64", "--gpus-per-host", "16"), "16 GPUs"),
        (("--gpu", "H200", "--gpus", "0"), "'--gpus'"),
        (("--gpu", "H200", "--gpus", "8", "--model", "nowhere.json"), "nowhere.json"),
    ],
)
def test_wrong_use_is_told(art: Run, model_file: Path, arguments: tuple[str, ...], told: str) -> None:
    model = () if "--model" in arguments else ("--model", "config.json")
    done = art("plan", *model, *arguments)
    assert done.code == 2
    assert told in done.err


def test_a_model_is_needed(art: Run, folder: Path) -> None:
    assert "--model" in art("plan", *GPUS).err


def test_what_cannot_run_is_one_with_its_reasons(
    art: Run, folder: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_next, "MOST_S", 0.5)  # after it, nothing larger is tried; what is asked is here
    huge = json.loads(model_file.read_text()) | {"num_hidden_layers": 200, "hidden_size": 16384}
    (folder / "huge.json").write_text(json.dumps(huge | {"num_experts": 512}))
    done = art("plan", "--model", "huge.json", "--gpu", "H100", "--gpus", 2)
    assert done.code == 1
    assert done.out.count("no layout can run") == 1
    assert "cannot run, by first reason" not in done.out
    assert "what would work:" in done.out
    assert art("plan", "--model", "huge.json", "--gpu", "H100", "--gpus", 2, "--json").json["plans"] == []
    assert art("plan", "--model", "huge.json", "--gpu", "H100", "--gpus", 1).code == 2


def test_the_reason_comes_first_and_the_next_step_last(art: Run, folder: Path, model_file: Path) -> None:
    given = ("plan", "--model", "config.json", "--gpu", "RTX-4090", "--full-weights")
    found = art(*given, "--gpus", 2, "--json").json
    assert found["ok"] is False
    assert found["rejected"][0]["code"] in ("trainer-memory", "service-memory")
    count = next(int(step.split()[0].replace(",", "")) for step in found["next_steps"] if "RTX-4090" in step)
    assert art(*given, "--gpus", count).code == 0
    assert art(*given, "--gpus", count // 2).code == 1
    roomier = next(step for step in found["next_steps"] if "RTX-4090" not in step)
    assert (
        art("plan", "--model", "config.json", "--full-weights", "--gpu", roomier.split()[2], "--gpus", 2).code
        == 0
    )


def test_a_row_that_is_too_short_is_told(art: Run, folder: Path, model_file: Path) -> None:
    given = ("plan", "--model", "config.json", *GPUS, "--packed-length", 2048)
    done = art(*given)
    assert done.code == 1
    assert "--packed-length 8192" in done.out
    assert art("plan", "--model", "config.json", *GPUS, "--packed-length", 8192).code == 0


def test_what_was_asked_for_is_named_where_it_is_the_cause(art: Run, folder: Path, model_file: Path) -> None:
    steps = art("plan", "--model", "config.json", *GPUS, "--memory-margin", 0.98, "--json").json["next_steps"]
    assert steps == ["with --memory-margin 0.01, though tightly, the same GPUs run it"]


def test_recomputation_and_offload_are_kept(art: Run, folder: Path, model_file: Path) -> None:
    step = (
        "packed_sequence_length = 8192\ngroups_per_step = 8\ngroup_size = 8\nprompt_tokens = 256\n"
        "completion_tokens = 512\n"
    )

    def tried(*arguments: object) -> set[tuple[str, tuple[str, ...]]]:
        found = art("plan", *arguments, "--json", "--limit", 300)
        return {(row["recompute"], tuple(row["offload"])) for row in found.json["plans"]}

    (folder / "full.toml").write_text(step + 'recompute = "full"\n')
    (folder / "none.toml").write_text(f'[workload]\n{step}recompute = "none"\noffload = []\n')
    given = ("--model", "config.json", *GPUS, "--workload")
    assert {recompute for recompute, _ in tried(*given, "full.toml")} == {"full"}
    assert tried(*given, "none.toml") == {("none", ())}
    assert tried(*given, "full.toml", "--recompute", "selective", "--offload", "none") == {("selective", ())}
    both = ("optimizer", "activations")
    assert tried(*given, "none.toml", "--offload", ",".join(both)) == {("none", both)}
    assert art("plan", *given, "full.toml", "--write", "run.toml").code == 0
    assert 'recompute = "full"' in (folder / "run.toml").read_text()
    assert art("plan", *given, "none.toml", "--write", "bare.toml").code == 0
    assert read_topology("bare.toml").spec.workload is not None
    assert tried("--cluster", "bare.toml") == {("none", ())}
    for wrong in (("--recompute", "some"), ("--offload", "everything"), ("--offload", "weights,weights")):
        assert art("plan", *given, "full.toml", *wrong).code == 2


def test_the_table_says_what_is_left_over(
    art: Run, folder: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_next, "MOST_FEWER_S", 60.0)  # both searches see the same, also on a busy machine
    given = ("plan", "--model", "config.json", "--gpu", "H200", "--gpus", 256, "--groups", 1)
    document = art(*given, "--json").json
    first, fewer = document["plans"][0], document["fewer"]
    assert first["unused_gpus"] == 256 - first["trainer_gpus"] - first["service_gpus"] > 0
    shown = art(*given).out
    assert "unused" in shown.splitlines()[5]
    assert f"{first['unused_gpus']} GPUs of 256 are unused by plan 1" in shown
    assert f"{256 - first['unused_gpus']} GPUs are enough" in shown
    assert f"{first['waiting']} {first['idle_s'] / first['step_s']:.0%}" in shown
    assert fewer["used_score"] > first["used_score"]
    assert f"{fewer['used_score']:,.1f} tokens/s/GPU" in shown
    assert f"{first['unused_gpus']} GPUs of 256 are unused" in art(*given, "--why", 1).out


def test_full_gpus_are_told(art: Run, folder: Path, model_file: Path) -> None:
    given = ("plan", "--model", "config.json", "--gpu", "L40S", "--gpus", 4, "--packed-length", 131072)
    given = (*given, "--recompute", "none")
    rows = art(*given, "--json", "--limit", 1000).json
    tight = [row["trainer_memory_bytes"] > 0.9 * rows["gpu_memory_bytes"] for row in rows["plans"]]
    assert [row["tight"] for row in rows["plans"]] == tight
    assert any(tight)
    assert "tight: more than 90% of a GPU's memory" in art(*given, "--limit", 1000).out
    free = art(*given, "--memory-margin", 0.1, "--json", "--limit", 1000).json["plans"]
    assert free
    assert not any(row["tight"] for row in free)
    assert planner_problem.MEMORY_MARGIN == MEMORY_MARGIN


def test_what_cannot_be_written_is_told_before_the_search(
    art: Run, folder: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(**_: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr("art_topology.planner.plan", searched)
    given = ("plan", "--model", "config.json", *GPUS)
    done = art(*given, "--write", folder / "nope" / "run.toml")
    assert (done.code, f"{folder / 'nope'} does not exist" in done.err) == (2, True)
    (folder / "taken.toml").write_text("")
    assert "taken.toml exists" in art(*given, "--write", "taken.toml").err
    assert "give --write" in art(*given, "--choose", 3).err


def test_a_written_file_names_itself_and_only_what_it_needs(art: Run, folder: Path, model_file: Path) -> None:
    assert art("plan", "--model", "config.json", *GPUS, "--write", "my run.toml").code == 0
    text = (folder / "my run.toml").read_text()
    assert "# Check it: art-topology check 'my run.toml'" in text
    experts = "expert_parallel" in text or "ep = " in text
    assert ("nixl_transport" in text) <= experts


def test_slices_and_other_gpus_are_told(art: Run, folder: Path, cluster_file: Path, model_file: Path) -> None:
    text = cluster_file.read_text()
    assert 'gpu_model = "H200"' in text
    (folder / "mixed.toml").write_text(text.replace('gpu_model = "H200"', 'gpu_model = "B300"', 1))
    refused = art("plan", "--model", "config.json", "--cluster", "mixed.toml")
    assert (refused.code, "B300, H200" in refused.err) == (2, True)
    told = art("plan", "--model", "config.json", "--cluster", "mixed.toml", "--gpu", "H200")
    assert told.code == 0
    assert "every GPU is a H200, though hosts say B300 (gpu_model)" in told.out


def test_the_form_of_the_services_weights_is_told_and_can_be_said(art: Run, model_file: Path) -> None:
    config = json.loads(model_file.read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    fp8 = model_file.with_name("fp8.json")
    fp8.write_text(json.dumps(config), encoding="utf-8")
    shown = art("plan", "--model", fp8, *GPUS, "--why", 1).out
    told = art("plan", "--model", fp8, *GPUS, "--json").json["served_weights"]
    assert "fp8 in blocks of 128 x 128: attention" in told
    assert told.endswith(
        "(config.json's quantization_config), the rest bfloat16; the trainer holds all in bfloat16"
    )
    assert f"served     {told}" in shown
    assert "weights as fp8 in blocks of 128 x 128, 8.002 bits each with scales" in shown
    assert art("plan", "--model", model_file, *GPUS, "--json").json["served_weights"] is None
    plain = art("plan", "--model", fp8, *GPUS, "--service-weights", "unquantized", "--json").json
    assert plain["served_weights"].endswith("all bfloat16 (--service-weights)")
    assert plain["plans"][0]["service_memory"][0]["bytes"] > _weights(art, fp8)


def _weights(art: Run, model: Path) -> int:
    return int(art("plan", "--model", model, *GPUS, "--json").json["plans"][0]["service_memory"][0]["bytes"])


def test_what_cannot_be_read_of_a_quantization_is_asked_for(art: Run, model_file: Path) -> None:
    config = json.loads(model_file.read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "quark"}
    model_file.write_text(json.dumps(config), encoding="utf-8")
    told = art("plan", "--model", model_file, *GPUS, "--json").json["served_weights"]
    assert "as if all were bfloat16: quant_method 'quark' is not known" in told
    assert told.endswith("say it with --service-weights")
    wrong = art("plan", "--model", model_file, *GPUS, "--service-weights", "quark")
    assert wrong.code == 2
    assert "--service-weights quark: it is auto, unquantized, fp8" in wrong.err


def test_a_written_plan_says_the_form_of_the_weights(art: Run, model_file: Path) -> None:
    art("plan", "--model", model_file, *GPUS, "--service-weights", "int4", "--write", "run.toml")
    text = Path("run.toml").read_text(encoding="utf-8")
    assert 'weights = "int4"' in text
    assert read_topology("run.toml").spec.services[0].weights == "int4"
    assert art("check", "run.toml").code == 0


@pytest.mark.parametrize("option", [("--why", 10**9), ("--write", "x.toml", "--choose", 10**9)])
def test_no_more_plans_are_made_than_can_be_shown(
    art: Run, model_file: Path, option: tuple[object, ...]
) -> None:
    refused = art("plan", "--model", model_file, *GPUS, *option)
    assert refused.code == 2
    assert "1000" in refused.err


def test_a_workload_that_cannot_be_read_is_one_diagnostic(art: Run, model_file: Path, folder: Path) -> None:
    options = ("plan", "--model", model_file, "--gpu", "H200", "--gpus", 8)
    done = art(*options, "-w", "/dev/zero", "--format", "json")
    assert done.code == 2
    assert done.err.count("error[") == 1
    assert "a pipe or a device" in done.err
    (folder / "steps.txt").write_text('{"groups_per_step": 0}')
    assert "'groups_per_step' cannot be 0" in art(*options, "-w", "steps.txt", "--format", "json").err


def test_a_model_or_a_table_that_is_a_device_is_refused(art: Run, model_file: Path) -> None:
    for options in (("--model", "/dev/zero"), ("--model", model_file, "--hardware", "/dev/zero")):
        done = art("plan", *options, "--gpu", "H200", "--gpus", 8)
        assert done.code == 2
        assert "a pipe or a device" in done.err


def test_what_is_said_to_be_enough_or_better_does_not_depend_on_where_one_starts(
    art: Run, folder: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_next, "MOST_S", 300.0)
    monkeypatch.setattr(plan_next, "MOST_FEWER_S", 300.0)
    large = json.loads(model_file.read_text()) | {"hidden_size": 12288, "num_hidden_layers": 288}
    (folder / "large.json").write_text(json.dumps(large))
    given = ("plan", "--gpu", "H100", "--full-weights", "--memory-margin", 0.01)
    told = {}
    for gpus in (16, 24):
        found = art(*given, "--model", "large.json", "--gpus", gpus, "--json").json
        if not found["ok"]:
            told[gpus] = next(step.split()[0] for step in found["next_steps"] if "are enough" in step)
    assert len(told) > 1
    [enough] = set(told.values())
    assert art(*given, "--model", "large.json", "--gpus", enough).code == 0
    fewer = [
        art("plan", "--model", "config.json", "--gpu", "H200", "--gpus", gpus, "--json").json["fewer"]
        for gpus in (16, 24, 48)
    ]
    assert None not in fewer
    assert len({json.dumps(each["name"]) for each in fewer}) == 1


def test_sizes_are_powers_of_two_and_what_is_between() -> None:
    assert list(plan_next.sizes(33, between=0)) == [1, 2, 4, 8, 16, 32]
    assert list(plan_next.sizes(13, between=1)) == [1, 2, 3, 4, 6, 8, 12]
    assert list(plan_next.sizes(15, between=3)) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14]
