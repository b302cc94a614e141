"""What vLLM 0.32 does step by step on a CPU though one pass is enough.

The norms use vLLM's own fused kernels, which it takes on GPUs only; their results differ from the composed
operations by rounding. New blocks of the KV cache are zeroed together instead of one by one.
"""

from typing import Any

import torch
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.cpu_model_runner import CPUModelRunner


def _rms_norm(
    self: RMSNorm, x: torch.Tensor, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``x``, ``residual`` ``[..., H]``; with a residual both are overwritten and returned, as by vLLM."""
    weight = self.weight.data if self.has_weight else None
    fits = weight is not None and weight.dtype == x.dtype and self.variance_size_override is None
    if not fits or not x.is_contiguous() or (residual is not None and not residual.is_contiguous()):
        return self.forward_native(x, residual)
    if residual is None:
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, weight, self.variance_epsilon)
        return out
    torch.ops._C.fused_add_rms_norm(x, residual, weight, self.variance_epsilon)
    return x, residual


def _zero_block_ids(self: Any, block_ids: list[int]) -> None:
    """As vLLM's, with one operation per cache."""
    blocks = torch.tensor(block_ids)
    seen: set[int] = set()
    for group in self.kv_cache_config.kv_cache_groups:
        if not isinstance(group.kv_cache_spec, FullAttentionSpec):
            continue
        for name in group.layer_names:
            layer = self.compilation_config.static_forward_context.get(name)
            cache = layer.kv_cache if layer is not None else None
            if isinstance(cache, torch.Tensor) and cache.data_ptr() not in seen:
                seen.add(cache.data_ptr())
                cache.index_fill_(0, blocks, 0)


def install() -> None:
    """Replaces vLLM's. Idempotent."""
    RMSNorm.forward_cpu = _rms_norm
    CPUModelRunner._zero_block_ids = _zero_block_ids
