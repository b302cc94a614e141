"""A backend refuses what cannot work before a process starts or a folder is made."""

import json
import shutil
import socket
from pathlib import Path

import psutil
import pytest
from art_testing.tiny_model import make_tiny_llama

import art
from art import megatron_config
from art.checks import machine
from art.checks.results import warned
from art.distributed import ArtRuntime, StartupError
from art_topology import compile_topology, local_cluster


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process-wide configuration as at the start of a program, and a state folder of the test's own."""
    monkeypatch.setattr(megatron_config, "_config", None)
    monkeypatch.setattr(megatron_config, "_taken", False)
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "state"))


async def refusal(base_model: Path, tmp_path: Path) -> str:
    """The text with which a backend refuses to register the model; nothing was started or made for it."""
    before = _children()
    model = art.TrainableModel(name="m", project="p", base_model=str(base_model))
    async with art.MegatronBackend(run_dir=tmp_path / "run") as backend:
        with pytest.raises(art.PreflightError) as caught:
            await model.register(backend)
        assert _children() == before
    assert model.inference_base_url is None
    assert not (tmp_path / "state").exists()
    return str(caught.value)


def _children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


async def test_too_little_memory_for_the_model(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(1 << 30, 1 << 30, "machine"))
    art.init_megatron_runtime_config(packed_sequence_length=512)
    assert "model 'm' cannot be trained here: memory: 1.0 GiB" in await refusal(tiny, tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", [(), ("progress",), ("notice", "progress")])
async def test_a_warning_is_one_line_where_the_program_shows_lines(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: tuple[str, ...],
) -> None:
    async def refuse(*_: object) -> ArtRuntime:
        raise StartupError("no further")

    monkeypatch.setattr(ArtRuntime, "start_local", refuse)
    monkeypatch.setattr("art.backend.training_checks", lambda plan: [warned("memory", "1", "2", "wait")])
    lines: dict[str, list[str]] = {name: [] for name in given}
    model = art.TrainableModel(name="m", project="p", base_model=str(tiny))
    where = {name: lines[name].append for name in given}
    async with art.MegatronBackend(run_dir=tmp_path / "run", **where) as backend:
        with pytest.raises(StartupError):
            await model.register(backend)
    line = "model 'm': warning: memory: 1, needed: 2. To mend: wait"
    assert lines == {name: [line] if name == given[0] else [] for name in given}
    assert capsys.readouterr().err == ("" if given else f"art: {line}\n")


async def test_rows_longer_than_the_models_positions(tiny: Path, tmp_path: Path) -> None:
    assert "at most 2048, the model's positions" in await refusal(tiny, tmp_path)
    assert not (tmp_path / "run").exists()


async def test_a_model_of_a_family_that_is_not_covered(tiny: Path, tmp_path: Path) -> None:
    art.init_megatron_runtime_config(packed_sequence_length=512)
    folder = shutil.copytree(tiny, tmp_path / "gpt2")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2LMHeadModel"]}))
    text = await refusal(folder, tmp_path)
    assert "['GPT2LMHeadModel']; this version trains LlamaForCausalLM, Qwen3ForCausalLM" in text
    assert not (tmp_path / "run").exists()


async def test_a_model_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert "is no folder" in await refusal(tmp_path / "none", tmp_path)
    assert not (tmp_path / "run").exists()


async def test_a_run_folder_that_holds_a_run(tiny: Path, tmp_path: Path) -> None:
    art.init_megatron_runtime_config(packed_sequence_length=512)
    (tmp_path / "run" / "generations" / "step-00000001-a").mkdir(parents=True)
    assert "resume=True" in await refusal(tiny, tmp_path)


async def test_no_room_to_build_what_is_missing(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    art.init_megatron_runtime_config(packed_sequence_length=512)
    cache = tmp_path / "cache"
    monkeypatch.setenv("ART_CACHE_DIR", str(cache))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    space = machine.space

    def full(folder: Path) -> machine.Space:
        if folder.is_relative_to(cache) or folder.is_relative_to(tmp_path / "uv"):
            return machine.Space(tmp_path, 10**8, 10**12, 1)
        return space(folder)

    monkeypatch.setattr(machine, "space", full)
    text = await refusal(tiny, tmp_path)
    assert "disk of the cache: 100 MB free" in text
    assert "vLLM for CPUs" in text
    assert not cache.exists()
    assert not (tmp_path / "run").exists()


async def test_a_port_that_is_taken(tmp_path: Path) -> None:
    before = _children()
    topology = compile_topology(cluster=local_cluster(cpu_slots=2))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(art.PreflightError, match="is in use"):
            await ArtRuntime.start_local(topology, port=taken.getsockname()[1])
    assert _children() == before
    assert not (tmp_path / "state").exists()
