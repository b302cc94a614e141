"""Plans a packed batch and writes it: pure functions of the records, which know no process and no transport.

The invariants are those of :mod:`art_dataplane.packing`. A *sequence* is what one branch of a trajectory asks
to be computed: its tokens up to the last that predicts a target. A *unit* is a tree, or a part of one, that
goes into a row as a whole.
"""

import bisect
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from art_dataplane.advantages import AdvantageRule, group_advantages
from art_dataplane.batch import PackingCounts, view_tensors
from art_dataplane.errors import PackingError, RecordError
from art_dataplane.locations import TensorSpec, lay_out
from art_dataplane.prefix_forest import (
    Forest,
    SortedSequences,
    build_forest,
    size_of_parts,
    sort_sequences,
    split_at_branches,
    write_forest,
)
from art_dataplane.records import TokenRecord, TrajectoryRecord, branches, logical_token_count


class LossWeightRule(msgspec.Struct, frozen=True):
    """How much each loss entry counts: the trainer sums ``weight * loss`` over all entries of the batch.

    Args:
        normalize: ``"token_mean"`` gives each of the ``L`` entries of the batch ``1 / L``: long trajectories
            count more. ``"trajectory_mean"`` gives each of the ``N`` packed trajectories ``1 / N``, shared
            equally among its entries. Either way the sum is 1.
    """

    normalize: Literal["token_mean", "trajectory_mean"] = "token_mean"


class _Targets(NamedTuple):
    """The completion of one exchange.

    Loss entries at sources ``[first, first + len(completion))`` of a sequence.
    """

    record: int
    first: int
    exchange: TokenRecord


class _Sequence(NamedTuple):
    tokens: np.ndarray
    targets: list[_Targets]
    routes: np.ndarray | None


class _Unit(NamedTuple):
    forest: Forest
    sequences: list[_Sequence]


class _Scored(NamedTuple):
    """One group that takes part, with its records that are trained on and their advantages."""

    group_id: str
    records: list[TrajectoryRecord]
    advantages: list[float]


class PackingPlan:
    """What a batch will hold, decided but not written. ``byte_count`` is what :meth:`write` needs."""

    def __init__(
        self,
        rows: list[list[_Unit]],
        records: list[TrajectoryRecord],
        advantages: np.ndarray,
        group_ids: tuple[str, ...],
        loss_weight: LossWeightRule,
        excluded: dict[str, int],
    ) -> None:
        self._rows = rows
        targets = [part for row in rows for unit in row for each in unit.sequences for part in each.targets]
        self._targets = targets
        self._lengths = np.array([len(part.exchange.completion_ids) for part in targets], np.int64)
        self._records = np.array([part.record for part in targets], np.int64)
        self._advantages = advantages
        self._weights = _record_weights(self._records, self._lengths, len(records), loss_weight)
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
        routes = _routes_layout(rows)
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
            **excluded,
        )
        self.tensors, self.byte_count = _layout(self.counts, routes)

    def write(self, buffer: memoryview) -> None:
        """Writes all tensors into ``buffer``, which has at least ``byte_count`` bytes.

        Raises:
            BatchError: the buffer is too small.
        """
        out = view_tensors(self.tensors, buffer)
        out["row_offsets"][:] = self._row_offsets
        out["loss_row_offsets"][:] = self._loss_row_offsets
        self._write_tokens(out)
        if not self._targets:
            return
        exchanges = [part.exchange for part in self._targets]
        np.concatenate([exchange.completion_ids for exchange in exchanges], out=out["loss_target"])
        np.concatenate([exchange.logprobs for exchange in exchanges], out=out["loss_old_logprob"])
        entry_records = np.repeat(self._records, self._lengths)
        out["loss_record"][:] = entry_records
        out["loss_advantage"][:] = self._advantages[entry_records]
        out["loss_weight"][:] = self._weights[entry_records]
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
                if "routes" in out:
                    _write_routes(unit, out["routes"][part])
                token += unit.forest.size
                base += unit.forest.size


def plan_packing(
    groups: Sequence[Sequence[TrajectoryRecord]],
    *,
    packed_sequence_length: int,
    policy_version: int,
    advantage: AdvantageRule = AdvantageRule(),  # noqa: B008 - frozen
    loss_weight: LossWeightRule = LossWeightRule(),  # noqa: B008 - frozen
) -> PackingPlan:
    """Decides what goes where. The plan refers to the records' arrays, it copies none of them.

    Raises:
        PackingError: a trajectory does not fit into a row, a record is invalid, of another group, there
            twice, of a version after ``policy_version`` or sampled at temperature 0, or only some records
            have routes.
    """
    if packed_sequence_length <= 0:
        raise PackingError(
            f"packed_sequence_length is {packed_sequence_length}; a row needs at least one token"
        )
    _check_records(groups, policy_version)
    scored, excluded = _score(groups, advantage)
    records = [record for group in scored for record in group.records]
    units: list[_Unit] = []
    first = 0
    for group in scored:
        units += _plan_group(group.records, first, packed_sequence_length)
        first += len(group.records)
    rows = _fill_rows([unit.forest.size for unit in units], packed_sequence_length)
    return PackingPlan(
        [[units[index] for index in row] for row in rows],
        records,
        np.array([value for group in scored for value in group.advantages], np.float64),
        tuple(group.group_id for group in scored),
        loss_weight,
        excluded,
    )


def _check_records(groups: Sequence[Sequence[TrajectoryRecord]], policy_version: int) -> None:
    seen: set[str] = set()
    for group in groups:
        for record in group:
            try:
                record.validate()
            except RecordError as error:
                raise PackingError(str(error)) from error
            if record.group_id != group[0].group_id:
                raise PackingError(
                    f"record {record.record_id} of group {record.group_id} is among those of "
                    f"{group[0].group_id}"
                )
            if record.record_id in seen:
                raise PackingError(f"record {record.record_id} is there twice; it would be trained on twice")
            seen.add(record.record_id)
            if record.error is None:
                _check_trainable(record, policy_version)


def _check_trainable(record: TrajectoryRecord, policy_version: int) -> None:
    for index, exchange in enumerate(record.exchanges):
        if len(exchange.completion_ids) and exchange.temperature == 0:
            raise PackingError(
                f"record {record.record_id}, exchange {index} was sampled at temperature 0, where log-probs "
                "say nothing about the policy; sample with a temperature above 0"
            )
        newest = max((span.version for span in exchange.completion_spans), default=0)
        if newest > policy_version:
            raise PackingError(
                f"record {record.record_id}, exchange {index} has tokens of version {newest}, after the "
                f"version {policy_version} that this step starts from"
            )


def _score(
    groups: Sequence[Sequence[TrajectoryRecord]], rule: AdvantageRule
) -> tuple[list[_Scored], dict[str, int]]:
    finished = [[record for record in group if record.error is None] for group in groups]
    failed = sum(map(len, groups)) - sum(map(len, finished))
    finished = [group for group in finished if group]
    rewards = np.array([record.reward for group in finished for record in group], np.float64)
    offsets = np.concatenate(([0], np.cumsum([len(group) for group in finished], dtype=np.int64)))
    result = group_advantages(rewards, offsets, rule)
    values = result.advantages.tolist()
    scored: list[_Scored] = []
    without_targets = dropped = 0
    for group, begin, equal in zip(
        finished, offsets.tolist(), result.is_zero_variance.tolist(), strict=False
    ):
        if equal and rule.zero_variance == "drop":
            dropped += 1
            continue
        chosen = [
            (record, values[begin + index])
            for index, record in enumerate(group)
            if any(len(exchange.completion_ids) for exchange in record.exchanges)
        ]
        without_targets += len(group) - len(chosen)
        if chosen:
            scored.append(
                _Scored(group[0].group_id, [each[0] for each in chosen], [each[1] for each in chosen])
            )
    return scored, {
        "dropped_zero_variance_groups": dropped,
        "failed_records": failed,
        "records_without_targets": without_targets,
        "zero_variance_groups": int(result.is_zero_variance.sum()),
    }


def _plan_group(records: list[TrajectoryRecord], first: int, capacity: int) -> list[_Unit]:
    sequences: list[_Sequence] = []
    owners: list[str] = []
    for index, record in enumerate(records):
        for sequence in _sequences_of(record, first + index):
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


def _sequences_of(record: TrajectoryRecord, index: int) -> list[_Sequence]:
    sequences: list[_Sequence] = []
    for chain in branches(record.exchanges):
        exchanges = [record.exchanges[number] for number in chain]
        exchanges = [exchange for exchange in exchanges if len(exchange.completion_ids)]
        if exchanges:
            last = exchanges[-1]
            tokens = np.concatenate((last.prompt_ids, last.completion_ids[:-1]))
            targets = [_Targets(index, len(exchange.prompt_ids) - 1, exchange) for exchange in exchanges]
            sequences.append(_Sequence(tokens, targets, _routes_of(record, exchanges, len(tokens))))
    return sequences


def _routes_of(record: TrajectoryRecord, exchanges: list[TokenRecord], count: int) -> np.ndarray | None:
    """Routes of a sequence's tokens, each from the exchange of the chain in which the token came up first."""
    blocks = [exchange.routes.experts for exchange in exchanges if exchange.routes is not None]
    if not blocks:
        return None
    if len(blocks) != len(exchanges) or len({(block.dtype, block.shape[1:]) for block in blocks}) != 1:
        raise PackingError(
            f"record {record.record_id} has routes in {len(blocks)} of {len(exchanges)} exchanges, or of "
            "several shapes"
        )
    ends = [0, *(len(block) for block in blocks)]
    parts = [block[begin:] for block, begin in zip(blocks, ends, strict=False)]
    return np.concatenate(parts)[:count]


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


def _record_weights(records: np.ndarray, lengths: np.ndarray, count: int, rule: LossWeightRule) -> np.ndarray:
    """float64 ``[count]``: the weight of each entry of each record."""
    entries = np.bincount(records, lengths, minlength=count) if count else np.zeros(0)
    if rule.normalize == "token_mean":
        return np.full(count, 1.0 / max(entries.sum(), 1.0))
    return 1.0 / (count * entries)


def _routes_layout(rows: list[list[_Unit]]) -> tuple[str, tuple[int, ...]] | None:
    routes = [sequence.routes for row in rows for unit in row for sequence in unit.sequences]
    present = [block for block in routes if block is not None]
    if not present:
        return None
    layouts = {(block.dtype.name, block.shape[1:]) for block in present}
    if len(present) != len(routes) or len(layouts) != 1:
        raise PackingError(
            f"{len(present)} of {len(routes)} sequences have routes, of the layouts {sorted(layouts)}; all "
            "need the same"
        )
    return layouts.pop()


def _layout(
    counts: PackingCounts, routes: tuple[str, tuple[int, ...]] | None
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
    if routes is not None:
        tensors.append(("routes", routes[0], (counts.physical_tokens, *routes[1])))
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


def _write_routes(unit: _Unit, out: np.ndarray) -> None:
    forest = unit.forest
    shared, lengths, starts = forest.shared.tolist(), forest.lengths.tolist(), forest.start.tolist()
    for sequence, depth, length, start in zip(unit.sequences, shared, lengths, starts, strict=True):
        if sequence.routes is not None:
            out[start : start + length - depth] = sequence.routes[depth:]
