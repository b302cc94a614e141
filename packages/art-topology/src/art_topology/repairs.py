"""What can still be checked of a file with values of the wrong type or range.

Broken fields are left out, so that they have their defaults, or what cannot be without them is; the rules run
on the rest. What a host cannot be without gets a value that breaks no rule: an id and an address of its own,
and the GPUs that placements name. Neither a finding that may follow from what is broken is shown, nor a value
that was made up.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import msgspec

from art_topology.diagnostics import Diagnostic, TopologyError
from art_topology.passes.findings import free_name
from art_topology.positions import Place, path_of, place_of
from art_topology.spec import GpuId, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from art_topology.files import TopologySpec
    from art_topology.hardware import HardwareTable
    from art_topology.positions import SourceText

__all__ = ["findings_beside"]

_HOST_RULES: dict[str, tuple[str, ...]] = {
    "host_id": ("ART-T104", "ART-T201"),
    "address": (),
    "gpus": (),
    "cpu_slots": ("ART-T204", "ART-T206", "ART-T3", "ART-T4"),
    "gpu_model": ("ART-T111", "ART-T315", "ART-T909", "ART-T91"),
    "node_rank": ("ART-T102", "ART-T303"),
    "reserved_ports": ("ART-T504", "ART-T506"),
}
"""Of the fields of a host that the rest can be checked without: the rules that ask for them, wherever
they are told. Others that do are told of this host, or with a value that was made up for it."""
_UNKNOWN_ADDRESS = "unreadable-{}.invalid"
"""A host name that nobody has (RFC 6761)."""
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
        self.unnamed: dict[str, int] = {}
        self.addresses: set[str] = set()

    def leave_out(self, place: Place) -> bool:
        """Takes a broken place out; returns whether the rest can be checked."""
        match place:
            case ("cluster", "hosts", int() as i):
                host = self._host(i)
                missing = [name for name in ("host_id", "address") if name not in host]
                return bool(missing) and all(self.leave_out((*place, name)) for name in missing)
            case ("cluster", "hosts", int() as i, str() as field, *_) if field in _HOST_RULES:
                self._replace(i, field)
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

    def _host(self, i: int) -> dict[str, Any]:
        """The values of a host; what is no table becomes one."""
        hosts = self.values["cluster"]["hosts"]
        if not isinstance(hosts[i], dict):
            hosts[i] = {}
            self.codes.add("ART-T206")
        found: dict[str, Any] = hosts[i]
        return found

    def _replace(self, i: int, field: str) -> None:
        """Takes a field of a host out and puts in what it cannot be without."""
        host = self._host(i)
        before = host.pop(field, None)
        if field == "host_id":
            names = [other.get("host_id") for other in _listed(self.values["cluster"]["hosts"])]
            host["host_id"] = free_name("unreadable", i + 1, [n for n in names if isinstance(n, str)])
            self.unnamed[host["host_id"]] = i
        elif field == "address":
            host["address"] = _UNKNOWN_ADDRESS.format(i)
            self.addresses.add(host["address"])
        elif field == "gpus":
            readable = [gpu for gpu in before if _is_gpu(gpu)] if isinstance(before, list) else []
            host["gpus"] = list(dict.fromkeys((*readable, *self._placed_on(host.get("host_id")))))
            self.paths.add(f"cluster.hosts[{i}].gpus")

    def _placed_on(self, host_id: Any) -> Iterator[int | str]:
        """The GPUs that placements name of a host."""
        for placement in _placements(self.values):
            if placement.get("host_id") == host_id and isinstance(placement.get("gpus"), list):
                yield from filter(_is_gpu, placement["gpus"])

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
        message, hint, suggestion = found.message, found.hint, found.suggestion
        for address in self.addresses:
            if address in message:
                return None
            if address in hint:
                hint, suggestion = hint.replace(f", {address}", ""), None
        for name, i in self.unnamed.items():
            message, hint = (text.replace(repr(name), f"number {i + 1}") for text in (message, hint))
        if suggestion is not None:
            suggestion = (self._moved(suggestion[0]), suggestion[1])
        return msgspec.structs.replace(
            found,
            path=paths[0],
            message=message,
            hint=hint,
            related=tuple(paths[1:]),
            suggestion=suggestion,
        )

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
    values: Any,
    broken: tuple[Diagnostic, ...],
    source: SourceText,
    folder: Path,
    hardware: HardwareTable | None = None,
) -> tuple[Diagnostic, ...]:
    """What the rules say of the values apart from what is broken; nothing if that leaves too little.

    Args:
        values: Of the file.
        broken: Everything that keeps them from being a topology.
        source: The text, for the model's configuration.
        folder: That paths in it are relative to.
        hardware: The table of GPUs; None for that of the package.
    """
    from art_topology.files import TopologySource

    if not isinstance(values, dict):
        return ()
    rest = _Rest(values)
    for found in broken:
        place = place_of(found.path)
        if found.code == "ART-F004":
            meant = _meant(found)
            if not _take(rest.values, place):
                return ()
            if meant is None:
                continue
            place = (*place[:-1], meant)
        if not rest.leave_out(place):
            return ()
    spec = rest.spec()
    if spec is None:
        return ()
    try:
        said = TopologySource(spec, source, folder, hardware).compile().warnings
    except (TopologyError, SpecError) as error:
        said = error.diagnostics
    kept = (rest.shown(msgspec.structs.replace(found, location=None, related_locations=())) for found in said)
    return tuple(found for found in kept if found is not None)


def _meant(found: Diagnostic) -> str | None:
    """The field that a key was meant to be, if it was one."""
    said = re.fullmatch(r"did you mean '(.*)'\?", found.hint)
    return said[1] if said else None


def _take(values: Any, place: Place) -> bool:
    """Takes what is at a place out; returns whether it was there."""
    target: Any = values
    try:
        for step in place[:-1]:
            target = target[step]
        del target[place[-1]]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _is_gpu(value: Any) -> bool:
    """Whether it is a GPU's index or UUID."""
    try:
        msgspec.convert(value, GpuId)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True


def _placements(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All placements that are tables, of values that may be anything."""
    trainer, services = values.get("trainer"), values.get("services")
    found = list(_listed(trainer.get("placements"))) if isinstance(trainer, dict) else []
    for service in _listed(services):
        for member in _listed(service.get("members")):
            found += [member["placement"]] if isinstance(member.get("placement"), dict) else []
    yield from found


def _listed(values: Any) -> Iterator[dict[str, Any]]:
    yield from (value for value in values if isinstance(value, dict)) if isinstance(values, list) else ()
