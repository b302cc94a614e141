"""Cards: one for each host with a cell for each device, and one for each range of hosts that is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from art_topology.render.palette import FAMILIES, group_colour, ink_on, service_colour
from art_topology.render.text import width, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from art_topology.compiled import RuntimeTopology
    from art_topology.ranks import GroupFamily
    from art_topology.render.facts import Bar, Cell, HostFacts
    from art_topology.render.svg import Svg

_PAD = 14
_HEADER = 46
_GUTTER = 34
_CELL = 92
_CELL_GAP = 8
_CELL_HEAD = 42
_BAR = 16
_BAR_GAP = 4
_FOOT = 18
_PER_ROW = 8
_MOST_CELLS = 32
STAR = "\N{BLACK STAR}"


class CardSize(msgspec.Struct, frozen=True, kw_only=True):
    """What all cards of a picture have in common.

    Args:
        width: In pixels.
        height: In pixels.
        per_row: Cells beside each other.
        cell_height: In pixels.
        has_stages: Cells have a line for the pipeline stage.
    """

    width: float
    height: float
    per_row: int
    cell_height: float
    has_stages: bool


def size_of(hosts: Sequence[HostFacts], families: Sequence[GroupFamily]) -> CardSize:
    """A size in which every host has room."""
    most = max((_shown_cells(host) for host in hosts), default=0)
    per_row = max(1, min(_PER_ROW, most))
    rows = -(-most // per_row)
    has_stages = any(cell.stage for host in hosts for cell in host.cells)
    cell_height = _CELL_HEAD + len(families) * (_BAR + _BAR_GAP) + (_FOOT if has_stages else 0) + 6
    gutter = _GUTTER if families else 0
    wide = 2 * _PAD + gutter + per_row * _CELL + (per_row - 1) * _CELL_GAP
    high = _HEADER + max(rows * (cell_height + _CELL_GAP), 30) + _PAD - (_CELL_GAP if rows else 0)
    return CardSize(
        width=max(wide, 300.0), height=high, per_row=per_row, cell_height=cell_height, has_stages=has_stages
    )


def _shown_cells(host: HostFacts) -> int:
    return min(len(host.cells), _MOST_CELLS)


def draw_host(
    svg: Svg, x: float, y: float, size: CardSize, host: HostFacts, families: Sequence[GroupFamily]
) -> None:
    """One host."""
    with svg.group("host", _host_title(host)):
        svg.rect(x, y, size.width, size.height, "card", round_=8)
        _draw_header(svg, x, y, size, host)
        gutter = _GUTTER if families else 0
        left = x + _PAD + gutter
        step = (size.width - 2 * _PAD - gutter + _CELL_GAP) / size.per_row
        wide = min(step - _CELL_GAP, _CELL * 1.6)
        step = wide + _CELL_GAP
        shown = list(host.cells[: _MOST_CELLS - (len(host.cells) > _MOST_CELLS)])
        for start in range(0, max(1, len(shown)), size.per_row):
            row = shown[start : start + size.per_row]
            top = y + _HEADER + start // size.per_row * (size.cell_height + _CELL_GAP)
            if row and families:
                _draw_row_names(svg, x + _PAD, top, families, row)
            for index, cell in enumerate(row):
                _draw_cell(svg, left + index * step, top, wide, size, cell, families)
            _draw_bars(svg, left, top, wide, step, row, families)
        if len(host.cells) > len(shown):
            place = len(shown)
            at = left + place % size.per_row * step
            top = y + _HEADER + place // size.per_row * (size.cell_height + _CELL_GAP)
            more = f"and {len(host.cells) - place} more"
            svg.text(at + wide / 2, top + size.cell_height / 2, more, 12, "soft", anchor="middle", room=wide)
        if not host.cells:
            free = len(host.host.free_cpu_slots)
            slots = (
                f"{free} free CPU slot{'s' * (free != 1)} for rollout workers"
                if free
                else "nothing runs here"
            )
            svg.text(x + _PAD, y + _HEADER + 16, slots, 12, "soft", room=size.width - 2 * _PAD)


def _host_title(host: HostFacts) -> str:
    told = [f"host {host.host.host_id}, {host.host.address}, node rank {host.host.node_rank}"]
    told += ["runs the controller"] if host.controller else []
    told += [f"serves the API of {name}" for name in host.leads]
    return "; ".join(told)


def _draw_header(svg: Svg, x: float, y: float, size: CardSize, host: HostFacts) -> None:
    compiled = host.host
    right = x + size.width - _PAD
    badges = []
    if host.controller:
        badges.append("controller")
    badges += [f"{STAR} API of {name}" for name in host.leads[:2]]
    if compiled.gpus:
        badges.append(f"{len(compiled.gpus)} \N{MULTIPLICATION SIGN} {compiled.gpu_model or 'GPU'}")
    if compiled.cpu_slots and host.cells:
        badges.append(f"{len(compiled.free_cpu_slots)} of {compiled.cpu_slots} CPU slots free")
    least = min(190.0, (size.width - 2 * _PAD) * 0.5)
    # From the least important on, as long as the host's name has room.
    for badge in reversed(badges):
        wide = width(badge, 11) + 14
        if right - wide < x + _PAD + least:
            continue
        right -= wide
        svg.rect(right, y + 11, wide, 20, "badge", round_=10)
        svg.text(right + wide / 2, y + 25, badge, 11, anchor="middle")
        right -= 6
    room = right - x - _PAD - 4
    used = svg.text(x + _PAD, y + 27, compiled.host_id, 15, bold=True, room=room)
    detail = f"{compiled.address} \N{MIDDLE DOT} node {compiled.node_rank}"
    if room - used - 10 > 60:
        svg.text(x + _PAD + used + 8, y + 27, detail, 12, "soft", room=room - used - 10)


def _draw_row_names(
    svg: Svg, x: float, top: float, families: Sequence[GroupFamily], row: Sequence[Cell]
) -> None:
    there = {bar.family for cell in row for bar in cell.bars}
    for index, family in enumerate(families):
        if family in there:
            y = top + _CELL_HEAD + index * (_BAR + _BAR_GAP)
            svg.rect(x, y + 2, 4, _BAR - 4, fill=FAMILIES[family][0], round_=2)
            svg.text(x + 8, y + 12, family, 11, "soft", room=_GUTTER - 8)


def _draw_cell(
    svg: Svg,
    x: float,
    top: float,
    wide: float,
    size: CardSize,
    cell: Cell,
    families: Sequence[GroupFamily],
) -> None:
    with svg.group("device", _cell_title(cell)):
        if cell.is_free:
            svg.rect(x, top, wide, size.cell_height, "free", round_=5, dashed=True)
            svg.text(x + wide / 2, top + 17, "free", 12, "soft", anchor="middle", room=wide - 10)
            svg.text(x + wide / 2, top + 32, cell.device, 11, "soft", anchor="middle", room=wide - 10)
            return
        leader = next((worker for worker in cell.workers if worker.leads and worker.number == 0), None)
        only_service = cell.rank is None
        svg.rect(x, top, wide, size.cell_height, "cell", round_=5)
        if only_service:
            svg.rect(
                x + 0.5,
                top + 0.5,
                wide - 1,
                size.cell_height - 1,
                f"service-{cell.workers[0].service}",
                round_=5,
            )
            svg.rect(x, top, wide, 5, fill=service_colour(cell.workers[0].service), round_=2.5)
            name = f"{STAR} {cell.workers[0].name}" if leader else cell.workers[0].name
            second = f"worker {cell.workers[0].number} \N{MIDDLE DOT} {cell.device}"
        else:
            svg.rect(x, top, wide, 5, "band", round_=2.5)
            name = f"rank {cell.rank}"
            second = cell.device
        svg.text(x + 7, top + 21, name, 13, bold=True, room=wide - 12)
        if not only_service and cell.workers:
            worker = cell.workers[0]
            label = f"{STAR if leader else ''}{worker.name}"
            svg.rect(x + 4, top + 25, wide - 8, 15, fill=service_colour(worker.service), round_=7.5)
            ink = ink_on(service_colour(worker.service))
            svg.text(x + wide / 2, top + 36, label, 10.5, anchor="middle", fill=ink, room=wide - 18)
        else:
            svg.text(x + 7, top + 35, second, 11, "soft", room=wide - 12)
        if cell.stage:
            foot = top + _CELL_HEAD + len(families) * (_BAR + _BAR_GAP) + 12
            svg.text(x + wide / 2, foot, cell.stage, 11, "soft", anchor="middle", room=wide - 8)


def _cell_title(cell: Cell) -> str:
    told = [cell.device]
    told += [f"trainer rank {cell.rank}"] if cell.rank is not None else []
    told += [cell.stage] if cell.stage else []
    told += [
        f"{worker.name} worker {worker.number}{' (leader)' if worker.leads else ''}"
        for worker in cell.workers
    ]
    told += [f"{bar.family} group {bar.group}" for bar in cell.bars]
    return ", ".join(told) if len(told) > 1 else f"{cell.device}, free"


def _draw_bars(
    svg: Svg,
    left: float,
    top: float,
    wide: float,
    step: float,
    row: Sequence[Cell],
    families: Sequence[GroupFamily],
) -> None:
    """A bar for each group; neighbours in the same group share one."""
    for line, family in enumerate(families):
        y = top + _CELL_HEAD + line * (_BAR + _BAR_GAP)
        bars = [next((bar for bar in cell.bars if bar.family == family), None) for cell in row]
        start = 0
        while start < len(bars):
            end = start + 1
            while end < len(bars) and bars[end] == bars[start]:
                end += 1
            bar = bars[start]
            if bar is not None:
                _draw_bar(svg, left + start * step + 5, y, (end - start - 1) * step + wide - 10, bar)
            start = end


def _draw_bar(svg: Svg, x: float, y: float, wide: float, bar: Bar) -> None:
    colour = group_colour(bar.family, bar.group)
    svg.rect(x, y, wide, _BAR, fill=colour, round_=3)
    svg.text(
        x + wide / 2,
        y + 12,
        str(bar.group),
        11,
        anchor="middle",
        fill=ink_on(colour),
        bold=True,
        room=wide - 4,
    )


def draw_gap(
    svg: Svg, x: float, y: float, size: CardSize, left_out: range, topology: RuntimeTopology
) -> None:
    """A card that stands for hosts that are not drawn."""
    first, last = topology.hosts[left_out[0]], topology.hosts[left_out[-1]]
    count = len(left_out)
    named = first.host_id if count == 1 else f"{first.host_id} to {last.host_id}"
    told = [named, *_left_out(left_out, topology)]
    headline = f"{count:,} more host{'s' * (count != 1)}"
    with svg.group("gap", f"{headline}: {'; '.join(told)}"):
        svg.rect(x, y, size.width, size.height, "free", round_=8, dashed=True)
        room = size.width - 2 * _PAD
        lines = [line for text in told for line in wrapped(text, 12, room, most_lines=2)]
        lines = lines[: max(1, int((size.height - 44) // 17))]
        at = y + size.height / 2 - (len(lines) * 17) / 2
        svg.text(x + size.width / 2, at, headline, 18, bold=True, anchor="middle", room=room)
        for line in lines:
            at += 19
            svg.text(x + size.width / 2, at, line, 12, "soft", anchor="middle", room=room)


def _left_out(nodes: range, topology: RuntimeTopology) -> list[str]:
    """What runs on hosts that are not drawn."""
    names = {topology.hosts[node].host_id for node in nodes}
    gpus = sum(len(topology.hosts[node].gpus) for node in nodes)
    told = [f"{gpus:,} GPU{'s' * (gpus != 1)}"] if gpus else []
    if topology.trainer is not None:
        theirs = [host for host in topology.trainer.hosts if host.host_id in names]
        if theirs:
            begin = theirs[0].first_rank
            end = theirs[-1].first_rank + len(theirs[-1].devices) - 1
            told.append(f"trainer ranks {begin:,} to {end:,}" if end > begin else f"trainer rank {begin:,}")
    for service in topology.services:
        workers = sum(len(member.devices) for member in service.members if member.host_id in names)
        if workers:
            told.append(f"{workers:,} worker{'s' * (workers != 1)} of {service.name}")
    return told
