"""Megatron's rank order as arithmetic: coordinates of a rank, members of its groups, no lists.

Megatron-core numbers ranks by two mixed-radix systems over the same ranks
(``megatron.core.parallel_state.RankGenerator``). With its usual order, ``tp-cp-ep-dp-pp``, the first axis
changing fastest, they are:

- for everything but experts: tp, cp, dp, pp
- for experts: etp, ep, expert_dp, pp

A group varies some axes and fixes the others, so it is a base rank plus multiples of strides. Nothing here
grows with the number of ranks.
"""

from collections.abc import Iterable, Iterator
from math import prod
from typing import Literal, get_args

import msgspec

from art_topology.rank_group import RankGroup

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

GROUP_TITLES: dict[GroupFamily, str] = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "dp": "data parallel",
    "pp": "pipeline parallel",
    "tp-cp": "tensor and context parallel",
    "tp-dp": "tensor and data parallel",
    "tp-pp": "model parallel",
    "cp-dp": "data parallel with context parallel",
    "tp-cp-dp": "tensor and data parallel with context parallel",
    "etp": "expert tensor parallel",
    "ep": "expert parallel",
    "expert-dp": "expert data parallel",
    "etp-ep": "expert tensor and expert parallel",
    "etp-ep-pp": "expert tensor, expert and pipeline parallel",
    "embedding": "first and last stage, which share the embedding",
    "position-embedding": "first stage, which embeds positions",
}
"""What each family is called in full."""

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


_AXES = ("tp", "cp", "ep", "dp", "pp")
MEGATRON_ORDER = "-".join(_AXES)
"""The order of megatron-core's ranks unless it is told another."""


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
        order: which axis changes fastest as ranks count up, as ``initialize_model_parallel`` takes it; tp
            stands for etp and dp for expert_dp where experts are concerned.

    Raises:
        ValueError: a size is below 1, the two products differ, or the order is none of the five axes. Also
            what megatron-core refuses: with pp before another axis, stages that would hold other ranks for
            experts than for everything else.
    """

    tp: int
    cp: int
    dp: int
    pp: int
    etp: int
    ep: int
    expert_dp: int
    order: str = MEGATRON_ORDER

    def __post_init__(self) -> None:
        sizes = {name: value for name, value in msgspec.structs.asdict(self).items() if name != "order"}
        if min(sizes.values()) < 1:
            raise ValueError(f"sizes of a rank layout are at least 1: {sizes}")
        if self.tp * self.cp * self.dp != self.etp * self.ep * self.expert_dp:
            raise ValueError(f"tp*cp*dp and etp*ep*expert_dp must be equal: {sizes}")
        if sorted(self.order.split("-")) != sorted(_AXES):
            raise ValueError(
                f"an order names {', '.join(_AXES)} once, such as {MEGATRON_ORDER!r}: {self.order!r}"
            )
        if self.pp == 1 or self.order.endswith("pp"):
            return
        if self.dp != self.expert_dp:
            raise ValueError(
                f"in the order {self.order!r}, which does not end with pp, dp={self.dp} and "
                f"expert_dp={self.expert_dp} must be equal"
            )
        dense, expert = (
            next(axis.stride for axis in axes if axis.name == "pp")
            for axes in (self.dense_axes, self.expert_axes)
        )
        if dense != expert:
            raise ValueError(
                f"in the order {self.order!r} the stages of experts would be {expert} ranks apart and those "
                f"of everything else {dense}"
            )

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def dense_axes(self) -> tuple[Axis, ...]:
        """tp, cp, dp, pp with their strides, in the layout's order, fastest first."""
        return self._axes({"tp": "tp", "cp": "cp", "dp": "dp", "pp": "pp"})

    @property
    def expert_axes(self) -> tuple[Axis, ...]:
        """etp, ep, expert_dp, pp with their strides, in the layout's order, fastest first."""
        return self._axes({"tp": "etp", "ep": "ep", "dp": "expert_dp", "pp": "pp"})

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
        group = RankGroup(base, _pairs(varying))
        return group if family not in ("embedding", "position-embedding") or rank in group else None

    def groups_of(self, rank: int) -> dict[GroupFamily, RankGroup]:
        """Every group that ``rank`` is in, by family.

        Raises:
            IndexError: there is no such rank.
        """
        found = ((family, self.group(family, rank)) for family in GROUP_FAMILIES)
        return {family: group for family, group in found if group is not None}

    def groups(self, family: GroupFamily) -> Iterator[RankGroup]:
        """All groups of a family, by ascending first rank.

        Raises:
            ValueError: there is no such family.
        """
        varying, fixed = self._split(family)
        pairs = _pairs(varying)
        for base in RankGroup(0, _pairs(fixed)):
            yield RankGroup(base, pairs)

    def group_count(self, family: GroupFamily) -> int:
        """How many groups a family has.

        Raises:
            ValueError: there is no such family.
        """
        return prod(axis.size for axis in self._split(family)[1])

    def optimizer_instance(self, rank: int, instances: int) -> RankGroup:
        """The ranks that hold one copy of the distributed optimizer together, when there are several.

        Megatron-core's ``INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP``, with
        ``num_distributed_optimizer_instances``.

        Args:
            rank: One of them.
            instances: How many copies there are; divides ``expert_dp``.

        Raises:
            IndexError: there is no such rank.
            ValueError: ``instances`` does not divide ``expert_dp``.
        """
        self._check(rank)
        if instances < 1 or self.expert_dp % instances:
            raise ValueError(f"{instances} optimizer instances do not divide expert_dp={self.expert_dp}")
        replicas = next(axis for axis in self.expert_axes if axis.name == "expert_dp")
        shard = self.expert_dp // instances
        base = rank // replicas.stride % replicas.size // shard * shard * replicas.stride
        others = (axis for axis in self.expert_axes if axis.name != "expert_dp")
        return RankGroup(base, [*_pairs(others), (shard, replicas.stride)])

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

    def _axes(self, fields: dict[str, str]) -> tuple[Axis, ...]:
        axes, stride = [], 1
        for letter in self.order.split("-"):
            if name := fields.get(letter):
                axes.append(Axis(name, getattr(self, name), stride))
                stride *= axes[-1].size
        return tuple(axes)

    def _split(self, family: GroupFamily) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
        if family not in GROUP_FAMILIES:
            raise ValueError(f"unknown group family {family!r}; there are {', '.join(GROUP_FAMILIES)}")
        if family in ("embedding", "position-embedding"):
            fixed = tuple(axis for axis in self.dense_axes if axis.name != "pp")
            pp = next(axis for axis in self.dense_axes if axis.name == "pp")
            ends = 2 if family == "embedding" and pp.size > 1 else 1
            return (Axis("ends", ends, (pp.size - 1) * pp.stride or 1),), fixed
        if family in _EXPERT_FAMILIES:
            axes, names = self.expert_axes, _EXPERT_FAMILIES[family]
        else:
            axes, names = self.dense_axes, frozenset(family.split("-"))
        varying = tuple(axis for axis in axes if axis.name in names)
        return varying, tuple(axis for axis in axes if axis.name not in names)


def _pairs(axes: Iterable[Axis]) -> list[tuple[int, int]]:
    return [(axis.size, axis.stride) for axis in axes]
