"""Plans a packed batch and writes it: pure functions of the records, which know no process and no transport.

The invariants are those of :mod:`art_dataplane.packing`, and: the rows of a batch do not depend on the order
in which its groups and records come. Four steps: the sequences of all records
(:mod:`art_dataplane.packing_input`) are sorted together, whatever group they are of
(:mod:`art_dataplane.prefix_forest`); trees of equal prefixes are assigned to rows
(:mod:`art_dataplane.tree_rows`); the rows are laid out; all tensors are written.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from art_dataplane.advantages import AdvantageRule, batch_advantages
from art_dataplane.batch import Objective, PackingCounts, view_tensors
from art_dataplane.bulk_checks import pass_at_once
from art_dataplane.errors import PackingError
from art_dataplane.kl import KlRule, charged_advantages, reference_logprobs
from art_dataplane.locations import TensorSpec, lay_out
from art_dataplane.loss_weights import LossWeightRule, record_weights
from art_dataplane.packing_input import BatchSequences, gather_sequences
from art_dataplane.prefix_forest import (
    Forest,
    find_neighbours,
    lay_out_rows,
    sort_sequences,
    write_forest,
    write_repeated,
    write_sources,
)
from art_dataplane.records import TrajectoryRecord
from art_dataplane.route_merging import separate_routes
from art_dataplane.routes import RoutePlan
from art_dataplane.scoring import ScoredGroup, check_records, score_groups
from art_dataplane.tree_rows import assign_rows

__all__ = ["LossWeightRule", "MergeRoutes", "PackingPlan", "plan_packing", "plan_scored_groups"]

MergeRoutes = Literal["equal", "first"]
"""Which equal tokens are computed once when records have routes: with ``"equal"`` those that went to the same
experts, as all tokens before them did; with ``"first"`` all, by the routes of the first sequence that has
them, in the order of tokens and record ids. Within one trajectory see :class:`art_dataplane.RouteBlock`."""


class PackingPlan:
    """What a batch will hold, decided but not written. Made by :func:`plan_packing`.

    ``byte_count`` is how many bytes :meth:`write` needs, ``tensors`` says where each tensor goes in them;
    ``counts``, ``versions``, ``record_ids`` and ``group_ids`` are those of
    :class:`art_dataplane.PackedBatchRef`.
    """

    def __init__(
        self,
        sequences: BatchSequences,
        forest: Forest,
        order: np.ndarray,
        groups: Sequence[ScoredGroup],
        excluded: dict[str, int],
        *,
        advantage: AdvantageRule,
        loss_weight: LossWeightRule,
        kl: KlRule,
    ) -> None:
        records = [record for group in groups for record in group.records]
        sizes = [len(group.records) for group in groups]
        self._sequences = sequences
        self._forest = forest
        self._neighbours = find_neighbours(forest.shared)
        self._given = order[forest.chosen]  # which of the given sequences stands where
        offsets = sequences.target_offsets
        self._parts = np.diff(offsets)[self._given]  # completions of each sequence
        self._targets = _expand(offsets[self._given], self._parts)
        self._exchanges = [sequences.exchanges[index] for index in self._targets.tolist()]
        self._lengths = sequences.target_counts[self._targets]
        self._records = np.repeat(sequences.records[self._given], self._parts)
        self._kl = kl
        entry_counts = np.bincount(self._records, self._lengths, minlength=len(records))
        self._weights = record_weights(entry_counts, np.repeat(np.arange(len(groups)), sizes), loss_weight)
        values = np.array([value for group in groups for value in group.advantages], np.float64)
        self._advantages = batch_advantages(values, self._weights * entry_counts, advantage)
        row_count = len(forest.row_offsets) - 1
        entries = np.bincount(np.repeat(forest.row, self._parts), self._lengths, minlength=row_count)
        self._loss_row_offsets = np.concatenate(([0], np.cumsum(entries.astype(np.int64))))
        self._routes = _place_routes(sequences, forest, self._given)
        self.record_ids: tuple[str, ...] = tuple(record.record_id for record in records)
        self.group_ids: tuple[str, ...] = tuple(group.group_id for group in groups)
        spans = [span for exchange in self._exchanges for span in exchange.completion_spans]
        self._span_versions = np.array([span.version for span in spans], np.int32)
        self._span_lengths = np.array([span.end - span.start for span in spans], np.int64)
        self.versions: tuple[int, ...] = tuple(sorted(set(self._span_versions.tolist())))
        self.counts = PackingCounts(
            trajectory_count=len(records),
            row_count=row_count,
            logical_tokens=sequences.logical_tokens,
            physical_tokens=int(forest.row_offsets[-1]),
            loss_entries=int(self._loss_row_offsets[-1]),
            group_count=len(groups),
            truncated_records=sequences.truncated_records,
            **excluded,
        )
        self.tensors, self.byte_count = _layout(self.counts, self._routes, kl)

    def write(self, buffer: memoryview) -> None:
        """Writes all tensors into ``buffer``, which has at least ``byte_count`` bytes.

        Raises:
            BatchError: the buffer is too small.
        """
        out = view_tensors(self.tensors, buffer)
        out["row_offsets"][:] = self._forest.row_offsets
        out["loss_row_offsets"][:] = self._loss_row_offsets
        if not self._exchanges:
            return
        sequences = self._sequences
        write_forest(
            self._forest,
            self._neighbours,
            sequences.tokens,
            sequences.starts[self._given],
            out["token_ids"],
            out["position_ids"],
            out["subtree_end"],
        )
        if self._routes is not None:
            self._routes.write(out["routes"])
        write_sources(
            self._forest,
            self._neighbours,
            np.repeat(np.arange(len(self._given)), self._parts),
            sequences.target_first[self._targets],
            self._lengths,
            out["loss_source"],
        )
        self._write_entries(out)

    def _write_entries(self, out: dict[str, np.ndarray]) -> None:
        exchanges, lengths, records = self._exchanges, self._lengths, self._records
        np.concatenate([exchange.completion_ids for exchange in exchanges], out=out["loss_target"])
        np.concatenate([exchange.logprobs for exchange in exchanges], out=out["loss_old_logprob"])
        temperatures = np.array([exchange.temperature for exchange in exchanges], np.float32)
        write_repeated(records, lengths, out["loss_record"])
        write_repeated(temperatures, lengths, out["loss_temperature"])
        write_repeated(self._weights[records], lengths, out["loss_weight"])
        if self._kl.coefficient:
            self._write_reference(out)
        if not (self._kl.coefficient and self._kl.place == "advantage"):
            write_repeated(self._advantages[records], lengths, out["loss_advantage"])
        write_repeated(self._span_versions, self._span_lengths, out["loss_version"])

    def _write_reference(self, out: dict[str, np.ndarray]) -> None:
        reference = reference_logprobs(self._exchanges)
        weights = np.repeat(self._weights[self._records], self._lengths)
        out["loss_reference_logprob"][:] = reference
        if self._kl.place == "advantage":
            advantages = np.repeat(self._advantages[self._records], self._lengths)
            out["loss_advantage"][:] = charged_advantages(
                advantages, weights, out["loss_old_logprob"], reference, self._kl.coefficient
            )
        elif self._kl.place == "loss":
            out["loss_kl_weight"][:] = self._kl.coefficient * weights


def plan_packing(
    groups: Sequence[Sequence[TrajectoryRecord]],
    *,
    packed_sequence_length: int,
    policy_version: int,
    advantage: AdvantageRule = AdvantageRule(),  # noqa: B008 - frozen
    loss_weight: LossWeightRule = LossWeightRule(),  # noqa: B008 - frozen
    kl: KlRule = KlRule(),  # noqa: B008 - frozen
    objective: Objective = "rl",
    merge_routes: MergeRoutes = "equal",
) -> PackingPlan:
    """Decides what goes where.

    The plan refers to the records' arrays. It copies the tokens of its sequences, to sort them, and nothing
    else.

    Args:
        groups: records, group by group.
        packed_sequence_length: physical tokens of a row, at most.
        policy_version: the version that the step starts from.
        advantage: how rewards become advantages.
        loss_weight: how much each entry counts.
        kl: what a divergence from a reference policy costs.
        objective: with ``"sft"`` every target has the advantage 1.
        merge_routes: which equal tokens are computed once when records have routes.

    Raises:
        PackingError: trajectories do not fit into a row, a record is invalid, of another group, there
            twice, of a version after ``policy_version`` or sampled at temperature 0, or only some records
            have routes.
    """
    if packed_sequence_length <= 0:
        raise PackingError(
            f"packed_sequence_length is {packed_sequence_length}; a row needs at least one token"
        )
    if not pass_at_once(groups, policy_version):
        check_records(groups, policy_version)
    scored, excluded = score_groups(groups, advantage, kl, objective)
    return plan_scored_groups(
        scored,
        excluded,
        packed_sequence_length=packed_sequence_length,
        advantage=advantage if objective == "rl" else AdvantageRule(),
        loss_weight=loss_weight,
        kl=kl,
        merge_routes=merge_routes,
    )


def plan_scored_groups(
    groups: Sequence[ScoredGroup],
    excluded: dict[str, int],
    *,
    packed_sequence_length: int,
    advantage: AdvantageRule,
    loss_weight: LossWeightRule,
    kl: KlRule,
    merge_routes: MergeRoutes = "equal",
) -> PackingPlan:
    """The second half of :func:`plan_packing`, for groups that were checked and scored.

    Args:
        groups: what is trained on.
        excluded: what was left out, under the names of ``PackingCounts``.
        packed_sequence_length: physical tokens of a row, at most.
        advantage: for what the batch as a whole changes.
        loss_weight: how much each entry counts.
        kl: what a divergence from a reference policy costs.
        merge_routes: which equal tokens are computed once when records have routes.

    Raises:
        PackingError: trajectories do not fit into a row, or only some records have routes.
    """
    records = [record for group in groups for record in group.records]
    sequences = gather_sequences(records, packed_sequence_length)
    owners = [records[index].record_id for index in sequences.records.tolist()]
    parts = sort_sequences(sequences.tokens, sequences.starts, sequences.lengths, owners)
    if sequences.routes and merge_routes == "equal":
        parts = separate_routes(parts, sequences.routes)
    row, row_count = assign_rows(parts.lengths, parts.shared, packed_sequence_length)
    return PackingPlan(
        sequences,
        lay_out_rows(parts, row, row_count),
        parts.order,
        groups,
        excluded,
        advantage=advantage,
        loss_weight=loss_weight,
        kl=kl,
    )


def _expand(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """``begin, begin + 1, ...``, ``count`` numbers for each; int64."""
    total = int(counts.sum())
    return np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(total)


def _place_routes(sequences: BatchSequences, forest: Forest, given: np.ndarray) -> RoutePlan | None:
    """Where the routes of each sequence's own tokens go; None when there are no routes."""
    if not sequences.routes:
        return None
    plan = RoutePlan(sequences.routes[0].dtype, *sequences.routes[0].shape[1:])
    shared, lengths = forest.shared.tolist(), forest.lengths.tolist()
    for index, begin, end in zip(given.tolist(), shared, lengths, strict=True):
        plan.place(sequences.routes[index], begin, end)
    return plan


def _layout(
    counts: PackingCounts, routes: RoutePlan | None, kl: KlRule
) -> tuple[tuple[TensorSpec, ...], int]:
    tokens, entries, rows = (counts.physical_tokens,), (counts.loss_entries,), (counts.row_count + 1,)
    tensors: list[tuple[str, str, tuple[int, ...]]] = [
        ("token_ids", "int32", tokens),
        ("position_ids", "int32", tokens),
        ("subtree_end", "int32", tokens),
        ("loss_source", "int32", entries),
        ("loss_target", "int32", entries),
        ("loss_old_logprob", "float32", entries),
        ("loss_advantage", "float32", entries),
        ("loss_weight", "float32", entries),
        ("loss_version", "int32", entries),
        ("loss_record", "int32", entries),
        ("loss_temperature", "float32", entries),
        ("row_offsets", "int32", rows),
        ("loss_row_offsets", "int32", rows),
    ]
    tensors += [(name, "float32", entries) for name in kl.tensors]
    if routes is not None:
        tensors.append(("routes", routes.dtype.name, routes.shape))
    return lay_out(tensors)
