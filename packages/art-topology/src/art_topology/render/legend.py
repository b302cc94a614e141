"""The legend: what the bars are, how many groups there are, whether they leave their host; the services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from art_topology.render.cards import STAR
from art_topology.render.palette import FAMILIES, service_colour
from art_topology.summary import service_axes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from art_topology.compiled import CompiledService, RuntimeTopology
    from art_topology.ranks import GroupFamily
    from art_topology.render.svg import Svg

_LINE = 21
_MOST_SERVICES = 8
_BESIDE = 900
"""Width from which on the two halves stand beside each other."""


class Legend:
    """What stands below the cards.

    Args:
        topology: What is drawn.
        families: The families that have bars.
    """

    def __init__(self, topology: RuntimeTopology, families: Sequence[GroupFamily]) -> None:
        self.topology = topology
        trained = [] if topology.trainer is None else families
        self._groups = [(family, self._told(family)) for family in trained if self._told(family)]
        self._served_only = [
            family for family in families if family not in {name for name, _ in self._groups}
        ]
        self._services = list(enumerate(topology.services))[:_MOST_SERVICES]
        self._notes = self._all_notes()

    def _told(self, family: GroupFamily) -> str:
        trainer = self.topology.trainer
        if trainer is None or getattr(trainer.layout, family) == 1:
            return ""
        layout = trainer.layout
        count, size = layout.group_count(family), getattr(layout, family)
        across = len(trainer.hosts) > 1 and layout.crosses_hosts(family, trainer.ranks_per_host)
        groups = f"{count:,} group{'s' * (count != 1)} of {size:,} ranks"
        return f"{FAMILIES[family][1]}: {groups}, {'across hosts' if across else 'within a host'}"

    def _all_notes(self) -> list[str]:
        topology, found = self.topology, []
        networks = []
        if topology.nccl_transport is not None:
            networks.append(f"NCCL over {topology.nccl_transport.net_name}")
        if topology.nixl_transport is not None:
            networks.append("NIXL")
        if networks and len(topology.hosts) > 1:
            found.append(f"between hosts: {' and '.join(networks)}")
        if self._groups or self._served_only:
            found.append("number in a bar: the group; the same number in a row is the same group")
        if topology.trainer is not None and any(
            service.spec.temporal_sharing for service in topology.services
        ):
            found.append("a service's name below a rank: the two take turns on the device")
        more = len(topology.services) - len(self._services)
        if more > 0:
            found.append(f"and {more} more services")
        return found

    @property
    def _left(self) -> int:
        return len(self._groups) + len(self._served_only)

    @property
    def _right(self) -> int:
        return len(self._services) + len(self._notes)

    def height(self, wide: float) -> float:
        """In pixels."""
        lines = max(self._left, self._right) if wide >= _BESIDE else self._left + self._right
        return 14 + lines * _LINE if lines else 0

    def draw(self, svg: Svg, x: float, y: float, wide: float) -> float:
        """Draws it and returns its height."""
        high = self.height(wide)
        if not high:
            return 0
        svg.line(x, y, x + wide, y)
        top = y + 24
        half = wide / 2 - 12 if wide >= _BESIDE else wide
        line = top
        for family, told in self._groups:
            self._swatch(svg, x, line, FAMILIES[family][0], family, told, half)
            line += _LINE
        for family in self._served_only:
            self._swatch(
                svg, x, line, FAMILIES[family][0], family, f"{FAMILIES[family][1]} of a service", half
            )
            line += _LINE
        if wide >= _BESIDE:
            x, line = x + wide / 2 + 12, top
        for index, service in self._services:
            self._swatch(svg, x, line, service_colour(index), service.name, _service(service), half)
            line += _LINE
        for note in self._notes:
            svg.text(x, line, note, 12, "soft", room=half)
            line += _LINE
        return high

    def _swatch(self, svg: Svg, x: float, y: float, colour: str, name: str, told: str, room: float) -> None:
        svg.rect(x, y - 11, 18, 13, fill=colour, round_=3)
        used = svg.text(x + 26, y, name, 13, bold=True, room=room * 0.4)
        at = max(26 + used + 8, 58.0)
        svg.text(x + at, y, told, 12, "soft", room=room - at)

    def spoken(self) -> str:
        """The same in sentences, for those who cannot see it."""
        told = [f"{family}, {words}" for family, words in self._groups]
        told += [f"service {service.name}, {_service(service)}" for _, service in self._services]
        return "; ".join([*told, *self._notes]) + "."


def _service(service: CompiledService) -> str:
    workers = service.parallel.world_size
    noun = "GPU" if service.device_kind == "gpu" else "CPU slot"
    axes = service_axes(service)
    where = f"{workers:,} {noun}{'s' * (workers != 1)}{f' {axes}' if axes else ''}"
    return f"{service.spec.base_model} on {where}, {STAR} API on {service.members[0].host_id}"
