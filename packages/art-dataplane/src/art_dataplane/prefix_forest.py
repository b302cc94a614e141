"""Merges equal prefixes of token sequences into trees, so that shared tokens are computed once.

A forest is kept without nodes or pointers. The sequences are sorted by their tokens; in this order each
sequence adds exactly the tokens behind the prefix it shares with its predecessor, and writing these down one
sequence after the other *is* depth-first order. Three integers per sequence say everything: its length, the
length of that shared prefix (``shared``), and where its first own token stands (``start``).

What always holds, for tokens in depth-first order:

- the path from the root to token ``t`` are the tokens ``k <= t`` with ``t < subtree_end[k]``;
- the position of a token is its depth, the number of tokens before it on its path;
- the forest does not depend on the order in which the sequences were given.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class SortedSequences(NamedTuple):
    """Sequences in the order of their tokens.

    ``order`` int64 ``[N]``: index of each among those given. ``lengths`` and ``shared`` int64 ``[N]``:
    tokens, and tokens in common with the predecessor (0 for the first).
    """

    sequences: list[np.ndarray]
    order: np.ndarray
    lengths: np.ndarray
    shared: np.ndarray


class Forest(NamedTuple):
    """Part of the sorted sequences, laid out: ``start`` int64 ``[N]`` and ``size``, the physical tokens."""

    sequences: list[np.ndarray]
    lengths: np.ndarray
    shared: np.ndarray
    start: np.ndarray
    size: int


def sort_sequences(
    sequences: Sequence[np.ndarray], tie_breakers: Sequence[str] | None = None
) -> SortedSequences:
    """Sorts token sequences (int32 ``[n]``, ids not negative) and finds the prefixes that neighbours share.

    Args:
        sequences: the tokens, none empty.
        tie_breakers: decide between equal sequences; without them the given order does.
    """
    # Big-endian bytes of non-negative integers compare as the integers do.
    keys = [sequence.astype(">i4").tobytes() for sequence in sequences]
    if tie_breakers is None:
        order = sorted(range(len(sequences)), key=keys.__getitem__)
    else:
        order = sorted(range(len(sequences)), key=lambda index: (keys[index], tie_breakers[index]))
    ordered = [sequences[index] for index in order]
    shared = [0] * len(ordered)
    for index in range(1, len(ordered)):
        shared[index] = common_prefix(ordered[index - 1], ordered[index])
    return SortedSequences(
        ordered,
        np.array(order, np.int64),
        np.array([len(sequence) for sequence in ordered], np.int64),
        np.array(shared, np.int64),
    )


def common_prefix(left: np.ndarray, right: np.ndarray) -> int:
    """The number of leading tokens that two sequences have in common."""
    count = min(len(left), len(right))
    differs = left[:count] != right[:count]
    first = int(differs.argmax()) if count else 0
    return first if count and differs[first] else count


def build_forest(parts: SortedSequences, begin: int, end: int) -> Forest:
    """Lays out the sequences ``[begin, end)``.

    The first of them is written whole, its shared prefix repeated.
    """
    shared = parts.shared[begin:end].copy()
    shared[:1] = 0
    lengths = parts.lengths[begin:end]
    own = lengths - shared
    ends = np.cumsum(own)
    return Forest(
        parts.sequences[begin:end], lengths, shared, ends - own, int(ends[-1]) if end > begin else 0
    )


def write_forest(
    forest: Forest, token_ids: np.ndarray, position_ids: np.ndarray, subtree_end: np.ndarray, base: int
) -> None:
    """Writes the forest's tokens in depth-first order.

    Args:
        forest: what to write.
        token_ids: int32 ``[size]``, written.
        position_ids: int32 ``[size]``, written.
        subtree_end: int32 ``[size]``, written; indices begin at ``base``.
        base: where in its row the forest's first token stands.
    """
    shared, lengths, start = forest.shared.tolist(), forest.lengths.tolist(), forest.start.tolist()
    for sequence, depth, length, at in zip(forest.sequences, shared, lengths, start, strict=True):
        own = slice(at, at + length - depth)
        token_ids[own] = sequence[depth:]
        position_ids[own] = _COUNTING.upto(length)[depth:]
    # From the last sequence to the first: `later` holds the successors that still end somebody's subtrees,
    # the nearest on top, with ever smaller shared prefixes below. A token of depth d ends at the nearest
    # successor that shares at most d tokens.
    later = [(0, forest.size)]
    for depth, length, at in zip(reversed(shared), reversed(lengths), reversed(start), strict=True):
        top = length
        while True:
            limit, begins = later[-1]
            low = max(limit, depth)
            if low < top:
                subtree_end[at + low - depth : at + top - depth] = base + begins
                top = low
            if limit < depth or len(later) == 1:
                break
            later.pop()
        later.append((depth, at))


def size_of_parts(parts: SortedSequences) -> int:
    """Physical tokens when nothing is repeated."""
    return int((parts.lengths - parts.shared).sum())


def split_at_branches(parts: SortedSequences, capacity: int) -> list[tuple[int, int]]:
    """Cuts the sorted sequences into runs ``[begin, end)`` of at most ``capacity`` physical tokens each.

    Each run repeats the prefix that its first sequence shares with the one before; the cuts are those with
    the fewest repeated tokens together, then the fewest runs. Every sequence must fit by itself.

    Raises:
        ValueError: one does not.
    """
    lengths, shared = parts.lengths.tolist(), parts.shared.tolist()
    count = len(lengths)
    best: list[tuple[int, int]] = [(0, 0)]  # repeated tokens and runs for the sequences before an index
    cut_before = [0]
    for end in range(1, count + 1):
        candidates: tuple[tuple[int, int], int] | None = None
        behind = 0
        for begin in range(end - 1, -1, -1):
            size = behind + lengths[begin]
            if size > capacity:
                break
            repeated = shared[begin] if begin else 0
            option = (best[begin][0] + repeated, best[begin][1] + 1)
            if candidates is None or option < candidates[0]:
                candidates = (option, begin)
            behind += lengths[begin] - shared[begin]
        if candidates is None:
            raise ValueError(f"a sequence of {lengths[end - 1]} tokens exceeds the {capacity} of a row")
        best.append(candidates[0])
        cut_before.append(candidates[1])
    runs: list[tuple[int, int]] = []
    end = count
    while end:
        runs.append((cut_before[end], end))
        end = cut_before[end]
    return runs[::-1]


class _Counting:
    """0, 1, 2 ... as one growing array, so that position ids are copied and not counted again."""

    def __init__(self) -> None:
        self._numbers = np.arange(4096, dtype=np.int32)

    def upto(self, count: int) -> np.ndarray:
        if count > len(self._numbers):
            self._numbers = np.arange(max(count, 2 * len(self._numbers)), dtype=np.int32)
        return self._numbers[:count]


_COUNTING = _Counting()
