"""Keeps tokens apart that are equal but went to different experts.

What a token computes depends on the routes of all tokens before it. So equal prefixes are one computation
only as far as their routes are equal, too. Sequences are compared by pairs (token, routes of the token): they
are sorted by these pairs, and what neighbours share is counted in them.
"""

from collections.abc import Sequence
from functools import cmp_to_key
from itertools import pairwise

import numpy as np

from art_dataplane.prefix_forest import SortedSequences
from art_dataplane.routes import SequenceRoutes, common_tokens


def separate_routes(parts: SortedSequences, routes: Sequence[SequenceRoutes]) -> SortedSequences:
    """Sorts sequences by tokens and routes, and counts as shared what is equal in both.

    Where routes never differ, nothing is moved and each shared token is compared once.

    Args:
        parts: sorted by tokens.
        routes: of each sequence, in the order in which they were given.
    """
    order, shared = parts.order.copy(), parts.shared.copy()
    ours = [routes[index] for index in order.tolist()]
    for index in np.flatnonzero(shared).tolist():
        shared[index] = common_tokens(ours[index - 1], ours[index], int(shared[index]))
    roots = np.flatnonzero(parts.shared == 0)
    for begin, end in zip(roots.tolist(), np.append(roots[1:], len(order)).tolist(), strict=True):
        if (shared[begin:end] != parts.shared[begin:end]).any():
            _sort_tree(parts.shared[begin:end], ours[begin:end], order[begin:end], shared[begin:end])
    moved = np.argsort(parts.order)[order]
    return SortedSequences(order, parts.lengths[moved], shared)


def _sort_tree(
    token_shared: np.ndarray, routes: list[SequenceRoutes], order: np.ndarray, shared: np.ndarray
) -> None:
    """Sorts one tree, in place in ``order`` and ``shared``.

    ``token_shared`` int64 ``[n]`` counts the tokens in common with the predecessor by tokens alone.
    """

    def compare(left: int, right: int) -> tuple[int, int]:
        """How much is shared, and the order of two sequences (numbers by tokens)."""
        low, high = min(left, right), max(left, right)
        if low == high:
            return int(token_shared[low]), 0
        tokens = int(token_shared[low + 1 : high + 1].min())
        both = common_tokens(routes[left], routes[right], tokens)
        if both == tokens:
            return tokens, left - right
        ids = [each.parts(both, both + 1)[0].tolist() for each in (routes[left], routes[right])]
        return both, 1 if ids[0] > ids[1] else -1

    def order_of(left: int, right: int) -> int:
        return compare(left, right)[1]

    ranked = sorted(range(len(order)), key=cmp_to_key(order_of))
    order[:] = order[ranked]
    shared[1:] = [compare(left, right)[0] for left, right in pairwise(ranked)]
