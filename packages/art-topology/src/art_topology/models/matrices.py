"""The weights of a layer as a list: everything else (parameters, FLOPs, adapters, shards) is a sum over
it."""

import math
from typing import Literal

import msgspec

Part = Literal[
    "embedding",
    "output",
    "attention",
    "indexer",
    "dense_mlp",
    "routed_experts",
    "shared_experts",
    "router",
    "norms",
    "other",
]
"""What a weight belongs to. ``indexer`` selects the keys of sparse attention; ``other`` is what has no name
in most models: per-layer embeddings, hyper-connections, the joining matrix of a multi-token-prediction
layer."""

Divided = Literal["columns", "rows", "none"]
"""How tensor parallelism divides a matrix: its outputs (``columns``), its inputs (``rows``), or not at
all."""


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """A linear map of ``inputs`` to ``outputs`` features, ``copies`` times (experts, groups of heads).

    Args:
        name: As the layer calls it, such as ``q`` or ``expert_down``.
        part: What it belongs to.
        inputs: Features of its input.
        outputs: Features of its output.
        bias: It adds a vector of ``outputs``.
        copies: How many of it there are, each with weights of its own.
        active: How many of the copies one token goes through.
        divided: How tensor parallelism divides each copy. Routed experts are divided by expert tensor
            parallelism instead, and their copies by expert parallelism.
        units: Into how many equal pieces the divided side may be cut (attention heads); by default any
            number.
        divided_copies: Tensor parallelism divides the copies instead (groups of heads).
        adapted: It is one of the linear layers that adapters can be attached to.
    """

    name: str
    part: Part
    inputs: int
    outputs: int
    bias: bool = False
    copies: int = 1
    active: int = 1
    divided: Divided = "none"
    units: int | None = None
    divided_copies: bool = False
    adapted: bool = True

    @property
    def parameter_count(self) -> int:
        """Parameters of all copies: weights and biases."""
        return self.copies * (self.inputs * self.outputs + (self.outputs if self.bias else 0))

    @property
    def active_parameter_count(self) -> int:
        """Parameters that one token uses: weights and biases."""
        return self.active * (self.inputs * self.outputs + (self.outputs if self.bias else 0))

    @property
    def forward_flops(self) -> int:
        """FLOPs of one token: a multiplication and an addition for each weight it uses; biases do not
        count."""
        return 2 * self.active * self.inputs * self.outputs

    def adapter_parameter_count(self, rank: int) -> int:
        """Weights of low-rank adapters on all copies: ``rank`` times inputs plus outputs, each."""
        return self.copies * rank * (self.inputs + self.outputs) if self.adapted else 0

    def local(self, tp: int, ep: int = 1) -> "Matrix":
        """The largest share of a rank: columns or rows over ``tp``, copies over ``ep``.

        Pieces that cannot be cut are rounded up; with more ranks than pieces each rank holds one (so it is
        held more than once). ``tp`` is the expert tensor parallelism for routed experts.
        """
        copies = math.ceil(self.copies / ep)
        if self.divided_copies:
            copies = math.ceil(copies / tp)
            return msgspec.structs.replace(self, copies=copies, active=min(self.active, copies))
        inputs, outputs = self.inputs, self.outputs
        if self.divided == "columns":
            outputs = _share(outputs, self.units, tp)
        elif self.divided == "rows":
            inputs = _share(inputs, self.units, tp)
        return msgspec.structs.replace(self, inputs=inputs, outputs=outputs, copies=copies)


class Vector(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that are not a linear map: norms, gates, sinks, position biases, short convolutions.

    Args:
        name: As the layer calls it.
        part: What it belongs to.
        size: How many weights.
        divided: Tensor parallelism divides it.
    """

    name: str
    part: Part
    size: int
    divided: bool = False

    def local(self, tp: int) -> int:
        """The largest share of one of ``tp`` ranks."""
        return math.ceil(self.size / tp) if self.divided else self.size


def _share(size: int, units: int | None, ranks: int) -> int:
    if units is None:
        return math.ceil(size / ranks)
    return size // units * math.ceil(units / ranks)
