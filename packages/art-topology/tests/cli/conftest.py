"""The command, in this process, and files to give it."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from art_topology.command import run

MODEL = {
    "model_type": "qwen3_moe",
    "_name_or_path": "org/small-moe",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}


@pytest.fixture(autouse=True, scope="session")
def interrupts_are_heard() -> Iterator[None]:
    """Jobs in the background of a shell ignore SIGINT, and so would the processes that tests start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def art(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs ``art-topology`` with arguments."""

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def model_file(folder: Path) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(MODEL))
    return path


@pytest.fixture
def cluster_file(folder: Path, art: Callable[..., Outcome]) -> Path:
    """Three hosts with eight GPUs each: two for the trainer with tp=2, one for the service."""
    assert art("init", "--hosts", 3, "--gpu", "H200", "cluster.toml").code == 0
    return folder / "cluster.toml"


@pytest.fixture
def broken_file(folder: Path, cluster_file: Path) -> Path:
    """The same with two mistakes: tp does not divide the ranks, and NCCL falls back to sockets."""
    text = cluster_file.read_text()
    path = folder / "broken.toml"
    path.write_text(text.replace("tp = 2 ", "tp = 3 ").replace('net_name = "IB"', 'net_name = "Socket"'))
    return path
