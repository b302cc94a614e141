"""Pictures of topologies as SVG, without any dependency."""

from art_topology.render.picture import Picture, draw

__all__ = ["Picture", "draw"]
