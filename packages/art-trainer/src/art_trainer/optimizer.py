"""AdamW over the adapter's flat vector, with clipping by the global gradient norm."""

from collections.abc import Mapping

import torch
from torch import Tensor

from art_trainer.errors import ModelLoadError
from art_trainer.lora import Adapter
from art_trainer.specs import AdamWSpec

_MOMENTS = ("exp_avg", "exp_avg_sq")


class AdapterOptimizer:
    """Owns AdamW's moments; they have the layout of ``Adapter.weights``.

    The gaps between tensors in the flat vector have no gradient and no weight, so they stay zero.
    """

    def __init__(self, adapter: Adapter, spec: AdamWSpec) -> None:
        """Starts with zero moments and no steps taken."""
        self._adapter = adapter
        self._parameter = torch.nn.Parameter(adapter.weights)
        self._parameter.grad = adapter.gradients
        self._adamw = torch.optim.AdamW(
            [self._parameter],
            lr=0.0,
            betas=(spec.beta1, spec.beta2),
            eps=spec.epsilon,
            weight_decay=spec.weight_decay,
            fused=True,
        )

    def gradient_norm(self) -> float:
        """The Euclidean norm over all gradients; not finite when one of them is not."""
        return float(torch.linalg.vector_norm(self._adapter.gradients, dtype=torch.float64))

    def clear_gradients(self) -> None:
        """Zeroes the gradients in place."""
        self._adapter.gradients.zero_()

    @torch.no_grad()
    def step(self, learning_rate: float, max_grad_norm: float, gradient_norm: float) -> None:
        """Scales the gradients down to ``max_grad_norm`` if they are larger, and takes one step."""
        if gradient_norm > max_grad_norm:
            self._adapter.gradients.mul_(max_grad_norm / (gradient_norm + 1e-6))
        self._adamw.param_groups[0]["lr"] = learning_rate
        self._adamw.step()

    def state(self) -> dict[str, Tensor]:
        """Copies of ``exp_avg`` and ``exp_avg_sq`` ``[P]`` and ``step`` (a scalar); zeros before the first step."""
        state = self._adamw.state.get(self._parameter, {})
        moments = {
            name: state[name].clone() if name in state else torch.zeros_like(self._adapter.weights)
            for name in _MOMENTS
        }
        step = state.get("step", torch.zeros(()))
        return {**moments, "step": step.clone().float()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes what :meth:`state` returned.

        Raises:
            ModelLoadError: a name is missing or a shape differs.
        """
        if set(state) != {*_MOMENTS, "step"}:
            raise ModelLoadError(f"an optimizer state has {sorted(state)}; it needs {sorted((*_MOMENTS, 'step'))}")
        for name in _MOMENTS:
            if state[name].shape != self._adapter.weights.shape:
                raise ModelLoadError(
                    f"{name} has shape {tuple(state[name].shape)}; the adapter has "
                    f"{tuple(self._adapter.weights.shape)}"
                )
        if float(state["step"]) == 0:
            self._adamw.state.clear()
            return
        self._adamw.state[self._parameter] = {
            **{name: state[name].clone() for name in _MOMENTS},
            "step": state["step"].clone().float(),
        }
