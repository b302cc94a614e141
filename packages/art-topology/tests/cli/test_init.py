"""``init`` writes a file that passes, whatever is asked for, and takes no file away."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology.command import run
from art_topology.commands.template import topology_text
from art_topology.files import read_topology_text

Run = Callable[..., Any]


@settings(max_examples=60, deadline=None)
@given(
    hosts=st.integers(1, 40),
    gpus=st.integers(0, 16),
    gpu=st.sampled_from([None, "H200", "B300", "NVIDIA H100"]),
)
def test_it_compiles_without_a_warning_and_uses_all_hosts(hosts: int, gpus: int, gpu: str | None) -> None:
    topology = read_topology_text(topology_text(hosts, gpus, gpu_model=gpu), "toml").compile()
    assert topology.warnings == ()
    assert [len(host.gpus) for host in topology.hosts] == [gpus] * hosts
    assert topology.trainer is not None
    assert topology.services
    if gpus:
        assert {host.gpu_model for host in topology.hosts} == {gpu}
        ranks = topology.trainer.world_size
        served = sum(len(member.devices) for member in topology.services[0].members)
        shared = hosts == gpus == 1
        assert ranks + served == hosts * gpus + shared


def test_a_thousand_hosts_have_different_addresses() -> None:
    topology = read_topology_text(topology_text(1000, 8), "toml").compile()
    assert len({host.address for host in topology.hosts}) == 1000


@pytest.mark.parametrize(("hosts", "gpus"), [(1, 8), (3, 8), (1, 0)])
def test_its_comments_are_settings_that_exist(hosts: int, gpus: int) -> None:
    """Everything that is commented out can be commented in."""
    text, count = re.subn(
        r"^# (\[[a-z]+\]|[a-z_]+ = )", r"\1", topology_text(hosts, gpus), flags=re.MULTILINE
    )
    spec = read_topology_text(text, "toml").spec
    assert count >= (18 if gpus else 7)
    assert (spec.cluster.worker_port, spec.services[0].leader is not None) == (22222, True)
    if gpus:
        assert spec.model is not None
        assert spec.workload is not None
        assert spec.trainer is not None
        assert spec.trainer.parallel.vpp == 2


def test_existing_files_are_kept(art: Run, folder: Path) -> None:
    assert art("init").code == 0
    (folder / "topology.toml").write_text("mine")
    done = art("init", "--gpus", 4)
    assert done.code == 2
    assert "--force" in done.err
    assert (folder / "topology.toml").read_text() == "mine"
    assert art("init", "--gpus", 4, "--force", "--json").json == {
        "ok": True,
        "file": "topology.toml",
        "hosts": 1,
        "gpus": 4,
    }
    assert art("check", "topology.toml").code == 0
    assert [path.name for path in folder.iterdir()] == ["topology.toml"]


def test_it_says_when_it_cannot_write(art: Run, folder: Path) -> None:
    done = art("init", "nowhere/at/all.toml")
    assert (done.code, done.err) == (
        2,
        "art-topology: nowhere/at/all.toml cannot be written: No such file or directory\n",
    )
    assert art("init", "cluster.yaml").code == 2
    assert art("init", "--hosts", 0).code == 2
    assert list(folder.iterdir()) == []


def test_it_prints(art: Run) -> None:
    done = art("init", "-", "--cpu")
    assert done.code == 0
    assert read_topology_text(done.out, "toml").compile().trainer is not None


def test_the_result_passes_as_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for options in (["--cpu"], ["--gpus", "1"], ["--hosts", "5", "--gpus", "7"]):
            file = str(Path(folder) / "t.toml")
            assert run(["init", file, "--force", *options]) == 0
            assert run(["check", "--strict", file]) == 0
    capsys.readouterr()


def test_what_it_would_have_to_ignore_or_guess_is_refused(art: Run, tmp_path: Path) -> None:
    both = art("init", "--cpu", "--gpus", 8, str(tmp_path / "a.toml"))
    assert both.code == 2
    assert "--cpu" in both.err
    unknown = art("init", "--gpu", "H20O", str(tmp_path / "b.toml"))
    assert unknown.code == 2
    assert "H200" in unknown.err
    assert not list(tmp_path.glob("*.toml"))
