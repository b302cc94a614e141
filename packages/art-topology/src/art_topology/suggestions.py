"""What diagnostics propose, put into the topology."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from art_topology.positions import place_of

if TYPE_CHECKING:
    from art_topology.diagnostics import Diagnostic
    from art_topology.files import TopologySpec


def apply_suggestion(spec: TopologySpec, diagnostic: Diagnostic) -> TopologySpec:
    """The topology with the value that the diagnostic proposes; ``spec`` itself stays as it is.

    Raises:
        ValueError: it proposes nothing.
        SpecError: the proposal does not fit this topology, for which it was not made.
    """
    from art_topology.files import TopologySpec
    from art_topology.spec import SpecError

    if diagnostic.suggestion is None:
        raise ValueError(f"{diagnostic.code} at {diagnostic.path} proposes no value")
    path, value = diagnostic.suggestion
    values: Any = msgspec.to_builtins(spec)
    target = values
    *around, last = place_of(path)
    try:
        for step in around:
            if isinstance(target[step], tuple):
                target[step] = list(target[step])
            target = target[step]
        target[last] = value
        return msgspec.convert(values, TopologySpec)
    except (KeyError, IndexError, TypeError, msgspec.ValidationError) as error:
        raise SpecError(f"{path} = {value!r} does not fit this topology: {error}") from error
