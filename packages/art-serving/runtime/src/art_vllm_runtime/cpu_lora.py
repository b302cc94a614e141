"""Adapters on CPU: two small matrix products per layer and adapter, over the rows that use it.

vLLM 0.32 gathers a copy of the adapter's weights for every token, and takes the index -1 of rows without an
adapter for the last slot, so that rows of the base model in a mixed batch get the adapter. This replaces its
path for linear layers and needs neither.

The parts of a fused layer (queries, keys and values; gate and up) are one product each way: their A are
stacked, and their B stand on the diagonal of one matrix with zeros elsewhere. The rank is so small that the
zeros cost less than another pass over the output would. What always holds: a fused pair is made from the
weights of the active adapter; :func:`forget` is called whenever these change.
"""

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

type Rows = torch.Tensor | None
"""Indices of rows, or None for all of them."""

_fused: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
"""By the address of a layer's first A and the slot: A of all parts ``[in, k]``, B ``[k, out]``."""


def forget() -> None:
    """The weights of an adapter are about to change."""
    _fused.clear()


def groups_of(slots: torch.Tensor) -> list[tuple[int, Rows]]:
    """Per slot that is in use the rows that use it; rows with slot -1 use none."""
    found = torch.unique(slots).tolist()
    if len(found) == 1:
        return [] if found[0] < 0 else [(found[0], None)]
    return [(slot, torch.nonzero(slots == slot).flatten()) for slot in found if slot >= 0]


def _update_metadata(self: Any, *args: Any, **kwargs: Any) -> None:
    _original_update_metadata(self, *args, **kwargs)
    self.art_groups = groups_of(self.token_lora_indices)


def _add_lora_linear(
    self: Any,
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
    **_: Any,
) -> None:
    """``y[rows] += scale * x[rows] @ A.T @ B.T`` per slice of the output; the inner product in float32."""
    x = x.view(-1, x.shape[-1])
    y = y.view(-1, y.shape[-1])
    for slot, rows in self.art_groups:
        a, b = _fused_pair(slot, lora_a_stacked, lora_b_stacked, output_slices)
        inputs = (x if rows is None else x[rows]).float()
        hidden = (inputs @ a).to(y.dtype)
        if rows is None:
            y.addmm_(hidden, b, alpha=scale)
        else:
            y.index_add_(0, rows, hidden @ b, alpha=scale)


def _fused_pair(
    slot: int,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    output_slices: tuple[int, ...],
) -> tuple[torch.Tensor, torch.Tensor]:
    key = lora_a_stacked[0].data_ptr(), slot
    pair = _fused.get(key)
    if pair is None:
        a = torch.cat([part[slot, 0] for part in lora_a_stacked]).float()
        # vLLM's buffers may have room for more rows than the slice has.
        parts = [part[slot, 0, :size] for part, size in zip(lora_b_stacked, output_slices, strict=True)]
        pair = _fused[key] = a.t(), torch.block_diag(*parts).t().contiguous()
    return pair


def _no_adapter(self: Any, *_: Any, **__: Any) -> None:
    """Embeddings and heads have none: snapshots with such adapters are refused (``worker_extension``)."""


_original_update_metadata = PunicaWrapperCPU.update_metadata


def install() -> None:
    """Replaces vLLM's path. Idempotent."""
    PunicaWrapperCPU.update_metadata = _update_metadata
    PunicaWrapperCPU.add_lora_linear = _add_lora_linear
    PunicaWrapperCPU.add_lora_logits = _no_adapter
    PunicaWrapperCPU.add_lora_embedding = _no_adapter
