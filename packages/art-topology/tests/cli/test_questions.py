"""``explain``, ``groups``, ``diff`` and ``schema`` answer what the library answers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from art_topology import topology_schema
from art_topology.commands.documents.base import Document, Refusal
from art_topology.commands.documents.by_command import DOCUMENTS
from art_topology.commands.documents.diff import DiffDocument
from art_topology.commands.documents.explain import RankDocument, TopologyDocument
from art_topology.commands.documents.groups import GroupsDocument
from art_topology.files import read_topology
from art_topology.fingerprint import topology_to_json
from art_topology.memory import trainer_memory
from art_topology.models import load_model_config
from art_topology.ranks import GROUP_FAMILIES, RankLayout
from art_topology.stages import StageLayout
from art_topology.workload import WorkloadSpec

Run = Callable[..., Any]

WORKLOAD = """packed_sequence_length = 8192
groups_per_step = 4
group_size = 8
prompt_tokens = 512
completion_tokens = 1024
lora_rank = 8
"""


def layout_of(file: Path) -> RankLayout:
    trainer = read_topology(file).compile().trainer
    assert trainer is not None
    return trainer.layout


def test_a_rank_is_explained_as_the_layout_has_it(art: Run, cluster_file: Path) -> None:
    layout = layout_of(cluster_file)
    document = msgspec.json.decode(
        art("explain", cluster_file, "--rank", 11, "--json").out, type=RankDocument
    )
    assert (document.host_id, document.local_rank, document.device, document.device_id) == (
        "host-1",
        3,
        "gpu",
        3,
    )
    assert document.coordinates == msgspec.structs.asdict(layout.coordinate(11))
    assert {group.family: group.ranks for group in document.groups} == {
        family: tuple(group) for family, group in layout.groups_of(11).items()
    }
    crossing = {group.family for group in document.groups if group.crosses_hosts}
    assert crossing == {f for f, g in layout.groups_of(11).items() if len({rank // 8 for rank in g}) > 1}
    assert document.stages is None
    assert document.memory is None
    assert document.gpu_memory_bytes is not None


def test_with_a_model_it_explains_layers_and_memory(art: Run, cluster_file: Path, model_file: Path) -> None:
    step = cluster_file.parent / "step.toml"
    step.write_text(WORKLOAD)
    text = cluster_file.read_text().replace("pp = 1     #", "pp = 2     #")
    cluster_file.write_text(text)
    given = ("explain", cluster_file, "--rank", 12, "--model", model_file, "--workload", step)
    document = msgspec.json.decode(art(*given, "--json").out, type=RankDocument)
    assert document.stages is not None
    assert [(stage.first_layer, stage.layer_count, stage.loss) for stage in document.stages] == [(8, 8, True)]
    expected = trainer_memory(
        load_model_config(model_file),
        layout_of(cluster_file),
        StageLayout.uniform(16, 2),
        msgspec.toml.decode(WORKLOAD, type=WorkloadSpec),
        pp_rank=1,
    )
    assert document.memory_bytes == expected.total_bytes
    shown = art(*given).out
    assert "stage 1: layers 8 to 15 (8), output and loss" in shown
    assert f"{expected.total_bytes / 2**30:,.1f} of " in shown
    for part in expected.parts:
        assert part.why in shown


def test_a_model_that_does_not_fit_is_refused(art: Run, cluster_file: Path, folder: Path) -> None:
    (folder / "broken.json").write_text("{}")
    assert art("explain", cluster_file, "--rank", 0, "--model", "broken.json").code == 2
    assert art("explain", cluster_file, "--rank", 0, "--model", "nowhere").code == 2
    (folder / "w.toml").write_text("packed_sequence_length = 0\nodd = 1\n")
    done = art("explain", cluster_file, "--rank", 0, "--workload", "w.toml")
    assert done.code == 1
    assert "w.toml:1:1" in done.err
    assert "w.toml:2:1" in done.err


@pytest.mark.parametrize("rank", [-1, 16])
def test_there_is_no_such_rank(art: Run, cluster_file: Path, rank: int) -> None:
    for command in ("explain", "groups"):
        done = art(command, cluster_file, f"--rank={rank}")
        assert (done.code, done.err) == (2, f"art-topology: no rank {rank}: the trainer has ranks 0 to 15\n")


def test_without_a_rank_the_topology_is_explained(art: Run, cluster_file: Path) -> None:
    document = msgspec.json.decode(art("explain", cluster_file, "--json").out, type=TopologyDocument)
    assert [host.trainer_ranks for host in document.hosts] == [(0, 7), (8, 15), None]
    assert [host.services for host in document.hosts] == [(), (), ("policy",)]
    shown = art("explain", cluster_file).out
    assert "host-0 (controller)" in shown
    assert "API of policy" in shown


def test_without_a_trainer_there_are_no_ranks(art: Run, folder: Path) -> None:
    (folder / "bare.toml").write_text('[[cluster.hosts]]\nhost_id = "a"\naddress = "10.0.0.1"\n')
    assert art("explain", "bare.toml").code == 0
    for arguments in (("explain", "bare.toml", "--rank", 0), ("groups", "bare.toml")):
        done = art(*arguments)
        assert done.code == 2
        assert "no trainer" in done.err


def test_all_groups_are_streamed(art: Run, cluster_file: Path) -> None:
    layout = layout_of(cluster_file)
    document = msgspec.json.decode(art("groups", cluster_file, "--json").out, type=GroupsDocument)
    assert [row.family for row in document.families] == list(GROUP_FAMILIES)
    for family in GROUP_FAMILIES:
        rows = [group for group in document.groups if group.family == family]
        assert [group.ranks for group in rows] == [tuple(group) for group in layout.groups(family)]
        assert [group.index for group in rows] == list(range(layout.group_count(family)))
    mine = msgspec.json.decode(art("groups", cluster_file, "--rank", 5, "--json").out, type=GroupsDocument)
    assert {group.family: group.ranks for group in mine.groups} == {
        family: tuple(group) for family, group in layout.groups_of(5).items()
    }


def test_groups_are_told_in_tables(art: Run, cluster_file: Path) -> None:
    every = art("groups", cluster_file).out
    assert [line.split()[0] for line in every.splitlines()[2:]] == list(GROUP_FAMILIES)
    dp = art("groups", cluster_file, "--family", "dp").out
    assert dp.splitlines()[0] == "dp: 2 groups of 8 ranks, some cross hosts"
    assert dp.splitlines()[2].split() == [
        "0",
        "host-0,",
        "host-1",
        *["0", "2", "4", "6", "8", "10", "12", "14"],
    ]
    short = art("groups", cluster_file, "--family", "tp", "--limit", 3).out
    assert short.endswith("... and 5 more: --limit 8 or --json lists them all\n")
    wrong = art("groups", cluster_file, "--family", "expertdp")
    assert wrong.code == 2
    assert "did you mean 'expert-dp'?" in wrong.err


def test_a_diff_says_what_restarts(art: Run, cluster_file: Path, folder: Path) -> None:
    assert art("diff", "cluster.toml", "cluster.toml").code == 0
    changed = folder / "next.toml"
    divided = cluster_file.read_text().replace("[services.parallel]\ntp = 8", "[services.parallel]\ntp = 4")
    changed.write_text(divided.replace("dp = 1\n", "dp = 2\n"))
    done = art("diff", "cluster.toml", "next.toml")
    assert done.code == 1
    assert done.out.startswith(
        "restarts service 'policy'; keeps the trainer's ranks and the rollout workers warm\n"
    )
    document = msgspec.json.decode(art("diff", "cluster.toml", "next.toml", "--json").out, type=DiffDocument)
    assert (document.equal, document.restarts) == (False, ("service 'policy'",))
    assert {path for change in document.changes for path in change.paths} == {
        "services['policy'].spec.parallel.tp",
        "services['policy'].spec.parallel.dp",
    }


def test_a_diff_takes_compiled_topologies(art: Run, cluster_file: Path, folder: Path) -> None:
    data = topology_to_json(read_topology(cluster_file).compile())
    (folder / "running.json").write_bytes(data)
    assert art("diff", "running.json", "cluster.toml").code == 0
    (folder / "running.json").write_bytes(data.replace(b'"rpc_timeout_s": 30.0', b'"rpc_timeout_s": 31.0'))
    done = art("diff", "running.json", "cluster.toml")
    assert done.code == 2
    assert "changed after it was compiled" in done.err


def test_a_diff_with_errors_is_two(art: Run, cluster_file: Path, broken_file: Path) -> None:
    done = art("diff", "cluster.toml", "broken.toml")
    assert done.code == 2
    assert "ART-T602" in done.err
    refused = msgspec.json.decode(art("diff", "broken.toml", "cluster.toml", "--json").out, type=Refusal)
    assert {found.code for found in refused.diagnostics} == {"ART-T305", "ART-T602"}
    assert art("diff", "-", "-", "--format", "toml").code == 2


def test_schemas(art: Run) -> None:
    assert art("schema").json == json.loads(msgspec.json.encode(topology_schema()))
    for name, kinds in DOCUMENTS.items():
        schema = art("schema", "--output", name).json
        assert {entry["$ref"].rpartition("/")[2] for entry in schema["anyOf"]} == {
            kind.__name__ for kind in kinds
        }
    assert art("schema", "--output", "nothing").code == 2


def test_every_key_of_a_document_is_explained() -> None:
    kinds = Document.__subclasses__()
    assert set(kinds) > {kind for kinds in DOCUMENTS.values() for kind in kinds}
    for kind in kinds:
        for field in msgspec.structs.fields(kind):
            assert f"\n        {field.name}: " in (kind.__doc__ or ""), (kind, field.name)


def test_errors_of_a_file_go_to_standard_error(art: Run, broken_file: Path) -> None:
    for command in ("explain", "groups", "render"):
        done = art(command, "broken.toml")
        assert done.code == 1
        assert done.out == ""
        assert "error[ART-T602]" in done.err
        document = art(command, "broken.toml", *(["-o", "x.svg"] if command == "render" else []), "--json")
        assert document.code == 1
        assert len(document.json["diagnostics"]) == 2


def test_wrong_use_with_json_is_one_document(art: Run, cluster_file: Path) -> None:
    for arguments in (
        ["explain", "--json"],
        ["check", "--nothing", "--json"],
        ["explain", cluster_file, "--rank", "x", "--json"],
    ):
        done = art(*arguments)
        assert done.code == 2
        assert msgspec.json.decode(done.out, type=Refusal).message.startswith("art-topology")


def test_the_format_of_diff_is_that_of_standard_input(art: Run, cluster_file: Path) -> None:
    done = art("diff", cluster_file, cluster_file, "--format", "json", "--json")
    assert (done.code, done.json["ok"], done.json["equal"]) == (0, True, True)
    assert art("diff", cluster_file, cluster_file, "--format", "xml").code == 2


def test_a_picture_is_an_svg(art: Run, cluster_file: Path, tmp_path: Path) -> None:
    done = art("render", cluster_file, "-o", tmp_path / "x.png")
    assert done.code == 2
    assert ".svg" in done.err
    assert not (tmp_path / "x.png").exists()


def test_what_is_no_file_with_a_format_says_how_it_can_be_read(art: Run, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("[cluster]")
    assert "--format" in art("check", tmp_path / "plain").out
    assert "folder" in art("check", tmp_path).out


def test_a_topology_without_a_workload_is_no_workload(art: Run, cluster_file: Path) -> None:
    done = art("explain", cluster_file, "--rank", 0, "--workload", cluster_file)
    assert done.code == 2
    assert "without a [workload]" in done.err


def test_a_refusal_says_how_much_is_wrong_and_where(art: Callable[..., Any], folder: Path) -> None:
    (folder / "bad.toml").write_text('[[cluster.hosts]]\nhost_id = "a"\n')
    for command in ("groups", "diff"):
        files = ("bad.toml", "bad.toml") if command == "diff" else ("bad.toml",)
        done = art(command, *files, "--json")
        assert done.json["message"].startswith("bad.toml: ")
        assert done.json["message"].endswith("1 error")
        assert art(command, *files).err.rstrip().endswith(done.json["message"])


def test_an_option_that_is_no_number_is_refused_in_plain_words(art: Callable[..., Any]) -> None:
    assert "'--gpus': it has to be a whole number" in art("plan", "--gpus", "many").err
