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
        """Copies: ``exp_avg.NAME`` and ``exp_avg_sq.NAME`` per PEFT name, and ``step``, a scalar."""
        state = self._adamw.state.get(self._parameter, {})
        copies = {"step": state.get("step", torch.zeros(())).clone().float()}
        for moment in _MOMENTS:
            flat = state[moment].clone() if moment in state else torch.zeros_like(self._adapter.weights)
            copies |= {f"{moment}.{name}": tensor for name, tensor in self._adapter.named_tensors(flat)}
        return copies

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes what :meth:`state` returned.

        Raises:
            ModelLoadError: names or shapes differ.
        """
        expected = self.state()
        if set(state) != set(expected):
            different = sorted(set(state) ^ set(expected))
            raise ModelLoadError(
                f"the optimizer state and the adapter differ in {len(different)} names, "
                f"such as {different[0]}"
            )
        flats = {moment: torch.zeros_like(self._adapter.weights) for moment in _MOMENTS}
        for moment, flat in flats.items():
            for name, tensor in self._adapter.named_tensors(flat):
                stored = state[f"{moment}.{name}"]
                if stored.shape != tensor.shape:
                    raise ModelLoadError(
                        f"{moment}.{name} has shape {tuple(stored.shape)}; "
                        f"the adapter has {tuple(tensor.shape)}"
                    )
                tensor.copy_(stored)
        self._adamw.state.clear()
        if float(state["step"]) > 0:
            self._adamw.state[self._parameter] = {**flats, "step": state["step"].clone().float()}

    def reset(self) -> None:
        """Forgets all moments and steps."""
        self._adamw.state.clear()
        self.clear_gradients()
