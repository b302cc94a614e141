"""Batches as the data plane packs them: multi-turn records, branches and trees split over rows."""

import asyncio
import uuid

import numpy as np
import pytest
import torch

from art_dataplane import (
    AdvantageRule,
    Lease,
    LossWeightRule,
    PackingRequest,
    Selection,
    ShmBatchMapper,
    ShmSegmentStore,
    TokenRecord,
    TrajectoryRecord,
    VersionSpan,
    pack,
)
from art_trainer import Completed, LoraSpec, RlTrainJob, TrainingRunSpec
from art_trainer.rank import TrainerRank

LORA = LoraSpec(rank=4, alpha=8)


def span(length):
    return (VersionSpan(0, length, 0),) if length else ()


def exchange(rng, prompt, length):
    return TokenRecord(
        prompt_ids=np.array(prompt, np.int32),
        completion_ids=rng.integers(0, 96, length).astype(np.int32),
        logprobs=rng.uniform(-6, -2, length).astype(np.float32),
        prompt_spans=span(len(prompt)),
        completion_spans=span(length),
        temperature=0.9,
    )


@pytest.fixture
def groups():
    """Two groups of four records of two turns each; the second turn extends the first."""
    rng = np.random.default_rng(3)
    made = []
    for group in range(2):
        prompt = rng.integers(0, 96, 12).tolist()
        records = []
        for index in range(4):
            first = exchange(rng, prompt, 5)
            text = [*prompt, *first.completion_ids.tolist(), *rng.integers(0, 96, 3).tolist()]
            records.append(
                TrajectoryRecord(
                    f"record-{group}-{index}",
                    f"group-{group}",
                    (first, exchange(rng, text, 4)),
                    float(index % 3),
                )
            )
        made.append(records)
    return made


RULES = {
    "token_mean": LossWeightRule(),
    "trajectory_mean": LossWeightRule("trajectory_mean"),
    "constant": LossWeightRule("constant", constant_length=6),
}


def weight_of(rule, record, groups):
    """What each entry of a record counts, by the rule's table."""
    counts = {r.record_id: sum(len(turn.completion_ids) for turn in r.exchanges) for g in groups for r in g}
    return {
        "token_mean": 1 / sum(counts.values()),
        "trajectory_mean": 1 / (len(counts) * counts[record.record_id]),
        "constant": 1 / (len(counts) * 6),
    }[rule]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("row_length", [256, 40])
async def test_a_packed_step_equals_the_sum_over_trajectories(
    tiny_model, groups, runtime, reference, row_length, rule
):
    run_id = f"test-{uuid.uuid4().hex[:8]}"
    spec = runtime(model_path=tiny_model, lora=LORA, packed_sequence_length=row_length)
    with ShmSegmentStore(run_id, 1 << 22) as store:
        request = PackingRequest(
            Selection((), Lease("l", 1, "test", 60.0)),
            packed_sequence_length=row_length,
            ticket=1,
            policy_version=0,
            advantage=AdvantageRule(scale="none"),
            loss_weight=RULES[rule],
        )
        packed = pack(groups, request, store, owner="test")
        assert (packed.counts.row_count == 1) if row_length == 256 else (packed.counts.row_count > 2)
        rank = TrainerRank(spec, mapper=ShmBatchMapper(), sinks={})
        await rank.load(60.0)
        await rank.start_run(TrainingRunSpec(run_id=run_id), 60.0)
        adapter = {name: tensor.clone() for name, tensor in rank._loaded.model.adapter.named_tensors()}
        adapter = {
            name: t + 0.1 * torch.randn(t.shape) if "lora_B" in name else t for name, t in adapter.items()
        }
        rank._loaded.model.adapter.load(adapter)
        job = RlTrainJob(
            job_id="j", batch=packed.ref, expected_version=0, resulting_version=1, learning_rate=0.0
        )
        async with asyncio.timeout(60):
            events = [event async for event in rank.run(job)]
        await rank.close(60.0)
    assert isinstance(events[-1], Completed), events[-1]

    theirs = reference(spec.model_path, LORA, adapter)
    total, count = 0.0, 0
    for records in groups:
        mean = sum(record.reward for record in records) / len(records)
        for record in records:
            for turn in record.exchanges:
                prompt, completion = turn.prompt_ids.tolist(), turn.completion_ids.tolist()
                text = torch.tensor([[*prompt, *completion[:-1]]])
                logits = theirs.model(input_ids=text).logits[0, len(prompt) - 1 :] / turn.temperature
                chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(completion)[:, None])[:, 0]
                ratio = (chosen - torch.from_numpy(turn.logprobs.copy())).exp()
                advantage = record.reward - mean
                surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                total = total - surrogate.sum() * weight_of(rule, record, groups)
                count += len(completion)
    loss = total
    loss.backward()
    norm = torch.sqrt(sum(p.grad.square().sum() for p in theirs.parameters().values()))
    assert events[-1].metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert events[-1].metrics["gradient_norm"] == pytest.approx(float(norm), rel=1e-5)
    assert events[-1].metrics["loss_entries"] == count == 72
