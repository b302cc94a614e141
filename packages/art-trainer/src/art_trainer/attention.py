"""Attention over a packed forest of token trees.

Invariant: query ``q`` sees key ``k`` exactly when ``k <= q < subtree_end[k]``, that is when ``k`` is ``q``
or one of its ancestors. The rule is cut into blocks of consecutive queries. A block reads only the keys
that some of its queries can see (those before its end whose subtree reaches into it), so siblings and other
trees cost nothing, and its mask is made once per row and shared by all layers. Work and memory are
proportional to the keys that a block can see, not to the square of the row.

Rotary embedding is part of the rule, since a token's position is its depth in the tree and not its place in
the row. The backward pass computes the scores of a block again; no score outlives its block.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from art_trainer.errors import BatchError

QUERY_BLOCK = 64
"""Queries per block: long enough for the matrix products, short enough to leave siblings out."""


@dataclass(frozen=True)
class _Block:
    start: int
    end: int
    keys: slice | Tensor  # positions in the row, ascending
    bias: Tensor  # [(end - start) * heads per group, keys]: 0 where visible, else -inf

    def gather(self, tensor: Tensor) -> Tensor:
        """The block's keys of ``[groups, T, d]``."""
        return tensor[:, self.keys] if isinstance(self.keys, slice) else tensor.index_select(1, self.keys)

    def scatter_add(self, total: Tensor, part: Tensor) -> None:
        """Adds ``part`` to the block's keys of ``total`` ``[groups, T, d]``."""
        if isinstance(self.keys, slice):
            total[:, self.keys] += part
        else:
            total.index_add_(1, self.keys, part)


@dataclass(frozen=True)
class ForestPlan:
    """One packed row as attention sees it; made once, read by every layer in place of an attention mask."""

    length: int
    blocks: tuple[_Block, ...]
    cosine: Tensor  # [1, T, 1, d / 2]
    sine: Tensor

    @property
    def score_count(self) -> int:
        """Attention scores that are computed per query head."""
        return sum((block.end - block.start) * block.bias.shape[1] for block in self.blocks)


def plan_forest(
    subtree_end: np.ndarray,
    position_ids: np.ndarray,
    inverse_frequencies: Tensor,
    *,
    heads_per_group: int,
    dtype: torch.dtype,
    block: int = QUERY_BLOCK,
) -> ForestPlan:
    """Plans the attention of one row.

    Args:
        subtree_end: integer ``[T]``: one past the last descendant of each token, in the row.
        position_ids: integer ``[T]``: the depth of each token, which rotates its query and key.
        inverse_frequencies: float32 ``[d / 2]``, of the rotary embedding.
        heads_per_group: query heads that share one key/value head.
        dtype: of the activations.
        block: most queries in one block.

    Raises:
        BatchError: a subtree does not contain its own token, or ends behind the row.
    """
    end = np.asarray(subtree_end, dtype=np.int64)
    length = len(end)
    position = np.arange(length)
    wrong = np.nonzero((end <= position) | (end > length))[0]
    if len(wrong):
        first = int(wrong[0])
        raise BatchError(
            f"subtree_end[{first}] is {int(end[first])}; it must be above {first} and at most {length}, "
            "the length of the row"
        )
    blocks = []
    for start in range(0, length, block):
        stop = min(length, start + block)
        keys = np.nonzero(end[:stop] > start)[0]
        queries = position[start:stop, None]
        hidden = (keys > queries) | (queries >= end[keys])
        bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(torch.from_numpy(hidden), -math.inf)
        contiguous = int(keys[-1]) - int(keys[0]) + 1 == len(keys)
        chosen = slice(int(keys[0]), int(keys[-1]) + 1) if contiguous else torch.from_numpy(keys)
        blocks.append(_Block(start, stop, chosen, bias.repeat_interleave(heads_per_group, 0)))
    angles = torch.from_numpy(np.asarray(position_ids, dtype=np.float32))[:, None] * inverse_frequencies
    return ForestPlan(
        length,
        tuple(blocks),
        angles.cos().to(dtype)[None, :, None],
        angles.sin().to(dtype)[None, :, None],
    )


def forest_attention(query: Tensor, key: Tensor, value: Tensor, plan: ForestPlan, scale: float) -> Tensor:
    """Rotates queries and keys and attends along the tree.

    Args:
        query: floating ``[T, heads, d]``, before the rotary embedding.
        key: floating ``[T, groups, d]``, before the rotary embedding; ``heads`` is a multiple of ``groups``.
        value: floating ``[T, groups, d]``.
        plan: of a row of ``T`` tokens.
        scale: factor of the scores, usually ``1 / sqrt(d)``.

    Returns:
        ``[T, heads * d]``, with gradients for ``query``, ``key`` and ``value``.
    """
    result: Tensor = _ForestAttention.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        query, key, value, plan, scale
    )
    return result


class ForestAttention(torch.nn.Module):
    """Core attention for Megatron's layer spec; its ``attention_mask`` is a :class:`ForestPlan`."""

    def __init__(self, *, config: Any, softmax_scale: float | None = None, **_: Any) -> None:
        """Reads the head size from Megatron's config; the other arguments of the spec do not matter here."""
        super().__init__()
        self.scale = softmax_scale if softmax_scale is not None else 1 / math.sqrt(config.kv_channels)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: ForestPlan, **_: Any
    ) -> Tensor:
        """As :func:`forest_attention`, with Megatron's batch dimension of 1 after ``T``."""
        return forest_attention(query[:, 0], key[:, 0], value[:, 0], attention_mask, self.scale)[:, None]


class _ForestAttention(torch.autograd.Function):
    """Queries are kept ``[groups, T, heads per group, d]``: a block's are one matrix per group."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: ForestPlan, scale: float
    ) -> Tensor:
        groups = key.shape[1]
        queries = _rotate(
            query.reshape(plan.length, groups, -1, query.shape[2]).transpose(0, 1), plan.cosine, plan.sine
        )
        keys = _rotate(key.transpose(0, 1)[:, :, None], plan.cosine, plan.sine)[:, :, 0]
        values = value.transpose(0, 1).contiguous()
        output = torch.empty_like(queries)
        for block in plan.blocks:
            weights = _block_weights(queries, block.gather(keys), block, scale)
            part = torch.bmm(weights, block.gather(values))
            output[:, block.start : block.end] = part.view_as(output[:, block.start : block.end])
        result = output.transpose(0, 1).flatten(1)
        ctx.plan, ctx.scale = plan, scale
        ctx.save_for_backward(queries, keys, values, result)  # the next layer keeps the result too
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        queries, keys, values, result = ctx.saved_tensors
        plan: ForestPlan = ctx.plan
        by_head = (plan.length, queries.shape[0], *queries.shape[2:])
        mean = torch.linalg.vecdot(grad.view(by_head), result.view(by_head)).transpose(0, 1)[..., None]
        upstream = grad.view(by_head).transpose(0, 1).contiguous()
        grad_queries = torch.empty_like(queries)
        grad_keys, grad_values = torch.zeros_like(keys), torch.zeros_like(values)
        for block in plan.blocks:
            block_keys, part = block.gather(keys), slice(block.start, block.end)
            weights = _block_weights(queries, block_keys, block, ctx.scale)
            block_upstream = upstream[:, part].flatten(1, 2)
            block.scatter_add(grad_values, torch.bmm(weights.transpose(1, 2), block_upstream))
            grad_scores = torch.bmm(block_upstream, block.gather(values).transpose(1, 2))
            grad_scores.sub_(mean[:, part].flatten(1, 2)).mul_(weights).mul_(ctx.scale)
            grad_queries[:, part] = torch.bmm(grad_scores, block_keys).view_as(grad_queries[:, part])
            block.scatter_add(
                grad_keys, torch.bmm(grad_scores.transpose(1, 2), queries[:, part].flatten(1, 2))
            )
        # A rotation's gradient is the rotation back.
        grad_query = _rotate(grad_queries, plan.cosine, -plan.sine).transpose(0, 1).flatten(1, 2)
        grad_key = _rotate(grad_keys[:, :, None], plan.cosine, -plan.sine)[:, :, 0].transpose(0, 1)
        return grad_query, grad_key, grad_values.transpose(0, 1), None, None


def _block_weights(queries: Tensor, block_keys: Tensor, block: _Block, scale: float) -> Tensor:
    """Attention weights ``[groups, queries * heads per group, keys]`` of one block."""
    stacked = queries[:, block.start : block.end].flatten(1, 2)
    scores = torch.baddbmm(block.bias[None], stacked, block_keys.transpose(1, 2), alpha=scale)
    return torch.softmax(scores, -1)


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotates ``[groups, T, heads, d]`` in the planes of elements ``i`` and ``i + d / 2``; contiguous."""
    result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    first, second = x.chunk(2, -1)
    out_first, out_second = result.chunk(2, -1)
    torch.mul(first, cosine, out=out_first)
    out_first.addcmul_(second, sine, value=-1)
    torch.mul(second, cosine, out=out_second)
    out_second.addcmul_(first, sine)
    return result
