"""Merges equal prefixes of token sequences into trees, so that shared tokens are computed once.

A forest is kept without nodes or pointers. The sequences are sorted by their tokens; in this order each
sequence adds exactly the tokens behind the prefix it shares with its predecessor, and writing these down one
sequence after the other *is* depth-first order. Three integers per sequence say everything: its length, the
length of that shared prefix (``shared``), and where its first own token stands (``start``).

What always holds, for tokens in depth-first order:

- the path from the root to token ``t`` are the tokens ``k <= t`` with ``t < subtree_end[k]``;
- the position of a token is its depth, the number of tokens before it on its path;
- the forest does not depend on the order in which the sequences were given.

Nothing here is done token by token in Python: tokens are compared and copied by NumPy, in runs.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

PADDING = 4096
"""So many tokens at most are compared at once, and may be looked at behind the end of a sequence."""

_AT_ONCE = 1 << 16  # numbers that are worked on together, so that they stay in the processor's cache


class SortedSequences(NamedTuple):
    """Sequences in the order of their tokens.

    Args:
        order: int64 ``[N]``: index of each among those given.
        lengths: int64 ``[N]``: tokens of each.
        shared: int64 ``[N]``: leading tokens that it has in common with its predecessor, 0 for the first.
    """

    order: np.ndarray
    lengths: np.ndarray
    shared: np.ndarray


class Forest(NamedTuple):
    """Rows of sorted sequences laid out one after the other; all arrays are int64.

    Args:
        chosen: ``[N]``: which of the sorted sequences, row by row and ascending in each row.
        lengths: ``[N]``: tokens of each.
        shared: ``[N]``: leading tokens in common with its predecessor in the row, 0 for a row's first.
        start: ``[N + 1]``: where its first own token stands; last the number of tokens of all rows.
        row: ``[N]``: the row of each.
        row_offsets: ``[R + 1]``: where each row's first token stands; last the number of tokens.
    """

    chosen: np.ndarray
    lengths: np.ndarray
    shared: np.ndarray
    start: np.ndarray
    row: np.ndarray
    row_offsets: np.ndarray


def sort_sequences(
    tokens: np.ndarray, starts: np.ndarray, lengths: np.ndarray, tie_breakers: Sequence[str] | None = None
) -> SortedSequences:
    """Sorts token sequences and finds the prefixes that neighbours share.

    Args:
        tokens: int32, not negative: sequence ``i`` is ``tokens[starts[i]:starts[i] + lengths[i]]``. They
            are copied when they do not have :data:`PADDING` more behind the last sequence.
        starts: int64 ``[N]``.
        lengths: int64 ``[N]``, each at least 1.
        tie_breakers: decide between equal sequences; without them, and between equal ones, the given order
            does.
    """
    # Big-endian bytes of integers that are not negative compare as the integers do.
    data = memoryview(tokens.astype(">i4").view(np.uint8))
    keys = [
        bytes(data[begin:end])
        for begin, end in zip((4 * starts).tolist(), (4 * (starts + lengths)).tolist(), strict=True)
    ]
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    del keys, data
    first = starts[order]
    count = lengths[order]
    shared = np.zeros(len(order), np.int64)
    padding = int((first + count).max(initial=0)) + PADDING - len(tokens)
    if padding > 0:
        tokens = np.concatenate((tokens, np.zeros(padding, np.int32)))
    shared[1:] = common_prefixes(tokens, first[:-1], first[1:], np.minimum(count[:-1], count[1:]))
    if tie_breakers is not None:
        _break_ties(order, (shared == count) & (np.roll(count, 1) == count), tie_breakers)
    return SortedSequences(order, count, shared)


def _break_ties(order: np.ndarray, equal: np.ndarray, tie_breakers: Sequence[str]) -> None:
    """Sorts runs of equal sequences in ``order``; ``equal`` bool ``[N]``: equal to the predecessor."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], equal[1:], [False])).astype(np.int8)))
    for begin, end in edges.reshape(-1, 2).tolist():
        run = order[begin : end + 1].tolist()
        order[begin : end + 1] = sorted(run, key=lambda index: (tie_breakers[index], index))


def common_prefixes(
    tokens: np.ndarray, left: np.ndarray, right: np.ndarray, limits: np.ndarray
) -> np.ndarray:
    """For many pairs of places in ``tokens``, how many tokens from there on are the same; int64 ``[N]``.

    Args:
        tokens: int32, 4096 longer than any place that is compared.
        left: int64 ``[N]``: the first place of each pair.
        right: int64 ``[N]``: the second.
        limits: int64 ``[N]``: how many tokens are compared, at most.
    """
    found = limits.copy()
    pending = np.flatnonzero(limits > 0)
    done, width = 0, 16
    while len(pending):
        windows = np.lib.stride_tricks.sliding_window_view(tokens, width)
        still = []
        for part in np.array_split(pending, -(-len(pending) * width // _AT_ONCE)):
            differs = windows[left[part] + done] != windows[right[part] + done]
            different = differs.any(axis=1)
            ended = part[different]
            found[ended] = np.minimum(limits[ended], done + differs[different].argmax(axis=1))
            still.append(part[~different])
        done += width
        width = min(4 * width, PADDING)
        pending = np.concatenate(still)
        pending = pending[limits[pending] > done]
    return found


def lay_out_rows(parts: SortedSequences, row: np.ndarray, row_count: int) -> Forest:
    """Lays out sorted sequences in rows; in each row equal prefixes are there once.

    Args:
        parts: ``N`` sorted sequences.
        row: int64 ``[N]``: the row of each, from 0 to ``row_count - 1``, none empty.
        row_count: how many rows there are.
    """
    chosen = np.argsort(row, kind="stable")
    rows = row[chosen]
    shared = np.zeros(len(chosen), np.int64)
    behind = np.flatnonzero(rows[1:] == rows[:-1]) + 1  # those with a predecessor in their row
    shared[behind] = _least_between(parts.shared, chosen[behind - 1] + 1, chosen[behind])
    lengths = parts.lengths[chosen]
    start = np.concatenate(([0], np.cumsum(lengths - shared)))
    first = np.searchsorted(rows, np.arange(row_count + 1))
    return Forest(chosen, lengths, shared, start, rows, start[first])


def _least_between(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The least of ``values[first[i]:last[i] + 1]`` for each ``i``, from tables of powers of two."""
    levels = np.frexp(np.maximum(last - first + 1, 1))[1] - 1
    least = np.empty(len(first), np.int64)
    table = values
    for level in range(int(levels.max(initial=-1)) + 1):
        if level:
            half = 1 << (level - 1)
            table = np.minimum(table[:-half], table[half:])
        here = np.flatnonzero(levels == level)
        least[here] = np.minimum(table[first[here]], table[last[here] + 1 - (1 << level)])
    return least


class Neighbours(NamedTuple):
    """For each sequence of a forest, the nearest ones with a smaller shared prefix; arrays ``[N]``.

    Args:
        before: int64: the last one before it, which owns the last token of the shared prefix; itself where
            that prefix is empty.
        behind: int64: the first one behind it; N where there is none.
        leads: bool: something is shared, and no other between ``before`` and it shares exactly as much.
    """

    before: np.ndarray
    behind: np.ndarray
    leads: np.ndarray


def find_neighbours(shared: np.ndarray) -> Neighbours:
    """Finds the neighbours of all sequences.

    Args:
        shared: int64 ``[N]``, of a :class:`Forest`.
    """
    depths = shared.tolist()
    count = len(depths)
    before, behind, leads = list(range(count)), [count] * count, [False] * count
    open_ones: list[int] = [0]  # those whose `behind` is still to come, ascending also by depth
    for index in range(1, count):
        depth = depths[index]
        while depths[open_ones[-1]] > depth:
            behind[open_ones.pop()] = index
        if depth:
            nearest = open_ones[-1]
            if depths[nearest] < depth:
                before[index], leads[index] = nearest, True
            else:
                before[index] = before[nearest]
            open_ones.append(index)
        else:
            open_ones = [index]
    return Neighbours(np.array(before, np.int64), np.array(behind, np.int64), np.array(leads, bool))


def write_forest(
    forest: Forest,
    neighbours: Neighbours,
    tokens: np.ndarray,
    first: np.ndarray,
    token_ids: np.ndarray,
    position_ids: np.ndarray,
    subtree_end: np.ndarray,
) -> None:
    """Writes the tokens of all rows in depth-first order.

    Args:
        forest: what to write, with ``T`` tokens.
        neighbours: of its sequences.
        tokens: int32: the given tokens.
        first: int64 ``[N]``: where each sequence of the forest begins in ``tokens``.
        token_ids: int32 ``[T]``, written.
        position_ids: int32 ``[T]``, written: depths.
        subtree_end: int32 ``[T]``, written: indices within the row.
    """
    if not len(forest.chosen):
        return
    own = forest.lengths - forest.shared
    begins, ends = (first + forest.shared).tolist(), (first + forest.lengths).tolist()
    np.concatenate([tokens[begin:end] for begin, end in zip(begins, ends, strict=True)], out=token_ids)
    _write_runs(forest.shared, own, position_ids)
    ends_at, counts = _subtree_ends(forest, neighbours)
    write_repeated(ends_at, counts, subtree_end)


def _subtree_ends(forest: Forest, neighbours: Neighbours) -> tuple[np.ndarray, np.ndarray]:
    """Runs of tokens whose subtrees end at the same place in the row: that place, and how many they are.

    A token of depth ``d`` ends at the nearest successor that shares at most ``d`` tokens. For the last own
    tokens of a sequence that is the next one; the others end behind a run of successors that share as much.
    """
    shared, start, row_start = forest.shared, forest.start, forest.row_offsets[forest.row]
    next_shared = np.append(shared[1:], 0)
    low = np.maximum(next_shared, shared)
    leading = np.flatnonzero(neighbours.leads)
    owner, behind = neighbours.before[leading], neighbours.behind[leading]
    inner_low = np.maximum(np.append(shared, 0)[behind], shared[owner])
    at = np.concatenate((start[:-1] + low - shared, start[owner] + inner_low - shared[owner]))
    counts = np.concatenate((forest.lengths - low, shared[leading] - inner_low))
    ends = np.concatenate((start[1:] - row_start, start[behind] - row_start[owner]))
    filled = np.flatnonzero(counts)
    order = filled[np.argsort(at[filled])]
    return ends[order], counts[order]


def write_sources(
    forest: Forest,
    neighbours: Neighbours,
    sequence: np.ndarray,
    first: np.ndarray,
    counts: np.ndarray,
    out: np.ndarray,
) -> None:
    """Writes where the tokens of parts of sequences stand in their rows, one part after the other.

    Args:
        forest: the rows.
        neighbours: of its sequences.
        sequence: int64 ``[P]``: which sequence of the forest each part is of.
        first: int64 ``[P]``: depth of its first token.
        counts: int64 ``[P]``: how many tokens it has.
        out: int32 ``[sum(counts)]``, written: indices within the row.
    """
    place = np.cumsum(counts) - counts
    row_start = forest.row_offsets[forest.row]
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # place in `out`, first index, how many
    # From the sequence itself to those before it that own what it shares.
    pending, owner, high = np.arange(len(sequence)), sequence, first + counts
    while len(pending):
        low = np.maximum(first[pending], forest.shared[owner])
        index = forest.start[owner] + low - forest.shared[owner] - row_start[owner]
        found.append((place[pending] + low - first[pending], index, np.maximum(high - low, 0)))
        above = first[pending] < forest.shared[owner]
        pending, owner, high = pending[above], neighbours.before[owner[above]], np.minimum(high, low)[above]
    at, begins, lengths = (np.concatenate(parts) for parts in zip(*found, strict=True))
    filled = np.flatnonzero(lengths)
    order = filled[np.argsort(at[filled])]
    _write_runs(begins[order], lengths[order], out)


def write_repeated(values: np.ndarray, counts: np.ndarray, out: np.ndarray) -> None:
    """Writes each of ``values`` as many times as ``counts`` (int64) says, to ``out``, which they fill."""
    values = values.astype(out.dtype)
    for first, last, begin, end in _stretches(counts):
        out[begin:end] = np.repeat(values[first:last], counts[first:last])


def _write_runs(begins: np.ndarray, counts: np.ndarray, out: np.ndarray) -> None:
    """Writes ``begin, begin + 1, ...``, ``count`` numbers for each run; int32."""
    offsets = (begins - np.cumsum(counts) + counts).astype(np.int32)
    for first, last, begin, end in _stretches(counts):
        repeated = np.repeat(offsets[first:last], counts[first:last])
        np.add(repeated, np.arange(begin, end, dtype=np.int32), out=out[begin:end])


def _stretches(counts: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """Cuts runs of ``counts`` numbers into stretches: which runs and which numbers, ``[begin, end)``."""
    ends = np.cumsum(counts)
    first = begin = 0
    while first < len(counts):
        last = max(int(np.searchsorted(ends, begin + _AT_ONCE, "right")), first + 1)
        end = int(ends[last - 1])
        yield first, last, begin, end
        first, begin = last, end
