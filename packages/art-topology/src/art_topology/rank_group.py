"""One process group: a base rank and strides, a sequence of ranks that stores none of them."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import overload


class RankGroup(Sequence[int]):
    """The ranks of one process group, ascending, computed when asked for.

    Members are ``base`` plus one multiple below ``size`` of each stride. Made by the methods of
    :class:`RankLayout`. Equal groups hold equal ranks, whatever their families.
    """

    __slots__ = ("_size", "base", "strides")

    def __init__(self, base: int, strides: Iterable[tuple[int, int]]) -> None:
        """``strides`` are pairs of (size, stride); each stride is at least what those below it reach."""
        self.base: int = base
        """The first rank."""
        self.strides: tuple[tuple[int, int], ...] = _merged(strides)
        """Pairs of (size, stride), ascending, as few as possible: a group of one rank has none."""
        self._size = prod(size for size, _ in self.strides)

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._size)))
        if not -self._size <= index < self._size:
            raise IndexError(f"member {index} of a group of {self._size} ranks")
        rest, rank = index % self._size, self.base
        for size, stride in self.strides:
            rest, step = divmod(rest, size)
            rank += step * stride
        return rank

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, int) and self._position(rank) is not None

    def index(self, value: int, start: int = 0, stop: int | None = None) -> int:
        """The number of rank ``value`` within the group (PyTorch's group rank).

        Raises:
            ValueError: the rank is not in the group, or not between ``start`` and ``stop``.
        """
        position = self._position(value)
        if position is None or position not in range(*slice(start, stop).indices(self._size)):
            raise ValueError(f"rank {value} is not in {self!r}")
        return position

    def _position(self, rank: int) -> int | None:
        rest, position, weight = rank - self.base, 0, self._size
        for size, stride in reversed(self.strides):
            step = min(max(rest, 0) // stride, size - 1)
            rest -= step * stride
            weight //= size
            position += step * weight
        return position if rest == 0 else None

    def level(self, rank: int, sizes: Sequence[int], level: int) -> "RankGroup":
        """One level of a division of this group into groups of groups (``create_hierarchical_groups``).

        With ``sizes`` (2, 2, 4), level 0 joins neighbours, level 1 every second and level 2 every fourth
        member. Megatron-core divides so the context-parallel group
        (``hierarchical_context_parallel_sizes``) and, by (ranks of an instance, number of instances), what
        holds the distributed optimizer (``num_distributed_optimizer_instances``).

        Args:
            rank: The member whose group is wanted.
            sizes: The sizes of all levels, whose product is the size of this group.
            level: Which of them, from 0.

        Raises:
            ValueError: the product is another, the rank is not in the group, or the division is not one by
                strides (it is for every division that megatron-core makes in its usual order).
            IndexError: there is no such level.
        """
        if min(sizes, default=1) < 1 or prod(sizes) != self._size:
            raise ValueError(f"levels of {list(sizes)} ranks do not make up a group of {self._size}")
        if not 0 <= level < len(sizes):
            raise IndexError(f"level {level} of {len(sizes)} levels")
        below = prod(sizes[:level])
        strides = _cut(_cut(self.strides, below, self), below * sizes[level], self)
        varying, weight = [], 1
        for size, stride in strides:
            if below <= weight < below * sizes[level]:
                varying.append((size, stride))
            weight *= size
        position = self.index(rank)
        first = position - position // below % sizes[level] * below
        return RankGroup(self[first], varying)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RankGroup):
            return NotImplemented
        return self.base == other.base and self.strides == other.strides

    def __hash__(self) -> int:
        return hash((self.base, self.strides))

    def __repr__(self) -> str:
        if self._size <= 16:
            return f"RankGroup({list(self)})"
        return f"RankGroup({self[0]}..{self[-1]}, {self._size} ranks)"


def _merged(strides: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ascending, without sizes of 1, and two that continue each other as one: equal sets, equal strides."""
    merged: list[tuple[int, int]] = []
    for size, stride in sorted((pair for pair in strides if pair[0] > 1), key=lambda pair: pair[1]):
        if merged and stride == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, stride))
    return tuple(merged)


def _cut(strides: Sequence[tuple[int, int]], at: int, group: RankGroup) -> list[tuple[int, int]]:
    """The same strides, with one ending after ``at`` members."""
    cut: list[tuple[int, int]] = []
    for size, stride in strides:
        if at == 1 or at % size == 0:
            cut.append((size, stride))
            at = max(at // size, 1)
        elif size % at == 0:
            cut += [(at, stride), (size // at, stride * at)]
            at = 1
        else:
            raise ValueError(
                f"{group!r} with strides {group.strides} cannot be cut after {at} of {size} ranks"
            )
    return cut
