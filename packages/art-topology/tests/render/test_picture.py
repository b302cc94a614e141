"""Pictures are valid, complete, and everything stays in its place."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise

import pytest

from art_topology import MegatronTopologyConfig, RuntimeTopology, VllmParallelSpec
from art_topology.models import load_model_config
from art_topology.ranks import GROUP_FAMILIES, RankLayout
from art_topology.render import Picture, draw
from art_topology.render.facts import Facts, group_number
from art_topology.render.text import width

SVG = "{http://www.w3.org/2000/svg}"
Make = Callable[..., RuntimeTopology]


def parsed(picture: Picture) -> ET.Element:
    return ET.fromstring(picture.svg)


def texts(element: ET.Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


def groups(root: ET.Element, kind: str) -> list[ET.Element]:
    return [group for group in root.iter(f"{SVG}g") if group.get("class") == kind]


def titles(root: ET.Element, kind: str) -> list[str]:
    return [(group.findtext(f"{SVG}title") or "") for group in groups(root, kind)]


def extent(text: ET.Element) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a text, by the widths that the picture counts with."""
    size = float(text.get("font-size", "0"))
    wide = width(text.text or "", size, bold=text.get("font-weight") == "600")
    x, y = float(text.get("x", "0")), float(text.get("y", "0"))
    left = {"start": x, "middle": x - wide / 2, "end": x - wide}[text.get("text-anchor", "start")]
    return left, y - 0.8 * size, left + wide, y + 0.25 * size


def box(rect: ET.Element) -> tuple[float, float, float, float]:
    x, y, wide, high = (float(rect.get(name, "0")) for name in ("x", "y", "width", "height"))
    return x, y, x + wide, y + high


def inside(inner: tuple[float, ...], outer: tuple[float, ...], slack: float = 0.6) -> bool:
    return (
        inner[0] >= outer[0] - slack
        and inner[1] >= outer[1] - slack
        and inner[2] <= outer[2] + slack
        and inner[3] <= outer[3] + slack
    )


@pytest.fixture(scope="session")
def pictures(
    random_topologies: list[RuntimeTopology], cpu_topology: RuntimeTopology, shared_topology: RuntimeTopology
) -> list[Picture]:
    return [draw(topology) for topology in (*random_topologies, cpu_topology, shared_topology)]


def test_all_text_is_within_its_box_and_the_picture(pictures: list[Picture]) -> None:
    for picture in pictures:
        root = parsed(picture)
        page = (0.0, 0.0, float(picture.width), float(picture.height))
        for text in root.iter(f"{SVG}text"):
            assert inside(extent(text), page), text.text
        for kind in ("host", "device", "gap"):
            for group in groups(root, kind):
                frame = group.find(f"{SVG}rect")
                assert frame is not None
                for text in group.iter(f"{SVG}text"):
                    assert inside(extent(text), box(frame)), (kind, text.text)
                for rect in group.iter(f"{SVG}rect"):
                    assert inside(box(rect), box(frame)), kind


def test_texts_do_not_cover_each_other(pictures: list[Picture]) -> None:
    for picture in pictures:
        placed = [(extent(text), text.text) for text in parsed(picture).iter(f"{SVG}text")]
        placed.sort(key=lambda pair: (pair[0][1], pair[0][0]))
        for (one, first), (other, second) in pairwise(placed):
            apart = one[2] <= other[0] + 0.5 or other[2] <= one[0] + 0.5 or one[3] <= other[1] + 2.5
            assert apart, (first, second)


def test_cards_do_not_cover_each_other(pictures: list[Picture]) -> None:
    for picture in pictures:
        root = parsed(picture)
        for kind in ("host", "device"):
            frames = [
                box(rect) for group in groups(root, kind) if (rect := group.find(f"{SVG}rect")) is not None
            ]
            for index, one in enumerate(frames):
                for other in frames[index + 1 :]:
                    assert (
                        one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
                    )


def test_it_is_described_for_those_who_cannot_see_it(topology_of: Make) -> None:
    root = parsed(draw(topology_of(2, 1, MegatronTopologyConfig(tp=2)), title="Mine"))
    assert root.get("role") == "img"
    named = root.get("aria-labelledby", "").split()
    by_id = {element.get("id"): element.text or "" for element in root if element.get("id")}
    assert by_id[named[0]] == "Mine"
    assert "16 trainer ranks TP2/DP8" in by_id[named[1]]
    assert "tensor parallel: 8 groups of 2 ranks, within a host" in by_id[named[1]]
    assert "data parallel: 2 groups of 8 ranks, across hosts" in by_id[named[1]]


def test_every_device_says_who_is_on_it(topology_of: Make) -> None:
    topology = topology_of(1, 1, MegatronTopologyConfig(tp=2, cp=2), VllmParallelSpec(tp=4, dp=2), gpus=8)
    found = titles(parsed(draw(topology)), "device")
    assert len(found) == 16
    assert topology.trainer is not None
    layout = topology.trainer.layout
    for rank in range(8):
        numbers = {
            family: list(layout.groups(family)).index(layout.group(family, rank))
            for family in ("tp", "cp", "dp")
        }
        bars = ", ".join(f"{family} group {number}" for family, number in numbers.items())
        assert found[rank] == f"GPU {rank}, trainer rank {rank}, {bars}"
    assert found[8] == "GPU 0, policy worker 0 (leader), tp group 0, dp group 0"
    assert found[15].startswith("GPU 7, policy worker 7 (leader), tp group 1, dp group 3")


def test_bars_join_neighbours_of_the_same_group(topology_of: Make) -> None:
    root = parsed(draw(topology_of(1, 0, MegatronTopologyConfig(tp=4))))
    (host,) = groups(root, "host")
    numbers = [text for text in texts(host) if text.isdigit()]
    # tp: two groups of four neighbours; dp: four groups, of which no two members are neighbours.
    assert numbers == ["0", "1", *"01230123"]


def test_group_numbers_are_those_of_the_layout() -> None:
    layouts = (
        RankLayout(tp=2, cp=3, dp=4, pp=2, etp=2, ep=6, expert_dp=2),
        RankLayout(tp=1, cp=2, dp=6, pp=3, etp=1, ep=4, expert_dp=3),
    )
    for layout in layouts:
        for family in ("tp", "cp", "ep", "etp", "pp", "dp"):
            assert family in GROUP_FAMILIES
            every = [set(group) for group in layout.groups(family)]
            for rank in range(layout.world_size):
                assert rank in every[group_number(layout, family, rank)]


@pytest.mark.parametrize(("tp", "pp", "dp"), [(2, 1, 4), (2, 2, 2), (1, 4, 2), (4, 2, 1)])
def test_workers_of_a_service_are_numbered_as_vllm_does(topology_of: Make, tp: int, pp: int, dp: int) -> None:
    """vLLM: ``arange(world).reshape(dp, pp, tp)``; a group varies one axis."""
    topology = topology_of(0, 1, service=VllmParallelSpec(tp=tp, pp=pp, dp=dp))
    cells = Facts(topology).host(0).cells
    places = [(d, p, t) for d in range(dp) for p in range(pp) for t in range(tp)]
    for axis, family in enumerate(("dp", "pp", "tp")):
        numbers = [{bar.family: bar.group for bar in cell.bars}.get(family) for cell in cells]
        if (dp, pp, tp)[axis] == 1:
            assert set(numbers) == {None}
            continue
        for one, first in zip(places, numbers, strict=True):
            for other, second in zip(places, numbers, strict=True):
                together = all(one[i] == other[i] for i in range(3) if i != axis)
                assert (first == second) == together


def test_stages_are_named_and_with_a_model_their_layers(topology_of: Make) -> None:
    topology = topology_of(2, 0, MegatronTopologyConfig(pp=2, vpp=2))
    assert {text for text in texts(parsed(draw(topology))) if "stage" in text} == {"stage 0", "stage 1"}
    model = load_model_config(
        {
            "model_type": "llama",
            "hidden_size": 64,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "vocab_size": 100,
        }
    )
    found = [title for title in titles(parsed(draw(topology, model=model)), "device") if "layers" in title]
    assert len(found) == 16
    assert "layers 0\N{EN DASH}1, 4\N{EN DASH}5" in found[0]
    assert "layers 2\N{EN DASH}3, 6\N{EN DASH}7" in found[8]


def test_of_many_hosts_the_first_of_each_kind_are_drawn(topology_of: Make) -> None:
    topology = topology_of(48, 15, MegatronTopologyConfig(tp=8), VllmParallelSpec(tp=8, dp=15), idle=1)
    picture = draw(topology)
    assert picture.hosts_drawn == tuple(f"node-{node}" for node in (0, 1, 2, 3, 48, 49, 50, 63))
    root = parsed(picture)
    assert len(groups(root, "host")) == 8
    left_out = " ".join(titles(root, "gap"))
    drawn = [int(name.removeprefix("node-")) for name in picture.hosts_drawn]
    told = sum(int(number) for number in re.findall(r"(\d+) more hosts?", left_out))
    assert told + 8 == 64
    trained = sum(node < 48 for node in drawn)
    assert f"trainer ranks {8 * trained} to 383" in left_out
    assert f"{8 * (15 - sum(48 <= node < 63 for node in drawn))} workers of policy" in left_out
    assert len(picture.svg) < 120_000


def test_a_picture_of_ten_thousand_hosts_is_no_larger(topology_of: Make) -> None:
    topology = topology_of(10_000, 0, MegatronTopologyConfig(tp=8), gpus=8)
    picture = draw(topology)
    assert len(picture.hosts_drawn) == 8
    assert len(picture.svg) < 120_000
    assert "9,992 more hosts" in picture.svg


def test_hosts_can_be_chosen(topology_of: Make) -> None:
    picture = draw(topology_of(20, 0), node_ranks=(3, 4, 19))
    assert picture.hosts_drawn == ("node-3", "node-4", "node-19")
    assert re.findall(r"(\d+) more hosts?:", " ".join(titles(parsed(picture), "gap"))) == ["3", "14"]


def test_names_are_escaped() -> None:
    from art_topology import (
        CpuPlacement,
        ModelServiceMemberSpec,
        ModelServiceSpec,
        compile_topology,
        local_cluster,
    )

    topology = compile_topology(
        cluster=local_cluster(cpu_slots=1),
        services=[
            ModelServiceSpec(
                name="x",
                base_model='<script>&"\x00\x1b\uffff',
                members=[ModelServiceMemberSpec(placement=CpuPlacement(host_id="local"))],
            )
        ],
    )
    picture = draw(topology, title="</title><script>alert(1)</script>&\x07\ud800")
    root = parsed(picture)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg", "title", "desc", "style", "rect", "text", "line", "g",
    }  # fmt: skip
    assert any("<script>&" in text for text in texts(root))
    picture.svg.encode()


def test_turns_on_a_device_show_both(shared_topology: RuntimeTopology) -> None:
    root = parsed(draw(shared_topology))
    for rank, device in enumerate(groups(root, "device")):
        shown = texts(device)
        assert f"rank {rank}" in shown
        assert f"GPU {rank}" in shown
        assert any("policy" in text for text in shown)


def test_the_leader_and_the_controller_are_marked(topology_of: Make) -> None:
    root = parsed(draw(topology_of(1, 2, service=VllmParallelSpec(tp=8, dp=2))))
    hosts = groups(root, "host")
    assert ["controller" in texts(host) for host in hosts] == [True, False, False]
    assert [any("API of policy" in text for text in texts(host)) for host in hosts] == [False, True, False]
    assert sum(text.startswith("\N{BLACK STAR} policy") for text in texts(root)) == 1


def test_slices_can_be_told_apart_and_many_runs_of_layers_give_way_to_their_stage() -> None:
    from art_topology.files import read_topology_text
    from art_topology.render.facts import Facts

    slices = [f"MIG-4e0c1a3d-6f5b-4d7e-9b1a-2c3d4e5f60{n}" for n in (71, 72)]
    text = f"""
[[cluster.hosts]]
host_id = "a"
address = "10.0.0.1"
gpus = {slices}
cpu_slots = 3
[trainer]
placements = [{{ device = "cpu", host_id = "a", slots = 2 }}]
parallel = {{ pp = 2, pipeline_layout = "Et|t|t|t|t|tL" }}
"""
    cells = Facts(read_topology_text(text, "toml").compile()).host(0).cells
    assert [cell.device for cell in cells[:2]] == [
        "MIG \N{HORIZONTAL ELLIPSIS}5f6071",
        "MIG \N{HORIZONTAL ELLIPSIS}5f6072",
    ]
    assert [cell.name for cell in cells[:2]] == slices
    assert [cell.stage for cell in cells[2:]] == ["layers 0, 2, 4", "layers 1, 3, 5"]
    assert [cell.stage_short for cell in cells[2:]] == ["stage 0", "stage 1"]


def test_runs_of_layers_that_have_no_room_are_not_cut_off() -> None:
    from art_topology.files import read_topology_text
    from art_topology.render import draw

    text = """
[[cluster.hosts]]
host_id = "a"
address = "10.0.0.1"
gpus = [0, 1, 2, 3, 4, 5, 6, 7]
cpu_slots = 3
[trainer]
placements = [{ device = "gpu", host_id = "a", gpus = [0, 1, 2, 3, 4, 5, 6, 7] }]
parallel = { tp = 2, pp = 4, vpp = 4, pipeline_layout = "Et*5|(t*5|)*14t*5L" }
"""
    drawn = draw(read_topology_text(text, "toml").compile(), title="t").svg
    assert "stage 3</text>" in drawn
    assert "layers 0" in drawn
    assert "layers 0\N{EN DASH}4, 2\N{HORIZONTAL ELLIPSIS}" not in drawn
