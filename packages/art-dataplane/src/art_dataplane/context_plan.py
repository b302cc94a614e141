"""Which tokens of a packed row each context-parallel rank computes, and which keys it needs of the others.

Context parallelism (cp) splits the tokens of one row over ranks. In a prefix forest a token sees the path
from its root to itself, so its work is known from its depth alone, and what a range of tokens sees outside of
itself are the ancestors of its first token.

What always holds:

- the ranges of all ranks cover each token of the row exactly once;
- with one range per rank, no contiguous split has a busiest rank with less work (up to float64 rounding);
- the keys that a rank is told to fetch are exactly those that its queries see and that are not its own.
"""

import bisect
from collections.abc import Iterable
from itertools import pairwise
from operator import itemgetter

import msgspec
import numpy as np

from art_dataplane.errors import PackingError


class ContextCost(msgspec.Struct, frozen=True):
    """What a token costs that sees ``v`` keys, those of the tokens before it on its path and its own:
    ``linear_cost + attention_cost * v + window_attention_cost * min(v, window)``.

    Units are the caller's (FLOP, seconds); only their ratios matter.

    Args:
        linear_cost: per token, whatever it sees: projections, MLP, normalization.
        attention_cost: per key that it sees, in the layers that see everything.
        window: tokens that a query sees in the layers with a sliding window, itself included; None without
            such layers.
        window_attention_cost: per key that it sees, in the layers with a window.

    Raises:
        ValueError: a cost is negative or not finite, all are 0, or one of ``window`` and
            ``window_attention_cost`` is given without the other.
    """

    linear_cost: float = 1.0
    attention_cost: float = 0.0
    window: int | None = None
    window_attention_cost: float = 0.0

    def __post_init__(self) -> None:
        costs = (self.linear_cost, self.attention_cost, self.window_attention_cost)
        if not all(0 <= cost < np.inf for cost in costs) or not any(costs):
            raise ValueError(f"the costs {costs} must be finite numbers of at least 0, and one above 0")
        if (self.window is not None) != (self.window_attention_cost > 0):
            raise ValueError(
                f"window is {self.window} and window_attention_cost {self.window_attention_cost}; give both "
                "or neither"
            )
        if self.window is not None and self.window < 1:
            raise ValueError(f"window is {self.window}; a query sees at least itself")

    @classmethod
    def of_transformer(
        cls,
        *,
        hidden_size: int,
        intermediate_size: int,
        heads: int,
        key_value_heads: int,
        head_dim: int,
        layers: int,
        windowed_layers: int = 0,
        window: int | None = None,
    ) -> "ContextCost":
        """The multiply-adds of one forward pass of a decoder with gated MLPs, in FLOP (2 each).

        Logits are left out: they are computed for loss entries only. Source: Korthikanti et al. 2022,
        arXiv:2205.05198, appendix A, per token and per pair of query and key.

        Args:
            hidden_size: width of the residual stream.
            intermediate_size: width of the MLP; for a mixture of experts the width of one expert times the
                experts per token.
            heads: query heads.
            key_value_heads: heads of keys and values.
            head_dim: width of a head.
            layers: all layers, those with a window included.
            windowed_layers: layers with a sliding window.
            window: tokens that it spans.

        Raises:
            ValueError: more layers with a window than there are, or a cost that :class:`ContextCost` refuses.
        """
        if not 0 <= windowed_layers <= layers:
            raise ValueError(f"{windowed_layers} of {layers} layers cannot have a window")
        projections = hidden_size * head_dim * (2 * heads + 2 * key_value_heads)
        linear = 2 * (projections + 3 * hidden_size * intermediate_size)
        pair = 4 * heads * head_dim
        return cls(
            float(layers * linear),
            float((layers - windowed_layers) * pair),
            window if windowed_layers else None,
            float(windowed_layers * pair),
        )


class ContextRule(msgspec.Struct, frozen=True):
    """How a row is split.

    Args:
        ranks: how many, at least 1.
        cost: what a token costs.
        ranges_per_rank: 1 gives each rank one range, of about equal work but of different lengths. Above 1
            the row is cut into ``ranks * ranges_per_rank`` ranges of equal length and each rank gets so many
            of them: as many tokens as the others (and so as much memory), with the work evened out by which
            they are. For one causal sequence and 2 that is the zig-zag of Llama 3 (arXiv:2407.21783, section
            3.3.2).
        alignment: ranges begin at multiples of it, for kernels that work on blocks.
        most_tokens: tokens of one rank, at most; None for no bound.

    Raises:
        ValueError: a number is below 1.
    """

    ranks: int
    cost: ContextCost = ContextCost()
    ranges_per_rank: int = 1
    alignment: int = 1
    most_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("ranks", "ranges_per_rank", "alignment", "most_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")


class TokenRange(msgspec.Struct, frozen=True, array_like=True):
    """Tokens ``[start, end)`` of a row."""

    start: int
    end: int


class KeyRange(msgspec.Struct, frozen=True, array_like=True):
    """Tokens ``[start, end)`` of a row whose keys and values are computed by ``rank``."""

    start: int
    end: int
    rank: int


class RankContext(msgspec.Struct, frozen=True):
    """The share of one rank.

    Args:
        ranges: its tokens, ascending and not adjacent; none when the row is shorter than there are ranks.
        keys: what its queries see outside of these, ascending, each range of one owner.
        work: of its tokens, in the units of the cost.
    """

    ranges: tuple[TokenRange, ...]
    keys: tuple[KeyRange, ...]
    work: float

    @property
    def token_count(self) -> int:
        """Tokens that it computes."""
        return sum(each.end - each.start for each in self.ranges)

    @property
    def key_count(self) -> int:
        """Tokens whose keys and values it needs of other ranks."""
        return sum(each.end - each.start for each in self.keys)


class ContextPlan(msgspec.Struct, frozen=True):
    """How one row is split, as :func:`plan_context` says.

    Args:
        token_count: tokens of the row.
        ranks: the share of each rank.
    """

    token_count: int
    ranks: tuple[RankContext, ...]

    @property
    def imbalance(self) -> float:
        """The work of the busiest rank over the mean; 1 is perfect."""
        works = [rank.work for rank in self.ranks]
        return max(works) * len(works) / sum(works)


def token_work(position_ids: np.ndarray, cost: ContextCost) -> np.ndarray:
    """float64 ``[T]``: the work of each token.

    Args:
        position_ids: integers ``[T]``: the depth of each token in its tree.
        cost: see :class:`ContextCost`.
    """
    visible = position_ids.astype(np.float64)
    visible += 1.0
    work = visible * cost.attention_cost
    if cost.window is not None:
        work += np.minimum(visible, cost.window) * cost.window_attention_cost
    work += cost.linear_cost
    return work


def plan_context(position_ids: np.ndarray, subtree_end: np.ndarray, rule: ContextRule) -> ContextPlan:
    """Splits one packed row.

    Args:
        position_ids: int32 ``[T]``, T at least 1: the depth of each token.
        subtree_end: int32 ``[T]``: query q sees key k when ``k <= q < subtree_end[k]``.
        rule: see :class:`ContextRule`.

    Raises:
        PackingError: the row is empty, the arrays differ in length, or the row does not fit ``most_tokens``.
    """
    count = len(position_ids)
    if count == 0 or len(subtree_end) != count:
        raise PackingError(
            f"{count} position_ids and {len(subtree_end)} subtree_end; a row has at least one token and as "
            "many of one as of the other"
        )
    edges = np.append(np.arange(0, count, rule.alignment), count)
    work = np.concatenate(([0.0], np.cumsum(token_work(position_ids, rule.cost))))
    if rule.ranges_per_rank == 1:
        bounds: list[int] = edges[_even_work(work[edges], rule, count)].tolist()
        shares = [[TokenRange(begin, end)] for begin, end in pairwise(bounds)]
    else:
        shares = _even_tokens(edges, work, rule)
    shares = [_joined(each for each in share if each.start < each.end) for share in shares]
    _check_most_tokens(shares, rule, count)
    seen = _Ancestors(position_ids, subtree_end, rule.cost)
    owners = sorted((each.start, each.end, rank) for rank, share in enumerate(shares) for each in share)
    return ContextPlan(
        count,
        tuple(
            RankContext(
                tuple(share),
                _owned_by_others(rank, _joined(key for each in share for key in seen.of(each)), owners),
                float(sum(work[each.end] - work[each.start] for each in share)),
            )
            for rank, share in enumerate(shares)
        ),
    )


def plan_rows(
    position_ids: np.ndarray, subtree_end: np.ndarray, row_offsets: np.ndarray, rule: ContextRule
) -> tuple[ContextPlan, ...]:
    """Splits every row of a batch; the arrays are those of :class:`art_dataplane.PackedBatch`.

    Args:
        position_ids: int32 ``[T]``: depth of each token in its tree.
        subtree_end: int32 ``[T]``: the end of each token's subtree, within its row.
        row_offsets: int32 ``[R + 1]``: where each row's tokens begin, and the number of tokens.
        rule: how to split.

    Raises:
        PackingError: as :func:`plan_context`.
    """
    bounds = row_offsets.tolist()
    return tuple(
        plan_context(position_ids[begin:end], subtree_end[begin:end], rule) for begin, end in pairwise(bounds)
    )


def _even_work(work: np.ndarray, rule: ContextRule, count: int) -> list[int]:
    """Cuts, as indices of blocks, with the least work of the busiest rank.

    ``work`` float64 ``[blocks + 1]`` is cumulative. A bound on the work of one rank can be kept exactly when
    taking as many blocks as it allows, rank after rank, reaches the end; the least such bound is bisected.
    """
    blocks, ranks = len(work) - 1, rule.ranks
    most = blocks if rule.most_tokens is None else rule.most_tokens // rule.alignment
    if most * ranks < blocks:
        raise PackingError(
            f"a row of {count} tokens does not fit {ranks} ranks of at most {rule.most_tokens} tokens in "
            f"blocks of {rule.alignment}; raise most_tokens or use more ranks"
        )
    total = float(work[-1])
    heaviest = float(np.diff(work).max())
    low, high = max(total / ranks, heaviest), total
    for bound in (low + heaviest, low):
        if _reaches(work, bound, ranks, most):
            high = bound
    while high - low > 1e-12 * total:
        middle = (low + high) / 2
        if _reaches(work, middle, ranks, most):
            high = middle
        else:
            low = middle
    return _spread(work, high * (1 + 1e-12), ranks, most)


def _furthest(work: np.ndarray, begin: int, bound: float, most: int) -> int:
    part = work[begin : begin + most + 1]
    return begin + int(part.searchsorted(part[0] + bound, side="right")) - 1


def _reaches(work: np.ndarray, bound: float, ranks: int, most: int) -> bool:
    cut = 0
    for _ in range(ranks):
        cut = _furthest(work, cut, bound, most)
    return cut == len(work) - 1


def _spread(work: np.ndarray, bound: float, ranks: int, most: int) -> list[int]:
    """Cuts that keep the bound and else share what is left equally, none empty if there are enough blocks."""
    blocks = len(work) - 1
    earliest = [blocks]  # the first cut from which the ranks behind it can still reach the end
    for _ in range(ranks - 1):
        end = earliest[-1]
        begin = max(0, end - most)
        earliest.append(begin + int(work[begin:end].searchsorted(work[end] - bound)))
    earliest.reverse()
    cuts = [0]
    for rank in range(1, ranks):
        low = max(earliest[rank - 1], min(cuts[-1] + 1, blocks))
        high = max(low, min(_furthest(work, cuts[-1], bound, most), blocks - (ranks - rank)))
        target = work[cuts[-1]] + (work[blocks] - work[cuts[-1]]) / (ranks - rank + 1)
        cuts.append(low + int(work[low:high].searchsorted(target)))
    return [*cuts, blocks]


def _even_tokens(edges: np.ndarray, work: np.ndarray, rule: ContextRule) -> list[list[TokenRange]]:
    """Ranges of equal length, the heaviest first to the rank with the least work that may still have one."""
    blocks, pieces = len(edges) - 1, rule.ranks * rule.ranges_per_rank
    bounds: list[int] = edges[np.arange(pieces + 1) * blocks // pieces].tolist()
    ranges = [TokenRange(begin, end) for begin, end in pairwise(bounds)]
    works = [float(work[each.end] - work[each.start]) for each in ranges]
    shares: list[list[TokenRange]] = [[] for _ in range(rule.ranks)]
    loads = [0.0] * rule.ranks
    for index in sorted(range(pieces), key=lambda each: (-works[each], each)):
        open_ranks = [rank for rank in range(rule.ranks) if len(shares[rank]) < rule.ranges_per_rank]
        rank = min(open_ranks, key=lambda each: (loads[each], each))
        shares[rank].append(ranges[index])
        loads[rank] += works[index]
    return shares


def _check_most_tokens(shares: list[list[TokenRange]], rule: ContextRule, count: int) -> None:
    longest = max(sum(each.end - each.start for each in share) for share in shares)
    if rule.most_tokens is not None and longest > rule.most_tokens:
        raise PackingError(
            f"a row of {count} tokens gives one of {rule.ranks} ranks {longest}; most_tokens is "
            f"{rule.most_tokens}: raise it or use more ranks"
        )


def _joined(ranges: Iterable[TokenRange]) -> list[TokenRange]:
    """The union of ranges: ascending, none adjacent to the next."""
    joined: list[TokenRange] = []
    for each in sorted(ranges, key=lambda one: one.start):
        if joined and each.start <= joined[-1].end:
            if each.end > joined[-1].end:
                joined[-1] = TokenRange(joined[-1].start, each.end)
        else:
            joined.append(each)
    return joined


def _owned_by_others(
    rank: int, keys: list[TokenRange], owners: list[tuple[int, int, int]]
) -> tuple[KeyRange, ...]:
    found: list[KeyRange] = []
    for each in keys:
        at = bisect.bisect_right(owners, each.start, key=itemgetter(0)) - 1
        while at < len(owners) and owners[at][0] < each.end:
            start, end, owner = owners[at]
            if owner != rank:
                found.append(KeyRange(max(start, each.start), min(end, each.end), owner))
            at += 1
    return tuple(found)


class _Ancestors:
    """Finds what a range of tokens sees in front of it.

    Token k in front of range ``[a, b)`` is seen by one of its tokens exactly when its subtree goes on at a,
    which makes it an ancestor of a. Along a *chain*, tokens of which each is the only thing between its
    parent and the next, subtree ends never ascend; so the ancestors in each chain are its first ones.
    """

    def __init__(self, position_ids: np.ndarray, subtree_end: np.ndarray, cost: ContextCost) -> None:
        self._positions = position_ids
        self._ends = subtree_end
        self._chains = np.flatnonzero(np.append(True, np.diff(position_ids) != 1))
        self._chain_ends = subtree_end[self._chains]
        self._window = None if cost.attention_cost > 0 else cost.window

    def of(self, tokens: TokenRange) -> list[TokenRange]:
        first = tokens.start
        chain_count = int(np.searchsorted(self._chains, first))
        if not chain_count:
            return []
        found: list[TokenRange] = []
        bounds = np.append(self._chains[:chain_count], first)
        for chain in np.flatnonzero(self._chain_ends[:chain_count] > first).tolist():
            begin, end = int(bounds[chain]), int(bounds[chain + 1])
            behind = int(np.searchsorted(self._ends[begin:end][::-1], first, side="right"))
            found.append(TokenRange(begin, end - behind))
        return found if self._window is None else self._in_window(found, tokens, self._window)

    def _in_window(self, found: list[TokenRange], tokens: TokenRange, window: int) -> list[TokenRange]:
        """The ancestors of which a token of the range, in their subtree, is less than ``window`` deeper."""
        shallowest = np.minimum.accumulate(self._positions[tokens.start : tokens.end])
        near: list[TokenRange] = []
        for each in found:
            keys = np.arange(each.start, each.end)
            last = np.minimum(self._ends[keys], tokens.end) - tokens.start - 1
            seen = shallowest[last] - self._positions[keys] < window
            edges = np.flatnonzero(np.diff(np.concatenate(([0], seen.view(np.int8), [0]))))
            near += [
                TokenRange(each.start + begin, each.start + end)
                for begin, end in edges.reshape(-1, 2).tolist()
            ]
        return near
