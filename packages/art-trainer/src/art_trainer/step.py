"""The compute of one job, synchronous: gradients of a batch, then one optimizer step."""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from art_trainer.errors import TrainerError
from art_trainer.logprobs import row_logprobs
from art_trainer.losses import LossMetrics, clipped_policy_gradient, reference_divergence
from art_trainer.model import TrainableModel
from art_trainer.optimizer import AdapterOptimizer
from art_trainer.rows import PackedRow
from art_trainer.specs import RlTrainJob


class StepCancelledError(TrainerError):
    """The job was cancelled while its gradients were computed."""


class NonFiniteError(TrainerError):
    """The loss or a gradient is infinite or not a number."""


@dataclass(frozen=True)
class Gradients:
    """What the gradients in the adapter's buffer are of."""

    norm: float
    metrics: dict[str, float]


class CancellationPoints:
    """Lets a computation stop between two layers, forward and backward, within a fraction of a second."""

    def __init__(self, model: TrainableModel) -> None:
        """Watches every decoder layer of ``model``."""
        self._requested = threading.Event()
        for layer in model.module.decoder.layers:  # type: ignore[union-attr]  # megatron is untyped
            layer.register_forward_hook(self._after_layer)

    def request(self) -> None:
        """Asks the computation to stop; any thread."""
        self._requested.set()

    def clear(self) -> None:
        """Forgets the request."""
        self._requested.clear()

    def check(self) -> None:
        """Stops here if asked to.

        Raises:
            StepCancelledError: :meth:`request` was called.
        """
        if self._requested.is_set():
            raise StepCancelledError("cancelled while gradients were computed")

    def _after_layer(self, _layer: Any, _inputs: Any, output: tuple[Tensor, Any]) -> None:
        self.check()
        if output[0].requires_grad:
            output[0].register_hook(self._in_backward)  # type: ignore[no-untyped-call]  # torch's

    def _in_backward(self, _gradient: Tensor) -> None:
        self.check()


def compute_gradients(
    model: TrainableModel,
    optimizer: AdapterOptimizer,
    rows: Sequence[PackedRow],
    job: RlTrainJob,
    cancellation: CancellationPoints,
    on_row: Callable[[int, int], None],
) -> Gradients:
    """Forward and backward of every row, one at a time; the gradients end up in the adapter's buffer.

    Args:
        model: whose adapter is trained.
        optimizer: clears the gradients first.
        rows: at least one, each with loss entries.
        job: the loss's constants.
        cancellation: may stop it between two layers.
        on_row: called with rows done and rows in all.

    Raises:
        StepCancelledError: cancelled.
        NonFiniteError: the loss or the gradient norm is not finite.
    """
    optimizer.clear_gradients()
    metrics = LossMetrics(job.clip_low, job.clip_high, job.expected_version)
    total = divergence = 0.0
    for index, row in enumerate(rows):
        logprobs, entropy = row_logprobs(model, row)
        assert entropy is not None
        loss = clipped_policy_gradient(logprobs, row.loss, clip_low=job.clip_low, clip_high=job.clip_high)
        penalty = reference_divergence(logprobs, row.loss)
        if penalty is not None:
            divergence += float(penalty.detach())
            loss = loss + penalty
        torch.autograd.backward(loss)
        total += float(loss.detach())
        metrics.add(logprobs, entropy, row.loss)
        on_row(index + 1, len(rows))
    norm = optimizer.gradient_norm()
    if not (math.isfinite(total) and math.isfinite(norm)):
        raise NonFiniteError(f"the loss is {total} and the gradient norm {norm}; nothing was trained")
    summary = {"loss": total, "gradient_norm": norm, **metrics.summary()}
    if any(row.loss.kl_weight is not None for row in rows):
        summary["reference_loss"] = divergence
    return Gradients(norm, summary)
