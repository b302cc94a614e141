"""The sequences that records ask to be computed, and what each of them predicts.

A *sequence* is one branch of a trajectory: its tokens up to the last that predicts a target. The columns
here hold the sequences of a whole batch, so that they can be sorted and written without a loop over tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from art_dataplane.errors import PackingError
from art_dataplane.prefix_forest import PADDING
from art_dataplane.records import TokenRecord, TrajectoryRecord, branches
from art_dataplane.routes import SequenceRoutes

_NAMED = 3  # trajectories that do not fit are named up to so many, the others counted


class BatchSequences(NamedTuple):
    """``N`` sequences of a batch with ``P`` completions to predict, in the order of the records.

    Args:
        tokens: int32: sequence ``i`` is ``tokens[starts[i]:starts[i] + lengths[i]]``.
        starts: int64 ``[N]``.
        lengths: int64 ``[N]``.
        records: int64 ``[N]``: index of the record.
        target_offsets: int64 ``[N + 1]``: the completions of each sequence among all ``P``.
        target_first: int64 ``[P]``: depth of the token that predicts the first of each completion.
        target_counts: int64 ``[P]``: tokens of each completion.
        exchanges: of each completion.
        routes: of each sequence; empty when no exchange has routes.
        logical_tokens: of all branches of all records.
        truncated_records: how many records were sampled with truncation.
    """

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    records: np.ndarray
    target_offsets: np.ndarray
    target_first: np.ndarray
    target_counts: np.ndarray
    exchanges: list[TokenRecord]
    routes: list[SequenceRoutes]
    logical_tokens: int
    truncated_records: int


def gather_sequences(records: Sequence[TrajectoryRecord], capacity: int) -> BatchSequences:
    """Collects what ``records`` ask to be computed: one sequence for each branch that has a target.

    Raises:
        PackingError: trajectories do not fit into ``capacity`` tokens, only some exchanges have routes, or
            routes differ in shape.
    """
    texts: list[np.ndarray] = []
    owners: list[int] = []
    targets: list[int] = [0]
    exchanges: list[TokenRecord] = []
    others = truncated = 0  # tokens of branches without targets
    for number, record in enumerate(records):
        if len(record.exchanges) == 1 and len(record.exchanges[0].completion_ids):
            only = record.exchanges[0]
            texts.append(only.prompt_ids)
            texts.append(only.completion_ids)
            exchanges.append(only)
            owners.append(number)
            targets.append(len(exchanges))
            truncated += only.truncated_sampling
            continue
        truncated += any(exchange.truncated_sampling for exchange in record.exchanges)
        for chain in branches(record.exchanges):
            predicted = [
                record.exchanges[each] for each in chain if len(record.exchanges[each].completion_ids)
            ]
            others += _token_count(record.exchanges[chain[-1]])
            if predicted:
                others -= _token_count(predicted[-1])
                texts += (predicted[-1].prompt_ids, predicted[-1].completion_ids)
                exchanges += predicted
                owners.append(number)
                targets.append(len(exchanges))
    counts = np.array([len(text) for text in texts], np.int64)
    totals = counts[::2] + counts[1::2]
    tokens = np.zeros(int(totals.sum()) + PADDING, np.int32)
    if texts:
        np.concatenate(texts, out=tokens[:-PADDING])
    found = BatchSequences(
        tokens=tokens,
        starts=np.cumsum(totals) - totals,
        lengths=totals - 1,
        records=np.array(owners, np.int64),
        target_offsets=np.array(targets, np.int64),
        target_first=np.array([len(exchange.prompt_ids) - 1 for exchange in exchanges], np.int64),
        target_counts=np.array([len(exchange.completion_ids) for exchange in exchanges], np.int64),
        exchanges=exchanges,
        routes=[],
        logical_tokens=int(totals.sum()) + others,
        truncated_records=truncated,
    )
    _check_lengths(found, records, capacity)
    return found._replace(routes=_gather_routes(found, records))


def _token_count(exchange: TokenRecord) -> int:
    return len(exchange.prompt_ids) + len(exchange.completion_ids)


def _check_lengths(found: BatchSequences, records: Sequence[TrajectoryRecord], capacity: int) -> None:
    longest: dict[int, int] = {}  # the longest sequence of each record that does not fit
    for index in np.flatnonzero(found.lengths > capacity).tolist():
        number = int(found.records[index])
        if number not in longest or found.lengths[index] > found.lengths[longest[number]]:
            longest[number] = index
    if not longest:
        return
    named = []
    for number, index in list(longest.items())[:_NAMED]:
        record = records[number]
        last = found.exchanges[int(found.target_offsets[index + 1]) - 1]
        named.append(
            f"trajectory {record.record_id} of group {record.group_id} does not fit: prompt "
            f"{len(last.prompt_ids)} + completion {len(last.completion_ids)} tokens need "
            f"{int(found.lengths[index])} physical tokens"
        )
    text = "; ".join(named)
    if len(longest) > 1:
        text = f"{len(longest)} of {len(records)} trajectories do not fit: {text}"
    if len(longest) > _NAMED:
        text += f"; and {len(longest) - _NAMED} more"
    raise PackingError(
        f"{text}, packed_sequence_length is {capacity}; raise it or bound the rollouts' length"
    )


def _gather_routes(found: BatchSequences, records: Sequence[TrajectoryRecord]) -> list[SequenceRoutes]:
    """Routes of each sequence's tokens, each from the exchange of its branch that had the token first."""
    present = sum(exchange.routes is not None for exchange in found.exchanges)
    if not present:
        return []
    if present != len(found.exchanges):
        index = next(index for index, each in enumerate(found.exchanges) if each.routes is None)
        number = found.records[np.searchsorted(found.target_offsets, index, "right") - 1]
        raise PackingError(
            f"{present} of {len(found.exchanges)} exchanges have routes, and one of record "
            f"{records[number].record_id} has none; all need them, or none"
        )
    routes = []
    edges = found.target_offsets.tolist()
    for begin, end, count, number in zip(
        edges, edges[1:], found.lengths.tolist(), found.records.tolist(), strict=False
    ):
        blocks = [each.routes.experts for each in found.exchanges[begin:end] if each.routes is not None]
        routes.append(SequenceRoutes.of_chain(blocks, count, records[number].record_id))
    layouts = {(each.dtype.name, each.shape[1:]) for each in routes}
    if len(layouts) != 1:
        raise PackingError(f"routes of the layouts {sorted(layouts)} in one batch; all need the same")
    return routes
