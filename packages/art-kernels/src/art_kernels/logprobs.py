"""Log-probabilities of selected tokens without ever holding all logits.

Invariants: logits exist for one chunk of rows at a time and only at the positions that a loss entry names;
a row that several entries share (a branch point predicts many tokens) is computed once; the arithmetic after
the projection is float32, or float64 when the hidden states are.

The gradient needs no logits either while the output weight is frozen: with ``p = softmax(W h / t)`` the
derivative of ``log p[target]`` with respect to ``h`` is ``(W[target] - p W) / t``, and ``p W`` has the size
of ``h``. The forward pass keeps it, so backward is a gather and a sum. Only when the weight itself is trained
does backward compute the chunks again.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

DEFAULT_CHUNK_BYTES = 32 * 1024 * 1024
"""Most bytes of logits held at once, unless one row alone is larger."""

_VOCABULARY_BLOCK = 4096


class SelectedLogprobs(NamedTuple):
    """Per loss entry, ``[L]`` each, float32 (float64 for float64 hidden states).

    ``logprobs`` carries gradients; ``entropy`` (nats, of the distribution an entry was drawn from) does not.
    """

    logprobs: Tensor
    entropy: Tensor | None


class _Rows(NamedTuple):
    """The distinct distributions behind ``L`` entries, and the entries sorted by them."""

    source: Tensor  # int64 [D], ascending: index into the hidden states
    temperature: Tensor  # compute dtype [D]
    order: Tensor  # int64 [L]: entries sorted by row
    row_of: Tensor  # int64 [L]: row of the sorted entries, ascending
    bounds: list[int]  # chunk c holds rows [bounds[c], bounds[c + 1])
    entry_bounds: list[int]  # and sorted entries [entry_bounds[c], entry_bounds[c + 1])


def selected_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: Tensor,
    *,
    source: Tensor | None = None,
    with_entropy: bool = False,
    chunk_byte_count: int = DEFAULT_CHUNK_BYTES,
) -> SelectedLogprobs:
    """Computes ``log_softmax(hidden[source] @ weight.T / temperature)[targets]`` chunk by chunk.

    Args:
        hidden: floating ``[N, H]``; may require grad.
        weight: floating ``[V, H]``, the output projection; its gradient is computed only if it requires grad.
        targets: integer ``[L]``, in ``[0, V)``.
        temperature: floating ``[L]``, above 0; the logits of an entry are divided by it.
        source: integer ``[L]``, in ``[0, N)``: the row of ``hidden`` that predicts each entry. ``None`` means
            row ``l`` for entry ``l`` and needs ``N == L``.
        with_entropy: also return the entropy of each entry's distribution.
        chunk_byte_count: bound on the bytes of logits held at once; at least one row is always computed.

    Raises:
        ValueError: shapes or dtypes do not fit, an index is out of range, or a temperature is not above 0.
    """
    if source is None:
        source = torch.arange(hidden.shape[0], device=hidden.device)
    _check(hidden, weight, targets, temperature, source, chunk_byte_count)
    compute = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    rows = _distinct_rows(source.long(), temperature.to(compute), weight.shape[0], chunk_byte_count)
    logprobs, entropy = _SelectedLogprobs.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        hidden, weight, targets.long(), rows, with_entropy
    )
    return SelectedLogprobs(logprobs, entropy if with_entropy else None)


def _check(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: Tensor,
    source: Tensor,
    chunk_byte_count: int,
) -> None:
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"hidden {tuple(hidden.shape)} and weight {tuple(weight.shape)} must be [N, H] and [V, H], one H"
        )
    if hidden.dtype != weight.dtype:
        raise ValueError(f"hidden is {hidden.dtype} but weight is {weight.dtype}; convert one of them")
    count = targets.shape[0] if targets.dim() == 1 else -1
    for name, tensor in (("targets", targets), ("temperature", temperature), ("source", source)):
        if tuple(tensor.shape) != (count,):
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; targets, temperature and source must be [L]"
            )
    if chunk_byte_count < 1:
        raise ValueError(f"chunk_byte_count is {chunk_byte_count}; it must be at least 1")
    if count == 0:
        return
    for name, tensor, end in (("targets", targets, weight.shape[0]), ("source", source, hidden.shape[0])):
        low, high = int(tensor.min()), int(tensor.max())
        if low < 0 or high >= end:
            raise ValueError(f"{name} reaches from {low} to {high}; it must stay in [0, {end})")
    if not bool((temperature > 0).all()):
        raise ValueError(f"the lowest temperature is {float(temperature.min())}; every one must be above 0")


def _distinct_rows(source: Tensor, temperature: Tensor, vocabulary: int, chunk_byte_count: int) -> _Rows:
    by_temperature = torch.argsort(temperature, stable=True)
    order = by_temperature[torch.argsort(source[by_temperature], stable=True)]
    sorted_source, sorted_temperature = source[order], temperature[order]
    first = torch.ones_like(sorted_source, dtype=torch.bool)
    first[1:] = (sorted_source[1:] != sorted_source[:-1]) | (
        sorted_temperature[1:] != sorted_temperature[:-1]
    )
    row_of = first.cumsum(0) - 1
    row_count = int(first.sum())
    step = max(1, chunk_byte_count // (vocabulary * temperature.element_size()))
    bounds = [*range(0, row_count, step), row_count]
    entry_bounds = torch.searchsorted(row_of, torch.tensor(bounds, device=row_of.device)).tolist()
    return _Rows(sorted_source[first], sorted_temperature[first], order, row_of, bounds, entry_bounds)


class _SelectedLogprobs(torch.autograd.Function):
    """The autograd rule described at the top of the module."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, rows: _Rows, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        compute = rows.temperature.dtype
        keep_mean = need_hidden and not need_weight
        count, row_count = targets.shape[0], rows.source.shape[0]
        logprobs = torch.empty(count, dtype=compute, device=hidden.device)
        entropy = torch.empty(count if with_entropy else 0, dtype=compute, device=hidden.device)
        log_normalizer = torch.empty(row_count, dtype=compute, device=hidden.device)
        mean_weight = torch.empty(
            row_count if keep_mean else 0, hidden.shape[1], dtype=compute, device=hidden.device
        )
        for chunk in range(len(rows.bounds) - 1):
            start, end = rows.bounds[chunk], rows.bounds[chunk + 1]
            entries, local = _entries(rows, chunk)
            logits = _scaled_logits(hidden, weight, rows, start, end)
            top = logits.amax(1, keepdim=True)
            selected = logits[local, targets[entries]]
            probabilities = logits.sub_(top).exp_() if not with_entropy else (logits - top).exp_()
            total = probabilities.sum(1, keepdim=True)
            normalizer = top + total.log()
            log_normalizer[start:end] = normalizer[:, 0]
            logprobs[entries] = selected - normalizer[local, 0]
            if keep_mean:
                mean_weight[start:end] = _over_vocabulary(probabilities, weight).div_(total)
            if with_entropy:
                mean_logit = (probabilities.mul_(logits)).sum(1) / total[:, 0]
                entropy[entries] = (normalizer[:, 0] - mean_logit)[local]
        ctx.rows = rows
        ctx.save_for_backward(hidden if need_weight else None, weight, targets, log_normalizer, mean_weight)
        ctx.hidden_shape, ctx.hidden_dtype = hidden.shape, hidden.dtype
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor, _grad_entropy: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, targets, log_normalizer, mean_weight = ctx.saved_tensors
        rows: _Rows = ctx.rows
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        compute = rows.temperature.dtype
        grad_rows = None
        if need_hidden:
            grad_rows = torch.empty(
                rows.source.shape[0], ctx.hidden_shape[1], dtype=compute, device=grad.device
            )
        grad_weight = torch.zeros_like(weight, dtype=compute) if need_weight else None
        for chunk in range(len(rows.bounds) - 1):
            start, end = rows.bounds[chunk], rows.bounds[chunk + 1]
            entries, local = _entries(rows, chunk)
            entry_grad = grad[entries]
            row_grad = torch.zeros(end - start, dtype=compute, device=grad.device).index_add_(
                0, local, entry_grad
            )
            if need_weight:
                # d(sum)/d(logits) = one-hot gradients minus probabilities, all divided by the temperature.
                delta = _scaled_logits(hidden, weight, rows, start, end)
                delta.sub_(log_normalizer[start:end, None]).exp_().mul_(-row_grad[:, None])
                delta.index_put_((local, targets[entries]), entry_grad, accumulate=True)
                delta.div_(rows.temperature[start:end, None])
                grad_weight += delta.t() @ hidden[rows.source[start:end]].to(compute)
                if grad_rows is not None:
                    grad_rows[start:end] = _over_vocabulary(delta, weight)
            elif grad_rows is not None:
                part = mean_weight[start:end] * -row_grad[:, None]
                part.index_add_(0, local, weight[targets[entries]].to(compute) * entry_grad[:, None])
                grad_rows[start:end] = part.div_(rows.temperature[start:end, None])
        grad_hidden = None
        if grad_rows is not None:
            grad_hidden = torch.zeros(ctx.hidden_shape, dtype=compute, device=grad.device)
            grad_hidden = grad_hidden.index_add_(0, rows.source, grad_rows).to(ctx.hidden_dtype)
        return (
            grad_hidden,
            grad_weight.to(weight.dtype) if grad_weight is not None else None,
            None,
            None,
            None,
        )


def _entries(rows: _Rows, chunk: int) -> tuple[Tensor, Tensor]:
    """Entries of a chunk, and the row of each inside the chunk."""
    part = slice(rows.entry_bounds[chunk], rows.entry_bounds[chunk + 1])
    return rows.order[part], rows.row_of[part] - rows.bounds[chunk]


def _over_vocabulary(rows: Tensor, weight: Tensor) -> Tensor:
    """``rows @ weight`` in the dtype of ``rows``, summed block by block.

    For a few rows, matrix libraries sum along the whole vocabulary in one go. The large common part of the
    embeddings cancels in the gradient, and what is left then has far more rounding error than with many rows.
    """
    total = torch.zeros(rows.shape[0], weight.shape[1], dtype=rows.dtype, device=rows.device)
    for start in range(0, weight.shape[0], _VOCABULARY_BLOCK):
        block = slice(start, start + _VOCABULARY_BLOCK)
        total += (rows[:, block].to(weight.dtype) @ weight[block]).to(rows.dtype)
    return total


def _scaled_logits(hidden: Tensor, weight: Tensor, rows: _Rows, start: int, end: int) -> Tensor:
    logits = (hidden[rows.source[start:end]] @ weight.t()).to(rows.temperature.dtype)
    temperature = rows.temperature[start:end]
    return logits if bool((temperature == 1).all()) else logits.div_(temperature[:, None])
