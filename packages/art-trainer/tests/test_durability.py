"""Generations are complete or absent, also when the writer is killed; damage is named."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest
import torch

from art_dataplane import list_segments
from art_trainer import DurabilityError, ResumeError, SnapshotPoolError
from art_trainer.durability import (
    DurabilitySink,
    GenerationStore,
    list_generations,
    new_generation_name,
)
from art_trainer.sinks import SinkLane
from art_trainer.snapshots import SnapshotPool


class Weights:
    """Stands where an Adapter does: named float32 tensors."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tensors = {
            name: torch.randn(5, 7, generator=generator) for name in ("b.lora_A.weight", "a.lora_B.weight")
        }

    def named_tensors(self):
        return iter(self.tensors.items())


@pytest.fixture
def run_id():
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def pool(run_id):
    made = SnapshotPool(run_id, 2, 2 * 5 * 7 * 4)
    yield made
    made.close()
    assert list_segments(run_id) == ()


async def snapshot(pool, version, generation=True):
    slot = await pool.acquire(1.0)
    weights = Weights(version)
    optimizer = {"step": torch.tensor(float(version)), "exp_avg.a": torch.full((3,), 0.5)}
    name = new_generation_name(version) if generation else None
    slot.fill(version=version, generation=name, adapter=weights, peft_config='{"r": 1}', optimizer=optimizer)
    return slot, weights


async def test_what_is_read_is_what_was_written(tmp_path, pool, run_id):
    store = GenerationStore(tmp_path, run_id)
    for version in (3, 12):
        slot, weights = await snapshot(pool, version)
        store.write(slot.snapshot)
        slot.release()
    assert [g.version for g in store.generations()] == [3, 12]
    newest = store.find("latest")
    assert newest.name.startswith("step-00000012-")
    state = store.read(newest)
    assert {n: t.tolist() for n, t in state.adapter.items()} == {
        n: t.tolist() for n, t in weights.tensors.items()
    }
    assert float(state.optimizer["step"]) == 12
    assert state.peft_config == '{"r": 1}'
    assert store.find(store.generations()[0].name).version == 3
    manifest = json.loads((tmp_path / newest.name / "manifest.json").read_text())
    assert (manifest["run_id"], manifest["version"]) == (run_id, 12)
    assert sorted(manifest["files"]) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "optimizer.safetensors",
    ]
    store.close()


WRITER = """
import asyncio, os, sys
import torch
from art_trainer import durability
from art_trainer.durability import GenerationStore, new_generation_name
from art_trainer.snapshots import SnapshotPool

class Weights:
    def named_tensors(self):
        yield "a.lora_A.weight", torch.ones(4, 4) * 7

class PausingOs:
    def __init__(self, folder, stop_at):
        self.folder, self.stop_at, self.steps = folder, stop_at, 0
    def __getattr__(self, name):
        return getattr(os, name)
    def pause(self):
        self.steps += 1
        if self.steps == self.stop_at:
            print("paused", flush=True)
            sys.stdin.read()
    def fsync(self, descriptor):
        self.pause()
        os.fsync(descriptor)
    def rename(self, source, target):
        self.pause()
        os.rename(source, target)

async def main(folder, run_id, stop_at):
    pool = SnapshotPool(run_id, 1, 64)
    store = GenerationStore(folder, run_id)
    print("swept", *store.swept, flush=True)
    slot = await pool.acquire(1.0)
    name = new_generation_name(2)
    optimizer = {"step": torch.ones(())}
    slot.fill(version=2, generation=name, adapter=Weights(), peft_config="{}", optimizer=optimizer)
    durability.os = PausingOs(folder, stop_at)
    store.write(slot.snapshot)
    print("written", durability.os.steps, flush=True)
    slot.release()
    pool.close()
    store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def start_writer(folder, run_id, stop_at):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), run_id, str(stop_at)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("stop_at", [1, 3, 5, 6])
def test_a_writer_killed_half_way_leaves_the_previous_generation(tmp_path, run_id, stop_at):
    """Four files and the folder are fsynced (1 to 5), then comes the rename (6)."""
    from art_dataplane import sweep

    async def first():
        pool = SnapshotPool(run_id, 1, 2 * 5 * 7 * 4)
        store = GenerationStore(tmp_path, run_id)
        slot, weights = await snapshot(pool, 1)
        store.write(slot.snapshot)
        slot.release()
        store.close()
        pool.close()
        return weights

    weights = asyncio.run(first())
    writer = start_writer(tmp_path, run_id, stop_at)
    try:
        assert writer.stdout.readline().strip() == "swept"
        assert writer.stdout.readline().strip() == "paused"
        stages = [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".stage-")]
        assert len(stages) == 1
        with pytest.raises(DurabilityError, match="is open in another process"):
            GenerationStore(tmp_path, run_id)
        assert (tmp_path / stages[0]).is_dir()  # a live writer's stage is left alone
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait(30)
        writer.stdin.close()
        writer.stdout.close()
    assert [g.version for g in list_generations(tmp_path)] == [1]
    store = GenerationStore(tmp_path, run_id)
    assert list(store.swept) == stages
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".stage-")]
    state = store.read(store.find("latest"))
    assert torch.equal(state.adapter["a.lora_B.weight"], weights.tensors["a.lora_B.weight"])
    store.close()
    assert [info.run_id for info in sweep(run_id)] == [run_id]


def test_the_writer_alone_writes_a_generation(tmp_path, run_id):
    writer = start_writer(tmp_path, run_id, 99)
    output, _ = writer.communicate(timeout=60)
    assert output.split() == ["swept", "written", "7"]
    assert [g.version for g in list_generations(tmp_path)] == [2]


async def test_damage_is_named_and_not_worked_around(tmp_path, pool, run_id):
    store = GenerationStore(tmp_path, run_id)
    for version in (1, 2):
        slot, _ = await snapshot(pool, version)
        store.write(slot.snapshot)
        slot.release()
    newest = store.find("latest")
    file = tmp_path / newest.name / "optimizer.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ResumeError, match=r"optimizer.safetensors is damaged"):
        store.read(newest)
    file.unlink()
    with pytest.raises(ResumeError, match=r"optimizer.safetensors is missing"):
        store.read(newest)
    (tmp_path / newest.name / "manifest.json").write_text("{}")
    with pytest.raises(ResumeError, match=r"manifest.json cannot be read"):
        store.read(newest)
    store.close()


async def test_two_generations_of_the_highest_version_must_be_told_apart(tmp_path, pool, run_id):
    store = GenerationStore(tmp_path, run_id)
    for _ in range(2):
        slot, _ = await snapshot(pool, 4)
        store.write(slot.snapshot)
        slot.release()
    with pytest.raises(ResumeError, match="2 generations of version 4"):
        store.find("latest")
    store.close()


async def test_a_write_that_fails_leaves_no_stage(tmp_path, pool, run_id, monkeypatch):
    from art_trainer import durability

    store = GenerationStore(tmp_path, run_id)
    slot, _ = await snapshot(pool, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durability, "_write_durably", full)
    with pytest.raises(DurabilityError, match="No space left on device"):
        store.write(slot.snapshot)
    assert [entry.name for entry in tmp_path.iterdir()] == [".lock"]
    slot.release()
    store.close()
    with pytest.raises(DurabilityError, match="is closed"):
        store.write(slot._snapshot)


async def test_the_sink_keeps_its_lease_until_the_files_are_written(tmp_path, pool, run_id, monkeypatch):
    store = GenerationStore(tmp_path, run_id)
    sink = DurabilitySink(store)
    lane = SinkLane("durability", sink)
    slot, _ = await snapshot(pool, 1)
    lane.submit(slot.lease("durability"))
    slot.release()
    assert pool.held == 1
    receipt = await lane.wait(1, 30.0)
    assert receipt.detail == str(tmp_path / slot.snapshot.manifest.generation)
    async with asyncio.timeout(10):
        while pool.held:  # noqa: ASYNC110 (the condition has no event)
            await asyncio.sleep(0.001)
    unnamed, _ = await snapshot(pool, 2, generation=False)
    lane.submit(unnamed.lease("durability"))
    unnamed.release()
    with pytest.raises(DurabilityError, match="names the generation None"):
        await lane.wait(2, 30.0)
    sink.close()
    store.close()


async def test_the_pool_is_bounded_and_serves_waiters_in_order(pool):
    first, second = await pool.acquire(1.0), await pool.acquire(1.0)
    started = time.monotonic()
    with pytest.raises(
        SnapshotPoolError, match=r"all 2 snapshots are still held after 0.05 s \(versions none\)"
    ):
        await pool.acquire(0.05)
    assert time.monotonic() - started < 5
    order = []

    async def wait(name):
        slot = await pool.acquire(10.0)
        order.append(name)
        slot.release()

    waiters = [asyncio.create_task(wait(name)) for name in "abc"]
    await asyncio.sleep(0)
    waiters[1].cancel()
    first.release()
    await asyncio.gather(*waiters, return_exceptions=True)
    assert order == ["a", "c"]
    second.release()
    assert pool.held == 0


async def test_a_snapshot_lives_until_its_last_lease_and_releasing_twice_is_once(pool, run_id):
    slot, _ = await snapshot(pool, 1)
    leases = [slot.lease("publish"), slot.lease("durability")]
    slot.release()
    leases[0].release()
    leases[0].release()
    assert len(list_segments(run_id)) == 1
    assert pool.held == 1
    await asyncio.get_running_loop().run_in_executor(None, leases[1].release)
    assert list_segments(run_id) == ()
    assert pool.held == 0
    with pytest.raises(SnapshotPoolError, match="holds version 1 already"):
        slot.fill(version=2, generation=None, adapter=Weights(2), peft_config="{}", optimizer={})


async def test_a_closed_pool_turns_waiters_away(pool):
    held = [await pool.acquire(1.0), await pool.acquire(1.0)]
    waiter = asyncio.create_task(pool.acquire(30.0))
    await asyncio.sleep(0)
    pool.close()
    with pytest.raises(SnapshotPoolError, match="is closed"):
        await waiter
    for slot in held:
        slot.release()
