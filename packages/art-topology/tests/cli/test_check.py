"""``check`` says everything that is wrong, where, and in its exit code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from art_topology import TopologyError
from art_topology.commands.documents.check import CheckDocument
from art_topology.files import read_topology

Run = Callable[..., Any]


def test_a_good_file_passes(art: Run, cluster_file: Path) -> None:
    done = art("check", "cluster.toml")
    assert done.code == 0
    assert done.err == ""
    assert done.out.startswith(
        "cluster.toml: ok, 3 hosts with 24 GPUs, 16 trainer ranks TP2/DP8, service policy"
    )


def test_every_diagnostic_has_its_line_and_caret(art: Run, broken_file: Path) -> None:
    done = art("check", "broken.toml")
    assert done.code == 1
    with pytest.raises(TopologyError) as caught:
        read_topology("broken.toml").compile()
    found = caught.value.diagnostics
    assert {each.code for each in found} == {"ART-T305", "ART-T602"}
    for each in found:
        assert each.render() in done.out
    number = next(
        i for i, line in enumerate(broken_file.read_text().splitlines(), 1) if line.startswith("tp = 3")
    )
    assert f"--> broken.toml:{number}:1 (trainer.parallel.tp)" in done.out
    assert "^^" in done.out
    assert done.out.endswith("broken.toml: 2 errors\n")


def test_as_json_it_says_the_same_as_the_compiler(art: Run, cluster_file: Path, broken_file: Path) -> None:
    done = art("check", "--json", "cluster.toml", "broken.toml")
    assert done.code == 1
    document = msgspec.json.decode(done.out, type=CheckDocument)
    good, bad = document.files
    topology = read_topology(cluster_file).compile()
    assert (good.ok, good.hosts, good.gpus, good.trainer_ranks, good.services) == (
        True,
        3,
        24,
        16,
        ("policy",),
    )
    assert good.fingerprint == topology.fingerprint
    assert (bad.ok, bad.errors, bad.fingerprint) == (False, 2, None)
    assert [each["location"]["line"] for each in done.json["files"][1]["diagnostics"]] == [
        each.location.line for each in bad.diagnostics if each.location is not None
    ]
    assert not document.ok


def test_with_strict_warnings_fail(art: Run, folder: Path) -> None:
    assert art("init", "--cpu", "one.toml").code == 0
    file = folder / "one.toml"
    file.write_text(file.read_text().replace("cpu_slots = 4", "cpu_slots = 2"))
    assert art("check", "one.toml").code == 0
    strict = art("check", "--strict", "one.toml")
    assert strict.code == 1
    assert "warning[ART-T206]" in strict.out
    assert "ok," not in strict.out
    document = art("check", "--strict", "--json", "one.toml").json
    assert document["ok"] is False
    assert document["files"][0]["warnings"] == 1


def test_what_cannot_be_read_is_two(art: Run, cluster_file: Path, broken_file: Path) -> None:
    for name in ("nowhere.toml", "cluster.ini", "."):
        done = art("check", name)
        assert done.code == 2, name
        assert "ART-F001" in done.out
    assert art("check", "nowhere.toml", "cluster.toml", "broken.toml").code == 2


def test_no_file_is_wrong_use(art: Run) -> None:
    done = art("check")
    assert done.code == 2
    assert done.out == ""
    assert done.err.splitlines()[-1] == "Try 'art-topology check --help'."


@pytest.mark.parametrize("kind", ["toml", "yaml", "json"])
def test_standard_input_is_read_in_every_format(
    art: Run, cluster_file: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    import io

    import yaml

    values = msgspec.toml.decode(cluster_file.read_bytes())
    text = {
        "toml": cluster_file.read_text(),
        "yaml": yaml.safe_dump(values),
        "json": msgspec.json.encode(values).decode(),
    }[kind]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    done = art("check", "-", "--format", kind, "--json")
    assert done.code == 0
    assert done.json["files"][0]["fingerprint"] == read_topology(cluster_file).compile().fingerprint


def test_standard_input_needs_a_format_and_is_read_once(art: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--format" in art("check", "-").err
    assert art("check", "-", "-", "--format", "toml").code == 2
    assert "'ini'" in art("check", "x", "--format", "ini").err
    monkeypatch.setattr("sys.stdin", None)
    done = art("check", "-", "--format", "toml")
    assert (done.code, done.err) == (2, "art-topology: standard input is closed\n")


def test_a_format_goes_before_the_suffix(art: Run, folder: Path, cluster_file: Path) -> None:
    (folder / "cluster.conf").write_text(cluster_file.read_text())
    assert art("check", "cluster.conf").code == 2
    assert art("check", "cluster.conf", "--format", "toml").code == 0
    (folder / "bytes").write_bytes(b"\xff\xfe")
    done = art("check", "bytes", "--format", "toml")
    assert done.code == 2
    assert "error[ART-F001]: not UTF-8: byte 0xff at offset 0" in done.out


def test_control_characters_of_a_file_do_not_reach_the_terminal(art: Run, folder: Path) -> None:
    (folder / "odd.toml").write_text('[cluster]\n"\\u001b[31mred" = 1\n')
    done = art("check", "odd.toml")
    assert done.code == 1
    assert "\x1b" not in done.out


def test_gpus_that_a_file_adds_are_known_to_check(art: Run, folder: Path, cluster_file: Path) -> None:
    text = cluster_file.read_text().replace('"H200"', '"X1"')
    (folder / "ours.toml").write_text(text)
    (folder / "broken.toml").write_text(text.replace("cpu_slots = 32", "cpu_slots = -1", 1))
    fields = (
        'source = { title = "ours" }\nmemory_bytes = 80_000_000_000\nmemory_bandwidth_bytes_per_s = 3e12\n'
    )
    node = (
        '[nodes.OURS]\ngpu = "X1"\ngpus_per_host = 8\nscale_up = "NVLink4"\nscale_up_gpus = 8\n'
        'scale_out = "InfiniBand-NDR"\n'
        'host_link = "Host-PCIe5"\nsource = { title = "ours" }\n'
    )
    (folder / "hardware.toml").write_text(f"[gpus.X1]\n{fields}peak_flops = {{ bfloat16 = 9e14 }}\n{node}")
    for file in ("ours.toml", "broken.toml"):
        assert art("check", file).out.count("ART-T111") == 1
        assert "ART-T111" not in art("check", file, "--hardware", "hardware.toml").out
    assert art("check", "ours.toml", "--hardware", "hardware.toml").code == 0
    assert art("check", "ours.toml", "--hardware", "none.toml").code == 2
