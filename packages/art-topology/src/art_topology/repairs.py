"""What can still be checked of a file with values of the wrong type or range.

Broken fields are left out, so that they have their defaults, or what cannot be without them is; the rules run
on the rest. A finding that may follow from what is broken is not shown.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import msgspec

from art_topology.diagnostics import Diagnostic, TopologyError
from art_topology.positions import Place, path_of, place_of
from art_topology.spec import SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from art_topology.files import TopologySpec
    from art_topology.positions import SourceText

__all__ = ["findings_beside"]

_HOST_RULES: dict[str, tuple[str, ...]] = {
    "cpu_slots": ("ART-T204", "ART-T206", "ART-T3", "ART-T4"),
    "gpu_model": ("ART-T111", "ART-T315", "ART-T909", "ART-T91"),
    "node_rank": ("ART-T102", "ART-T303"),
    "reserved_ports": ("ART-T504", "ART-T506"),
}
"""Of the fields of a host that the rest can be checked without: the rules that ask for them."""
_CLUSTER_RULES: dict[str, tuple[str, ...]] = {
    "controller_host_id": ("ART-T104", "ART-T5"),
    "startup_timeout_s": (),
    "rpc_timeout_s": (),
    "nccl_transport": ("ART-T6",),
    "nixl_transport": ("ART-T7", "ART-T5"),
    "worker_port": ("ART-T504", "ART-T506"),
    "skypilot": ("ART-T504", "ART-T506"),
}
_TRAINER_RULES = ("ART-T203", "ART-T206", "ART-T208", "ART-T5", "ART-T6", "ART-T7", "ART-T408", "ART-T813")
_SERVICE_RULES = ("ART-T203", "ART-T206", "ART-T208", "ART-T401", "ART-T408", "ART-T5", "ART-T6", "ART-T7")


class _Rest:
    """The values without what is broken, and what must not be said of them."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = copy.deepcopy(values)
        self.codes: set[str] = set()
        self.paths: set[str] = set()
        self.services_left_out: set[int] = set()

    def leave_out(self, place: Place) -> bool:
        """Takes a broken place out; returns whether the rest can be checked."""
        match place:
            case ("cluster", "hosts", int() as i, str() as field, *_) if field in _HOST_RULES:
                self.values["cluster"]["hosts"][i].pop(field, None)
                self.codes.update(_HOST_RULES[field])
            case ("cluster", str() as field, *_) if field in _CLUSTER_RULES:
                self.values["cluster"].pop(field, None)
                self.codes.update(_CLUSTER_RULES[field])
            case ("trainer", *_):
                self.values.pop("trainer", None)
                self.codes.update(_TRAINER_RULES)
                self.paths.add("trainer")
            case ("services", int() as k, *_):
                self.services_left_out.add(k)
                self.codes.update(_SERVICE_RULES)
            case ("model" | "workload" as name, *_):
                self.values.pop(name, None)
                self.codes.update(("ART-T408", "ART-T813"))
                self.paths.add(name)
            case _:
                return False
        self.paths.add(path_of(place))
        return True

    def spec(self) -> TopologySpec | None:
        """The specification of the rest, if it is one."""
        from art_topology.files import TopologySpec

        services = self.values.get("services")
        if self.services_left_out and isinstance(services, list):
            self.values["services"] = [s for k, s in enumerate(services) if k not in self.services_left_out]
        try:
            return msgspec.convert(self.values, TopologySpec)
        except (msgspec.ValidationError, OverflowError, RecursionError):
            return None

    def shown(self, found: Diagnostic) -> Diagnostic | None:
        """A finding about the rest as one about the file; None if it may follow from what is broken."""
        paths = [self._moved(path) for path in (found.path, *found.related)]
        if found.code.startswith(tuple(self.codes)) or any(map(self._is_doubtful, paths)):
            return None
        suggestion = found.suggestion
        if suggestion is not None:
            suggestion = (self._moved(suggestion[0]), suggestion[1])
        return msgspec.structs.replace(found, path=paths[0], related=tuple(paths[1:]), suggestion=suggestion)

    def _is_doubtful(self, path: str) -> bool:
        return any(path == broken or path.startswith((f"{broken}.", f"{broken}[")) for broken in self.paths)

    def _moved(self, path: str) -> str:
        """The path in the file of a path in the rest, which has fewer services."""
        inside = re.match(r"services\[(\d+)\]", path)
        if inside is None or not self.services_left_out:
            return path
        kept = int(inside[1])
        for k in sorted(self.services_left_out):
            kept += k <= kept
        return f"services[{kept}]{path[inside.end() :]}"


def findings_beside(
    values: Any, broken: tuple[Diagnostic, ...], source: SourceText, folder: Path
) -> tuple[Diagnostic, ...]:
    """What the rules say of the values apart from what is broken; nothing if that leaves too little.

    Args:
        values: Of the file.
        broken: Everything that keeps them from being a topology.
        source: The text, for the model's configuration.
        folder: That paths in it are relative to.
    """
    from art_topology.files import TopologySource

    if not isinstance(values, dict):
        return ()
    rest = _Rest(values)
    for found in broken:
        place = place_of(found.path)
        if found.code == "ART-F004" and _is_extra(rest.values, place, found):
            continue
        if not rest.leave_out(place):
            return ()
    spec = rest.spec()
    if spec is None:
        return ()
    try:
        said = TopologySource(spec, source, folder).compile().warnings
    except (TopologyError, SpecError) as error:
        said = error.diagnostics
    kept = (rest.shown(msgspec.structs.replace(found, location=None, related_locations=())) for found in said)
    return tuple(found for found in kept if found is not None)


def _is_extra(values: dict[str, Any], place: Place, found: Diagnostic) -> bool:
    """Takes a key out that is no field and was not meant to be another."""
    if "did you mean" in found.hint:
        return False
    target: Any = values
    try:
        for step in place[:-1]:
            target = target[step]
        del target[place[-1]]
    except (KeyError, IndexError, TypeError):
        return False
    return True
