"""The rank end to end: versions, events, sinks, back-pressure, cancellation, resume."""

import asyncio
import contextlib
import re
import threading
import time
import uuid

import numpy as np
import pytest
import torch

from art_dataplane import Receipt, list_segments, read_tensors
from art_trainer import (
    Accepted,
    Cancelled,
    Completed,
    DurabilityError,
    EventSequence,
    Failed,
    LoraSpec,
    Progress,
    RankStateError,
    ResumeError,
    RlTrainJob,
    SinkError,
    SnapshotPoolError,
    SnapshotReady,
    TrainingRunSpec,
)
from art_trainer.durability import list_generations
from art_trainer.rank import TrainerRank
from art_trainer.rows import make_row

DEADLINE_S = 60.0
LORA = LoraSpec(rank=4, alpha=8)


class Collector:
    """A sink that keeps copies of what it gets; ``hold`` makes it wait, ``error`` makes it fail."""

    def __init__(self):
        self.snapshots = {}
        self.hold = asyncio.Event()
        self.hold.set()
        self.error = None
        self.waiting = 0

    async def submit(self, lease):
        self.waiting += 1
        try:
            await self.hold.wait()
            if self.error is not None:
                raise self.error
            with read_tensors(lease.manifest) as mapped:
                self.snapshots[lease.manifest.version] = {
                    name: torch.from_numpy(
                        np.frombuffer(tensor.data, np.float32).reshape(tensor.shape).copy()
                    )
                    for name, tensor in mapped.items()
                }
            return Receipt("collector", lease.manifest.version, "here", 0.0)
        finally:
            self.waiting -= 1
            lease.release()


@pytest.fixture
def run_id():
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def make_rank(runtime, batches, run_id):
    """Loaded ranks with a run; closed at the end, after which no segment of the run may be left."""
    ranks = []

    async def make(sinks=None, run=None, **changes):
        rank = TrainerRank(runtime(lora=LORA, **changes), mapper=batches.mapper, sinks=sinks or {})
        ranks.append(rank)
        await rank.load(DEADLINE_S)
        await rank.start_run(run or TrainingRunSpec(run_id=run_id), DEADLINE_S)
        return rank

    yield make
    for rank in ranks:
        with contextlib.suppress(SinkError):
            await rank.close(DEADLINE_S)
    assert list_segments(run_id) == ()


@pytest.fixture
def job(batches, completions, pack_forest, as_batch):
    """A job at a version, over the same two rows unless told otherwise."""
    cache = []

    def make(version, job_id=None, **changes):
        if not cache:
            items = completions()
            cache.append(batches(*as_batch([pack_forest(items[:4]), pack_forest(items[4:])])))
        settings = {
            "job_id": job_id or f"job-{version}",
            "batch": cache[0],
            "expected_version": version,
            "resulting_version": version + 1,
            "learning_rate": 1e-2,
            **changes,
        }
        return RlTrainJob(**settings)

    return make


async def collect(rank, job):
    """All events of a job, checked for order."""
    sequence, events = EventSequence(job.job_id), []
    async with asyncio.timeout(DEADLINE_S):
        async for event in rank.run(job):
            sequence.check(event)
            events.append(event)
    assert sequence.done
    return events


async def until(condition, deadline_s=DEADLINE_S):
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 (the condition has no event)
            await asyncio.sleep(0.005)


async def test_two_steps_equal_torch_and_peft(
    tiny_model, make_rank, job, batches, rows, completions, reference
):
    sink = Collector()
    rank = await make_rank({"collector": sink}, model_path=tiny_model)
    batch = batches(*rows(completions()))
    await rank.publish_current(DEADLINE_S)
    await rank.wait_sink("collector", 0, DEADLINE_S)
    theirs = reference(tiny_model, LORA, sink.snapshots[0])
    optimizer = torch.optim.AdamW(theirs.parameters().values(), lr=1e-2, weight_decay=0.0)
    items = completions()
    for version in (1, 2):
        events = await collect(rank, job(version - 1, batch=batch, max_grad_norm=0.5))
        loss = theirs.loss(items)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters().values(), 0.5)
        optimizer.step()
        metrics = events[-1].metrics
        assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
        assert metrics["gradient_norm"] == pytest.approx(float(norm), rel=1e-5)
        assert float(norm) > 0.5
        await rank.wait_sink("collector", version, DEADLINE_S)
        stepped = {name: tensor.detach() for name, tensor in theirs.parameters().items()}
        difference = sum((sink.snapshots[version][n] - t).square().sum() for n, t in stepped.items()).sqrt()
        assert difference < 1e-5 * sum(t.square().sum() for t in stepped.values()).sqrt()
        for name, tensor in stepped.items():
            # AdamW takes whole steps along gradients that are near 0, so their rounding shows: 1/1000 of it.
            torch.testing.assert_close(sink.snapshots[version][name], tensor, rtol=1e-4, atol=1e-3 * 1e-2)
    assert not torch.equal(*(sink.snapshots[v][min(sink.snapshots[v])] for v in (1, 2)))


async def test_an_exported_adapter_gives_equal_logits_in_peft(
    tiny_model, make_rank, job, tmp_path, run_id, completions, pack_chains
):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run = TrainingRunSpec(run_id=run_id, generations_dir=str(tmp_path))
    rank = await make_rank(run=run, model_path=tiny_model)
    await collect(rank, job(0))
    receipt = await rank.wait_sink("durability", 1, DEADLINE_S)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, receipt.detail)
    logits, logprobs = [], []
    for item in completions():
        text = torch.tensor([item.prompt + item.tokens[:-1]])
        with torch.no_grad():
            logits.append(model(input_ids=text).logits[0])
        scaled = logits[-1][len(item.prompt) - 1 :] / item.temperature
        logprobs.append(torch.log_softmax(scaled, -1).gather(1, torch.tensor(item.tokens)[:, None])[:, 0])

    mine = rank._loaded.model
    with torch.no_grad():
        hidden = mine.hidden_states(make_row(pack_chains(completions())))
        torch.testing.assert_close(hidden @ mine.output_weight.T, torch.cat(logits), rtol=1e-4, atol=1e-4)
        with model.disable_adapter():
            untrained = model(input_ids=text).logits[0]
    assert float((untrained - logits[-1]).abs().max()) > 0.01, "the step is too small to tell adapters apart"
    completed = (await collect(rank, job(1)))[-1]  # its forward pass is version 1's
    expected = float(torch.cat(logprobs).mean())
    assert completed.metrics["logprob_mean"] == pytest.approx(expected, rel=1e-5)


async def test_events_come_in_order_and_tell_the_step(make_rank, job):
    rank = await make_rank()
    events = await collect(rank, job(0))
    kinds = [type(event) for event in events]
    assert kinds[0] is Accepted
    assert kinds[-2:] == [SnapshotReady, Completed]
    assert [(e.stage, e.done, e.total) for e in events if isinstance(e, Progress)] == [
        ("map", 1, 1),
        ("forward_backward", 1, 2),
        ("forward_backward", 2, 2),
        ("optimizer", 1, 1),
        ("snapshot", 1, 1),
    ]
    assert events[-2].manifest.version == events[-1].version == rank.version == 1
    assert events[-1].metrics["loss_entries"] == 48
    assert events[-1].metrics["rows"] == 2
    assert set(events[-1].timings) == {
        "map_s",
        "forward_backward_s",
        "snapshot_wait_s",
        "optimizer_s",
        "snapshot_s",
    }


async def test_rows_add_up_to_the_batch(make_rank, job, batches, completions, pack_forest):
    one, two = await make_rank(), await make_rank()
    whole = batches(pack_forest(completions()))
    in_rows = (await collect(one, job(0)))[-1].metrics
    at_once = (await collect(two, job(0, batch=whole)))[-1].metrics
    for name in ("loss", "gradient_norm", "ratio_mean", "entropy_mean"):
        assert in_rows[name] == pytest.approx(at_once[name], rel=1e-5), name


async def test_the_event_loop_stays_live_while_the_thread_computes(make_rank, job):
    rank = await make_rank()
    longest, stop = 0.0, False

    async def heartbeat():
        nonlocal longest
        while not stop:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - before)

    beat = asyncio.create_task(heartbeat())
    events = await collect(rank, job(0))
    stop = True
    await beat
    assert longest < max(0.1, events[-1].timings["forward_backward_s"] / 2)


async def test_another_version_is_refused_and_never_trained_twice(make_rank, job):
    rank = await make_rank()
    await collect(rank, job(0))
    weights = rank._loaded.model.adapter.weights.clone()
    (again,) = await collect(rank, job(0))
    assert isinstance(again, Failed)
    assert (again.code, again.version) == ("version_mismatch", 1)
    assert "expects version 0, the rank is at 1" in again.message
    assert torch.equal(weights, rank._loaded.model.adapter.weights)


async def test_a_second_job_is_refused_while_one_runs(make_rank, job):
    rank = await make_rank()
    first = rank.run(job(0, "first"))
    assert isinstance(await anext(first), Accepted)
    (refused,) = await collect(rank, job(0, "second"))
    assert (refused.code, refused.job_id) == ("busy", "second")
    events = [event async for event in first]
    assert isinstance(events[-1], Completed)


async def test_cancel_leaves_the_weights_and_the_next_job_is_as_if_nothing_was(make_rank, job):
    rank, other = await make_rank(), await make_rank()
    weights = rank._loaded.model.adapter.weights.clone()
    events = []
    async for event in rank.run(job(0)):
        events.append(event)
        if isinstance(event, Progress) and event.stage == "forward_backward":
            rank.cancel("job-0")
    assert isinstance(events[-1], Cancelled)
    assert rank.version == 0
    assert torch.equal(weights, rank._loaded.model.adapter.weights)
    assert not rank.cancel("job-0")
    await collect(rank, job(0))
    await collect(other, job(0))
    assert torch.equal(rank._loaded.model.adapter.weights, other._loaded.model.adapter.weights)


async def test_cancellation_stops_between_two_layers(make_rank, job):
    """Backward of the only row is under way when the request comes; the row does not finish."""
    rank = await make_rank()
    loaded = rank._loaded
    reached = []

    def request(gradient):
        reached.append(True)
        loaded.cancellation.request()

    first = loaded.model.module.decoder.layers[-1]
    handle = first.register_forward_hook(lambda *call: call[2][0].register_hook(request) and None)
    events = await collect(rank, job(0))
    handle.remove()
    assert reached == [True]
    assert isinstance(events[-1], Cancelled)
    assert not [e for e in events if isinstance(e, Progress) and e.stage == "forward_backward"]


async def test_closing_the_rank_during_a_job_cancels_it_and_drains_the_sinks(make_rank, job):
    sink = Collector()
    rank = await make_rank({"slow": sink})
    await collect(rank, job(0))
    stream = rank.run(job(1))
    assert isinstance(await anext(stream), Accepted)
    await rank.close(DEADLINE_S)
    async with asyncio.timeout(DEADLINE_S):
        last = [event async for event in stream][-1]
    assert isinstance(last, Cancelled | Completed)
    assert 1 in sink.snapshots, "what was submitted before the close has reached the sink"


@pytest.mark.parametrize("stage", ["map", "forward_backward", "optimizer", "snapshot"])
async def test_a_job_ends_with_its_last_event_at_whatever_stage_the_rank_is_closed(make_rank, job, stage):
    rank = await make_rank()
    reached, go_on = threading.Event(), threading.Event()
    owner, name = {
        "map": (rank._mapper, "map"),
        "forward_backward": (rank._loaded.model, "hidden_states"),
        "optimizer": (rank._loaded.optimizer, "step"),
        "snapshot": (rank._loaded.optimizer, "state"),
    }[stage]
    original = getattr(owner, name)

    def stopping(*args, **kwargs):
        reached.set()
        assert go_on.wait(DEADLINE_S)
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, stopping)
        collecting = asyncio.create_task(collect(rank, job(0)))
        await until(reached.is_set)
        closing = asyncio.create_task(rank.close(DEADLINE_S))
        await until(lambda: rank._closed)
        go_on.set()
        last = (await collecting)[-1]
        await closing
    trained = stage in ("optimizer", "snapshot")
    assert isinstance(last, Completed if trained else Cancelled)
    assert rank.version == int(trained)


async def test_closing_the_rank_ends_a_wait_for_a_free_slot(make_rank, job):
    sink = Collector()
    rank = await make_rank({"stuck": sink}, snapshot_capacity=1)
    sink.hold.clear()
    await collect(rank, job(0))
    waiting = asyncio.create_task(collect(rank, job(1)))
    await until(lambda: len(rank._run.pool._waiters) == 1)
    with pytest.raises(SinkError, match="stuck"):
        await rank.close(1.0)
    last = (await waiting)[-1]
    assert isinstance(last, Cancelled)
    assert last.version == 1


async def test_closing_the_iterator_cancels_and_frees_the_rank(make_rank, job):
    rank = await make_rank()
    stream = rank.run(job(0))
    await anext(stream)
    await stream.aclose()
    assert rank.version in (0, 1)
    completed = (await collect(rank, job(rank.version, "next")))[-1]
    assert isinstance(completed, Completed)


async def test_full_pool_fails_the_job_untrained_and_recovers(make_rank, job):
    sink = Collector()
    rank = await make_rank({"slow": sink}, snapshot_capacity=2)
    sink.hold.clear()
    await collect(rank, job(0))
    await collect(rank, job(1))
    weights = rank._loaded.model.adapter.weights.clone()
    failed = (await collect(rank, job(2, snapshot_deadline_s=0.05)))[-1]
    assert isinstance(failed, Failed)
    assert (failed.code, failed.version) == ("snapshot_backpressure", 2)
    assert "all 2 snapshots are still held" in failed.message
    assert "versions 1, 2" in failed.message
    assert torch.equal(weights, rank._loaded.model.adapter.weights)
    sink.hold.set()
    assert isinstance((await collect(rank, job(2)))[-1], Completed)
    await rank.wait_sink("slow", 3, DEADLINE_S)
    assert sorted(sink.snapshots) == [1, 2, 3]


async def test_a_waiting_job_goes_on_when_a_slot_becomes_free(make_rank, job):
    sink = Collector()
    rank = await make_rank({"slow": sink}, snapshot_capacity=1)
    sink.hold.clear()
    await collect(rank, job(0))
    waiting = asyncio.create_task(collect(rank, job(1)))
    await until(lambda: len(rank._run.pool._waiters) == 1)
    sink.hold.set()
    assert isinstance((await waiting)[-1], Completed)


async def test_a_sink_gets_versions_in_order_and_one_at_a_time(make_rank, job):
    sink = Collector()
    rank = await make_rank({"slow": sink}, snapshot_capacity=3)
    sink.hold.clear()
    for version in range(3):
        await collect(rank, job(version))
    assert sink.waiting == 1
    sink.hold.set()
    await rank.wait_sink("slow", 3, DEADLINE_S)
    assert list(sink.snapshots) == [1, 2, 3]


async def test_completed_tells_once_what_the_sinks_finished(make_rank, job):
    rank = await make_rank({"quick": Collector()})
    told = []
    for version in range(3):
        completed = (await collect(rank, job(version)))[-1]
        told += [(receipt.sink, receipt.version) for receipt in completed.receipts]
        await rank.wait_sink("quick", version + 1, DEADLINE_S)
    # The receipt of the last version may come after its job's last event.
    assert [entry for entry in told if entry[1] < 3] == [("collector", 1), ("collector", 2)]


async def test_a_sinks_error_reaches_who_waits_and_the_next_completed(make_rank, job):
    sink = Collector()
    rank = await make_rank({"broken": sink})
    sink.error = ConnectionResetError("the service went away")
    await collect(rank, job(0))
    await until(lambda: rank._run.unseen_errors())
    completed = (await collect(rank, job(1)))[-1]
    assert completed.sink_errors["broken@1"] == "ConnectionResetError: the service went away"
    with pytest.raises(ConnectionResetError, match="went away"):
        await rank.wait_sink("broken", 1, DEADLINE_S)
    await until(lambda: "broken@2" in rank._run.unseen_errors())
    assert set(rank._run.unseen_errors()) == {"broken@2"}
    with pytest.raises(SinkError, match="broken@2: ConnectionResetError"):
        await rank.close(DEADLINE_S)
    await rank.close(DEADLINE_S)


async def test_waiting_for_a_sink_has_a_deadline_and_may_start_early(make_rank, job):
    sink = Collector()
    rank = await make_rank({"sink": sink})
    with pytest.raises(SinkError, match=r"'sink' is not done with version 1 after 0.02 s"):
        await rank.wait_sink("sink", 1, 0.02)
    with pytest.raises(SinkError, match=r"no sink 'other'; this rank has sink"):
        await rank.wait_sink("other", 1, 1.0)
    early = asyncio.create_task(rank.wait_sink("sink", 1, DEADLINE_S))
    await collect(rank, job(0))
    assert (await early).version == 1


async def test_close_cuts_off_a_stuck_sink_at_the_deadline(make_rank, job, run_id):
    sink = Collector()
    rank = await make_rank({"stuck": sink})
    sink.hold.clear()
    await collect(rank, job(0))
    started = time.monotonic()
    with pytest.raises(SinkError, match="stuck"):
        await rank.close(0.3)
    assert time.monotonic() - started < 5
    assert list_segments(run_id) == ()
    with pytest.raises(RankStateError, match="closed"):
        await anext(rank.run(job(1)))


async def test_bad_batches_fail_with_the_numbers(make_rank, job, batches, completions, pack_forest):
    rank = await make_rank()
    row = pack_forest(completions())
    cases = {
        "token_ids reaches from": {
            **row,
            "token_ids": np.where(np.arange(len(row["token_ids"])) == 3, 96, row["token_ids"]),
        },
        r"1 of 48 values of loss_advantage are not finite": {
            **row,
            "loss_advantage": np.where(np.arange(48) == 5, np.nan, row["loss_advantage"]).astype(np.float32),
        },
        "subtree_end[4] is 2": {
            **row,
            "subtree_end": np.where(np.arange(len(row["subtree_end"])) == 4, 2, row["subtree_end"]),
        },
    }
    for message, broken in cases.items():
        broken = {name: array.astype(row[name].dtype) for name, array in broken.items()}
        failed = (await collect(rank, job(0, batch=batches(broken))))[-1]
        assert failed.code == "bad_batch"
        assert message in failed.message
    gone = batches(row)
    batches.store.drop(gone.location)
    failed = (await collect(rank, job(0, batch=gone)))[-1]
    assert failed.code == "bad_batch"
    assert "does not exist" in failed.message
    assert rank.version == 0


async def test_a_loss_that_is_not_finite_trains_nothing(make_rank, job, batches, completions, pack_forest):
    rank = await make_rank()
    row = pack_forest(completions())
    row["loss_old_logprob"] = np.full(48, -300.0, np.float32)
    row["loss_advantage"] = np.full(48, -1.0, np.float32)
    weights = rank._loaded.model.adapter.weights.clone()
    failed = (await collect(rank, job(0, batch=batches(row))))[-1]
    assert failed.code == "non_finite"
    assert torch.equal(weights, rank._loaded.model.adapter.weights)
    assert isinstance((await collect(rank, job(0)))[-1], Completed)


@pytest.mark.parametrize(
    ("columns", "changes", "text"),
    [
        ({}, {"objective": "sft"}, "the objective 'sft'"),
        ({"loss_weight": 0.0}, {}, "the weights of all 48 loss entries of batch .* are 0"),
        ({"loss_kl_weight": 0.1}, {}, "loss_kl_weight and no loss_reference_logprob"),
        (
            {"loss_kl_weight": -0.1, "loss_reference_logprob": -1.0},
            {},
            "lowest loss_kl_weight is -0.1.*at least 0",
        ),
        ({"loss_kl_weight": 0.1, "loss_reference_logprob": np.nan}, {}, "loss_reference_logprob are not fin"),
    ],
)
async def test_what_this_job_does_not_train_is_refused_before_anything_is_computed(
    make_rank, job, batches, completions, pack_forest, columns, changes, text
):
    rank = await make_rank()
    row = pack_forest(completions())
    row |= {name: np.full(48, value, np.float32) for name, value in columns.items()}
    events = await collect(rank, job(0, batch=batches(row, **changes)))
    assert [type(event) for event in events] == [Accepted, Failed]  # no progress: not even mapped
    assert (events[-1].code, events[-1].version) == ("bad_batch", 0)
    assert re.search(text, events[-1].message)
    assert isinstance((await collect(rank, job(0)))[-1], Completed)


async def test_a_step_adds_the_divergence_from_a_reference(make_rank, job, batches, completions, pack_forest):
    rank = await make_rank()
    row = pack_forest(completions())
    plain = (await collect(rank, job(0, batch=batches(row), learning_rate=0.0)))[-1].metrics
    row["loss_reference_logprob"] = np.full(48, -3.0, np.float32)
    advised = (await collect(rank, job(1, batch=batches(row), learning_rate=0.0)))[-1].metrics
    row["loss_kl_weight"] = np.full(48, 0.5 / 48, np.float32)
    charged = (await collect(rank, job(2, batch=batches(row), learning_rate=0.0)))[-1].metrics
    assert advised["loss"] == plain["loss"], "without a weight the reference is no part of the loss"
    assert "reference_loss" not in advised
    assert charged["reference_loss"] > 0
    assert charged["loss"] == pytest.approx(plain["loss"] + charged["reference_loss"], rel=1e-5)


async def test_a_step_that_fails_breaks_the_rank_until_a_new_run(make_rank, job, run_id, monkeypatch):
    rank = await make_rank()

    def explode(*_):
        raise MemoryError("half-way")

    with monkeypatch.context() as patched:
        patched.setattr(rank._loaded.optimizer, "step", explode)
        failed = (await collect(rank, job(0)))[-1]
    assert (failed.code, failed.version) == ("rank_broken", 0)
    assert "MemoryError: half-way" in failed.message
    assert "Traceback" in failed.traceback
    (refused,) = await collect(rank, job(0))
    assert refused.code == "rank_broken"
    assert rank._run.pool.held == 0
    await rank.start_run(TrainingRunSpec(run_id=run_id), DEADLINE_S)
    assert isinstance((await collect(rank, job(0)))[-1], Completed)


async def test_resume_continues_bit_for_bit(make_rank, job, tmp_path, run_id):
    kept = TrainingRunSpec(run_id=run_id, generations_dir=str(tmp_path / "kept"))
    straight = await make_rank(run=kept)
    for version in range(4):
        await collect(straight, job(version))
        if version == 1:
            middle = (await straight.wait_sink("durability", 2, DEADLINE_S)).detail.rsplit("/", 1)[1]
    expected = straight._loaded.model.adapter.weights.clone()
    await straight.wait_sink("durability", 4, DEADLINE_S)
    await straight.close(DEADLINE_S)

    named = TrainingRunSpec(run_id=run_id, generations_dir=str(tmp_path / "kept"), resume_from=middle)
    resumed = await make_rank(run=named, seed=99)
    assert resumed.version == 2
    for version in (2, 3):
        await collect(resumed, job(version))
    assert torch.equal(resumed._loaded.model.adapter.weights, expected)


async def test_resuming_from_the_latest_and_what_is_refused(
    make_rank, job, tmp_path, run_id, runtime, batches
):
    folder = str(tmp_path / "generations")
    fresh = TrainingRunSpec(run_id=run_id, generations_dir=folder)
    latest = TrainingRunSpec(run_id=run_id, generations_dir=folder, resume_from="latest")
    rank = await make_rank(run=latest)
    assert rank.version == 0
    await rank.publish_current(DEADLINE_S)
    await collect(rank, job(0))
    await rank.wait_sink("durability", 1, DEADLINE_S)
    assert [g.version for g in list_generations(folder)] == [0, 1]

    other = TrainerRank(runtime(lora=LORA), mapper=batches.mapper, sinks={})
    await other.load(DEADLINE_S)
    with pytest.raises(DurabilityError, match="is open in another process"):
        await other.start_run(latest, DEADLINE_S)
    await rank.close(DEADLINE_S)
    with pytest.raises(ResumeError, match="set resume_from to 'latest'"):
        await other.start_run(fresh, DEADLINE_S)
    with pytest.raises(ResumeError, match="no generation 'step-9'; its newest are step-00000000"):
        await other.start_run(
            TrainingRunSpec(run_id=run_id, generations_dir=folder, resume_from="step-9"), DEADLINE_S
        )
    assert await other.start_run(latest, DEADLINE_S) == 1
    await other.publish_current(DEADLINE_S)
    await other.close(DEADLINE_S)
    assert [g.version for g in list_generations(folder)] == [0, 1]


async def test_an_adapter_of_another_shape_is_not_resumed(make_rank, job, tmp_path, run_id, runtime, batches):
    from art_trainer import ModelLoadError

    folder = str(tmp_path)
    rank = await make_rank(run=TrainingRunSpec(run_id=run_id, generations_dir=folder))
    await collect(rank, job(0))
    await rank.close(DEADLINE_S)
    other = TrainerRank(runtime(lora=LoraSpec(rank=2)), mapper=batches.mapper, sinks={})
    await other.load(DEADLINE_S)
    with pytest.raises(ModelLoadError, match="rank 2 needs"):
        await other.start_run(
            TrainingRunSpec(run_id=run_id, generations_dir=folder, resume_from="latest"), DEADLINE_S
        )
    await other.close(DEADLINE_S)


async def test_a_warm_rank_starts_another_run_from_the_beginning(make_rank, job, run_id):
    sink = Collector()
    rank = await make_rank({"sink": sink})
    await rank.publish_current(DEADLINE_S)
    await rank.wait_sink("sink", 0, DEADLINE_S)
    first = dict(sink.snapshots)
    await collect(rank, job(0))
    assert await rank.start_run(TrainingRunSpec(run_id=run_id), DEADLINE_S) == 0
    await rank.publish_current(DEADLINE_S)
    await rank.wait_sink("sink", 0, DEADLINE_S)
    assert all(torch.equal(first[0][name], sink.snapshots[0][name]) for name in first[0])


async def test_misuse_is_named(runtime, batches, make_rank, job):
    rank = TrainerRank(runtime(), mapper=batches.mapper, sinks={})
    with pytest.raises(RankStateError, match="call load first"):
        await rank.start_run(TrainingRunSpec(run_id="x"), 1.0)
    with pytest.raises(RankStateError, match="call load first"):
        await anext(rank.run(job(0)))
    await rank.close(1.0)
    with pytest.raises(RankStateError, match="is closed"):
        await rank.load(1.0)
    with pytest.raises(RankStateError, match="'durability' is the rank's own"):
        TrainerRank(runtime(), mapper=batches.mapper, sinks={"durability": Collector()})
    loaded = await make_rank()
    with pytest.raises(RankStateError, match="loaded already"):
        await loaded.load(1.0)


async def test_a_sink_that_is_stuck_loses_its_slot_and_is_told_with_the_next_step(make_rank, job, run_id):
    sink = Collector()
    run = TrainingRunSpec(run_id=run_id, snapshot_lease_s=1.0)
    rank = await make_rank({"slow": sink}, run=run, snapshot_capacity=1)
    sink.hold.clear()
    await rank.publish_current(DEADLINE_S)
    completed = (await collect(rank, job(0)))[-1]  # waits for the slot until the lease is over
    assert isinstance(completed, Completed)
    assert "the lease of 'slow' (fence 1) on version 0 expired after 1 s" in completed.sink_errors["slow@0"]
    assert completed.receipts == ()
    sink.hold.set()
    await rank.wait_sink("slow", 1, DEADLINE_S)


async def test_publish_current_respects_the_pool(make_rank):
    sink = Collector()
    rank = await make_rank({"slow": sink}, snapshot_capacity=1)
    sink.hold.clear()
    await rank.publish_current(DEADLINE_S)
    with pytest.raises(SnapshotPoolError, match="all 1 snapshots are still held"):
        await rank.publish_current(0.05)
    sink.hold.set()


async def test_difference_to_the_sampler_counts_only_the_current_version(
    make_rank, job, batches, completions, pack_forest
):
    rank = await make_rank()
    row = pack_forest(completions())
    exact = (await collect(rank, job(0, batch=batches(row), learning_rate=0.0)))[-1].metrics
    row["loss_version"] = np.where(np.arange(48) % 2, 1, 0).astype(np.int32)
    half = (await collect(rank, job(1, batch=batches(row))))[-1].metrics
    assert exact["sampler_difference_count"] == 48
    assert half["sampler_difference_count"] == 24
    assert (
        0
        < exact["sampler_difference_mean"]
        <= exact["sampler_difference_p99"]
        <= exact["sampler_difference_max"]
    )


def test_no_thread_is_left(tmp_path):
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("art-")] == []
