"""What ``plan`` is asked: model, hosts, hardware and workload, from files and options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import msgspec

from art_topology.cluster import ClusterSpec, HostSpec, NcclTransportSpec
from art_topology.commands.sources import (
    STDIN,
    CommandError,
    hardware_of,
    model_of,
    read,
    workload_of,
    workload_source,
)
from art_topology.compiler import compile_topology
from art_topology.cost.trainer_costs import Recompute
from art_topology.hardware import HardwareTable, Machine
from art_topology.readers import read_values
from art_topology.serving import ServedWeights
from art_topology.spec import SpecError
from art_topology.workload import Offload, WorkloadSpec

if TYPE_CHECKING:
    from art_topology.files import TopologySource
    from art_topology.models import ModelDescription

MOST_GPUS = 131_072
DEFAULT_WORKLOAD = WorkloadSpec(
    packed_sequence_length=65_536,
    groups_per_step=32,
    group_size=16,
    prompt_tokens=1024,
    completion_tokens=4096,
    lora_rank=16,
)
"""Where neither a file nor options say anything."""
_CPU_SLOTS = 32


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One search.

    Args:
        model: What is trained and served.
        config: The path of its configuration, relative to ``config_folder``, or the configuration itself.
        config_folder: "" for the current folder.
        model_name: By which the topology names it, if it does.
        cluster: The hosts.
        made_up: The hosts were made from options: their addresses are placeholders.
        hardware: The table.
        machine: What all hosts are.
        machine_name: Its name in the table.
        workload: The step.
        workload_source: Where it came from, in words.
        recompute: The only recomputation to try, if somebody wrote one.
        offload: The only offload to try, likewise.
        memory_margin: Share of each GPU's memory that the trainer leaves free.
        service_weights: How the service's weights are stored; "auto": as the configuration says.
        remarks: What the hosts say otherwise.
    """

    model: Any
    config: str | dict[str, Any]
    config_folder: str
    model_name: str | None
    cluster: ClusterSpec
    made_up: bool
    hardware: HardwareTable
    machine: Machine
    machine_name: str
    workload: WorkloadSpec
    workload_source: str
    recompute: Recompute | None = None
    offload: tuple[Offload, ...] | None = None
    memory_margin: float
    service_weights: ServedWeights = "auto"
    remarks: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of all hosts."""
        return sum(len(host.gpus) for host in self.cluster.hosts)


def asked(
    *,
    model: str | None,
    cluster: str | None,
    kind: str | None,
    gpu: str | None,
    gpus: int | None,
    gpus_per_host: int | None,
    network: str | None,
    hardware: str | None,
    workload: str | None,
    changes: dict[str, Any],
    full_weights: bool,
    recompute: str | None,
    offload: str | None,
    memory_margin: float,
    service_weights: str | None = None,
) -> Asked:
    """Reads the files and joins them with the options.

    Raises:
        SpecError: a file or an option has a wrong value.
        TopologyError: the hosts of the cluster's file have errors.
        CommandError: something is missing, contradicts itself, or cannot be read.
    """
    source = read(cluster, kind) if cluster is not None else None
    if source is not None and (gpus is not None or gpus_per_host is not None):
        raise CommandError("--cluster has the hosts: leave --gpus and --gpus-per-host out")
    table = hardware_of(hardware)
    name = gpu if gpu is not None else _gpu_of(source)
    table, machine_name = _with_network(table, name, network)
    machine = table.machine(machine_name)
    hosts = source.spec.cluster if source is not None else made_up(machine, gpus, gpus_per_host)
    compile_topology(cluster=hosts)
    described, config = _model(model, source)
    folder = "" if model is not None or cluster in (None, STDIN) else str(Path(str(cluster)).parent)
    savings = _savings(workload, kind, source, recompute, offload)
    step, told = _workload(
        workload, kind, source, {**changes, **savings_changes(recompute, offload)}, full_weights
    )
    return Asked(
        model=described,
        config=config,
        config_folder=folder,
        model_name=source.spec.model.name if source is not None and source.spec.model is not None else None,
        cluster=hosts,
        made_up=source is None,
        hardware=table,
        machine=machine,
        machine_name=machine_name,
        workload=step,
        workload_source=told,
        recompute=step.recompute if "recompute" in savings else None,
        offload=step.offload if "offload" in savings else None,
        memory_margin=memory_margin,
        service_weights=_service_weights(service_weights),
        remarks=_remarks(hosts, table, machine),
    )


def _service_weights(option: str | None) -> ServedWeights:
    known = get_args(ServedWeights)
    if option is not None and option not in known:
        raise CommandError(f"--service-weights {option}: it is {', '.join(known[:-1])} or {known[-1]}")
    return cast("ServedWeights", option or "auto")


def savings_changes(recompute: str | None, offload: str | None) -> dict[str, Any]:
    """The options as fields of a workload.

    Raises:
        CommandError: there is no such recomputation or offload.
    """
    found: dict[str, Any] = {}
    if recompute is not None:
        if recompute not in get_args(Recompute):
            raise CommandError(
                f"--recompute {recompute}: it is {', '.join(get_args(Recompute)[:-1])} or full"
            )
        found["recompute"] = recompute
        if recompute != "full":
            found["recompute_layers"] = None
    if offload is not None:
        names = () if offload == "none" else tuple(name.strip() for name in offload.split(","))
        known = get_args(Offload)
        if any(name not in known for name in names) or len(set(names)) < len(names):
            raise CommandError(f"--offload {offload}: it is none, or {', '.join(known)} joined by commas")
        found["offload"] = names
    return found


def _savings(
    file: str | None,
    kind: str | None,
    source: TopologySource | None,
    recompute: str | None,
    offload: str | None,
) -> set[str]:
    """Which of recomputation and offload somebody wrote: in an option or in the workload's file."""
    found = {name for name, value in (("recompute", recompute), ("offload", offload)) if value is not None}
    if file is not None:
        values = read_values(*workload_source(file, kind))
        if isinstance(values, dict):
            inside = values.get("workload")
            found |= (inside if isinstance(inside, dict) else values).keys() & {"recompute", "offload"}
    elif source is not None and source.spec.workload is not None:
        found |= {name for name in ("recompute", "offload") if _says(source, name)}
    return found


def _says(source: TopologySource, name: str) -> bool:
    """Whether the text of a topology has this key of the workload."""
    text = source._source
    return text.span(("workload", name)) != text.span(("workload",))


def _remarks(hosts: ClusterSpec, table: HardwareTable, machine: Machine) -> tuple[str, ...]:
    """Where hosts say another GPU than the one that is planned with."""
    said = sorted({host.gpu_model for host in hosts.hosts if host.gpus and host.gpu_model is not None})
    others = []
    for name in said:
        try:
            same = table.machine(name).gpu.name == machine.gpu.name
        except SpecError:
            same = False
        if not same:
            others.append(name)
    if not others:
        return ()
    return (f"every GPU is a {machine.gpu.name}, though hosts say {', '.join(others)} (gpu_model)",)


def _gpu_of(source: TopologySource | None) -> str:
    if source is None:
        raise CommandError("there are no hosts: give --cluster FILE, or --gpu NAME and --gpus N")
    names = {host.gpu_model for host in source.spec.cluster.hosts if host.gpus}
    if not names:
        raise CommandError("no host of the cluster has a GPU, so there is nothing to plan")
    if len(names) > 1 or None in names:
        said = ", ".join(sorted(name if name is not None else "nothing" for name in names))
        raise CommandError(
            f"the hosts say {said} about their GPUs: give --gpu NAME, or set the same gpu_model for all"
        )
    return str(names.pop())


def _with_network(table: HardwareTable, name: str, network: str | None) -> tuple[HardwareTable, str]:
    """The table with a machine that has this link between hosts, and that machine's name."""
    if network is None:
        return table, name
    wanted = network.lower()
    links = {link.name: link for link in table.links.values() if link.kind in ("network", "nvlink")}
    link = next((link for link in links.values() if link.name.lower() == wanted), None)
    if link is None:
        known = ", ".join(each.name for each in links.values() if each.kind == "network")
        raise CommandError(f"no link {network!r} in the table of hardware; between hosts it has {known}")
    node = table.nodes[table.machine(name).name]
    changed = msgspec.structs.replace(node, name=f"{node.name}.{link.name}", scale_out=link.name)
    nodes = {**table.nodes, changed.name: changed}
    return HardwareTable(gpus=table.gpus, links=table.links, nodes=nodes), changed.name


def made_up(machine: Machine, gpus: int | None, per_host: int | None) -> ClusterSpec:
    """Hosts of this kind with placeholders for addresses.

    Raises:
        CommandError: the number of GPUs is missing, too large, or no whole number of hosts.
    """
    if gpus is None:
        raise CommandError("how many GPUs are there? Give --gpus N, or --cluster FILE")
    if gpus > MOST_GPUS:
        raise CommandError(f"--gpus {gpus:,}: at most {MOST_GPUS:,} can be planned")
    each = per_host if per_host is not None else min(machine.gpus_per_host, gpus)
    if gpus % each:
        fewer, more = gpus // each * each, (gpus // each + 1) * each
        near = f"{fewer} or {more}" if fewer else f"{more}"
        raise CommandError(
            f"{gpus} GPUs are no whole number of hosts with {each}: use {near}, or another --gpus-per-host"
        )
    count = gpus // each
    hosts = tuple(
        HostSpec(
            host_id=f"host-{index}",
            address=f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}" if count > 1 else "127.0.0.1",
            cpu_slots=_CPU_SLOTS,
            gpus=tuple(range(each)),
            gpu_model=machine.gpu.name,
        )
        for index in range(1, count + 1)
    )
    several = count > 1
    return ClusterSpec(
        hosts=hosts,
        nccl_transport=NcclTransportSpec(net_name="IB") if several else None,
    )


def _model(
    option: str | None, source: TopologySource | None
) -> tuple[ModelDescription, str | dict[str, Any]]:
    if option is not None:
        return model_of(option), option
    found = source.model() if source is not None else None
    if source is None or source.spec.model is None or found is None:
        raise CommandError("which model? Give --model with its config.json or the folder that has it")
    return found, source.spec.model.config


def _workload(
    file: str | None,
    kind: str | None,
    source: TopologySource | None,
    changes: dict[str, Any],
    full_weights: bool,
) -> tuple[WorkloadSpec, str]:
    if file is not None:
        base, told = workload_of(file, kind), file
    elif source is not None and source.spec.workload is not None:
        base, told = source.spec.workload, "the cluster's file"
    else:
        base, told = DEFAULT_WORKLOAD, "the default"
    if told == "the default" and "packed_sequence_length" not in changes:
        length = sum(
            changes.get(name, getattr(base, name)) for name in ("prompt_tokens", "completion_tokens")
        )
        base = msgspec.structs.replace(
            base, packed_sequence_length=max(base.packed_sequence_length, 1 << (length - 1).bit_length())
        )
    if changes or full_weights:
        base = msgspec.structs.replace(base, **changes, **({"lora_rank": None} if full_weights else {}))
        told += " with options"
    return base, told
