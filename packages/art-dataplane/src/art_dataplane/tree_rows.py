"""Which sequences share a row: trees that fit stay whole, larger ones are split where that repeats least.

A row computes every prefix that its sequences share once, and repeats what they share with sequences of other
rows. What always holds, for sorted sequences (:mod:`art_dataplane.prefix_forest`):

- No row is above its capacity, and no sequence is split.
- Sequences that together fit into one row are in one row.
- Apart from short prefixes (below), a tree that fits stays whole, and one that does not never repeats more
  tokens than the best way of cutting its sorted sequences into runs.
- Without shared prefixes the rows are the bins of :func:`art_dataplane.bins.pack_bins`.

Almost all prompts of a model begin alike, with the first tokens of its chat template. Keeping them together
for that would leave rows half empty, so a prefix is given up where repeating it costs less than 1 part in 128
of the tokens below it and these take more than an eighth of a row.
"""

from typing import NamedTuple

import numpy as np

from art_dataplane.bins import pack_bins

_NEGLIGIBLE = 128  # a prefix may be repeated where that adds less than this part of what is below it
_LARGE = 8  # only what takes more than this part of a row is taken apart for density


class _Piece(NamedTuple):
    """Runs ``[begin, end)`` of sequences that go into one row, and how many tokens they are below a node."""

    size: int
    runs: list[tuple[int, int]]


def assign_rows(lengths: np.ndarray, shared: np.ndarray, capacity: int) -> tuple[np.ndarray, int]:
    """Decides the row of each sorted sequence.

    Args:
        lengths: int64 ``[N]``: tokens of each, at most ``capacity``.
        shared: int64 ``[N]``: leading tokens in common with its predecessor.
        capacity: tokens of a row, at most.

    Returns:
        int64 ``[N]``, the row of each; and the number of rows.

    Raises:
        ValueError: a sequence is longer than a row.
    """
    if not len(lengths):
        return np.zeros(0, np.int64), 0
    if lengths.max() > capacity:
        raise ValueError(f"a sequence of {int(lengths.max())} tokens exceeds the {capacity} of a row")
    tree = _Tree(lengths, shared)
    if tree.size(0, len(lengths)) <= capacity:
        return np.zeros(len(lengths), np.int64), 1
    begins, ends = tree.items(0, len(lengths), 0, capacity)
    sizes = tree.sizes(begins, ends, 0)
    whole = np.flatnonzero(sizes <= capacity)
    pieces = [
        piece
        for index in np.flatnonzero(sizes > capacity).tolist()
        for piece in _split(tree, int(begins[index]), int(ends[index]), capacity)
    ]
    bins = pack_bins(np.append(sizes[whole], [piece.size for piece in pieces]).astype(np.int64), capacity)
    row_of = np.empty(len(whole) + len(pieces), np.int64)
    for number, content in enumerate(bins):
        row_of[content] = number
    row_of_item = np.zeros(len(begins), np.int64)
    row_of_item[whole] = row_of[: len(whole)]
    row = np.repeat(row_of_item, ends - begins)
    for piece, number in zip(pieces, row_of[len(whole) :].tolist(), strict=True):
        for begin, end in piece.runs:
            row[begin:end] = number
    return row, len(bins)


class _Tree:
    """Sizes and branches of sorted sequences."""

    def __init__(self, lengths: np.ndarray, shared: np.ndarray) -> None:
        self.lengths = lengths
        self.shared = shared
        self.own = np.concatenate(([0], np.cumsum(lengths - shared)))

    def sizes(self, begins: np.ndarray, ends: np.ndarray, depth: int) -> np.ndarray:
        """Tokens of the sequences ``[begin, end)`` below ``depth``, which they share."""
        return np.asarray(self.lengths[begins] - depth + self.own[ends] - self.own[begins + 1])

    def size(self, begin: int, end: int, depth: int = 0) -> int:
        """The same for one run."""
        return int(self.lengths[begin] - depth + self.own[end] - self.own[begin + 1])

    def depth(self, begin: int, end: int) -> int:
        """How many tokens all of at least two sequences share: where their tree branches first."""
        return int(self.shared[begin + 1 : end].min())

    def items(self, begin: int, end: int, depth: int, capacity: int) -> tuple[np.ndarray, np.ndarray]:
        """The subtrees below a node at ``depth``; those are taken apart whose own prefix is negligible."""
        inner = self.shared[begin:end].copy()
        inner[0] = -1
        begins = np.flatnonzero(inner <= depth)
        while True:
            counts = np.diff(begins, append=len(inner))
            sizes = self.sizes(begins + begin, begins + counts + begin, depth)
            inner[begins] = _NONE
            branch = np.minimum.reduceat(inner, begins)  # where each subtree branches itself
            at_branch = inner == np.repeat(branch, counts)
            repeated = (branch - depth) * np.add.reduceat(at_branch, begins, dtype=np.int64)
            apart = (branch < _NONE) & (sizes * _LARGE > capacity) & (repeated * _NEGLIGIBLE <= sizes)
            if not apart.any():
                return begins + begin, begins + counts + begin
            at_branch &= np.repeat(apart, counts)
            at_branch[begins] = True
            begins = np.flatnonzero(at_branch)


_NONE = 1 << 40


class _Node(NamedTuple):
    """A node whose subtree is above a row: its depth, its parent, and what is below it."""

    depth: int
    parent: int
    pieces: list[_Piece]


def _split(tree: _Tree, begin: int, end: int, capacity: int) -> list[_Piece]:
    """Splits a tree that is larger than a row; sizes count from the root."""
    branched = _split_at_branches(tree, begin, end, capacity)
    cut = [
        _Piece(tree.size(*run), [run])
        for run in cut_in_order(tree.lengths[begin:end], tree.shared[begin:end], capacity, begin)
    ]
    return min(branched, cut, key=lambda pieces: (sum(piece.size for piece in pieces), len(pieces)))


def _split_at_branches(tree: _Tree, begin: int, end: int, capacity: int) -> list[_Piece]:
    """Packs the subtrees of each node that is too large into few pieces, from the leaves up."""
    nodes: list[_Node] = [_Node(tree.depth(begin, end), -1, [])]
    pending = [(0, begin, end)]
    while pending:
        number, begin, end = pending.pop()
        depth, _, pieces = nodes[number]
        begins, ends = tree.items(begin, end, depth, capacity)
        sizes = tree.sizes(begins, ends, depth).tolist()
        for size, first, last in zip(sizes, begins.tolist(), ends.tolist(), strict=True):
            if size <= capacity - depth:
                pieces.append(_Piece(size, [(first, last)]))
            else:
                pending.append((len(nodes), first, last))
                nodes.append(_Node(tree.depth(first, last), number, []))
    while True:  # a node stands behind its parent
        depth, parent, pieces = nodes.pop()
        above = depth - nodes[parent].depth if nodes else depth
        packed = [
            _Piece(above + sum(pieces[index].size for index in content), _runs(pieces, content))
            for content in pack_bins([piece.size for piece in pieces], capacity - depth)
        ]
        if not nodes:
            return packed
        nodes[parent].pieces.extend(packed)


def _runs(pieces: list[_Piece], content: list[int]) -> list[tuple[int, int]]:
    return [run for index in content for run in pieces[index].runs]


def cut_in_order(
    lengths: np.ndarray, shared: np.ndarray, capacity: int, first: int = 0
) -> list[tuple[int, int]]:
    """Cuts sorted sequences into runs ``[begin, end)`` of at most ``capacity`` tokens each.

    Each run repeats the prefix that its first sequence shares with the one before. The cuts are those with
    the fewest repeated tokens together, then the fewest runs; found in one pass over the sequences, since a
    run only shrinks when its first sequence is left out.

    Args:
        lengths: int64 ``[N]``: tokens of each, at most ``capacity``.
        shared: int64 ``[N]``: leading tokens in common with its predecessor; the first counts as 0.
        capacity: of a run.
        first: number of the first sequence; the runs count from there.
    """
    count = len(lengths)
    own = np.concatenate(([0], np.cumsum(lengths - shared))).tolist()
    repeated = [0, *shared[1:].tolist()]
    # Tokens of the run [begin, end): own[end] - own[begin] + shared[begin].
    offset = (np.asarray(own[:-1]) - shared).tolist()
    unit = count + 1  # costs count repeated tokens in units of this, and runs in ones
    cost, cut_before = [0] * (count + 1), [0] * (count + 1)
    queue: list[tuple[int, int]] = []  # cost of a run that begins here, and where; ascending in both
    head = 0
    for end in range(1, count + 1):
        option = cost[end - 1] + repeated[end - 1] * unit + 1
        while len(queue) > head and queue[-1][0] >= option:
            queue.pop()
        queue.append((option, end - 1))
        while own[end] - offset[queue[head][1]] > capacity:
            head += 1
        cost[end], cut_before[end] = queue[head]
    runs: list[tuple[int, int]] = []
    end = count
    while end:
        runs.append((first + cut_before[end], first + end))
        end = cut_before[end]
    return runs[::-1]
