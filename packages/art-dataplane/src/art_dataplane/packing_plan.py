"""Plans a packed batch and writes it: pure functions of the records, which know no process and no transport.

The invariants are those of :mod:`art_dataplane.packing`. A *sequence* is what one branch of a trajectory asks
to be computed: its tokens up to the last that predicts a target. A *unit* is a tree of one group, or a part
of one, that goes into a row as a whole. Units of one row that begin alike are merged.
"""

import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from art_dataplane.advantages import AdvantageRule, batch_advantages
from art_dataplane.batch import Objective, PackingCounts, view_tensors
from art_dataplane.errors import PackingError
from art_dataplane.kl import KlRule, charged_advantages, reference_logprobs
from art_dataplane.locations import TensorSpec, lay_out
from art_dataplane.loss_weights import LossWeightRule, record_weights
from art_dataplane.packing_input import TokenSequence, sequences_of
from art_dataplane.prefix_forest import (
    Forest,
    SortedSequences,
    build_forest,
    size_of_parts,
    sort_sequences,
    split_at_branches,
    write_forest,
)
from art_dataplane.records import TrajectoryRecord, logical_token_count
from art_dataplane.routes import RoutePlan
from art_dataplane.scoring import check_records, score_groups

__all__ = ["LossWeightRule", "PackingPlan", "plan_packing"]


class _Unit(NamedTuple):
    forest: Forest
    sequences: list[TokenSequence]


class PackingPlan:
    """What a batch will hold, decided but not written. Made by :func:`plan_packing`.

    ``byte_count`` is how many bytes :meth:`write` needs, ``tensors`` says where each tensor goes in them;
    ``counts``, ``versions``, ``record_ids`` and ``group_ids`` are those of
    :class:`art_dataplane.PackedBatchRef`.
    """

    def __init__(
        self,
        rows: list[list[_Unit]],
        records: list[TrajectoryRecord],
        advantages: np.ndarray,
        rule: AdvantageRule,
        group_ids: tuple[str, ...],
        groups: np.ndarray,
        loss_weight: LossWeightRule,
        kl: KlRule,
        excluded: dict[str, int],
    ) -> None:
        self._rows = rows
        targets = [part for row in rows for unit in row for each in unit.sequences for part in each.targets]
        self._targets = targets
        self._lengths = np.array([len(part.exchange.completion_ids) for part in targets], np.int64)
        self._records = np.array([part.record for part in targets], np.int64)
        self._kl = kl
        entry_counts = np.bincount(self._records, self._lengths, minlength=len(records))
        self._weights = record_weights(entry_counts, groups, loss_weight)
        self._advantages = batch_advantages(advantages, self._weights * entry_counts, rule)
        token_counts = [sum(unit.forest.size for unit in row) for row in rows]
        loss_counts = [
            sum(
                len(part.exchange.completion_ids)
                for unit in row
                for each in unit.sequences
                for part in each.targets
            )
            for row in rows
        ]
        self._row_offsets = np.concatenate(([0], np.cumsum(token_counts, dtype=np.int64)))
        self._loss_row_offsets = np.concatenate(([0], np.cumsum(loss_counts, dtype=np.int64)))
        self._routes = _place_routes(rows)
        self.record_ids: tuple[str, ...] = tuple(record.record_id for record in records)
        self.group_ids = group_ids
        self.versions: tuple[int, ...] = tuple(
            sorted({span.version for part in targets for span in part.exchange.completion_spans})
        )
        self.counts = PackingCounts(
            trajectory_count=len(records),
            row_count=len(rows),
            logical_tokens=sum(logical_token_count(record.exchanges) for record in records),
            physical_tokens=int(self._row_offsets[-1]),
            loss_entries=int(self._loss_row_offsets[-1]),
            group_count=len(group_ids),
            truncated_records=sum(
                any(exchange.truncated_sampling for exchange in record.exchanges) for record in records
            ),
            **excluded,
        )
        self.tensors, self.byte_count = _layout(self.counts, self._routes, kl)

    def write(self, buffer: memoryview) -> None:
        """Writes all tensors into ``buffer``, which has at least ``byte_count`` bytes.

        Raises:
            BatchError: the buffer is too small.
        """
        out = view_tensors(self.tensors, buffer)
        out["row_offsets"][:] = self._row_offsets
        out["loss_row_offsets"][:] = self._loss_row_offsets
        self._write_tokens(out)
        if self._routes is not None:
            self._routes.write(out["routes"])
        if not self._targets:
            return
        exchanges = [part.exchange for part in self._targets]
        np.concatenate([exchange.completion_ids for exchange in exchanges], out=out["loss_target"])
        np.concatenate([exchange.logprobs for exchange in exchanges], out=out["loss_old_logprob"])
        entry_records = np.repeat(self._records, self._lengths)
        out["loss_record"][:] = entry_records
        weights, advantages = self._weights[entry_records], self._advantages[entry_records]
        if self._kl.coefficient:
            reference = reference_logprobs(exchanges)
            out["loss_reference_logprob"][:] = reference
            if self._kl.place == "advantage":
                advantages = charged_advantages(
                    advantages, weights, out["loss_old_logprob"], reference, self._kl.coefficient
                )
            elif self._kl.place == "loss":
                out["loss_kl_weight"][:] = self._kl.coefficient * weights
        out["loss_advantage"][:] = advantages
        out["loss_weight"][:] = weights
        out["loss_temperature"][:] = np.repeat(
            [exchange.temperature for exchange in exchanges], self._lengths
        )
        spans = [span for exchange in exchanges for span in exchange.completion_spans]
        out["loss_version"][:] = np.repeat(
            [span.version for span in spans], [span.end - span.start for span in spans]
        )

    def _write_tokens(self, out: dict[str, np.ndarray]) -> None:
        token, loss = 0, 0
        for row in self._rows:
            base = 0
            for unit in row:
                part = slice(token, token + unit.forest.size)
                write_forest(
                    unit.forest,
                    out["token_ids"][part],
                    out["position_ids"][part],
                    out["subtree_end"][part],
                    base,
                )
                loss = _write_sources(unit, out["loss_source"], loss, base)
                token += unit.forest.size
                base += unit.forest.size


def plan_packing(
    groups: Sequence[Sequence[TrajectoryRecord]],
    *,
    packed_sequence_length: int,
    policy_version: int,
    advantage: AdvantageRule = AdvantageRule(),  # noqa: B008 - frozen
    loss_weight: LossWeightRule = LossWeightRule(),  # noqa: B008 - frozen
    kl: KlRule = KlRule(),  # noqa: B008 - frozen
    objective: Objective = "rl",
) -> PackingPlan:
    """Decides what goes where. The plan refers to the records' arrays, it copies none of them.

    Args:
        groups: records, group by group.
        packed_sequence_length: physical tokens of a row, at most.
        policy_version: the version that the step starts from.
        advantage: how rewards become advantages.
        loss_weight: how much each entry counts.
        kl: what a divergence from a reference policy costs.
        objective: with ``"sft"`` every target has the advantage 1.

    Raises:
        PackingError: a trajectory does not fit into a row, a record is invalid, of another group, there
            twice, of a version after ``policy_version`` or sampled at temperature 0, or only some records
            have routes.
    """
    if packed_sequence_length <= 0:
        raise PackingError(
            f"packed_sequence_length is {packed_sequence_length}; a row needs at least one token"
        )
    check_records(groups, policy_version)
    scored, excluded = score_groups(groups, advantage, kl, objective)
    records = [record for group in scored for record in group.records]
    units: list[_Unit] = []
    first = 0
    for group in scored:
        units += _plan_group(group.records, first, packed_sequence_length)
        first += len(group.records)
    rows = _fill_rows([unit.forest.size for unit in units], packed_sequence_length)
    return PackingPlan(
        [_merged([units[index] for index in row], records) for row in rows],
        records,
        np.array([value for group in scored for value in group.advantages], np.float64),
        advantage if objective == "rl" else AdvantageRule(),
        tuple(group.group_id for group in scored),
        np.repeat(np.arange(len(scored)), np.array([len(group.records) for group in scored], np.int64)),
        loss_weight,
        kl,
        excluded,
    )


def _plan_group(records: list[TrajectoryRecord], first: int, capacity: int) -> list[_Unit]:
    sequences: list[TokenSequence] = []
    owners: list[str] = []
    for index, record in enumerate(records):
        for sequence in sequences_of(record, first + index):
            if len(sequence.tokens) > capacity:
                last = sequence.targets[-1].exchange
                raise PackingError(
                    f"trajectory {record.record_id} of group {record.group_id} does not fit: prompt "
                    f"{len(last.prompt_ids)} + completion {len(last.completion_ids)} tokens need "
                    f"{len(sequence.tokens)} physical tokens, packed_sequence_length is {capacity}; raise "
                    "it or bound the rollout's length"
                )
            sequences.append(sequence)
            owners.append(record.record_id)
    parts = sort_sequences([sequence.tokens for sequence in sequences], owners)
    ordered = [sequences[index] for index in parts.order.tolist()]
    return [
        _Unit(build_forest(parts, begin, end), ordered[begin:end])
        for tree in _trees(parts)
        for begin, end in _cut(parts, *tree, capacity)
    ]


def _trees(parts: SortedSequences) -> list[tuple[int, int]]:
    roots = np.flatnonzero(parts.shared == 0).tolist()
    return list(zip(roots, [*roots[1:], len(parts.sequences)], strict=True))


def _cut(parts: SortedSequences, begin: int, end: int, capacity: int) -> list[tuple[int, int]]:
    tree = SortedSequences(
        parts.sequences[begin:end], parts.order[begin:end], parts.lengths[begin:end], parts.shared[begin:end]
    )
    if size_of_parts(tree) <= capacity:
        return [(begin, end)]
    return [(begin + low, begin + high) for low, high in split_at_branches(tree, capacity)]


def _fill_rows(sizes: list[int], capacity: int) -> list[list[int]]:
    """Best fit decreasing: each unit, the largest first, goes into the fullest row that has room for it."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # room and row, ascending
    for index in sorted(range(len(sizes)), key=lambda each: (-sizes[each], each)):
        at = bisect.bisect_left(free, (sizes[index], -1))
        if at < len(free):
            room, row = free.pop(at)
        else:
            room, row = capacity, len(rows)
            rows.append([])
        rows[row].append(index)
        bisect.insort(free, (room - sizes[index], row))
    return rows


def _merged(units: list[_Unit], records: list[TrajectoryRecord]) -> list[_Unit]:
    """The units of one row; those that begin alike, as prompts with one system message do, become one forest.

    The row only gets shorter, since what they share is computed once.
    """
    if len({int(unit.sequences[0].tokens[0]) for unit in units}) == len(units):
        return units
    sequences = [sequence for unit in units for sequence in unit.sequences]
    parts = sort_sequences(
        [sequence.tokens for sequence in sequences],
        [records[sequence.targets[0].record].record_id for sequence in sequences],
    )
    ordered = [sequences[index] for index in parts.order.tolist()]
    return [_Unit(build_forest(parts, 0, len(ordered)), ordered)]


def _place_routes(rows: list[list[_Unit]]) -> RoutePlan | None:
    """Where the routes of each sequence's own tokens go; None when no sequence has routes."""
    present = [
        each.routes for row in rows for unit in row for each in unit.sequences if each.routes is not None
    ]
    if not present:
        return None
    count = sum(len(unit.sequences) for row in rows for unit in row)
    layouts = {(routes.dtype.name, routes.shape[1:]) for routes in present}
    if len(present) != count or len(layouts) != 1:
        raise PackingError(
            f"{len(present)} of {count} sequences have routes, of the layouts {sorted(layouts)}; all need "
            "the same"
        )
    plan = RoutePlan(present[0].dtype, *present[0].shape[1:])
    for unit in (unit for row in rows for unit in row):
        shared, lengths = unit.forest.shared.tolist(), unit.forest.lengths.tolist()
        for sequence, begin, end in zip(unit.sequences, shared, lengths, strict=True):
            if sequence.routes is not None:
                plan.place(sequence.routes, begin, end)
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


def _write_sources(unit: _Unit, out: np.ndarray, end: int, base: int) -> int:
    """Writes the unit's loss sources from entry ``end`` on; returns the entry behind the last."""
    forest = unit.forest
    # Depth-first indices of the current sequence's tokens; what its predecessor shares stays in place.
    path = np.empty(int(forest.lengths.max()), np.int32)
    counting = np.arange(base, base + forest.size, dtype=np.int32)
    shared, lengths, starts = forest.shared.tolist(), forest.lengths.tolist(), forest.start.tolist()
    for sequence, depth, length, start in zip(unit.sequences, shared, lengths, starts, strict=True):
        path[depth:length] = counting[start : start + length - depth]
        for part in sequence.targets:
            count = len(part.exchange.completion_ids)
            out[end : end + count] = path[part.first : part.first + count]
            end += count
    return end
