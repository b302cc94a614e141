"""The arithmetic of ranks against nested loops and lists."""

import tracemalloc
from itertools import permutations, product
from math import prod

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology import (
    GROUP_FAMILIES,
    GpuPlacement,
    GroupFamily,
    MegatronTopologyConfig,
    NcclTransportSpec,
    NixlTransportSpec,
    RankGroup,
    RankLayout,
    TrainerMeshSpec,
    compile_topology,
    homogeneous_cluster,
)
from art_topology.ranks import GROUP_TITLES

DENSE = ("tp", "cp", "dp", "pp")
EXPERT = ("etp", "ep", "expert_dp", "pp")

VARYING = {
    "tp": {"tp"},
    "cp": {"cp"},
    "dp": {"dp"},
    "pp": {"pp"},
    "tp-cp": {"tp", "cp"},
    "tp-dp": {"tp", "dp"},
    "tp-pp": {"tp", "pp"},
    "cp-dp": {"cp", "dp"},
    "tp-cp-dp": {"tp", "cp", "dp"},
    "etp": {"etp"},
    "ep": {"ep"},
    "expert-dp": {"expert_dp"},
    "etp-ep": {"etp", "ep"},
    "etp-ep-pp": {"etp", "ep", "pp"},
}


ORDERS = ["-".join(axes) for axes in permutations(("tp", "cp", "ep", "dp", "pp"))]


def enumerated(layout: RankLayout, axes: tuple[str, ...]) -> list[dict[str, int]]:
    """The coordinates of all ranks in rank order: the last axis is the outermost loop."""
    letters = {"etp": "tp", "expert_dp": "dp"}
    axes = tuple(sorted(axes, key=lambda axis: layout.order.split("-").index(letters.get(axis, axis))))
    loops = [range(getattr(layout, axis)) for axis in reversed(axes)]
    return [dict(zip(reversed(axes), place, strict=True)) for place in product(*loops)]


def brute_force_groups(layout: RankLayout, family: GroupFamily) -> list[list[int]]:
    if family in ("embedding", "position-embedding"):
        pipelines = brute_force_groups(layout, "pp")
        ends = {"embedding": lambda p: sorted({p[0], p[-1]}), "position-embedding": lambda p: [p[0]]}[family]
        return [ends(pipeline) for pipeline in pipelines]
    axes = EXPERT if "e" in family.replace("dp", "") else DENSE
    buckets: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(enumerated(layout, axes)):
        key = tuple(value for axis, value in place.items() if axis not in VARYING[family])
        buckets.setdefault(key, []).append(rank)
    return sorted(buckets.values())


@st.composite
def layouts(draw: st.DrawFn) -> RankLayout:
    size = st.sampled_from([1, 1, 2, 3])
    tp, cp, dp, pp = (draw(size) for _ in range(4))
    stage = tp * cp * dp
    etp = draw(st.sampled_from([d for d in range(1, stage + 1) if stage % d == 0]))
    ep = draw(st.sampled_from([d for d in range(1, stage // etp + 1) if (stage // etp) % d == 0]))
    layout = RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, etp=etp, ep=ep, expert_dp=stage // etp // ep)
    try:
        return msgspec.structs.replace(layout, order=draw(st.sampled_from([layout.order, *ORDERS])))
    except ValueError:
        return layout


@settings(max_examples=50, deadline=None)
@given(layouts())
def test_coordinates_are_those_of_nested_loops(layout: RankLayout) -> None:
    dense, expert = enumerated(layout, DENSE), enumerated(layout, EXPERT)
    assert layout.world_size == len(dense) == len(expert)
    for rank in range(layout.world_size):
        found = layout.coordinate(rank)
        expected = dense[rank] | expert[rank]
        assert {axis: getattr(found, axis) for axis in expected} == expected


@pytest.mark.parametrize("family", GROUP_FAMILIES)
@settings(max_examples=30, deadline=None)
@given(layout=layouts())
def test_groups_are_those_of_nested_loops(family: GroupFamily, layout: RankLayout) -> None:
    expected = brute_force_groups(layout, family)
    assert sorted(list(group) for group in layout.groups(family)) == expected
    for rank in range(layout.world_size):
        own = [members for members in expected if rank in members]
        group = layout.group(family, rank)
        assert ([] if group is None else [list(group)]) == own


@pytest.mark.parametrize("family", GROUP_FAMILIES)
@settings(max_examples=30, deadline=None)
@given(layout=layouts())
def test_a_group_behaves_as_a_sequence_of_ranks(family: GroupFamily, layout: RankLayout) -> None:
    for group in layout.groups(family):
        members = list(group)
        assert members == sorted(set(members))
        assert len(group) == len(members)
        assert group[-1] == members[-1]
        assert [group.index(rank) for rank in members] == list(range(len(members)))
        assert group[::2] == tuple(members[::2])
        assert [rank for rank in range(-1, layout.world_size + 1) if rank in group] == members
        assert "0" not in group
        with pytest.raises(IndexError, match=f"a group of {len(members)} ranks"):
            group[len(members)]


@pytest.mark.parametrize("family", GROUP_FAMILIES)
@settings(max_examples=40, deadline=None)
@given(layout=layouts(), data=st.data())
def test_crossing_of_hosts_is_what_the_members_show(
    family: GroupFamily, layout: RankLayout, data: st.DataObject
) -> None:
    divisors = [d for d in range(1, layout.world_size + 1) if layout.world_size % d == 0]
    per_host = data.draw(st.sampled_from(divisors))
    spread = any(
        len({rank // per_host for rank in group}) > 1 for group in brute_force_groups(layout, family)
    )
    assert layout.crosses_hosts(family, per_host) == spread


@settings(max_examples=60, deadline=None)
@given(layouts())
def test_the_groups_of_a_rank_are_those_that_have_it(layout: RankLayout) -> None:
    for rank in (0, layout.world_size // 2, layout.world_size - 1):
        found = layout.groups_of(rank)
        for family in GROUP_FAMILIES:
            own = [group for group in layout.groups(family) if rank in group]
            assert ([found[family]] if family in found else []) == own
            assert layout.group_count(family) == len(list(layout.groups(family)))


@settings(max_examples=60, deadline=None)
@given(layouts())
def test_groups_are_equal_when_their_ranks_are(layout: RankLayout) -> None:
    groups = [group for family in GROUP_FAMILIES for group in layout.groups(family)]
    by_ranks = {tuple(group): group for group in groups}
    assert len(set(groups)) == len(by_ranks)
    assert all(group == by_ranks[tuple(group)] for group in groups)
    assert groups[0] != tuple(groups[0])


@st.composite
def divisions(draw: st.DrawFn) -> tuple[RankLayout, GroupFamily, list[int]]:
    """A layout in the usual order, a family whose ranks are evenly spaced, and sizes of levels."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3))
    family = draw(st.sampled_from(["cp", "dp", "cp-dp", "expert-dp"]))
    total, tp, pp = prod(sizes), draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))
    if family == "expert-dp":
        return RankLayout(tp=1, cp=1, dp=tp * total, pp=pp, etp=1, ep=tp, expert_dp=total), family, sizes
    cp = draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
    cp, dp = {"cp": (total, 2), "dp": (2, total), "cp-dp": (cp, total // cp)}[family]
    return (
        RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, etp=1, ep=1, expert_dp=tp * cp * dp),
        family,
        sizes,
    )


@settings(max_examples=150, deadline=None)
@given(divisions())
def test_levels_divide_a_group_into_groups_of_groups(
    division: tuple[RankLayout, GroupFamily, list[int]],
) -> None:
    layout, family, sizes = division
    for rank in range(layout.world_size):
        group = layout.group(family, rank)
        assert group is not None
        members = list(group)
        place = members.index(rank)
        for level, size in enumerate(sizes):
            below = prod(sizes[:level])
            together = [
                member
                for i, member in enumerate(members)
                if i % below == place % below and i // (below * size) == place // (below * size)
            ]
            assert list(group.level(rank, sizes, level)) == together


@settings(max_examples=60, deadline=None)
@given(layout=layouts(), data=st.data())
def test_optimizer_instances_divide_the_replicas_of_experts(layout: RankLayout, data: st.DataObject) -> None:
    instances = data.draw(
        st.sampled_from([d for d in range(1, layout.expert_dp + 1) if layout.expert_dp % d == 0])
    )
    shard = layout.expert_dp // instances
    for rank in range(layout.world_size):
        own = layout.coordinate(rank).expert_dp // shard
        expected = [r for r in range(layout.world_size) if layout.coordinate(r).expert_dp // shard == own]
        assert list(layout.optimizer_instance(rank, instances)) == expected


def test_divisions_that_do_not_fit_are_refused() -> None:
    layout = RankLayout(tp=2, cp=3, dp=2, pp=1, etp=1, ep=2, expert_dp=6)
    group = layout.group("tp-dp", 0)
    assert group is not None
    with pytest.raises(ValueError, match=r"levels of \[2, 3\] ranks do not make up a group of 4"):
        group.level(0, (2, 3), 0)
    with pytest.raises(IndexError, match="level 2 of 2 levels"):
        group.level(0, (2, 2), 2)
    with pytest.raises(ValueError, match="rank 2 is not in"):
        group.level(2, (2, 2), 0)
    with pytest.raises(ValueError, match="rank 7 is not in"):
        group.index(7, 0, 2)
    uneven = RankLayout(tp=3, cp=2, dp=2, pp=1, etp=1, ep=1, expert_dp=12).group("tp-dp", 0)
    assert uneven is not None
    with pytest.raises(ValueError, match="cannot be cut after 2 of 3 ranks"):
        uneven.level(0, (2, 3), 0)
    with pytest.raises(ValueError, match="4 optimizer instances do not divide expert_dp=6"):
        layout.optimizer_instance(0, 4)
    with pytest.raises(IndexError, match="rank 12 of a trainer with 12 ranks"):
        layout.optimizer_instance(12, 2)


def test_an_order_that_megatron_refuses_is_refused() -> None:
    sizes = {"tp": 2, "cp": 1, "dp": 2, "pp": 2, "etp": 1, "ep": 2, "expert_dp": 2}
    assert RankLayout(**sizes, order="tp-cp-ep-pp-dp").coordinate(2).pp == 1
    with pytest.raises(ValueError, match="an order names tp, cp, ep, dp, pp once"):
        RankLayout(**sizes, order="tp-dp-pp")
    with pytest.raises(ValueError, match="dp=2 and expert_dp=4 must be equal"):
        RankLayout(**sizes | {"ep": 1, "expert_dp": 4}, order="tp-cp-ep-pp-dp")
    with pytest.raises(ValueError, match="would be 1 ranks apart and those of everything else 2"):
        RankLayout(**sizes, order="tp-pp-cp-ep-dp")


def test_answers_take_as_little_memory_for_many_ranks_as_for_few() -> None:
    def peak(scale: int) -> int:
        tracemalloc.start()
        layout = RankLayout(tp=8, cp=4, dp=4 * scale, pp=16, etp=1, ep=64, expert_dp=2 * scale)
        found = layout.groups_of(layout.world_size - 1)
        everything = [(len(group), group[-1], hash(group), repr(group)[:8]) for group in found.values()]
        crossing = [layout.crosses_hosts(family, 8) for family in GROUP_FAMILIES]
        instance = layout.optimizer_instance(layout.world_size - 1, 2)
        first = [next(layout.groups(family)) for family in GROUP_FAMILIES]
        assert (len(everything), len(crossing), len(first)) == (
            15,
            16,
            16,
        )  # the last stage embeds no positions
        assert len(instance) == layout.world_size // 2
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1)  # what is allocated once
    small, large = peak(1), peak(1 << 30)
    assert large < 64 * 1024
    assert large < small * 1.5


def test_a_trillion_ranks_cost_no_more_than_eight() -> None:
    layout = RankLayout(tp=2**10, cp=2**10, dp=2**10, pp=2**10, etp=1, ep=2**20, expert_dp=2**10)
    last = layout.world_size - 1
    group = layout.group("dp", last)
    assert group is not None
    assert layout.world_size == 2**40
    assert (len(group), group[-1], group[0]) == (2**10, last, last - (2**10 - 1) * 2**20)
    assert layout.coordinate(last).pp == 2**10 - 1
    assert not layout.crosses_hosts("ep", 2**20)
    assert layout.crosses_hosts("ep", 2**19)


def test_groups_are_equal_by_their_ranks() -> None:
    layout = RankLayout(tp=2, cp=1, dp=2, pp=1, etp=2, ep=2, expert_dp=1)
    assert layout.group("tp", 0) == layout.group("etp", 1)
    assert layout.group("tp", 0) != layout.group("tp", 2)
    assert len({layout.group("tp", rank) for rank in range(4)}) == 2
    assert repr(layout.group("tp", 3)) == "RankGroup([2, 3])"
    assert isinstance(layout.group("tp", 3), RankGroup)


def test_a_rank_that_does_not_exist_is_refused() -> None:
    layout = RankLayout(tp=2, cp=1, dp=1, pp=1, etp=1, ep=1, expert_dp=2)
    with pytest.raises(IndexError, match="rank 2 of a trainer with 2 ranks"):
        layout.coordinate(2)
    with pytest.raises(IndexError, match="rank -1"):
        layout.group("tp", -1)


def test_a_family_that_does_not_exist_is_refused() -> None:
    layout = RankLayout(tp=1, cp=1, dp=1, pp=1, etp=1, ep=1, expert_dp=1)
    with pytest.raises(ValueError, match="unknown group family 'zp'"):
        layout.group("zp", 0)  # type: ignore[arg-type]  # that is the point


def test_every_family_has_a_title_of_its_own() -> None:
    assert tuple(GROUP_TITLES) == GROUP_FAMILIES
    assert len(set(GROUP_TITLES.values())) == len(GROUP_FAMILIES)


def test_a_layout_whose_sides_differ_is_refused() -> None:
    with pytest.raises(ValueError, match="must be equal"):
        RankLayout(tp=2, cp=1, dp=1, pp=1, etp=1, ep=1, expert_dp=1)
    with pytest.raises(ValueError, match="at least 1"):
        RankLayout(tp=0, cp=1, dp=1, pp=1, etp=1, ep=1, expert_dp=0)


def test_131_072_gpus_compile_and_every_family_covers_them_once() -> None:
    hosts = 16_384
    addresses = [f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}" for i in range(1, hosts + 1)]
    topology = compile_topology(
        cluster=homogeneous_cluster(
            addresses,
            cpu_slots=8,
            gpus_per_host=8,
            nccl_transport=NcclTransportSpec(net_name="IB"),
            nixl_transport=NixlTransportSpec(),
        ),
        trainer=TrainerMeshSpec(
            placements=[GpuPlacement(host_id=f"host-{i}", gpus=tuple(range(8))) for i in range(hosts)],
            parallel=MegatronTopologyConfig(tp=8, cp=4, pp=16, ep=64),
        ),
    )
    assert topology.trainer is not None
    layout = topology.trainer.layout
    assert layout.world_size == 131_072
    found = layout.groups_of(99_999)
    for family in GROUP_FAMILIES:
        size = len(next(layout.groups(family)))
        members = layout.group_count(family) * size
        ends = {"embedding": 2, "position-embedding": 1}
        assert members == layout.world_size // 16 * ends.get(family, 16)
        assert (99_999 in found[family]) if family in found else family in ends
    assert topology.trainer.rank(99_999).host_id == "host-12499"
