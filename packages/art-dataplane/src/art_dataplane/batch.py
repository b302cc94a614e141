"""A packed batch and the reference that travels in its place.

Tensors of a packed row, ``T`` physical tokens and ``L`` loss entries (rows are concatenated; ``row_offsets`` and
``loss_row_offsets`` delimit them):

===================  ========  =====================================================================
token_ids            int32[T]
position_ids         int32[T]  depth in the tree: the number of tokens before it on its path
subtree_end          int32[T]  within its row; query q sees key k when ``k <= q < subtree_end[k]``
loss_source          int32[L]  index in the row of the token whose hidden state predicts the target
loss_target          int32[L]  token id that is predicted
loss_old_logprob     float32[L]
loss_advantage       float32[L]
loss_weight          float32[L]
loss_version         int32[L]  policy version that sampled the target
loss_record          int32[L]  index into ``PackedBatchRef.record_ids``
loss_temperature     float32[L]
row_offsets          int32[R + 1]
loss_row_offsets     int32[R + 1]
routes               uint8 or uint16 ``[T, layers, topk]``, when present
===================  ========  =====================================================================
"""

from typing import Protocol

import msgspec

from art_dataplane.leases import Lease
from art_dataplane.locations import Location, TensorSpec


class PackingCounts(msgspec.Struct, frozen=True):
    """How much was packed. Logical tokens are what trajectories contain; physical tokens what is computed."""

    trajectory_count: int
    row_count: int
    logical_tokens: int
    physical_tokens: int
    loss_entries: int
    dropped_zero_variance_groups: int = 0


class PackedBatchRef(msgspec.Struct, frozen=True):
    """Names one packed batch.

    ``ticket`` counts packing attempts; ``versions`` are all policy versions that sampled a trained token, ascending.
    """

    batch_id: str
    owner: str
    lease: Lease
    tensors: tuple[TensorSpec, ...]
    byte_count: int
    location: Location
    ticket: int
    packed_sequence_length: int
    counts: PackingCounts
    versions: tuple[int, ...]
    record_ids: tuple[str, ...]
    group_ids: tuple[str, ...]


class BatchMapper(Protocol):
    """Turns references into arrays on this host."""

    def map(self, ref: PackedBatchRef) -> "PackedBatch":
        """Maps the batch; the result is revoked by its ``close()``."""
        ...


class BatchSource(Protocol):
    """Where a trainer takes its next batch from."""

    async def next(self, deadline_s: float) -> PackedBatchRef:
        """Waits for the next batch.

        Raises:
            TimeoutError: none came within ``deadline_s`` seconds.
        """
        ...
