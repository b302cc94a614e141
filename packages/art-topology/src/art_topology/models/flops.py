"""Floating-point operations of one token, by part: forward, and backward as far as gradients are needed.

One multiplication and addition are two FLOPs. The backward pass of a matrix costs as much again for the
gradient of its input, and as much again for the gradient of its weights; a frozen matrix (LoRA) saves the
latter, so that training costs 4 FLOPs per weight instead of 6. The core of attention costs twice its forward
pass; that kernels compute scores again in the backward pass is the kernels' affair, not the model's. What
only selects (the indexer of sparse attention) has no backward pass.
"""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from art_topology.models.description import LayerShape, ModelDescription
from art_topology.models.matrices import Matrix
from art_topology.workload import WorkloadSpec

_NAMES = {
    "attention": "attention projections",
    "indexer": "indexer",
    "dense_mlp": "dense MLP",
    "routed_experts": "routed experts",
    "shared_experts": "shared experts",
    "router": "router",
    "output": "vocabulary head",
    "other": "other",
}
_TARGETS = {
    "attention": "attention",
    "dense_mlp": "mlp",
    "shared_experts": "mlp",
    "routed_experts": "experts",
    "output": "output",
}


class FlopPart(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs of one token in one part of the model.

    Args:
        name: The part, such as "routed experts" or "attention core".
        forward_flops: Of the forward pass.
        backward_flops: Of the backward pass.
        why: Where they come from, in one line.
    """

    name: str
    forward_flops: float
    backward_flops: float
    why: str


class FlopCount(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs of one token by ``parts``."""

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

    def part(self, name: str) -> FlopPart | None:
        """The part of that ``name``; None if the model has none."""
        return next((part for part in self.parts if part.name == name), None)


def flops_per_token(
    model: ModelDescription, context_tokens: float, workload: WorkloadSpec | None = None
) -> FlopCount:
    """FLOPs of one token of a model, mean over a causal sequence of ``context_tokens`` tokens.

    Layers of multi-token prediction are not in it.

    Args:
        model: The model.
        context_tokens: Length in tokens of the sequence that attention sees (a document, not a packed row).
        workload: Says whether adapters are trained (``lora_rank``); by default the full weights are.
    """
    parts = [
        (part, times)
        for layer, times in Counter(model.layers).items()
        for part in layer_flops(layer, context_tokens, workload).parts
    ]
    ends = linear_flops((*model.head_matrices(), *model.embedding_matrices()), workload)
    return _summed([*parts, *((part, 1) for part in ends.parts)])


@lru_cache(maxsize=4096)
def layer_flops(layer: LayerShape, context_tokens: float, workload: WorkloadSpec | None = None) -> FlopCount:
    """FLOPs of one token in one layer, as :func:`flops_per_token` counts them.

    Args:
        layer: The layer.
        context_tokens: Length in tokens of the sequence that attention sees.
        workload: Says whether adapters are trained; by default the full weights are.
    """
    parts = [*linear_flops(layer.matrices(), workload).parts]
    core = layer.attention.core_flops(context_tokens)
    parts.append(
        FlopPart(
            name="attention core",
            forward_flops=core,
            backward_flops=2 * core,
            why=f"scores and values of {layer.attention.core_width:,} features, mean over "
            f"{context_tokens:,.0f} positions, backward twice that",
        )
    )
    if index := layer.attention.indexer_flops(context_tokens):
        why = f"scores against all keys before, mean over {context_tokens:,.0f} positions, not differentiated"
        parts.append(FlopPart(name="indexer", forward_flops=index, backward_flops=0.0, why=why))
    return _summed((part, 1) for part in parts)


def linear_flops(matrices: Iterable[Matrix], workload: WorkloadSpec | None = None) -> FlopCount:
    """FLOPs of one token in these matrices and in the adapters on them."""
    return _summed((part, 1) for part in _matrix_parts(matrices, workload))


def adapted(matrix: Matrix, workload: WorkloadSpec) -> bool:
    """Whether the workload attaches an adapter to a matrix."""
    targeted = _TARGETS.get(matrix.part) in workload.lora_targets
    return workload.lora_rank is not None and matrix.adapted and targeted


def _matrix_parts(matrices: Iterable[Matrix], workload: WorkloadSpec | None) -> list[FlopPart]:
    rank = workload.lora_rank if workload else None
    parts = []
    for matrix in matrices:
        forward = matrix.forward_flops
        times = 0 if matrix.part == "indexer" else 1 if rank else 2
        weights = f"2 * {matrix.active} * {matrix.inputs:,} * {matrix.outputs:,}"
        why = f"{matrix.name}: {weights}, backward {times} times"
        name = _NAMES[matrix.part]
        parts.append(FlopPart(name=name, forward_flops=forward, backward_flops=times * forward, why=why))
        if workload and rank and adapted(matrix, workload):
            low = 2.0 * matrix.active * rank * (matrix.inputs + matrix.outputs)
            why = f"{matrix.name}: 2 * {matrix.active} * {rank} * ({matrix.inputs:,} + {matrix.outputs:,})"
            parts.append(FlopPart(name="adapters", forward_flops=low, backward_flops=2 * low, why=why))
    return parts


def _summed(parts: Iterable[tuple[FlopPart, int]]) -> FlopCount:
    """One part for each name, each taken so many times."""
    groups: dict[str, list[tuple[FlopPart, int]]] = {}
    for part, times in parts:
        groups.setdefault(part.name, []).append((part, times))
    return FlopCount(
        parts=tuple(
            FlopPart(
                name=name,
                forward_flops=sum(times * part.forward_flops for part, times in group),
                backward_flops=sum(times * part.backward_flops for part, times in group),
                why="; ".join(part.why if n == 1 else f"{n} x ({part.why})" for part, n in group),
            )
            for name, group in groups.items()
        )
    )
