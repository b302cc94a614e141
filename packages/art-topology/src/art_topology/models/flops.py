"""Floating-point operations of one token, by part: forward, and backward as far as gradients are needed.

One multiplication and addition are two FLOPs. The backward pass of a matrix costs as much again for the
gradient of its input, and as much again for the gradient of its weights; a frozen matrix (LoRA) saves the
latter. The core of attention costs twice its forward pass; that kernels compute scores again in the backward
pass is the kernels' affair, not the model's.
"""

import msgspec

from art_topology.models.description import LayerShape, ModelDescription
from art_topology.models.matrices import Matrix
from art_topology.workload import WorkloadSpec


class FlopPart(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs of one token in one part of the model, forward and backward, and where they come from."""

    name: str
    forward_flops: float
    backward_flops: float
    why: str


class FlopCount(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs of one token by part."""

    parts: tuple[FlopPart, ...]

    @property
    def forward_flops(self) -> float:
        """Of the forward pass."""
        return sum(part.forward_flops for part in self.parts)

    @property
    def backward_flops(self) -> float:
        """Of the backward pass."""
        return sum(part.backward_flops for part in self.parts)

    @property
    def total_flops(self) -> float:
        """Of both passes."""
        return self.forward_flops + self.backward_flops


def flops_per_token(
    model: ModelDescription, context_tokens: float, workload: WorkloadSpec | None = None
) -> FlopCount:
    """FLOPs of one token of a model, mean over a causal sequence of ``context_tokens`` tokens.

    Args:
        model: The model.
        context_tokens: Length of the sequence that attention sees (a document, not a packed row).
        workload: Says whether adapters are trained (``lora_rank``); by default the full weights are.
    """
    raise NotImplementedError


def layer_flops(layer: LayerShape, context_tokens: float, workload: WorkloadSpec | None = None) -> FlopCount:
    """The same for one layer."""
    raise NotImplementedError


def adapted(matrix: Matrix, workload: WorkloadSpec) -> bool:
    """Whether the workload attaches an adapter to a matrix."""
    if workload.lora_rank is None:
        return False
    target = {
        "attention": "attention",
        "dense_mlp": "mlp",
        "shared_experts": "mlp",
        "routed_experts": "experts",
        "output": "output",
    }.get(matrix.part)
    return matrix.adapted and target in workload.lora_targets
