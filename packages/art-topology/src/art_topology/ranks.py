"""Megatron's rank order as arithmetic: coordinates of a rank, members of its groups, no lists.

Megatron-core numbers ranks by two mixed-radix systems over the same ranks (``parallel_state.RankGenerator``,
order ``tp-cp-ep-dp-pp``). The first axis changes fastest:

- for everything but experts: tp, cp, dp, pp
- for experts: etp, ep, expert_dp, pp

A group varies some axes and fixes the others, so it is a base rank plus multiples of strides. Nothing here
grows with the number of ranks.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, get_args, overload

import msgspec

GroupFamily = Literal[
    "tp",
    "cp",
    "dp",
    "pp",
    "tp-cp",
    "tp-dp",
    "tp-pp",
    "cp-dp",
    "tp-cp-dp",
    "etp",
    "ep",
    "expert-dp",
    "etp-ep",
    "etp-ep-pp",
    "embedding",
    "position-embedding",
]
"""``tp-pp`` is Megatron's model-parallel group, ``cp-dp`` its data-parallel group with context parallelism,
``etp-ep-pp`` the model-parallel group of experts. ``embedding`` joins the first and last stage, which share
weights; ``position-embedding`` is the first stage alone."""

GROUP_FAMILIES: tuple[GroupFamily, ...] = get_args(GroupFamily)
"""All sixteen names of :data:`GroupFamily`."""

_EXPERT_FAMILIES: dict[str, frozenset[str]] = {
    "etp": frozenset({"etp"}),
    "ep": frozenset({"ep"}),
    "expert-dp": frozenset({"expert_dp"}),
    "etp-ep": frozenset({"etp", "ep"}),
    "etp-ep-pp": frozenset({"etp", "ep", "pp"}),
}


class Axis(msgspec.Struct, frozen=True):
    """One parallel axis: its coordinate of rank ``r`` is ``r // stride % size``."""

    name: str
    size: int
    stride: int


class RankCoordinate(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank stands on every axis, each counted from 0.

    Args:
        tp: tensor parallel.
        cp: context parallel.
        dp: data parallel.
        pp: pipeline stage.
        etp: expert tensor parallel.
        ep: expert parallel.
        expert_dp: data parallel of the experts.
    """

    tp: int
    cp: int
    dp: int
    pp: int
    etp: int
    ep: int
    expert_dp: int


class RankGroup(Sequence[int]):
    """The ranks of one process group, ascending, computed when asked for.

    Members are ``base`` plus one multiple below ``size`` of each axis' stride; axes are given fastest first.
    Made by :meth:`RankLayout.group` and :meth:`RankLayout.groups`.
    """

    __slots__ = ("_axes", "base")

    def __init__(self, base: int, axes: tuple[Axis, ...]) -> None:
        self.base = base
        self._axes = axes

    def __len__(self) -> int:
        size = 1
        for axis in self._axes:
            size *= axis.size
        return size

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"member {index} of a group of {size} ranks")
        rest, rank = index % size, self.base
        for axis in self._axes:
            rest, step = divmod(rest, axis.size)
            rank += step * axis.stride
        return rank

    def __contains__(self, rank: object) -> bool:
        if not isinstance(rank, int):
            return False
        rest = rank - self.base
        for axis in reversed(self._axes):
            step = min(max(rest, 0) // axis.stride, axis.size - 1)
            rest -= step * axis.stride
        return rest == 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankGroup) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return (
            f"RankGroup({list(self)})"
            if len(self) <= 16
            else f"RankGroup({self[0]}..{self[-1]}, {len(self)} ranks)"
        )


class RankLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of all axes of one trainer. ``world_size = tp*cp*dp*pp = etp*ep*expert_dp*pp`` holds.

    Args:
        tp: tensor parallel.
        cp: context parallel.
        dp: data parallel.
        pp: pipeline stages.
        etp: expert tensor parallel.
        ep: expert parallel.
        expert_dp: data parallel of the experts.

    Raises:
        ValueError: a size is below 1 or the two products differ.
    """

    tp: int
    cp: int
    dp: int
    pp: int
    etp: int
    ep: int
    expert_dp: int

    def __post_init__(self) -> None:
        sizes = msgspec.structs.asdict(self)
        if min(sizes.values()) < 1:
            raise ValueError(f"sizes of a rank layout are at least 1: {sizes}")
        if self.tp * self.cp * self.dp != self.etp * self.ep * self.expert_dp:
            raise ValueError(f"tp*cp*dp and etp*ep*expert_dp must be equal: {sizes}")

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def dense_axes(self) -> tuple[Axis, ...]:
        """tp, cp, dp, pp with their strides, fastest first."""
        return _strided(("tp", self.tp), ("cp", self.cp), ("dp", self.dp), ("pp", self.pp))

    @property
    def expert_axes(self) -> tuple[Axis, ...]:
        """etp, ep, expert_dp, pp with their strides, fastest first."""
        return _strided(("etp", self.etp), ("ep", self.ep), ("expert_dp", self.expert_dp), ("pp", self.pp))

    def coordinate(self, rank: int) -> RankCoordinate:
        """Where ``rank`` stands on every axis.

        Raises:
            IndexError: there is no such rank.
        """
        self._check(rank)
        axes = {axis.name: axis for axis in self.dense_axes + self.expert_axes}
        return RankCoordinate(**{name: rank // axis.stride % axis.size for name, axis in axes.items()})

    def group(self, family: GroupFamily, rank: int) -> RankGroup | None:
        """The group of ``rank`` in a family; None for an embedding group when the rank's stage takes no part.

        Raises:
            IndexError: there is no such rank.
            ValueError: there is no such family.
        """
        self._check(rank)
        varying, fixed = self._split(family)
        base = sum(rank // axis.stride % axis.size * axis.stride for axis in fixed)
        group = RankGroup(base, varying)
        return group if family not in ("embedding", "position-embedding") or rank in group else None

    def groups(self, family: GroupFamily) -> Iterator[RankGroup]:
        """All groups of a family, by ascending first rank.

        Raises:
            ValueError: there is no such family.
        """
        varying, fixed = self._split(family)
        for base in RankGroup(0, fixed):
            yield RankGroup(base, varying)

    def crosses_hosts(self, family: GroupFamily, ranks_per_host: int) -> bool:
        """Whether any group of a family has ranks on two hosts, with ``ranks_per_host`` consecutive ranks on
        each.

        Groups tile blocks of ``period`` ranks, ``period`` being what the slowest axis that varies comes to.
        If hosts hold whole blocks no group leaves its host. Otherwise a host boundary cuts a block, and
        whatever the cut, one of the two ranks beside it has a member of its group on the other side.
        """
        if family == "position-embedding" or ranks_per_host >= self.world_size:
            return False
        varying, _ = self._split("pp" if family == "embedding" else family)
        period = max((axis.size * axis.stride for axis in varying if axis.size > 1), default=1)
        return ranks_per_host % period != 0

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank {rank} of a trainer with {self.world_size} ranks")

    def _split(self, family: GroupFamily) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
        if family not in GROUP_FAMILIES:
            raise ValueError(f"unknown group family {family!r}; there are {', '.join(GROUP_FAMILIES)}")
        if family in ("embedding", "position-embedding"):
            *fixed, pp = self.dense_axes
            ends = 2 if family == "embedding" and pp.size > 1 else 1
            return (Axis("ends", ends, (pp.size - 1) * pp.stride or 1),), tuple(fixed)
        if family in _EXPERT_FAMILIES:
            axes, names = self.expert_axes, _EXPERT_FAMILIES[family]
        else:
            axes, names = self.dense_axes, frozenset(family.split("-"))
        varying = tuple(axis for axis in axes if axis.name in names)
        return varying, tuple(axis for axis in axes if axis.name not in names)


def _strided(*sizes: tuple[str, int]) -> tuple[Axis, ...]:
    axes, stride = [], 1
    for name, size in sizes:
        axes.append(Axis(name, size, stride))
        stride *= size
    return tuple(axes)
