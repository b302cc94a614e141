"""The arithmetic of ranks against nested loops and lists."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology import GROUP_FAMILIES, GroupFamily, RankGroup, RankLayout

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


def enumerated(layout: RankLayout, axes: tuple[str, ...]) -> list[dict[str, int]]:
    """The coordinates of all ranks in rank order: the last axis is the outermost loop."""
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
    return RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, etp=etp, ep=ep, expert_dp=stage // etp // ep)


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
        layout.group("zp", 0)  # type: ignore[arg-type]


def test_a_layout_whose_sides_differ_is_refused() -> None:
    with pytest.raises(ValueError, match="must be equal"):
        RankLayout(tp=2, cp=1, dp=1, pp=1, etp=1, ep=1, expert_dp=1)
    with pytest.raises(ValueError, match="at least 1"):
        RankLayout(tp=0, cp=1, dp=1, pp=1, etp=1, ep=1, expert_dp=0)
