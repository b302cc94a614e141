"""Spans of policy versions on their way from the scheduler to a response.

The engine core's outputs have one field that carries free-form data of a request, ``kv_transfer_params``;
prompt spans travel in it under a key of their own and are taken out before anything else sees the field.

Log-probs that only the token record needs (``flat_logprobs``, which no client can ask for) come without the
text of each token, which nobody would read.
"""

from typing import Any

import numpy as np
from vllm.outputs import CompletionOutput
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.engine.output_processor import OutputProcessor, RequestState

PROMPT_SPANS = "art_prompt_spans"

type Span = tuple[int, int, int]


def run_lengths(versions: np.ndarray) -> list[Span]:
    """Adjacent spans ``(start, end, version)`` of equal versions; complete over ``versions``."""
    if len(versions) == 0:
        return []
    edges = np.flatnonzero(np.diff(versions)) + 1
    starts = [0, *edges.tolist()]
    ends = [*edges.tolist(), len(versions)]
    return [(start, end, int(versions[start])) for start, end in zip(starts, ends, strict=True)]


def install() -> None:
    """Makes every finished ``CompletionOutput`` of this process carry ``art_prompt_spans``. Idempotent."""
    if getattr(OutputProcessor, "art_installed", False):
        return
    process_outputs = OutputProcessor.process_outputs
    new_logprobs = LogprobsProcessor.from_new_request
    new_completion_output = RequestState._new_completion_output

    def process(self: OutputProcessor, engine_core_outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        for output in engine_core_outputs:
            params = output.kv_transfer_params
            if params and PROMPT_SPANS in params:
                spans = params.pop(PROMPT_SPANS)
                output.kv_transfer_params = params or None
                state = self.request_states.get(output.request_id)
                if state is not None:
                    state.art_prompt_spans = spans
        return process_outputs(self, engine_core_outputs, *args, **kwargs)

    def new_output(self: RequestState, *args: Any, **kwargs: Any) -> CompletionOutput:
        output = new_completion_output(self, *args, **kwargs)
        output.art_prompt_spans = getattr(self, "art_prompt_spans", None)
        return output

    def without_text(tokenizer: Any, request: Any) -> LogprobsProcessor:
        params = request.sampling_params
        return new_logprobs(None if params is not None and params.flat_logprobs else tokenizer, request)

    LogprobsProcessor.from_new_request = staticmethod(without_text)
    OutputProcessor.process_outputs = process
    RequestState._new_completion_output = new_output
    OutputProcessor.art_installed = True
