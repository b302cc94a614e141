"""``render`` writes pictures."""

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from art_topology.command import run
from art_topology.commands.template import topology_text

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def art(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    Path("three.toml").write_text(topology_text(3, 8))
    Path("many.toml").write_text(topology_text(300, 8))

    def call(*arguments: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_it_writes_a_file_or_standard_output(art: Run) -> None:
    code, out, _ = art("render", "three.toml", "-o", "a.svg")
    assert code == 0
    assert out.startswith("a.svg: 3 hosts, ")
    code, out, _ = art("render", "three.toml")
    assert code == 0
    assert out == Path("a.svg").read_text()
    ET.fromstring(out)
    code, out, _ = art("render", "three.toml", "-o", "a.svg", "--title", "Mine", "--json")
    assert code == 0
    assert '"hosts_drawn": [' in out
    assert ">Mine</text>" in Path("a.svg").read_text()


@pytest.mark.parametrize(
    ("given", "drawn"), [("0", 1), ("0-2", 3), (" 1 , 5-7 ,6", 4), ("299", 1), ("0-255", 256)]
)
def test_ranges_of_hosts(art: Run, given: str, drawn: int) -> None:
    code, out, err = art("render", "many.toml", "-o", "m.svg", "--hosts", given)
    assert (code, err) == (0, "")
    assert out.startswith(f"m.svg: {drawn} of 300 hosts, ")


@pytest.mark.parametrize("given", ["", "x", "1-", "2-1", "300", "0-299", "-1", "1,,2", "\N{SUPERSCRIPT TWO}"])
def test_wrong_ranges_are_told(art: Run, given: str) -> None:
    code, out, err = art("render", "many.toml", f"--hosts={given}")
    assert (code, out) == (2, "")
    assert "--hosts" in err


def test_it_does_not_take_the_topology_away(art: Run) -> None:
    before = Path("three.toml").read_bytes()
    assert art("render", "three.toml", "-o", "three.toml")[0] == 2
    assert art("render", "three.toml", "-o", "./three.toml")[0] == 2
    assert Path("three.toml").read_bytes() == before
    assert art("render", "three.toml", "--json")[0] == 2
    assert art("render", "three.toml", "-o", "nowhere/a.svg")[0] == 2
