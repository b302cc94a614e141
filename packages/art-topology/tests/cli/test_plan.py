"""``plan`` shows what the planner found and writes what passes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from art_topology.cluster import ClusterSpec, HostSpec
from art_topology.commands.documents import PlanDocument
from art_topology.commands.plan_inputs import DEFAULT_WORKLOAD
from art_topology.files import read_topology
from art_topology.models import load_model_config, parameters
from art_topology.planner import plan

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
    long = art("plan", "--model", "config.json", *GPUS, "--json", "--completion-tokens", 100_000).json[
        "workload"
    ]
    assert long["packed_sequence_length"] == 131_072
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


def test_what_cannot_run_is_one_with_its_reasons(art: Run, folder: Path, model_file: Path) -> None:
    huge = json.loads(model_file.read_text()) | {"num_hidden_layers": 200, "hidden_size": 16384}
    (folder / "huge.json").write_text(json.dumps(huge | {"num_experts": 512}))
    done = art("plan", "--model", "huge.json", "--gpu", "H100", "--gpus", 2)
    assert done.code == 1
    assert "no layout can run" in done.out
    assert art("plan", "--model", "huge.json", "--gpu", "H100", "--gpus", 2, "--json").json["plans"] == []
    assert art("plan", "--model", "huge.json", "--gpu", "H100", "--gpus", 1).code == 2
