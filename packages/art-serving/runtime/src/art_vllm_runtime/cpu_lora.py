"""Adapters on CPU: two small matrix products per layer and adapter, over the rows that use it.

vLLM 0.32 gathers a copy of the adapter's weights for every token, and takes the index -1 of rows without an
adapter for the last slot, so that rows of the base model in a mixed batch get the adapter. This replaces its
path for linear layers and needs neither.
"""

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

type Rows = torch.Tensor | None
"""Indices of rows, or None for all of them."""


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
        inputs = (x if rows is None else x[rows]).float()
        start = 0
        for a, b, size in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            hidden = (inputs @ a[slot, 0].float().T).mul_(scale).to(y.dtype)
            part = y[:, start : start + size]
            if rows is None:
                part += hidden @ b[slot, 0].T
            else:
                part.index_add_(0, rows, hidden @ b[slot, 0].T)
            start += size


_original_update_metadata = PunicaWrapperCPU.update_metadata


def install() -> None:
    """Replaces vLLM's path. Idempotent."""
    PunicaWrapperCPU.update_metadata = _update_metadata
    PunicaWrapperCPU.add_lora_linear = _add_lora_linear
