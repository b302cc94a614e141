"""Norm and activation for Megatron's layer spec, each with its own autograd rule.

The rules exist for a CPU, where time goes to memory traffic and not to arithmetic: each keeps only its input
and makes its gradient in a handful of passes, where the composed operations keep and walk several copies.
"""

from typing import Any

import torch
from torch import Tensor


class RMSNorm(torch.nn.Module):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension; statistics in float32 or wider."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        """``hidden_size`` is normalized over; ``eps`` is added to the mean square."""
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., hidden_size]`` to the same shape and dtype."""
        return rms_norm(x, self.weight, self.eps)


class SwiGLU(torch.nn.Module):
    """``silu(gate) * up`` of a fused ``[..., 2 F]`` (gate first) to ``[..., F]``."""

    def __init__(self, config: Any) -> None:
        """Has no parameters; Megatron passes its config."""
        super().__init__()

    def forward(self, fused: Tensor) -> Tensor:
        """See the class."""
        return swiglu(fused)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x`` ``[..., H]``, ``weight`` ``[H]``; gradients for ``x`` and, if it requires them, ``weight``."""
    result: Tensor = _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return result


def swiglu(fused: Tensor) -> Tensor:
    """``fused`` ``[..., 2 F]`` to ``[..., F]``."""
    result: Tensor = _SwiGLU.apply(fused)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return result


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = _wide(x)
        mean_square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        scale = mean_square.add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        normalized: Tensor = (wide * scale).to(x.dtype) * weight
        return normalized

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        wide, upstream = _wide(x), _wide(grad)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = (upstream * wide).mul_(scale).flatten(0, -2).sum(0).to(weight.dtype)
        if ctx.needs_input_grad[0]:
            # With n = x * scale and g = grad * weight: scale * (g - n * mean(g * n)).
            weighted = upstream * weight
            mean = torch.linalg.vecdot(weighted, wide)[..., None].mul_(scale.pow(3)).div_(-x.shape[-1])
            grad_x = weighted.mul_(scale).addcmul_(wide, mean).to(x.dtype)
        return grad_x, grad_weight, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fused: Tensor) -> Tensor:
        ctx.save_for_backward(fused)
        gate, up = fused.chunk(2, -1)
        return torch.nn.functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (fused,) = ctx.saved_tensors
        gate, up = fused.chunk(2, -1)
        result = torch.empty_like(fused)
        grad_gate, grad_up = result.chunk(2, -1)
        torch.mul(torch.nn.functional.silu(gate), grad, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=grad_gate)
        return result
