"""Equal prompts are computed once, to the last token, though the KV cache is shared by whole blocks only.

Samples of one prompt usually come at the same time. vLLM's prefix cache gives each the full blocks of the
others and computes the rest of the prompt for each; with a short prompt that rest is most of the work. Here
the first request computes it, the others wait for that one step, copy the last block and compute the last
prompt token only, from which their first token is drawn.

It is a KV connector, vLLM's own way to say "these tokens come from elsewhere"; elsewhere is another block of
the same cache. What always holds: a block is copied only from a request that runs under the same activation
of the same adapter, has the same prompt, and was scheduled to compute all of it in an earlier step.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

type Key = tuple[str | None, str | None, tuple[int, ...]]


def connector_config() -> KVTransferConfig:
    """What makes vLLM load the connector, in the engine core and in every worker."""
    return KVTransferConfig(
        kv_connector="PromptSharing", kv_connector_module_path=__name__, kv_role="kv_consumer"
    )


@dataclass
class BlockCopies(KVConnectorMetadata):
    """Blocks to copy before a step: ``targets[i]`` becomes what ``sources[i]`` is."""

    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


class PromptSharing(KVConnectorBase_V1, SupportsHMA):
    """One in the scheduler, which decides what is copied, and one in each worker, which copies."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._block_size = int(vllm_config.cache_config.block_size)
        self._one_group = kv_cache_config is not None and len(kv_cache_config.kv_cache_groups) == 1
        self._holders: dict[Key, dict[str, Request]] = {}
        self._keys: dict[str, Key] = {}
        self._copies = BlockCopies()
        self._caches: list[torch.Tensor] = []

    @property
    def requires_kv_delivery(self) -> bool:
        """Nothing is handed off when a request ends."""
        return False

    # In the scheduler.

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Prompt tokens that another request has beyond the cached blocks; None: it is computing them now."""
        missing = request.num_prompt_tokens - 1 - num_computed_tokens
        if missing <= 0 or not self._shares(request):
            return 0, False
        running = [other for other in self._others(request) if other.status == RequestStatus.RUNNING]
        if any(_has_prompt(other) for other in running):
            return missing, False
        return (None if running else 0), False

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        """Plans the copies of a request that was admitted, and lets others copy from it later."""
        if not self._shares(request):
            return
        if num_external_tokens > 0:
            source = next(
                other
                for other in self._others(request)
                if other.status == RequestStatus.RUNNING and _has_prompt(other)
            )
            assert self._kv_cache_manager is not None
            theirs = self._kv_cache_manager.get_block_ids(source.request_id)[0]
            mine = blocks.get_block_ids()[0]
            end = request.num_prompt_tokens - 1
            part = slice((end - num_external_tokens) // self._block_size, -(-end // self._block_size))
            self._copies.sources += theirs[part]
            self._copies.targets += mine[part]
        key = _key(request)
        self._keys[request.request_id] = key
        self._holders.setdefault(key, {})[request.request_id] = request

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> BlockCopies:
        """The copies of this step."""
        copies, self._copies = self._copies, BlockCopies()
        return copies

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Nobody copies from it any more."""
        key = self._keys.pop(request.request_id, None)
        if key is not None:
            holders = self._holders[key]
            del holders[request.request_id]
            if not holders:
                del self._holders[key]
        return False, None

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As :meth:`request_finished`."""
        return self.request_finished(request, [])

    def _shares(self, request: Request) -> bool:
        """Models with several kinds of caches, prompts that are not only tokens, and what was preempted with
        tokens of its own are left to vLLM."""
        return (
            self._one_group
            and request.prompt_token_ids is not None
            and not request.mm_features
            and request.num_output_tokens == 0
        )

    def _others(self, request: Request) -> Iterable[Request]:
        holders = self._holders.get(_key(request), {})
        return (other for name, other in holders.items() if name != request.request_id)

    # In a worker.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Keeps the caches, ``[blocks, ...]``; layers may share one."""
        self._caches = list({cache.data_ptr(): cache for cache in kv_caches.values()}.values())

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Copies, before the step computes."""
        copies = self._get_connector_metadata()
        assert isinstance(copies, BlockCopies)
        if copies.sources:
            sources, targets = torch.tensor(copies.sources), torch.tensor(copies.targets)
            for cache in self._caches:
                cache.index_copy_(0, targets, cache.index_select(0, sources))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Everything was copied before."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing is kept elsewhere."""

    def wait_for_save(self) -> None:
        """Nothing is kept elsewhere."""


def _key(request: Request) -> Key:
    """Equal for requests whose keys and values over the prompt are equal."""
    adapter = request.lora_request.lora_path if request.lora_request is not None else None
    return adapter, request.cache_salt, tuple(request.prompt_token_ids or ())


def _has_prompt(request: Request) -> bool:
    """Whether an earlier step computes the last of its prompt."""
    return request.num_computed_tokens >= request.num_prompt_tokens
