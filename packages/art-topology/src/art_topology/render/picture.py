"""The whole picture: heading, cards of hosts in columns, legend.

What always holds: text stays within its box by the estimates of :mod:`~art_topology.render.text`, and the
drawing grows with the hosts that are drawn, not with those that there are.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from art_topology.render.cards import GAP_HEIGHT, CardSize, draw_gap, draw_host, height_of, size_of
from art_topology.render.facts import Facts, HostFacts, drawn_families
from art_topology.render.legend import Legend
from art_topology.render.palette import style_sheet
from art_topology.render.svg import Svg
from art_topology.render.text import wrapped
from art_topology.summary import summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from art_topology.compiled import RuntimeTopology
    from art_topology.models import ModelDescription

_MARGIN = 28
_GAP = 16
_LEAST_WIDTH = 640
_ASPECT = 1.6
"""Width to height that the columns aim at: a slide's."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A finished picture.

    Args:
        svg: The text of the file.
        width: In pixels.
        height: In pixels.
        hosts_drawn: Names of the hosts that are drawn, in node order.
    """

    svg: str
    width: int
    height: int
    hosts_drawn: tuple[str, ...]


def draw(
    topology: RuntimeTopology,
    *,
    title: str = "Topology",
    node_ranks: Sequence[int] | None = None,
    most_hosts: int = 8,
    model: ModelDescription | None = None,
) -> Picture:
    """Draws hosts, GPUs, process groups and services.

    Args:
        topology: What to draw.
        title: Its heading.
        node_ranks: The hosts to draw, by node rank; by default all or, of more than ``most_hosts``, the first
            few of each run of hosts that are alike.
        most_hosts: How many hosts are drawn at most by default; at least 1.
        model: With it, pipeline stages say which layers they hold.
    """
    facts = Facts(topology, model)
    chosen = tuple(node_ranks) if node_ranks is not None else _chosen(facts, most_hosts)
    entries = _entries(facts, chosen)
    size = size_of([entry for entry in entries if isinstance(entry, HostFacts)])
    heights = [height_of(entry, size) if isinstance(entry, HostFacts) else GAP_HEIGHT for entry in entries]
    legend = Legend(topology, drawn_families(topology))
    columns = _columns(heights, size, legend)
    inner = max(_LEAST_WIDTH, columns * size.width + (columns - 1) * _GAP)
    size = msgspec.structs.replace(size, width=(inner - (columns - 1) * _GAP) / columns)
    svg = Svg()
    wide = inner + 2 * _MARGIN
    told = summary(topology)
    y = _heading(svg, title, told, inner)
    for start in range(0, len(entries), columns):
        tall = max(heights[start : start + columns])
        for index, entry in enumerate(entries[start : start + columns]):
            x = _MARGIN + index * (size.width + _GAP)
            if isinstance(entry, HostFacts):
                draw_host(svg, x, y, tall, size, entry)
            else:
                draw_gap(svg, x, y, tall, size, entry, topology)
        y += tall + _GAP
    high = y + 8 + legend.draw(svg, _MARGIN, y + 8, inner) + _MARGIN - 12
    page = Svg()
    page.rect(0, 0, wide, high, "page")
    page.extend(svg)
    drawn = tuple(topology.hosts[node].host_id for node in chosen)
    return Picture(
        svg=page.document(
            round(wide),
            round(high),
            title=title,
            description=f"{told}. {legend.spoken()}",
            style=style_sheet(len(topology.services)),
        ),
        width=round(wide),
        height=round(high),
        hosts_drawn=drawn,
    )


def _heading(svg: Svg, title: str, told: str, inner: float) -> float:
    """Title and summary; returns where the cards begin."""
    svg.text(_MARGIN, _MARGIN + 20, title, 24, bold=True, room=inner)
    y = float(_MARGIN + 44)
    for line in wrapped(told, 14, inner):
        svg.text(_MARGIN, y, line, 14, "soft")
        y += 20
    return y + 2


def _chosen(facts: Facts, most: int) -> tuple[int, ...]:
    """All hosts or, of more than ``most``, as many of each run of hosts that are alike: its first ones."""
    count = len(facts.topology.hosts)
    if count <= most:
        return tuple(range(count))
    runs = [
        [node for node, _ in run]
        for _, run in groupby(
            ((node, facts.host(node).kind) for node in range(count)), key=lambda pair: pair[1]
        )
    ]
    taken = [0] * len(runs)
    left = most
    while left:
        before = left
        for index, run in enumerate(runs):
            if left and taken[index] < len(run):
                taken[index] += 1
                left -= 1
        if left == before:
            break
    return tuple(node for run, many in zip(runs, taken, strict=True) for node in run[:many])


def _entries(facts: Facts, chosen: Sequence[int]) -> list[HostFacts | range]:
    """The hosts to draw and, between them, ranges of those that are not."""
    found: list[HostFacts | range] = []
    following = 0
    for node in chosen:
        if node > following:
            found.append(range(following, node))
        found.append(facts.host(node))
        following = node + 1
    if following < len(facts.topology.hosts):
        found.append(range(following, len(facts.topology.hosts)))
    return found


def _columns(heights: Sequence[float], size: CardSize, legend: Legend) -> int:
    """As many columns as make the picture most like a slide."""

    def off(columns: int) -> float:
        wide = max(_LEAST_WIDTH, columns * size.width + (columns - 1) * _GAP)
        rows = [max(heights[start : start + columns]) for start in range(0, len(heights), columns)]
        high = 110 + sum(rows) + len(rows) * _GAP + legend.height(wide)
        aspect = (wide + 2 * _MARGIN) / high
        return max(aspect / _ASPECT, _ASPECT / aspect)

    return min(range(1, min(len(heights), 6) + 1), key=off)
