"""Cards: one for each host with a cell for each device, and one for each range of hosts that is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from art_topology.render.palette import FAMILIES, group_colour, ink_on, service_colour
from art_topology.render.text import width, wrapped
from art_topology.summary import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from art_topology.compiled import RuntimeTopology
    from art_topology.ranks import GroupFamily
    from art_topology.render.facts import Bar, Cell, HostFacts, Worker
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
GAP_HEIGHT = 110.0
"""Least height of a card for hosts that are left out, in pixels."""
STAR = "\N{BLACK STAR}"


class CardSize(msgspec.Struct, frozen=True, kw_only=True):
    """What all cards of a picture have in common.

    Args:
        width: In pixels.
        per_row: Cells beside each other.
        gutter: Room for the names of bars, in pixels.
    """

    width: float
    per_row: int
    gutter: float


def size_of(hosts: Sequence[HostFacts]) -> CardSize:
    """A size in which every host has room."""
    most = max((_shown_cells(host) for host in hosts), default=0)
    per_row = max(1, min(_PER_ROW, most))
    gutter = float(_GUTTER if any(families_on(host) for host in hosts) else 0)
    wide = 2 * _PAD + gutter + per_row * _CELL + (per_row - 1) * _CELL_GAP
    return CardSize(width=max(wide, 300.0), per_row=per_row, gutter=gutter)


def families_on(host: HostFacts) -> tuple[GroupFamily, ...]:
    """The families that have bars on a host."""
    there = {bar.family for cell in host.cells for bar in cell.bars}
    return tuple(family for family in FAMILIES if family in there)


def height_of(host: HostFacts, size: CardSize) -> float:
    """How high the card of a host is at least, in pixels."""
    rows = -(-_shown_cells(host) // size.per_row)
    if not rows:
        return _HEADER + 30 + _PAD
    return _HEADER + rows * (_cell_height(host) + _CELL_GAP) - _CELL_GAP + _PAD


def _cell_height(host: HostFacts) -> float:
    has_stages = any(cell.stage for cell in host.cells)
    return _CELL_HEAD + len(families_on(host)) * (_BAR + _BAR_GAP) + (_FOOT if has_stages else 0) + 6


def _shown_cells(host: HostFacts) -> int:
    return min(len(host.cells), _MOST_CELLS)


def draw_host(svg: Svg, x: float, y: float, high: float, size: CardSize, host: HostFacts) -> None:
    """One host, in a card that is ``high`` pixels high."""
    with svg.group("host", _host_title(host)):
        svg.rect(x, y, size.width, high, "card", round_=8)
        _draw_header(svg, x, y, size, host)
        if host.cells:
            _draw_cells(svg, x, y + _HEADER, size, host)
        else:
            free = len(host.host.free_cpu_slots)
            slots = f"{counted(free, 'free CPU slot')} for rollout workers"
            told = slots if free else "nothing runs here"
            svg.text(x + _PAD, y + _HEADER + 16, told, 12, "soft", room=size.width - 2 * _PAD)


def _draw_cells(svg: Svg, x: float, y: float, size: CardSize, host: HostFacts) -> None:
    families, tall = families_on(host), _cell_height(host)
    left = x + _PAD + size.gutter
    step = (size.width - 2 * _PAD - size.gutter + _CELL_GAP) / size.per_row
    wide = min(step - _CELL_GAP, _CELL * 1.6)
    step = wide + _CELL_GAP
    shown = host.cells[: _MOST_CELLS - (len(host.cells) > _MOST_CELLS)]
    for start in range(0, len(shown), size.per_row):
        row = shown[start : start + size.per_row]
        top = y + start // size.per_row * (tall + _CELL_GAP)
        _draw_row_names(svg, x + _PAD, top, families, row)
        for index, cell in enumerate(row):
            _draw_cell(svg, left + index * step, top, wide, tall, cell)
        _draw_bars(svg, left, top, wide, step, row, families)
    if len(host.cells) > len(shown):
        at = left + len(shown) % size.per_row * step
        top = y + len(shown) // size.per_row * (tall + _CELL_GAP)
        more = f"{len(host.cells) - len(shown)} more"
        svg.text(at + wide / 2, top + tall / 2, more, 12, "soft", anchor="middle", room=wide)


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
    for told in (detail, compiled.address):
        if width(told, 12) <= room - used - 12:
            svg.text(x + _PAD + used + 10, y + 27, told, 12, "soft")
            break


def _draw_row_names(
    svg: Svg, x: float, top: float, families: Sequence[GroupFamily], row: Sequence[Cell]
) -> None:
    there = {bar.family for cell in row for bar in cell.bars}
    for index, family in enumerate(families):
        if family in there:
            y = top + _CELL_HEAD + index * (_BAR + _BAR_GAP)
            svg.rect(x, y + 2, 4, _BAR - 4, fill=FAMILIES[family][0], round_=2)
            svg.text(x + 8, y + 12, family, 11, "soft", room=_GUTTER - 8)


def _draw_cell(svg: Svg, x: float, top: float, wide: float, tall: float, cell: Cell) -> None:
    with svg.group("device", _cell_title(cell)):
        if cell.is_free:
            svg.rect(x, top, wide, tall, "free", round_=5, dashed=True)
            svg.text(x + wide / 2, top + 18, "free", 12, "soft", anchor="middle", room=wide - 10)
            svg.text(x + wide / 2, top + 34, cell.device, 11, "soft", anchor="middle", room=wide - 10)
            return
        svg.rect(x, top, wide, tall, "cell", round_=5)
        if cell.rank is None:
            _draw_worker(svg, x, top, wide, tall, cell)
        else:
            _draw_rank(svg, x, top, wide, cell)
        if cell.stage:
            stage = cell.stage if width(cell.stage, 11) <= wide - 8 else cell.stage_short
            svg.text(x + wide / 2, top + tall - 9, stage, 11, "soft", anchor="middle", room=wide - 8)


def _draw_worker(svg: Svg, x: float, top: float, wide: float, tall: float, cell: Cell) -> None:
    """A device that a service has for itself."""
    worker = cell.workers[0]
    svg.rect(x + 0.5, top + 0.5, wide - 1, tall - 1, f"service-{worker.service}", round_=5)
    svg.rect(x, top, wide, 5, fill=service_colour(worker.service), round_=2.5)
    svg.text(x + 7, top + 21, _worker_name(worker), 13, bold=True, room=wide - 12)
    number = f"#{worker.number}"
    used = svg.text(x + wide - 7, top + 35, number, 11, "soft", anchor="end", room=wide * 0.45)
    svg.text(x + 7, top + 35, cell.device, 11, "soft", room=wide - 18 - used)


def _draw_rank(svg: Svg, x: float, top: float, wide: float, cell: Cell) -> None:
    """A device with a rank of the trainer; a service that it takes turns with has a label below."""
    svg.rect(x, top, wide, 5, "band", round_=2.5)
    used = svg.text(x + 7, top + 21, f"rank {cell.rank}", 13, bold=True, room=wide - 12)
    if not cell.workers:
        svg.text(x + 7, top + 35, cell.device, 11, "soft", room=wide - 12)
        return
    if width(cell.device, 11) <= wide - 20 - used:
        svg.text(x + wide - 7, top + 21, cell.device, 11, "soft", anchor="end")
    worker = cell.workers[0]
    colour = service_colour(worker.service)
    svg.rect(x + 5, top + 26, wide - 10, 14, fill=colour, round_=7)
    svg.text(
        x + wide / 2,
        top + 36.5,
        _worker_name(worker),
        10.5,
        anchor="middle",
        fill=ink_on(colour),
        room=wide - 22,
    )


def _worker_name(worker: Worker) -> str:
    return f"{STAR} {worker.name}" if worker.leads and worker.number == 0 else worker.name


def _cell_title(cell: Cell) -> str:
    told = [cell.name or cell.device]
    told += [f"trainer rank {cell.rank}"] if cell.rank is not None else []
    told += [cell.stage] if cell.stage else []
    told += [
        f"{worker.name} worker {worker.number}{' (leader)' if worker.leads else ''}"
        for worker in cell.workers
    ]
    told += [f"{bar.family} group {bar.group}" for bar in cell.bars]
    return ", ".join(told) if len(told) > 1 else f"{told[0]}, free"


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
    svg: Svg, x: float, y: float, high: float, size: CardSize, left_out: range, topology: RuntimeTopology
) -> None:
    """A card that stands for hosts that are not drawn."""
    first, last = topology.hosts[left_out[0]], topology.hosts[left_out[-1]]
    count = len(left_out)
    named = first.host_id if count == 1 else f"{first.host_id} to {last.host_id}"
    told = [named, *_left_out(left_out, topology)]
    headline = counted(count, "more host")
    with svg.group("gap", f"{headline}: {'; '.join(told)}"):
        svg.rect(x, y, size.width, high, "free", round_=8, dashed=True)
        room = size.width - 2 * _PAD
        lines = [line for text in told for line in wrapped(text, 12, room, most_lines=2)]
        lines = lines[: max(1, int((high - 44) // 17))]
        at = y + high / 2 - (len(lines) * 17) / 2
        svg.text(x + size.width / 2, at, headline, 18, bold=True, anchor="middle", room=room)
        for line in lines:
            at += 19
            svg.text(x + size.width / 2, at, line, 12, "soft", anchor="middle", room=room)


def _left_out(nodes: range, topology: RuntimeTopology) -> list[str]:
    """What runs on hosts that are not drawn."""
    names = {topology.hosts[node].host_id for node in nodes}
    gpus = sum(len(topology.hosts[node].gpus) for node in nodes)
    told = [counted(gpus, "GPU")] if gpus else []
    if topology.trainer is not None:
        theirs = [host for host in topology.trainer.hosts if host.host_id in names]
        if theirs:
            begin = theirs[0].first_rank
            end = theirs[-1].first_rank + len(theirs[-1].devices) - 1
            told.append(f"trainer ranks {begin:,} to {end:,}" if end > begin else f"trainer rank {begin:,}")
    for service in topology.services:
        workers = sum(len(member.devices) for member in service.members if member.host_id in names)
        if workers:
            told.append(f"{counted(workers, 'worker')} of {service.name}")
    return told
