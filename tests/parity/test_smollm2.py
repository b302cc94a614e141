"""SmolLM2-135M itself: what the trainer computes on batches of the data plane equals transformers and peft.

Selected log-probs and LoRA gradients in float32, to a relative norm of 1e-5: as one forest with shared
prefixes, as one row of whole sequences, and one sequence to a row. The reference computes in float64, since
the rounding of transformers' own float32 gradients is larger than that (2e-5 on this model and input).
"""

import asyncio
import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from art.demo.model import ensure_smollm2
from art_dataplane import (
    AdvantageRule,
    Lease,
    PackedBatch,
    PackingRequest,
    Selection,
    ShmBatchMapper,
    ShmSegmentStore,
    TokenRecord,
    TrajectoryRecord,
    VersionSpan,
    pack,
)
from art_trainer import LoraSpec
from art_trainer.probe import probe_row

TOLERANCE = 1e-5
LORA = LoraSpec(rank=8, alpha=16)
PROMPTS = ("Respond with yes, no or maybe.", "Reply with one of no, yes or maybe, please.")
ANSWERS = (
    "Yes, I think that it is so.",
    "No, I would say that it is not.",
    "Maybe, but nobody can tell for sure.",
    "Maybe yes, but then again maybe not",
)
TEMPERATURE = 0.9


def relative(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((mine.double() - theirs.double()).norm() / theirs.double().norm())


@pytest.fixture(scope="module")
def folder() -> Path:
    return asyncio.run(ensure_smollm2(deadline_s=600))


@dataclass
class Reference:
    """transformers and peft in float64, one unpadded sequence at a time."""

    model: torch.nn.Module

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {
            name.replace(".default.", "."): parameter
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }

    def logprobs(self, prompt: list[int], completion: list[int]) -> torch.Tensor:
        logits = self.model(input_ids=torch.tensor([[*prompt, *completion[:-1]]])).logits[
            0, len(prompt) - 1 :
        ]
        chosen = torch.log_softmax(logits / TEMPERATURE, -1)
        return chosen.gather(1, torch.tensor(completion)[:, None])[:, 0]

    def gradients(self, groups: list[list[TrajectoryRecord]]) -> dict[str, torch.Tensor]:
        """Of the clipped policy-gradient loss, its mean over all tokens."""
        total, count = torch.zeros((), dtype=torch.float64), 0
        for records in groups:
            mean = sum(record.reward for record in records) / len(records)
            for record in records:
                (turn,) = record.exchanges
                chosen = self.logprobs(turn.prompt_ids.tolist(), turn.completion_ids.tolist())
                ratio = (chosen - torch.from_numpy(turn.logprobs.copy()).double()).exp()
                advantage = record.reward - mean
                total = total - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()
                count += len(turn.completion_ids)
        (total / count).backward()
        return {name: parameter.grad for name, parameter in self.parameters.items()}


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    config = LoraConfig(
        r=LORA.rank, lora_alpha=LORA.alpha, target_modules=list(LORA.target_modules), lora_dropout=0.0
    )
    reference = Reference(get_peft_model(base, config, autocast_adapter_dtype=False))
    with torch.no_grad():
        # As large as the factors are after some ten steps of the demo.
        for name, parameter in reference.parameters.items():
            parameter.copy_((torch.randn(parameter.shape) * (0.024 if "lora_A" in name else 0.004)).float())
    return reference


@pytest.fixture(scope="module")
def adapter(reference: Reference) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().float() for name, parameter in reference.parameters.items()}


@pytest.fixture(scope="module")
def groups(folder: Path, reference: Reference) -> list[list[TrajectoryRecord]]:
    """Answers whose ratio to the sampler's policy lies within 0.74 and 1.35, so that some are clipped."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rng = np.random.default_rng(0)
    made = []
    for number, prompt in enumerate(PROMPTS):
        chat = [{"role": "user", "content": prompt}]
        prompt_ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
        records = []
        for index, answer in enumerate(ANSWERS):
            completion = tokenizer(answer)["input_ids"]
            with torch.no_grad():
                logprobs = reference.logprobs(prompt_ids, completion).numpy()
            sampled = np.minimum(logprobs + rng.uniform(-0.3, 0.3, len(completion)), 0.0)
            record = TokenRecord(
                prompt_ids=np.array(prompt_ids, np.int32),
                completion_ids=np.array(completion, np.int32),
                logprobs=sampled.astype(np.float32),
                prompt_spans=(VersionSpan(0, len(prompt_ids), 0),),
                completion_spans=(VersionSpan(0, len(completion), 0),),
                temperature=TEMPERATURE,
            )
            records.append(TrajectoryRecord(f"{number}-{index}", f"{number}", (record,), reward=float(index)))
        made.append(records)
    return made


@pytest.fixture(scope="module")
def expected(
    reference: Reference, groups: list[list[TrajectoryRecord]]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Log-probs by record and gradients by parameter."""
    logprobs = {}
    with torch.no_grad():
        for record in (record for records in groups for record in records):
            (turn,) = record.exchanges
            logprobs[record.record_id] = reference.logprobs(
                turn.prompt_ids.tolist(), turn.completion_ids.tolist()
            )
    return logprobs, reference.gradients(groups)


@pytest.fixture(scope="module")
def segments() -> Iterator[ShmSegmentStore]:
    with ShmSegmentStore(f"parity-{uuid.uuid4().hex[:8]}", 1 << 24) as store:
        yield store


def packed(groups: list[list[TrajectoryRecord]], segments: ShmSegmentStore, row_length: int) -> PackedBatch:
    request = PackingRequest(
        Selection((), Lease("lease", 1, "test", 60.0)),
        packed_sequence_length=row_length,
        ticket=1,
        policy_version=0,
        advantage=AdvantageRule(scale="none"),
    )
    result = pack(groups, request, segments, owner="test")
    assert result.ref is not None
    return ShmBatchMapper().map(result.ref)


def shifted(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Rows one behind the other as one row of separate trees."""
    starts = np.cumsum([0, *(len(row["token_ids"]) for row in rows[:-1])])
    joined = {name: np.concatenate([row[name] for row in rows]) for row in rows[:1] for name in row}
    for name in ("subtree_end", "loss_source"):
        joined[name] = np.concatenate([row[name] + start for row, start in zip(rows, starts, strict=True)])
    return {name: array.astype(rows[0][name].dtype) for name, array in joined.items()}


@pytest.mark.parametrize("layout", ["forest", "whole sequences in one row", "one sequence to a row"])
def test_logprobs_and_gradients_equal_transformers_and_peft(
    layout: str,
    folder: Path,
    groups: list[list[TrajectoryRecord]],
    adapter: dict[str, torch.Tensor],
    expected: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]],
    segments: ShmSegmentStore,
) -> None:
    expected_logprobs, expected_gradients = expected
    forest = packed(groups, segments, 512)
    assert forest.row_count == 1
    # A row that holds no more than the longest sequence makes every trajectory a row of its own.
    longest = max(
        len(turn.prompt_ids) + len(turn.completion_ids) - 1
        for records in groups
        for record in records
        for turn in record.exchanges
    )
    single = packed(groups, segments, longest)
    rows = {
        "forest": [forest.row(0)],
        "whole sequences in one row": [shifted([single.row(index) for index in range(single.row_count)])],
        "one sequence to a row": [single.row(index) for index in range(single.row_count)],
    }[layout]
    record_ids = (forest if layout == "forest" else single).ref.record_ids
    logprobs: dict[str, list[torch.Tensor]] = {record_id: [] for record_id in record_ids}
    gradients = {name: torch.zeros(tensor.shape) for name, tensor in expected_gradients.items()}
    for row in rows:
        probe = probe_row(str(folder), row, lora=LORA, adapter=adapter)
        for name, gradient in probe.gradients.items():  # the rows' weights are those of their batch
            gradients[name] += gradient
        for index, record_id in enumerate(record_ids):
            mine = probe.logprobs[torch.from_numpy(row["loss_record"].copy()) == index]
            if len(mine):
                logprobs[record_id].append(mine)
    wanted = torch.cat([expected_logprobs[record_id] for record_id in record_ids])
    found = torch.cat([torch.cat(logprobs[name]) for name in record_ids])
    print("log-probs", relative(found, wanted))
    assert relative(found, wanted) < TOLERANCE
    names = sorted(gradients)
    mine = torch.cat([gradients[name].flatten() for name in names])
    theirs = torch.cat([expected_gradients[name].flatten() for name in names])
    assert math.isfinite(float(theirs.norm()))
    print("gradients", relative(mine, theirs))
    assert relative(mine, theirs) < TOLERANCE
