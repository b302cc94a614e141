"""A packed batch and the reference that travels in its place.

Names, dtypes and shapes of its tensors are listed at :class:`PackedBatch`.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Protocol, Self

import msgspec
import numpy as np

from art_dataplane.context_plan import ContextPlan
from art_dataplane.errors import BatchClosedError, BatchError, DataPlaneError
from art_dataplane.leases import Lease
from art_dataplane.locations import Location, TensorSpec, check_layout
from art_dataplane.revocable import Revocable
from art_dataplane.segments import MappedBytes, MappingCache

TENSOR_DTYPES: Mapping[str, tuple[str, ...]] = {
    "token_ids": ("int32",),
    "position_ids": ("int32",),
    "subtree_end": ("int32",),
    "loss_source": ("int32",),
    "loss_target": ("int32",),
    "loss_old_logprob": ("float32",),
    "loss_advantage": ("float32",),
    "loss_weight": ("float32",),
    "loss_version": ("int32",),
    "loss_record": ("int32",),
    "loss_temperature": ("float32",),
    "row_offsets": ("int32",),
    "loss_row_offsets": ("int32",),
    "routes": ("uint8", "uint16"),
    "loss_reference_logprob": ("float32",),
    "loss_kl_weight": ("float32",),
}
"""Which tensors a batch may have and their dtypes; all but :data:`OPTIONAL_TENSORS` are always there."""

OPTIONAL_TENSORS = frozenset({"routes", "loss_reference_logprob", "loss_kl_weight"})
"""There when routes were captured, and when a reference policy is used."""

Objective = Literal["rl", "sft"]
"""What a batch is for: ``"rl"`` has advantages and the log-probs of the policy that sampled; with ``"sft"``
each target has the advantage 1, and ``loss_old_logprob`` and ``loss_version`` are 0 and without meaning."""

KEEP_BYTES = 8 << 30
"""Address space, not memory, that a :class:`ShmBatchMapper` keeps unless told otherwise."""


class PackingCounts(msgspec.Struct, frozen=True):
    """How much was packed. Logical tokens are what trajectories contain; physical tokens what is computed.

    Args:
        trajectory_count: trajectories with at least one loss entry in the batch.
        row_count: rows, each of at most ``packed_sequence_length`` physical tokens.
        logical_tokens: tokens of these trajectories, each counted alone
            (:func:`~art_dataplane.logical_token_count`).
        physical_tokens: tokens in all rows.
        loss_entries: targets in all rows.
        dropped_zero_variance_groups: groups left out because all their rewards are equal.
        group_count: groups with at least one loss entry in the batch.
        failed_records: records whose rollout failed; they take no part in the advantages.
        records_without_targets: records that did not fail and have no completion token.
        zero_variance_groups: groups whose rewards are all equal, left out or not.
        truncated_records: records in the batch that were sampled with top-k, top-p, min-p, penalties or the
            like, so that the ratio of their tokens is approximate.
    """

    trajectory_count: int
    row_count: int
    logical_tokens: int
    physical_tokens: int
    loss_entries: int
    dropped_zero_variance_groups: int = 0
    group_count: int = 0
    failed_records: int = 0
    records_without_targets: int = 0
    zero_variance_groups: int = 0
    truncated_records: int = 0


class PackingTiming(msgspec.Struct, frozen=True):
    """How long each stage took, in seconds by one monotonic clock.

    Args:
        fetch_s: fetching the records from their owners, in seconds.
        plan_s: scoring the records and planning what goes where, in seconds.
        write_s: writing the batch into its segment, in seconds.
        context_s: planning the token ranges of context-parallel ranks, in seconds; 0 when that was not asked
            for.
    """

    fetch_s: float
    plan_s: float
    write_s: float
    context_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All stages together, in seconds."""
        return self.fetch_s + self.plan_s + self.write_s + self.context_s


class PackedBatchRef(msgspec.Struct, frozen=True):
    """Names one packed batch; travels in its place.

    Args:
        batch_id: unique among the batches of a run.
        owner: the process that holds the bytes and answers for the lease.
        lease: the trainer's right to the bytes.
        tensors: where each tensor is inside ``location``; names, dtypes and shapes as in the table of
            :class:`PackedBatch`.
        byte_count: bytes of all tensors together, alignment included.
        location: where the bytes are.
        ticket: counts packing attempts.
        packed_sequence_length: physical tokens of a row, at most.
        counts: how much was packed.
        versions: all policy versions that sampled a trained token, ascending; none with the objective
            ``"sft"``.
        record_ids: the packed records; ``loss_record`` is an index into them.
        group_ids: the groups that they are of.
        policy_version: the version that the step starts from.
        objective: what the batch is for; see :data:`Objective`.
        adapter_generations: names of the durable generations of adapters that sampled a packed record,
            ascending, each once; records of adapters without one add nothing.
        selection_lease: the queue's lease under which the records were taken; to be released as consumed when
            the step with the batch is done.
        timing: how long packing took.
        context: for each row how context-parallel ranks share it; empty when that was not asked for.
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
    policy_version: int | None = None
    objective: Objective = "rl"
    adapter_generations: tuple[str, ...] = ()
    selection_lease: Lease | None = None
    timing: PackingTiming | None = None
    context: tuple[ContextPlan, ...] = ()


class BatchTensors(Revocable[np.ndarray]):
    """The arrays of a batch by name. Made by :attr:`PackedBatch.tensors`.

    Every access after the batch was closed raises :class:`BatchClosedError`.
    """

    def __init__(self, arrays: dict[str, np.ndarray], batch_id: str) -> None:
        super().__init__(
            arrays, lambda: BatchClosedError(f"batch {batch_id} was closed; map its reference again")
        )


class PackedBatch:
    """A mapped batch: read-only NumPy views. Made by :meth:`BatchMapper.map`; close it, or use ``with``.

    ``close()`` revokes the views and then unmaps. Every later access through the batch or its ``tensors``
    raises :class:`BatchClosedError`. An array that was taken out before the close stays valid memory: it
    keeps the mapping alive until it is gone, so no access ever reaches unmapped memory.

    With ``R`` rows, ``T`` physical tokens and ``L`` loss entries in all rows, the tensors are:

    | tensor | dtype, shape | meaning |
    |---|---|---|
    | token_ids | int32 ``[T]`` | token ids, depth first |
    | position_ids | int32 ``[T]`` | depth in the tree: the number of tokens before it on its path |
    | subtree_end | int32 ``[T]`` | within its row; query q sees key k when ``k <= q < subtree_end[k]`` |
    | loss_source | int32 ``[L]`` | index in its row of the token whose hidden state predicts the target |
    | loss_target | int32 ``[L]`` | token id that is predicted |
    | loss_old_logprob | float32 ``[L]`` | log-prob of the target when it was sampled, in nats |
    | loss_advantage | float32 ``[L]`` | advantage of its trajectory |
    | loss_weight | float32 ``[L]`` | how much it counts, see :class:`art_dataplane.LossWeightRule` |
    | loss_version | int32 ``[L]`` | policy version that sampled the target |
    | loss_record | int32 ``[L]`` | index into ``PackedBatchRef.record_ids`` |
    | loss_temperature | float32 ``[L]`` | temperature it was sampled at |
    | row_offsets | int32 ``[R + 1]`` | where each row's tokens begin, and the number of tokens |
    | loss_row_offsets | int32 ``[R + 1]`` | the same for loss entries |
    | routes | uint8 or uint16 ``[T, layers, topk]`` | experts of each token, when they were captured |
    | loss_reference_logprob | float32 ``[L]`` | log-prob under the reference policy, if one is used |
    | loss_kl_weight | float32 ``[L]`` | how much the divergence from it costs in the loss, if it does |
    """

    def __init__(self, ref: PackedBatchRef, mapped: MappedBytes) -> None:
        self._ref = ref
        self._mapped = mapped
        self._tensors = BatchTensors(view_tensors(ref.tensors, mapped.view), ref.batch_id)
        _check_tensors(ref, self._tensors)

    @property
    def ref(self) -> PackedBatchRef:
        """What was mapped; usable after the close."""
        return self._ref

    @property
    def tensors(self) -> BatchTensors:
        """All arrays by name, with the dtypes and shapes of the table.

        Raises:
            BatchClosedError: after :meth:`close`.
        """
        self._tensors.opened()
        return self._tensors

    @property
    def token_ids(self) -> np.ndarray:
        """int32 ``[T]``: token ids, depth first."""
        return self._tensors["token_ids"]

    @property
    def position_ids(self) -> np.ndarray:
        """int32 ``[T]``: depth of each token in its tree."""
        return self._tensors["position_ids"]

    @property
    def subtree_end(self) -> np.ndarray:
        """int32 ``[T]``: the end of each token's subtree, within its row."""
        return self._tensors["subtree_end"]

    @property
    def loss_source(self) -> np.ndarray:
        """int32 ``[L]``: index in its row of the token that predicts the target."""
        return self._tensors["loss_source"]

    @property
    def loss_target(self) -> np.ndarray:
        """int32 ``[L]``: token ids that are predicted."""
        return self._tensors["loss_target"]

    @property
    def loss_old_logprob(self) -> np.ndarray:
        """float32 ``[L]``: log-probs of the targets when they were sampled, in nats."""
        return self._tensors["loss_old_logprob"]

    @property
    def loss_advantage(self) -> np.ndarray:
        """float32 ``[L]``: advantages of the targets' trajectories."""
        return self._tensors["loss_advantage"]

    @property
    def loss_weight(self) -> np.ndarray:
        """float32 ``[L]``: how much each entry counts, see :class:`art_dataplane.LossWeightRule`."""
        return self._tensors["loss_weight"]

    @property
    def loss_version(self) -> np.ndarray:
        """int32 ``[L]``: policy versions that sampled the targets."""
        return self._tensors["loss_version"]

    @property
    def loss_record(self) -> np.ndarray:
        """int32 ``[L]``: indices into ``PackedBatchRef.record_ids``."""
        return self._tensors["loss_record"]

    @property
    def loss_temperature(self) -> np.ndarray:
        """float32 ``[L]``: temperatures the targets were sampled at."""
        return self._tensors["loss_temperature"]

    @property
    def row_offsets(self) -> np.ndarray:
        """int32 ``[R + 1]``: where each row's tokens begin, and the number of tokens."""
        return self._tensors["row_offsets"]

    @property
    def loss_row_offsets(self) -> np.ndarray:
        """int32 ``[R + 1]``: where each row's loss entries begin, and their number."""
        return self._tensors["loss_row_offsets"]

    @property
    def routes(self) -> np.ndarray | None:
        """uint8 or uint16 ``[T, layers, topk]``: experts of each token; None when they were not captured."""
        return self._tensors.get("routes")

    @property
    def loss_reference_logprob(self) -> np.ndarray | None:
        """float32 ``[L]``: log-probs of the targets under the reference policy; None without one."""
        return self._tensors.get("loss_reference_logprob")

    @property
    def loss_kl_weight(self) -> np.ndarray | None:
        """float32 ``[L]``: what the divergence of each entry costs in the loss; None when nothing."""
        return self._tensors.get("loss_kl_weight")

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.row_offsets) - 1

    def row(self, index: int) -> dict[str, np.ndarray]:
        """The arrays of one row by name, without the offsets: views, no copies.

        Args:
            index: which row, from 0.

        Returns:
            The same dtypes as the batch's; token arrays ``[t]``, loss arrays ``[l]`` and ``routes``
            ``[t, layers, topk]`` for the row's ``t`` tokens and ``l`` loss entries. ``loss_source`` counts
            from the row's first token.

        Raises:
            IndexError: there is no such row.
            BatchClosedError: after :meth:`close`.
        """
        if not 0 <= index < self.row_count:
            raise IndexError(f"row {index} of a batch with {self.row_count} rows")
        tokens = slice(int(self.row_offsets[index]), int(self.row_offsets[index + 1]))
        losses = slice(int(self.loss_row_offsets[index]), int(self.loss_row_offsets[index + 1]))
        return {
            name: array[losses if name.startswith("loss_") else tokens]
            for name, array in self.tensors.items()
            if not name.endswith("row_offsets")
        }

    def close(self) -> bool:
        """Revokes the views and unmaps; a second call does nothing.

        Returns:
            False when arrays taken out before keep the memory mapped for now.
        """
        self._tensors.revoke()
        return self._mapped.close()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        self.close()


def view_tensors(specs: tuple[TensorSpec, ...], buffer: memoryview) -> dict[str, np.ndarray]:
    """Arrays over ``buffer`` as ``specs`` say; writable when the buffer is.

    Raises:
        BatchError: a spec does not fit the buffer or has a dtype that NumPy lacks.
    """
    try:
        check_layout(specs, buffer.nbytes)
        return {
            spec.name: np.frombuffer(
                buffer, np.dtype(spec.dtype), spec.byte_count // np.dtype(spec.dtype).itemsize, spec.offset
            ).reshape(spec.shape)
            for spec in specs
        }
    except (DataPlaneError, TypeError) as error:
        raise BatchError(f"the tensors do not describe a buffer of {buffer.nbytes} bytes: {error}") from error


def _check_tensors(ref: PackedBatchRef, tensors: BatchTensors) -> None:
    missing = TENSOR_DTYPES.keys() - tensors.keys() - OPTIONAL_TENSORS
    if missing:
        raise BatchError(f"batch {ref.batch_id} lacks the tensors {', '.join(sorted(missing))}")
    for name, array in tensors.items():
        if array.dtype.name not in TENSOR_DTYPES.get(name, ()):
            raise BatchError(
                f"batch {ref.batch_id} has no place for a tensor {name!r} of dtype {array.dtype.name}"
            )
    token_count, loss_count = len(tensors["token_ids"]), len(tensors["loss_source"])
    for name, array in tensors.items():
        if name.endswith("row_offsets"):
            expected, last = ref.counts.row_count + 1, loss_count if name.startswith("loss_") else token_count
            if len(array) != expected or array[0] != 0 or array[-1] != last or (array[1:] < array[:-1]).any():
                raise BatchError(
                    f"batch {ref.batch_id}: {name} must ascend from 0 to {last} in {expected} steps"
                )
        elif len(array) != (loss_count if name.startswith("loss_") else token_count):
            raise BatchError(
                f"batch {ref.batch_id}: {name} has {len(array)} entries; there are {token_count} physical "
                f"tokens and {loss_count} loss entries"
            )


class ShmBatchMapper:
    """Maps batches that are inline or in shared memory of this host; implements :class:`BatchMapper`.

    Args:
        keep_bytes: bound, in bytes, on the address space of mappings that are kept for segments that are used
            again, see :class:`art_dataplane.MappingCache`.
    """

    def __init__(self, keep_bytes: int = KEEP_BYTES) -> None:
        self._cache = MappingCache(keep_bytes)

    def map(self, ref: PackedBatchRef) -> PackedBatch:
        """Maps the batch of ``ref`` read-only.

        Raises:
            ShmError: the segment is gone or too small.
            BatchError: the reference does not describe the bytes.
        """
        mapped = self._cache.map(ref.location)
        try:
            return PackedBatch(ref, mapped)
        except BaseException:
            mapped.close()
            raise

    def close(self) -> None:
        """Keeps no mapping any longer; batches that are open stay so."""
        self._cache.close()


class BatchMapper(Protocol):
    """Turns references into arrays on this host."""

    def map(self, ref: PackedBatchRef) -> PackedBatch:
        """Maps the batch of ``ref``; :meth:`PackedBatch.close` revokes the result.

        Raises:
            DataPlaneError: the bytes cannot be reached from here, or are not what the reference describes.
        """
        ...


class BatchSource(Protocol):
    """Where a trainer takes its next batch from."""

    async def next(self, deadline_s: float) -> PackedBatchRef:
        """Waits for the next batch.

        Raises:
            TimeoutError: none came within ``deadline_s`` seconds.
        """
        ...
