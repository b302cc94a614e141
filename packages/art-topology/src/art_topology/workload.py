"""The workload: what one training step and its rollouts consist of, as far as bytes and time depend on it.

All lengths are means over the batch, in tokens. A *row* is one packed sequence of ``packed_sequence_length``
tokens; a microbatch is one row on one data-parallel rank (the trainer executes batch size one). A *group* is
``group_size`` completions of one prompt.
"""

import math
from typing import Literal

from art_topology.spec import Count, Spec

__all__ = ["DTYPE_BYTES", "Dtype", "LoraTarget", "Offload", "Recompute", "WorkloadSpec"]

Dtype = Literal["bfloat16", "float16", "float32"]
"""Of weights and activations."""

DTYPE_BYTES: dict[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of one number of each dtype."""

Recompute = Literal["none", "selective", "full"]
"""Activations that the backward pass computes again: none, the core of attention, or whole layers."""

Offload = Literal["optimizer", "activations", "weights"]
"""What can lie in host memory."""

LoraTarget = Literal["attention", "mlp", "experts", "output"]
"""Matrices that adapters are attached to: projections of attention (all kinds), of dense and shared MLPs, of
routed experts, and the vocabulary head."""


class WorkloadSpec(Spec, frozen=True, kw_only=True):
    """One training step and the rollouts that feed it.

    Args:
        packed_sequence_length: Tokens of one packed row.
        groups_per_step: Prompts per optimizer step.
        group_size: Completions of each prompt.
        prompt_tokens: Mean length of a prompt, in tokens.
        completion_tokens: Mean length of a completion, in tokens.
        concurrent_requests: Completions that the services hold at once; by default all of a step.
        lora_rank: Rank of the adapters; None trains the full weights.
        lora_targets: What adapters are attached to; by default all linear layers except the vocabulary head.
        dtype: Weights and activations of the trainer and the services.
        optimizer: AdamW, with moments (and a master copy, unless the weights are float32) in float32.
        distributed_optimizer: Optimizer states are divided among the data-parallel ranks.
        recompute: Activations that the backward pass computes again: none, the core of attention
            (``selective``), or whole layers (``full``), which keep only their input.
        recompute_layers: With ``full``: layers of each (virtual) stage that are recomputed; by default all.
        offload: What lies in host memory while it is not in use.
        prompt_sharing: Prompts that completions share are stored and computed once in a row.
    """

    packed_sequence_length: Count
    groups_per_step: Count
    group_size: Count
    prompt_tokens: Count
    completion_tokens: Count
    concurrent_requests: Count | None = None
    lora_rank: Count | None = None
    lora_targets: tuple[LoraTarget, ...] = ("attention", "mlp", "experts")
    dtype: Dtype = "bfloat16"
    optimizer: Literal["adamw"] = "adamw"
    distributed_optimizer: bool = True
    recompute: Recompute = "none"
    recompute_layers: Count | None = None
    offload: tuple[Offload, ...] = ()
    prompt_sharing: bool = True

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one weight or activation."""
        return DTYPE_BYTES[self.dtype]

    @property
    def completions_per_step(self) -> int:
        """Completions of one step: groups times group size."""
        return self.groups_per_step * self.group_size

    @property
    def logical_tokens_per_step(self) -> int:
        """Tokens as separate sequences: every completion with a prompt of its own."""
        return self.completions_per_step * (self.prompt_tokens + self.completion_tokens)

    @property
    def group_tokens(self) -> int:
        """Physical tokens of one group: the prompt once with ``prompt_sharing``, else once per completion."""
        prompts = 1 if self.prompt_sharing else self.group_size
        return prompts * self.prompt_tokens + self.group_size * self.completion_tokens

    @property
    def physical_tokens_per_step(self) -> int:
        """Tokens that the trainer computes. A group longer than a row is cut, and its prompt is repeated in
        each row; what a row cannot fill is not counted."""
        length, prompt, completion = self.packed_sequence_length, self.prompt_tokens, self.completion_tokens
        if not self.prompt_sharing or self.group_tokens <= length:
            return self.groups_per_step * self.group_tokens
        per_row = max(1, (length - prompt) // completion)
        prompts = math.ceil(self.group_size / per_row)
        return self.groups_per_step * (prompts * prompt + self.group_size * completion)

    @property
    def rows_per_step(self) -> int:
        """Packed rows of one step, over all data-parallel ranks."""
        return max(1, math.ceil(self.physical_tokens_per_step / self.packed_sequence_length))

    @property
    def requests_in_flight(self) -> int:
        """``concurrent_requests``, or all completions of a step."""
        return self.concurrent_requests or self.completions_per_step
