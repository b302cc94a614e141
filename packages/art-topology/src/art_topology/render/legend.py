"""The legend: what the bars are, how many groups there are, whether they leave their host; the services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from art_topology.render.cards import STAR
from art_topology.render.palette import FAMILIES, service_colour
from art_topology.render.text import width
from art_topology.summary import counted, service_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from art_topology.compiled import CompiledService, RuntimeTopology
    from art_topology.ranks import GroupFamily
    from art_topology.render.svg import Svg

_LINE = 21
_MOST_SERVICES = 8
_MIDDLE = 10
"""Half the room between groups and services, in pixels."""


class Legend:
    """What stands below the cards.

    Args:
        topology: What is drawn.
        families: The families that have bars.
    """

    def __init__(self, topology: RuntimeTopology, families: Sequence[GroupFamily]) -> None:
        self.topology = topology
        self._left: list[tuple[str, str, str]] = [
            (FAMILIES[family][0], family, self._told(family)) for family in families
        ]
        self._right = [
            (service_colour(index), service.name, _service(service))
            for index, service in enumerate(topology.services[:_MOST_SERVICES])
        ]
        self._notes = self._all_notes()

    def _told(self, family: GroupFamily) -> str:
        meaning, trainer = FAMILIES[family][1], self.topology.trainer
        if trainer is None or getattr(trainer.layout, family) == 1:
            return f"{meaning}, of services only"
        layout = trainer.layout
        count, size = layout.group_count(family), getattr(layout, family)
        across = len(trainer.hosts) > 1 and layout.crosses_hosts(family, trainer.ranks_per_host)
        groups = f"{counted(count, 'group')} of {size:,} ranks"
        return f"{meaning}: {groups}, {'across hosts' if across else 'within a host'}"

    def _all_notes(self) -> list[str]:
        topology, found = self.topology, []
        networks = []
        if topology.nccl_transport is not None:
            networks.append(f"NCCL over {topology.nccl_transport.net_name}")
        if topology.nixl_transport is not None:
            networks.append("NIXL")
        if networks and len(topology.hosts) > 1:
            found.append(f"between hosts: {' and '.join(networks)}")
        if self._left:
            found.append("a bar's number is its group's: equal numbers, one group")
        if topology.trainer is not None and any(
            service.spec.temporal_sharing for service in topology.services
        ):
            found.append("a service's name below a rank: the two take turns on the device")
        more = len(topology.services) - _MOST_SERVICES
        if more > 0:
            found.append(f"and {more} more services")
        return found

    def _beside(self, wide: float) -> bool:
        """Whether groups and services have room beside each other."""
        half = wide / 2 - _MIDDLE
        return all(_entry_width(name, told) <= half for _, name, told in (*self._left, *self._right)) and all(
            width(note, 12) <= half for note in self._notes
        )

    def height(self, wide: float) -> float:
        """In pixels."""
        left, right = len(self._left), len(self._right) + len(self._notes)
        lines = max(left, right) if self._beside(wide) else left + right
        return 14 + lines * _LINE if lines else 0

    def draw(self, svg: Svg, x: float, y: float, wide: float) -> float:
        """Draws it and returns its height."""
        high = self.height(wide)
        if not high:
            return 0
        svg.line(x, y, x + wide, y)
        beside = self._beside(wide)
        room = wide / 2 - _MIDDLE if beside else wide
        line = y + 24
        for colour, name, told in self._left:
            _draw_entry(svg, x, line, colour, name, told, room)
            line += _LINE
        if beside:
            x, line = x + wide / 2 + _MIDDLE, y + 24
        for colour, name, told in self._right:
            _draw_entry(svg, x, line, colour, name, told, room)
            line += _LINE
        for note in self._notes:
            svg.text(x, line, note, 12, "soft", room=room)
            line += _LINE
        return high

    def spoken(self) -> str:
        """The same in sentences, for those who cannot see it."""
        told = [f"{name}: {words}" for _, name, words in (*self._left, *self._right)]
        return "; ".join([*told, *self._notes])


def _entry_width(name: str, told: str) -> float:
    return _told_at(width(name, 13, bold=True)) + width(told, 12)


def _told_at(name_width: float) -> float:
    return max(26 + name_width + 8, 58.0)


def _draw_entry(svg: Svg, x: float, y: float, colour: str, name: str, told: str, room: float) -> None:
    svg.rect(x, y - 11, 18, 13, fill=colour, round_=3)
    at = _told_at(svg.text(x + 26, y, name, 13, bold=True, room=room * 0.4))
    svg.text(x + at, y, told, 12, "soft", room=room - at)


def _service(service: CompiledService) -> str:
    where = service_place(service)
    return f"{service.spec.base_model} on {where}; {STAR} API on {service.members[0].host_id}"
