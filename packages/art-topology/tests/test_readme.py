"""What the README shows is what happens."""

import re
from pathlib import Path
from typing import Any

import pytest

from art_topology import (
    GpuPlacement,
    MegatronTopologyConfig,
    TopologyError,
    TrainerMeshSpec,
    compile_topology,
    homogeneous_cluster,
    parse_topology,
)

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_its_programs_run(capsys: pytest.CaptureFixture[str]) -> None:
    laptop, hosts = blocks("python")
    exec(compile(laptop, "README.md", "exec"), {})
    assert capsys.readouterr().out == "CpuDevice(slot=0) (2, 3)\n"
    names: dict[str, Any] = {}
    exec(compile(hosts, "README.md", "exec"), names)
    assert capsys.readouterr().out.startswith("2 [0, 2, 4, 6] RankCoordinate(tp=1, cp=0, dp=1,")


def test_its_errors_are_those_of_the_compiler() -> None:
    placements = [GpuPlacement(host_id=f"host-{i}", gpus=(0, 1, 2, 3)) for i in range(2)]
    with pytest.raises(TopologyError) as caught:
        compile_topology(
            cluster=homogeneous_cluster(["10.0.0.10", "10.0.0.11"], cpu_slots=1, gpus_per_host=4),
            trainer=TrainerMeshSpec(placements=placements, parallel=MegatronTopologyConfig(tp=3, ep=8)),
        )
    (shown,) = blocks("text")
    assert shown == f"{caught.value}\n"


def test_its_file_compiles() -> None:
    (text,) = blocks("toml")
    spec = parse_topology(text, "toml")
    topology = compile_topology(cluster=spec.cluster, trainer=spec.trainer, services=spec.services)
    assert topology.trainer is not None
    assert topology.trainer.layout.tp == 2
