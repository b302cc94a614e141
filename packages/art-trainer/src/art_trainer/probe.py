"""What one packed row gives under a model, without a rank: for parity checks against other code."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from art_trainer.logprobs import row_logprobs
from art_trainer.losses import clipped_policy_gradient, reference_divergence
from art_trainer.model import TrainableModel
from art_trainer.models import describe_model, read_config
from art_trainer.rows import make_row
from art_trainer.specs import LoraSpec


@dataclass(frozen=True)
class RowProbe:
    """What one row gives.

    Args:
        logprobs: float32 ``[L]``, of the targets, in nats.
        entropy: float32 ``[L]``, of the distributions they were drawn from, in nats.
        loss: the row's part of its batch's loss: a sum with the row's weights as they are.
        gradients: float32, by PEFT's names of the adapter's tensors and in their shapes ``[r, in]`` and
            ``[out, r]``.
    """

    logprobs: Tensor
    entropy: Tensor
    loss: float
    gradients: dict[str, Tensor]


def probe_row(
    model_path: str,
    row: Mapping[str, np.ndarray],
    *,
    lora: LoraSpec,
    adapter: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> RowProbe:
    """Loads a model in float32 and computes one row forward and backward.

    Args:
        model_path: a Hugging Face folder.
        row: the arrays that :meth:`art_dataplane.PackedBatch.row` returns, with their dtypes and shapes:
            int32 or float32, ``[T]`` and ``[L]``.
        lora: the adapter's shape.
        adapter: its weights under PEFT's names, float32 ``[r, in]`` and ``[out, r]``; version 0 from ``seed``
            when None.
        seed: of that version 0.
        clip_low: as in :class:`art_trainer.RlTrainJob`.
        clip_high: as there.

    Raises:
        TrainerError: the model or the adapter does not fit.
    """
    model = TrainableModel(describe_model(read_config(model_path)), torch.float32, lora, model_path)
    if adapter is None:
        model.adapter.reset(seed)
    else:
        model.adapter.load(adapter)
    packed = make_row(row)
    logprobs, entropy = row_logprobs(model, packed)
    assert entropy is not None
    loss = clipped_policy_gradient(logprobs, packed.loss, clip_low=clip_low, clip_high=clip_high)
    penalty = reference_divergence(logprobs, packed.loss)
    if penalty is not None:
        loss = loss + penalty
    torch.autograd.backward(loss)
    gradients = {
        name: tensor.clone() for name, tensor in model.adapter.named_tensors(model.adapter.gradients)
    }
    return RowProbe(logprobs.detach(), entropy, float(loss.detach()), gradients)
