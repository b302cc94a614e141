"""The kinds of GPUs that hosts say they have, against the table of hardware that the package brings."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from art_topology.cluster import GpuPlacement
from art_topology.passes.findings import Findings
from art_topology.passes.hosts import HostTable
from art_topology.spec import SpecError

if TYPE_CHECKING:
    from art_topology.hardware import GpuModel, HardwareTable
    from art_topology.trainer import TrainerMeshSpec


@cache
def known_gpu(name: str) -> GpuModel | None:
    """The GPU of this name, or that of the machine of this name; None if the package's table has neither."""
    from art_topology.hardware import default_hardware

    return gpu_in(default_hardware(), name)


def gpu_in(hardware: HardwareTable, name: str) -> GpuModel | None:
    """As :func:`known_gpu`, of any table."""
    try:
        return hardware.machine(name).gpu
    except SpecError:
        return None


def gpu_names_like(name: str, hardware: HardwareTable | None = None) -> tuple[str, ...]:
    """The names of the table that ``name`` may have been meant to be; all of them if none is near."""
    import difflib

    from art_topology.hardware import default_hardware

    names = {known.casefold(): known for known in (hardware or default_hardware()).gpus}
    near = difflib.get_close_matches(name.casefold(), list(names), n=3, cutoff=0.5)
    return tuple(names[known] for known in near) or tuple(names.values())


def check_gpu_models(table: HostTable, trainer: TrainerMeshSpec | None, findings: Findings) -> None:
    """Checks that the names are known, and that the trainer's hosts have equal GPUs."""
    told: set[str] = set()
    for i, host in enumerate(table.cluster.hosts):
        name = host.gpu_model
        if name is None or name in told or table.gpu_model(name) is not None:
            continue
        told.add(name)
        near = gpu_names_like(name, table.hardware)
        path = f"cluster.hosts[{i}].gpu_model"
        findings.report(
            "ART-T111",
            path,
            f"the table of hardware has no GPU {name!r}: nothing is checked against its memory",
            (f"did you mean {near[0]!r}?" if len(near) == 1 else f"use one of {', '.join(near)}")
            + "; --hardware FILE adds others",
            suggestion=(path, near[0]) if len(told) == 1 else None,
        )
    if trainer is not None:
        _check_equal(table, trainer, findings)


def _check_equal(table: HostTable, trainer: TrainerMeshSpec, findings: Findings) -> None:
    found: dict[str, int] = {}
    for placement in trainer.placements:
        host = table.get(placement.host_id)
        if isinstance(placement, GpuPlacement) and host is not None and host.gpu_model is not None:
            gpu = table.gpu_model(host.gpu_model)
            if gpu is not None:
                found.setdefault(gpu.name, table.indices[host.host_id])
    if len(found) < 2:
        return
    (first, first_host), (other, other_host), *_ = found.items()
    path = f"cluster.hosts[{other_host}].gpu_model"
    findings.report(
        "ART-T315",
        path,
        f"the trainer's hosts have {' and '.join(found)}: every step waits for the slowest, and the smallest "
        "memory is the limit",
        f"train on hosts of one kind, {first} or {other}; if it is a slip, write {first!r}",
        [f"cluster.hosts[{first_host}].gpu_model"],
        (path, first),
    )
