"""Collectives: where groups lie, and how long they take."""

from itertools import combinations
from math import comb, inf

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology.cost.calibration import Calibration
from art_topology.cost.communication import Group, Network, dispatch_copies, network, place
from art_topology.hardware import Machine, default_hardware
from art_topology.ranks import GroupFamily, RankLayout

LINKS = Network(
    up_bytes_per_s=400e9,
    up_s=3e-6,
    out_bytes_per_s=50e9,
    out_s=14e-6,
    host_bytes_per_s=50e9,
    start_s=10e-6,
    small_latency=0.2,
    small_rate=0.5,
    domain=8,
)
powers = st.integers(0, 4).map(lambda power: 1 << power)


@st.composite
def layouts(draw: st.DrawFn) -> RankLayout:
    tp, cp, dp, pp = (draw(powers) for _ in range(4))
    etp = draw(st.sampled_from([1, tp]))
    stage = tp * cp * dp
    ep = draw(st.sampled_from([n for n in range(1, stage + 1) if stage % (etp * n) == 0]))
    return RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, etp=etp, ep=ep, expert_dp=stage // (etp * ep))


@settings(deadline=None)
@given(layouts(), st.sampled_from([1, 2, 4, 8, 16]))
def test_a_group_crosses_hosts_where_the_rank_layout_says_so(layout: RankLayout, per_host: int) -> None:
    if layout.world_size < per_host:
        return
    strides: dict[GroupFamily, tuple[int, int]] = {
        "tp": (layout.tp, 1),
        "cp": (layout.cp, layout.tp),
        "dp": (layout.dp, layout.tp * layout.cp),
        "cp-dp": (layout.cp * layout.dp, layout.tp),
        "pp": (layout.pp, layout.tp * layout.cp * layout.dp),
        "etp": (layout.etp, 1),
        "ep": (layout.ep, layout.etp),
        "expert-dp": (layout.expert_dp, layout.etp * layout.ep),
    }
    for family, (size, stride) in strides.items():
        group = place(size, stride, per_host)
        assert group.crosses == layout.crosses_hosts(family, per_host), family
        members = [rank // per_host for rank in layout.group(family, 0) or ()]
        assert group.local == max(members.count(host) for host in set(members)), family


def test_groups_that_do_not_tile_hosts_are_described_by_the_one_that_is_cut_most() -> None:
    assert place(3, 1, 8) == Group(3, 1)
    assert place(6, 1, 8) == Group(6, 2)
    assert place(4, 1, 8) == Group(4, 4)


def test_a_ring_passes_all_shards_but_one() -> None:
    large = 1e12
    assert LINKS.gather_s(Group(8, 8), large) == pytest.approx(large * 7 / 8 / 400e9, rel=1e-3)
    assert LINKS.gather_s(Group(4, 1), large) == pytest.approx(large * 3 / 4 / 50e9, rel=1e-3)


def test_members_of_a_host_share_its_network_adapters() -> None:
    large = 1e12
    alone, together = LINKS.gather_s(Group(16, 1), large), LINKS.gather_s(Group(16, 8), large)
    assert alone / together == pytest.approx(400e9 / 50e9, rel=1e-3)


def test_small_messages_take_the_latency_of_their_protocol() -> None:
    assert LINKS.gather_s(Group(8, 8), 0) == pytest.approx(10e-6 + 7 * 3e-6 * 0.2)
    assert LINKS.gather_s(Group(16, 8), 0) == pytest.approx(10e-6 + 0.2 * (14 * 3e-6 + 14e-6))


def test_an_all_reduce_is_two_passes_or_a_tree() -> None:
    large = 1e12
    assert LINKS.reduce_s(Group(8, 8), large) == pytest.approx(2 * large * 7 / 8 / 400e9, rel=1e-3)
    many = Group(1024, 1)
    assert LINKS.reduce_s(many, 1) < 2 * LINKS.gather_s(many, 1) / 10


@settings(deadline=None)
@given(
    size=st.integers(1, 64),
    local=st.integers(1, 8),
    small=st.floats(0, 1e9),
    more=st.floats(0, 1e9),
)
def test_more_bytes_never_take_less(size: int, local: int, small: float, more: float) -> None:
    group = Group(size, min(size, local))
    for collective in (LINKS.gather_s, LINKS.reduce_s):
        assert collective(group, small) <= collective(group, small + more) + 1e-12


def test_one_rank_has_nothing_to_say() -> None:
    alone = Group(1, 1)
    assert LINKS.gather_s(alone, 1e9) == LINKS.reduce_s(alone, 1e9) == LINKS.exchange_s(alone, 1e9, 0) == 0


def test_without_bytes_per_second_to_spare_only_latency_is_left() -> None:
    free = msgspec.structs.replace(LINKS, up_bytes_per_s=inf, out_bytes_per_s=inf, up_s=0.0, out_s=0.0)
    assert free.gather_s(Group(16, 8), 1e12) == free.start_s
    assert free.send_s(True, 1e12) == 0


@pytest.mark.parametrize(("experts", "topk", "ranks", "local"), [(8, 2, 4, 2), (12, 3, 4, 4), (8, 8, 4, 2)])
def test_copies_are_the_mean_over_all_choices_of_experts(
    experts: int, topk: int, ranks: int, local: int
) -> None:
    held = experts // ranks
    up = out = 0
    for chosen in combinations(range(experts), topk):
        reached = {expert // held for expert in chosen}
        up += len(reached - {0})
        out += len({rank // local for rank in reached} - {0})
    count = comb(experts, topk)
    expected_up, expected_out = dispatch_copies(Group(ranks, local), experts, topk)
    assert expected_up == pytest.approx(up / count)
    assert expected_out == pytest.approx(out / count)


def test_what_leaves_the_host_is_sent_once_to_each_host() -> None:
    _, hierarchical = dispatch_copies(Group(16, 8), 256, 8)
    _, flat = dispatch_copies(Group(16, 1), 256, 8)
    assert hierarchical <= 1
    assert flat > 5


@pytest.mark.parametrize(
    ("name", "per_host", "domain"),
    [("H100", 8, 8), ("H100", 4, 4), ("GB200", 4, 64), ("GB200", 2, 32), ("A100", 1, 1)],
)
def test_the_domain_is_what_the_scale_up_link_joins(name: str, per_host: int, domain: int) -> None:
    machine: Machine = default_hardware().machine(name)
    assert network(machine, per_host, Calibration()).domain == domain
