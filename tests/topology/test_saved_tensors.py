"""The activations that a dense layer is said to keep are those that autograd keeps of one.

The layer is written here with the operations that fused kernels replace one for one: a norm that keeps its
input and a number per token, flash attention, and an activation that keeps its fused input.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from art_topology.memory import MemoryAssumptions, saved_tensors
from art_topology.models import DenseShape, GqaShape, LayerShape
from art_topology.ranks import RankLayout
from art_topology.workload import WorkloadSpec

_ONE_RANK = RankLayout(tp=1, cp=1, dp=1, pp=1, etp=1, ep=1, expert_dp=1)
_TOKENS, _HIDDEN, _HEADS, _WIDTH, _INNER = 64, 128, 4, 32, 320


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        scale = x.float().square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
            again = functional.rms_norm(inputs[0], x.shape[-1:], inputs[1], 1e-6)
            first, second = torch.autograd.grad(again, inputs, grad)
        return first, second


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fused: Tensor) -> Tensor:
        ctx.save_for_backward(fused)
        gate, up = fused.chunk(2, -1)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (fused,) = ctx.saved_tensors
        with torch.enable_grad():
            inputs = fused.detach().requires_grad_()
            gate, up = inputs.chunk(2, -1)
            return torch.autograd.grad(functional.silu(gate) * up, inputs, grad)[0]


class _Linear(torch.nn.Module):
    def __init__(self, inputs: int, outputs: int, rank: int | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(outputs, inputs, dtype=dtype) / inputs**0.5)
        self.low: tuple[torch.nn.Parameter, ...] = ()
        if rank is not None:
            self.weight.requires_grad_(False)
            self.down = torch.nn.Parameter(torch.randn(rank, inputs, dtype=dtype))
            self.up = torch.nn.Parameter(torch.randn(outputs, rank, dtype=dtype))
            self.low = (self.down, self.up)

    def forward(self, x: Tensor) -> Tensor:
        result = functional.linear(x, self.weight)
        if self.low:
            result = result + functional.linear(functional.linear(x, self.low[0]), self.low[1])
        return result


class _Layer(torch.nn.Module):
    def __init__(self, rank: int | None, norm: bool, dtype: torch.dtype) -> None:
        super().__init__()
        width = _HEADS * _WIDTH
        self.q, self.k, self.v = (_Linear(_HIDDEN, width, rank, dtype) for _ in range(3))
        self.o = _Linear(width, _HIDDEN, rank, dtype)
        self.fused = _Linear(_HIDDEN, 2 * _INNER, rank, dtype)
        self.down = _Linear(_INNER, _HIDDEN, rank, dtype)
        sizes = [_HIDDEN, _HIDDEN] + [_WIDTH, _WIDTH] * norm
        self.norms = torch.nn.ParameterList(
            torch.nn.Parameter(torch.ones(size, dtype=dtype), requires_grad=rank is None) for size in sizes
        )

    def forward(self, x: Tensor) -> Tensor:
        inputs = self._norm(x, 0)
        q, k, v = (linear(inputs).unflatten(-1, (_HEADS, _WIDTH)) for linear in (self.q, self.k, self.v))
        if len(self.norms) > 2:
            q, k = self._norm(q, 2), self._norm(k, 3)
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(out[0].transpose(0, 1).flatten(1))
        return x + self.down(_Gated.apply(self.fused(self._norm(x, 1))))

    def _norm(self, x: Tensor, index: int) -> Tensor:
        return _Norm.apply(x, self.norms[index])


def _measured(layer: _Layer, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes of the distinct storages that autograd keeps, and those of them that hold a number per norm."""
    weights = {weight.untyped_storage().data_ptr() for weight in layer.parameters()}
    kept: dict[int, int] = {}
    statistics: set[int] = set()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tensor.numel() > 1:
            kept[storage.data_ptr()] = storage.nbytes()
            if tensor.shape[-1] == 1:
                statistics.add(storage.data_ptr())
        return tensor

    x = torch.randn(_TOKENS, _HIDDEN, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = layer(x)
    total = sum(kept.values())
    result.sum().backward()
    return total, sum(kept[pointer] for pointer in statistics)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("norm", [False, True], ids=["", "norms of queries and keys"])
@pytest.mark.parametrize("rank", [None, 8], ids=["all weights", "adapters"])
def test_a_dense_layer_keeps_what_autograd_keeps(rank: int | None, norm: bool, dtype: str) -> None:
    torch.manual_seed(0)
    kept, statistics = _measured(_Layer(rank, norm, getattr(torch, dtype)), getattr(torch, dtype))

    attention = GqaShape(
        hidden_size=_HIDDEN,
        query_heads=_HEADS,
        kv_heads=_HEADS,
        head_dim=_WIDTH,
        value_dim=_WIDTH,
        qk_norm="head" if norm else "none",
    )
    layer = LayerShape(
        hidden_size=_HIDDEN,
        attention=attention,
        mlp=DenseShape(hidden_size=_HIDDEN, inner_size=_INNER),
    )
    workload = WorkloadSpec(
        packed_sequence_length=_TOKENS,
        groups_per_step=1,
        group_size=1,
        prompt_tokens=8,
        completion_tokens=16,
        lora_rank=rank,
        dtype=dtype,
    )
    assumptions = MemoryAssumptions(adapter_bytes=2 if dtype == "bfloat16" else 4)
    tensors = saved_tensors(layer, _ONE_RANK, workload, assumptions)
    counted = sum(tensor.bytes for tensor in tensors)
    fused = (
        0 if rank is None else rank * _TOKENS * assumptions.adapter_bytes
    )  # gate and up share one adapter here

    assert kept - statistics == counted - fused
