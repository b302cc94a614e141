"""What the time of a layer is told in: its kinds, how it is divided, and what a rank gathers."""

from typing import Literal, get_args

import msgspec

from art_topology.models import AttentionShape, GatedDeltaNetShape, GqaShape, MlaShape

Kind = Literal["products", "adapters", "attention", "indexer", "kernels", "launches", "tp", "cp", "ep"]
"""What takes time: ``kernels`` are those bound by memory, ``launches`` what the host needs beyond all
kernels."""
KINDS: tuple[Kind, ...] = get_args(Kind)

Times = tuple[float, ...]
"""Seconds for each of :data:`KINDS`."""


class Division(msgspec.Struct, frozen=True):
    """What decides the time of a layer: tensor, context, expert and expert tensor parallelism."""

    tp: int
    cp: int
    ep: int
    etp: int


class LayerTime(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one layer (or of embedding and head) for one row on one rank, for each of :data:`KINDS`.

    Args:
        forward: Of the forward pass.
        backward: Of the backward pass, without recomputation.
        again_s: What selective recomputation computes again, in all.
    """

    forward: Times
    backward: Times
    again_s: float = 0.0

    @property
    def forward_s(self) -> float:
        """All of the forward pass."""
        return sum(self.forward)

    @property
    def backward_s(self) -> float:
        """All of the backward pass, without recomputation."""
        return sum(self.backward)


def context_numbers(shape: AttentionShape, tokens: float, division: Division) -> float:
    """Numbers that the ranks of a context-parallel group have together after gathering keys and values.

    A sliding window needs no more than its length from each neighbour; a recurrence passes its state on.
    """
    if isinstance(shape, GatedDeltaNetShape):
        return shape.state_bytes(1, division.tp) * division.cp
    if isinstance(shape, GqaShape):
        if shape.shares_kv:
            return 0.0
        heads = -(-shape.kv_heads // division.tp)
        seen = tokens if shape.window is None else min(tokens, shape.window * division.cp)
        return seen * heads * (shape.head_dim + shape.value_dim)
    if isinstance(shape, MlaShape):
        index = shape.indexer.head_dim if shape.indexer else 0
        return tokens * (shape.kv_rank + shape.rope_dim + index)
    index = shape.indexer.head_dim if shape.indexer else 0
    entries = 0.0 if shape.rate is None else tokens / shape.rate * (shape.head_dim + index)
    return entries + min(tokens, shape.window * division.cp) * shape.head_dim
