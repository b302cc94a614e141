"""Values of a compiled topology in words, for :mod:`art_topology.diff`."""

from typing import Any

from art_topology.cluster import EndpointSpec, NcclTransportSpec, NixlTransportSpec
from art_topology.compiled import CompiledHost, CompiledService, CompiledTrainer, CpuDevice, GpuDevice


def told_apart(was: Any, now: Any) -> tuple[str, str]:
    """Two values that differ, so that their words do as well."""
    words = in_words(was), in_words(now)
    return words if words[0] != words[1] else (repr(was), repr(now))


def in_words(value: Any) -> str:
    """A value of a compiled topology."""
    match value:
        case None:
            return "none"
        case True:
            return "yes"
        case False:
            return "no"
        case EndpointSpec():
            return f"{value.host}, any port" if value.port == 0 else value.authority()
        case NcclTransportSpec():
            return repr(value.net_name)
        case NixlTransportSpec():
            store = value.metadata_store
            return "one of the runtime's own" if store is None else in_words(store)
        case tuple():
            return _told_tuple(value)
        case str() | int() | float():
            return repr(value)
    return str(value)


def _told_tuple(values: tuple[Any, ...]) -> str:
    if not values:
        return "none"
    if all(isinstance(value, GpuDevice) for value in values):
        gpus = tuple(value.gpu for value in values)
        return f"{'GPU' if len(gpus) == 1 else 'GPUs'} {_told_tuple(gpus)}"
    if all(isinstance(value, CpuDevice) for value in values):
        slots = tuple(value.slot for value in values)
        return f"CPU {'slot' if len(slots) == 1 else 'slots'} {_told_tuple(slots)}"
    if len(values) > 2 and all(isinstance(value, int) for value in values):
        first, last = values[0], values[-1]
        if values == tuple(range(first, last + 1)):
            return f"{first} to {last}"
    return listed([in_words(value) for value in values])


def told_host(host: CompiledHost) -> str:
    """What a host is, in a few words."""
    gpus = f" and {len(host.gpus)} GPUs" if host.gpus else ""
    return f"node {host.node_rank} at {host.address} with {host.cpu_slots} CPU slots{gpus}"


def told_trainer(trainer: CompiledTrainer | None) -> str:
    """How large a trainer is."""
    return "none" if trainer is None else f"{trainer.world_size} ranks on {len(trainer.hosts)} hosts"


def told_service(service: CompiledService | None) -> str:
    """What a service serves."""
    if service is None:
        return "none"
    workers = service.parallel.world_size
    return f"{service.spec.base_model!r} on {workers} {'worker' if workers == 1 else 'workers'}"


def listed(values: list[str], *, more: int = 0) -> str:
    """``a, b and c``, or ``a, b, c and 4 more``."""
    values = [*values, f"{more} more"] if more else values
    return " and ".join([", ".join(values[:-1]), values[-1]]) if len(values) > 1 else "".join(values)
