"""What tests of a run's report share."""

import contextlib
import hashlib
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

import art
from art.reporting import PlainDisplay, RunReport
from art_dataplane import TokenRecord, TrajectoryRecord, TrajectoryRef, VersionSpan


class Settings(msgspec.Struct, frozen=True):
    """A program's settings."""

    steps: int = 3
    rate: float = 0.5
    run_dir: Path | None = None
    resume: bool = False


class Executor:
    """Stands for the rollout executor: holds records and counts."""

    def __init__(self) -> None:
        self.held: dict[str, TrajectoryRecord] = {}
        self.counts = (0, 0)

    async def records(
        self, handles: Sequence[art.TrajectoryHandle], *, deadline_s: float
    ) -> list[TrajectoryRecord]:
        return [self.held[handle.ref.record_id] for handle in handles]


def write_generation(run: Path, version: int) -> Path:
    """A durable policy of a run, as small as one can be."""
    content = b"the policy"
    name = f"step-{version:08d}-{version:032x}"
    folder = run / "generations" / name
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(content)
    entry = {
        "byte_count": len(content),
        "digest": hashlib.blake2b(content, digest_size=32).hexdigest(),
    }
    manifest = {
        "format": 1,
        "generation": name,
        "version": version,
        "run_id": "r",
        "adapter_digest": "",
        "files": {"adapter_model.safetensors": entry},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(autouse=True)
def commands_are_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Printed commands do not depend on how the tests were started."""
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)


@pytest.fixture
def executor() -> Executor:
    return Executor()


@pytest.fixture
def make_group(executor: Executor) -> Callable[..., art.TrajectoryGroup]:
    """Makes a group of handles from rewards; their records are with the executor. ``add_generation(run,
    version)`` of it makes a durable policy."""

    def make(*rewards: float, version: int = 0, ids: Sequence[int] = (5, 6)) -> art.TrajectoryGroup:
        handles = []
        for reward in rewards:
            record = TrajectoryRecord(
                record_id=f"r{len(executor.held)}",
                group_id="g",
                exchanges=(
                    TokenRecord(
                        prompt_ids=np.array([1, 2, 3], np.int32),
                        completion_ids=np.array(ids, np.int32),
                        logprobs=np.full(len(ids), -0.5, np.float32),
                        prompt_spans=(VersionSpan(0, 3, version),),
                        completion_spans=(VersionSpan(0, len(ids), version),),
                    ),
                ),
                reward=reward,
            )
            executor.held[record.record_id] = record
            ref = TrajectoryRef(
                record_id=record.record_id,
                group_id="g",
                owner="rollout worker 0",
                byte_count=100,
                token_count=3 + len(ids),
                reward=reward,
                min_version=version,
                max_version=version,
                ok=True,
            )
            handles.append(
                art.TrajectoryHandle(
                    reward=reward,
                    metrics={"completion_tokens": float(len(ids))},
                    metadata={"answer": "maybe" if reward == 1 else "other"},
                    ref=ref,
                    worker="rollout worker 0 (pid 1)",
                )
            )
        return art.TrajectoryGroup(handles)

    make.add_generation = write_generation
    return make


@pytest.fixture
def read_json() -> Callable[[Path], list[dict]]:
    """Reads a file of lines of JSON."""
    return lambda path: [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def settings() -> Settings:
    return Settings()


@pytest.fixture
def make_report(
    tmp_path: Path, stream: io.StringIO, executor: Executor, settings: Settings
) -> Callable[..., RunReport]:
    """Makes a report that prints to ``stream``."""

    def make(**arguments: object) -> RunReport:
        report = RunReport(
            "name",
            arguments.pop("folder", tmp_path / "run"),
            arguments.pop("settings", settings),
            display=arguments.pop("display", PlainDisplay(stream)),
            **arguments,
        )
        report.watch(executor)
        return report

    return make


@pytest.fixture
async def open_report(
    make_report: Callable[..., RunReport],
) -> AsyncIterator[Callable[..., Awaitable[RunReport]]]:
    """Enters a report, which is left when the test ends."""
    async with contextlib.AsyncExitStack() as stack:
        yield lambda **arguments: stack.enter_async_context(make_report(**arguments))


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    """A model's folder with a byte-level tokenizer: its first 256 ids are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path / "model"
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights" * 1000)
    return folder
