"""What a running member answers: token records, versions, errors."""

import asyncio

import numpy as np
import openai
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = [10, 20, 30, 40, 50, 60, 70]


async def test_a_policy_that_was_never_activated_is_unknown_and_the_engine_lives_on(service, openai_client, record_of):
    with pytest.raises(openai.NotFoundError, match="policy"):
        await openai_client.completions.create(model="policy", prompt=PROMPT, max_tokens=3)
    answer = await openai_client.completions.create(model="tiny", prompt=PROMPT, max_tokens=3)
    assert len(record_of(answer.choices[0]).completion_ids) == 3


async def test_log_probs_of_the_base_model_are_those_of_transformers(openai_client, record_of, reference):
    answer = await openai_client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=40, temperature=0.7, seed=3, extra_body={"ignore_eos": True}
    )
    record = record_of(answer.choices[0])
    assert record.prompt_ids.tolist() == PROMPT
    assert [(s.start, s.end, s.version) for s in record.completion_spans] == [(0, 40, 0)]
    assert (record.temperature, record.truncated_sampling) == (pytest.approx(0.7), False)
    np.testing.assert_allclose(record.logprobs, reference.logprobs(record), atol=2e-4)


async def test_activation_serves_the_adapter(service, snapshots, openai_client, record_of, reference):
    manifest = snapshots.make(1)
    report = await service.activate(manifest, 30)
    print(report)
    assert (report.version, report.digest) == (1, manifest.digest)
    answer = await openai_client.chat.completions.create(
        model="policy",
        messages=[{"role": "user", "content": "w11 w12 w13"}],
        max_tokens=24,
        temperature=0.7,
        n=3,
        extra_body={"ignore_eos": True},
    )
    records = [record_of(choice) for choice in answer.choices]
    assert len({tuple(record.completion_ids) for record in records}) == 3
    for record in records:
        assert [(s.start, s.end, s.version) for s in record.completion_spans] == [(0, 24, 1)]
        assert [(s.start, s.end, s.version) for s in record.prompt_spans] == [(0, len(record.prompt_ids), 1)]
        assert record.adapter_generation == "step-00000001-test"
        np.testing.assert_allclose(record.logprobs, reference.logprobs(record), atol=2e-4)
