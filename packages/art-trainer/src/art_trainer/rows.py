"""The rows of a packed batch as the trainer computes them, copied out of the mapping and checked.

After :func:`packed_rows` returned, the batch may be closed: nothing here refers to its memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from art_dataplane import PackedBatch
from art_trainer.errors import BatchError

_FINITE = (
    "loss_old_logprob",
    "loss_advantage",
    "loss_weight",
    "loss_temperature",
    "loss_reference_logprob",
    "loss_kl_weight",
)


@dataclass(frozen=True)
class LossEntries:
    """What is predicted in one row, ``[L]`` each; the names are those of ``art_dataplane.batch``."""

    source: Tensor  # int64, index in the row
    target: Tensor  # int64
    old_logprob: Tensor  # float32
    advantage: Tensor  # float32
    weight: Tensor  # float32
    version: Tensor  # int64
    temperature: Tensor  # float32
    reference_logprob: Tensor | None = None  # float32, when a reference policy is used
    kl_weight: Tensor | None = None  # float32, when the divergence from it is part of the loss

    def __len__(self) -> int:
        """The number of entries."""
        return len(self.source)


@dataclass(frozen=True)
class PackedRow:
    """``T`` physical tokens (int64 ``[T]`` each) and the loss entries that read their hidden states."""

    token_ids: np.ndarray
    position_ids: np.ndarray
    subtree_end: np.ndarray
    loss: LossEntries


def packed_rows(batch: PackedBatch, *, vocabulary: int, packed_sequence_length: int) -> list[PackedRow]:
    """Copies the rows that have loss entries; the others teach nothing and are left out.

    Raises:
        BatchError: the batch is for another objective, a value is outside its range, a row is too long, no
            row has a loss entry, or no entry has a weight.
    """
    if batch.ref.objective != "rl":
        raise BatchError(
            f"batch {batch.ref.batch_id} has the objective {batch.ref.objective!r}; this job trains 'rl' "
            "batches only: pack its records with PackingRequest(objective='rl')"
        )
    rows = []
    for index in range(batch.row_count):
        arrays = batch.row(index)
        if len(arrays["loss_source"]):
            _check_row(index, arrays, vocabulary, packed_sequence_length)
            rows.append(make_row(arrays))
    if not rows:
        raise BatchError(f"batch {batch.ref.batch_id} has {batch.row_count} rows and no loss entry")
    if not any(bool(row.loss.weight.any()) for row in rows):
        entries = sum(len(row.loss) for row in rows)
        raise BatchError(f"the weights of all {entries} loss entries of batch {batch.ref.batch_id} are 0")
    return rows


def make_row(arrays: Mapping[str, np.ndarray]) -> PackedRow:
    """One row from the arrays that ``PackedBatch.row`` returns; copies them."""
    return PackedRow(
        token_ids=arrays["token_ids"].astype(np.int64),
        position_ids=arrays["position_ids"].astype(np.int64),
        subtree_end=arrays["subtree_end"].astype(np.int64),
        loss=LossEntries(
            source=torch.from_numpy(arrays["loss_source"].astype(np.int64)),
            target=torch.from_numpy(arrays["loss_target"].astype(np.int64)),
            old_logprob=torch.from_numpy(arrays["loss_old_logprob"].astype(np.float32)),
            advantage=torch.from_numpy(arrays["loss_advantage"].astype(np.float32)),
            weight=torch.from_numpy(arrays["loss_weight"].astype(np.float32)),
            version=torch.from_numpy(arrays["loss_version"].astype(np.int64)),
            temperature=torch.from_numpy(arrays["loss_temperature"].astype(np.float32)),
            reference_logprob=_optional(arrays, "loss_reference_logprob"),
            kl_weight=_optional(arrays, "loss_kl_weight"),
        ),
    )


def _optional(arrays: Mapping[str, np.ndarray], name: str) -> Tensor | None:
    return torch.from_numpy(arrays[name].astype(np.float32)) if name in arrays else None


def _check_row(
    index: int, arrays: Mapping[str, np.ndarray], vocabulary: int, packed_sequence_length: int
) -> None:
    length = len(arrays["token_ids"])
    if length > packed_sequence_length:
        raise BatchError(
            f"row {index} has {length} tokens; this rank was loaded for rows of {packed_sequence_length}"
        )
    for name, end in (
        ("token_ids", vocabulary),
        ("position_ids", length),
        ("loss_source", length),
        ("loss_target", vocabulary),
    ):
        low, high = int(arrays[name].min()), int(arrays[name].max())
        if low < 0 or high >= end:
            raise BatchError(f"row {index}: {name} reaches from {low} to {high}; it must stay in [0, {end})")
    if "loss_kl_weight" in arrays and "loss_reference_logprob" not in arrays:
        raise BatchError(
            f"row {index} has loss_kl_weight and no loss_reference_logprob; pack both or neither"
        )
    for name in _FINITE:
        if name not in arrays:
            continue
        wrong = int(np.count_nonzero(~np.isfinite(arrays[name])))
        if wrong:
            raise BatchError(f"row {index}: {wrong} of {len(arrays[name])} values of {name} are not finite")
    for name in ("loss_weight", "loss_kl_weight"):
        if name in arrays and float(arrays[name].min()) < 0:
            raise BatchError(f"row {index}: the lowest {name} is {arrays[name].min()}; at least 0")
