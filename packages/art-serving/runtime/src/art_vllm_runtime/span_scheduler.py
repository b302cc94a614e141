"""vLLM's scheduler, which also knows the policy version of every key and value in the cache.

Versions change only while the engine stands still (see ``engine_swap``), so a token scheduled under a version
is computed under it. For each slot of the KV cache the version that computed it is kept; when the last prompt
token of a request is scheduled, the versions of its slots are the spans of its prompt, whether they were
computed for this request, found in the prefix cache, copied from another request with the same prompt, or
computed again after a preemption.
"""

from typing import Any

import numpy as np
from vllm.lora.request import LoRARequest
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from art_vllm_runtime.prompt_sharing import BlockCopies
from art_vllm_runtime.spans import PROMPT_SPANS, Span, run_lengths

BASE_MODEL_VERSION = 0


class SpanScheduler(Scheduler):
    """Adds prompt spans to the first output of a request, and keeps new requests on the active adapter."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config: KVCacheConfig = self.kv_cache_config
        self._group = next(
            (
                i
                for i, g in enumerate(config.kv_cache_groups)
                if isinstance(g.kv_cache_spec, FullAttentionSpec)
            ),
            None,
        )
        if self._group is None:
            raise NotImplementedError("policy spans need a layer with full attention; this model has none")
        self._slots_per_block: int = config.kv_cache_groups[self._group].kv_cache_spec.block_size
        self._slot_versions = np.zeros((config.num_blocks, self._slots_per_block), dtype=np.int64)
        self._adapter: LoRARequest | None = None
        self._version = BASE_MODEL_VERSION
        self._prompt_spans: dict[str, list[Span]] = {}

    def activate(self, adapter: LoRARequest, version: int) -> None:
        """Workers hold ``version`` now; requests of which nothing is computed belong to it entirely."""
        self._adapter, self._version = adapter, version
        for request in self.requests.values():
            if request.num_computed_tokens == 0:
                self._move_to_active(request)

    def add_request(self, request: Request) -> None:
        """A request that left the API server before a swap and comes after it belongs to the new version."""
        self._move_to_active(request)
        super().add_request(request)

    def _move_to_active(self, request: Request) -> None:
        adapter = self._adapter
        if request.lora_request is None or adapter is None:
            return
        if request.lora_request.lora_path == adapter.lora_path:
            return
        request.lora_request = adapter
        if request.block_hashes:
            request.block_hashes = []
            request.update_block_hashes()

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedules, and notes under which version the scheduled tokens are computed."""
        output = super().schedule(throttle_prefills)
        copies = output.kv_connector_metadata
        if isinstance(copies, BlockCopies):
            self._slot_versions[copies.targets] = self._slot_versions[copies.sources]
        for request_id, count in output.num_scheduled_tokens.items():
            self._note(self.requests[request_id], count)
        for request_id in output.finished_req_ids:
            self._prompt_spans.pop(request_id, None)
        return output

    def _note(self, request: Request, count: int) -> None:
        end = request.num_computed_tokens
        start = end - count
        version = BASE_MODEL_VERSION if request.lora_request is None else self._version
        blocks = self.kv_cache_manager.get_block_ids(request.request_id)[self._group]
        size = self._slots_per_block
        for index in range(start // size, -(-end // size)):
            first, last = max(start - index * size, 0), min(end - index * size, size)
            self._slot_versions[blocks[index], first:last] = version
        prompt = request.num_prompt_tokens
        if start < prompt <= end:
            versions = self._slot_versions[blocks[: -(-prompt // size)]].reshape(-1)[:prompt]
            self._prompt_spans[request.request_id] = run_lengths(versions)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Sends the prompt spans along with the first token that follows the prompt."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self._prompt_spans:
            for output in (item for batch in outputs.values() for item in batch.outputs):
                spans = self._prompt_spans.pop(output.request_id, None)
                if spans is not None:
                    output.kv_transfer_params = (output.kv_transfer_params or {}) | {PROMPT_SPANS: spans}
        return outputs
