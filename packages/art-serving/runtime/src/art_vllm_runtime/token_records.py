"""From vLLM's outputs to the token record that each choice of a response carries."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import SamplingParams

from art_dataplane.arrays import encode
from art_dataplane.records import TokenRecord, VersionSpan
from art_vllm_runtime.span_scheduler import BASE_MODEL_VERSION

UNLABELLED = "default"
"""vLLM's label of the weights before the first activation."""

_GREEDY_BELOW = 1e-5


def encoded_record(
    request: RequestOutput, output: CompletionOutput, generations: dict[int, str | None]
) -> str | None:
    """The token record of one choice as base64 MessagePack; None when the request was aborted before its
    prompt was read.

    Args:
        request: the finished output, with the ``art_sampling`` that it was sampled with.
        output: one of its choices.
        generations: name of the durable generation of each version, where there is one.

    Raises:
        RecordError: the record violates an invariant.
    """
    record = token_record(request, output, generations)
    if record is None:
        return None
    record.validate()
    return base64.b64encode(encode(record)).decode("ascii")


def token_record(
    request: RequestOutput, output: CompletionOutput, generations: dict[int, str | None]
) -> TokenRecord | None:
    """As :func:`encoded_record`, before encoding."""
    prompt_spans = output.art_prompt_spans
    if prompt_spans is None:
        if output.finish_reason == "abort":
            return None
        raise RuntimeError(
            f"request {request.request_id} has no prompt spans; the engine runs another scheduler"
        )
    params: SamplingParams = request.art_sampling
    token_ids = np.asarray(output.token_ids, dtype=np.int32)
    spans = _completion_spans(request, output, len(token_ids))
    greedy = params.temperature < _GREEDY_BELOW
    return TokenRecord(
        prompt_ids=np.asarray(request.prompt_token_ids, dtype=np.int32),
        completion_ids=token_ids,
        logprobs=np.asarray(_logprobs(output), dtype=np.float32),
        prompt_spans=tuple(VersionSpan(*span) for span in prompt_spans),
        completion_spans=spans,
        # The log-probs of a greedy choice are those at temperature 1; it is the strictest truncation there
        # is.
        temperature=1.0 if greedy else params.temperature,
        truncated_sampling=greedy or is_truncated(params),
        adapter_generation=generations.get(spans[-1].version) if spans else None,
        finish_reason=output.finish_reason,
    )


def is_truncated(params: SamplingParams) -> bool:
    """Whether tokens came from another distribution than the softmax of the logits at the temperature."""
    return (
        params.top_k > 0
        or params.top_p < 1.0
        or params.min_p > 0.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or params.repetition_penalty != 1.0
        or params.min_tokens > 0
        or bool(params.logit_bias)
        or bool(params.allowed_token_ids)
        or bool(params.bad_words)
        or params.structured_outputs is not None
    )


def _completion_spans(
    request: RequestOutput, output: CompletionOutput, count: int
) -> tuple[VersionSpan, ...]:
    if count == 0:
        return ()
    if request.lora_request is None:
        return (VersionSpan(0, count, BASE_MODEL_VERSION),)
    labelled = output.weight_versions
    if not labelled:
        raise RuntimeError(f"request {request.request_id} has {count} tokens without a weight version")
    return tuple(
        VersionSpan(
            span.start, span.end, BASE_MODEL_VERSION if span.version == UNLABELLED else int(span.version)
        )
        for span in labelled
    )


def _logprobs(output: CompletionOutput) -> Sequence[float]:
    entries: Any = output.logprobs
    if isinstance(entries, FlatLogprobs):
        return [entries.logprobs[start] for start in entries.start_indices]
    return [entry[token].logprob for entry, token in zip(entries, output.token_ids, strict=True)]
