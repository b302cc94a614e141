"""``art-topology explain``: one rank of the trainer, or the whole topology, in tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from art_topology.commands.options import File, Format, Gpu, Hardware, Json, Model, WorkloadFile

if TYPE_CHECKING:
    from art_topology.commands.documents.explain import HostRow, PortRow, RankDocument, TopologyDocument
    from art_topology.compiled import CompiledTrainer, RuntimeTopology
    from art_topology.memory import MemoryEstimate
    from art_topology.models import ModelDescription
    from art_topology.stages import StageLayout
    from art_topology.workload import WorkloadSpec

NAME = "explain"
EPILOG = """Examples:

`art-topology explain cluster.toml`: hosts, trainer, services, ports

`art-topology explain cluster.toml --rank 12`: where rank 12 runs and what it is part of

`art-topology explain cluster.toml --rank 12 --model ./Qwen3-8B --workload step.toml`: also layers and memory

Exit codes: 0; 1 the topology has errors; 2 wrong use, or a file that cannot be read.
"""


def command(
    file: File,
    rank: Annotated[
        int | None, typer.Option("--rank", "-r", metavar="N", help="The rank.", show_default=False)
    ] = None,
    model: Model = None,
    workload: WorkloadFile = None,
    gpu: Gpu = None,
    hardware: Hardware = None,
    kind: Format = None,
    as_json: Json = False,
) -> None:
    """Explain where a rank runs, what it holds and which groups it is in; or the whole topology.

    Layers and memory need a model and a workload: those of the topology, or --model and --workload.
    """
    from art_topology.commands.output import print_json
    from art_topology.commands.sources import (
        CommandError,
        check_rank,
        compiled,
        hardware_of,
        model_of,
        refusals,
        workload_of,
    )

    with refusals(as_json):
        source, topology = compiled(file, kind)
        if rank is None:
            document = _topology(file, topology)
            print_json(document) if as_json else _show_topology(document)
            return
        trainer = topology.trainer
        if trainer is None:
            raise CommandError(f"{file} has no trainer, so there is no rank {rank}")
        check_rank(trainer, rank)
        described = model_of(model) if model is not None else source.model()
        step = workload_of(workload) if workload is not None else source.spec.workload
        table = hardware_of(hardware)
        device_model = gpu or topology.host(trainer.rank(rank).host_id).gpu_model
        gpu_bytes = table.gpu(device_model).memory_bytes if device_model is not None else None
        about = _rank(file, topology, trainer, rank, described, step, gpu_bytes)
        print_json(about) if as_json else _show_rank(about, described is not None, step is not None)


def _topology(file: str, topology: RuntimeTopology) -> TopologyDocument:
    import msgspec

    from art_topology.commands.documents.explain import TopologyDocument
    from art_topology.summary import summary

    trainer = topology.trainer
    return TopologyDocument(
        file=file,
        summary=summary(topology),
        fingerprint=topology.fingerprint,
        hosts=_hosts(topology),
        trainer=_sizes(trainer) if trainer is not None else None,
        services={
            service.name: msgspec.to_builtins(service.parallel) | {"workers": service.parallel.world_size}
            for service in topology.services
        },
        ports=_ports(topology),
        warnings=topology.warnings,
    )


def _hosts(topology: RuntimeTopology) -> tuple[HostRow, ...]:
    from art_topology.commands.documents.explain import HostRow

    ranks = {}
    if topology.trainer is not None:
        ranks = {
            host.host_id: (host.first_rank, host.first_rank + len(host.devices) - 1)
            for host in topology.trainer.hosts
        }
    services: dict[str, list[str]] = {}
    for service in topology.services:
        for member in service.members:
            services.setdefault(member.host_id, []).append(service.name)
    return tuple(
        HostRow(
            host_id=host.host_id,
            node_rank=host.node_rank,
            address=host.address,
            gpus=len(host.gpus),
            gpu_model=host.gpu_model,
            cpu_slots=host.cpu_slots,
            free_cpu_slots=len(host.free_cpu_slots),
            trainer_ranks=ranks.get(host.host_id),
            services=tuple(services.get(host.host_id, ())),
            controller=host.host_id == topology.controller_host_id,
        )
        for host in topology.hosts
    )


def _ports(topology: RuntimeTopology, host_id: str | None = None) -> tuple[PortRow, ...]:
    from art_topology.commands.documents.explain import PortRow
    from art_topology.ports import listeners

    return tuple(
        PortRow(
            host_id=found.host_id,
            address=found.endpoint.host,
            port=found.endpoint.port,
            purpose=found.purpose,
        )
        for found in listeners(topology)
        if host_id in (None, found.host_id)
    )


def _sizes(trainer: CompiledTrainer) -> dict[str, int]:
    axes = {axis.name: axis.size for axis in (*trainer.layout.dense_axes, *trainer.layout.expert_axes)}
    return axes | {"vpp": trainer.parallel.vpp or 1, "world": trainer.world_size}


def _rank(
    file: str,
    topology: RuntimeTopology,
    trainer: CompiledTrainer,
    rank: int,
    model: ModelDescription | None,
    workload: WorkloadSpec | None,
    gpu_bytes: int | None,
) -> RankDocument:
    import msgspec

    from art_topology.commands.documents.base import memory_rows
    from art_topology.commands.documents.explain import RankDocument, RankGroupRow, StageRow
    from art_topology.commands.groups import crosses
    from art_topology.compiled import GpuDevice

    place = trainer.rank(rank)
    host = topology.host(place.host_id)
    coordinate = trainer.layout.coordinate(rank)
    stages = _stages(trainer, model)
    memory = _memory(trainer, model, workload, stages, coordinate.pp)
    shared = [
        service.name
        for service in topology.services
        for member in service.members
        if member.host_id == place.host_id and place.device in member.devices
    ]

    return RankDocument(
        file=file,
        rank=rank,
        world_size=trainer.world_size,
        host_id=host.host_id,
        address=host.address,
        node_rank=host.node_rank,
        local_rank=place.local_rank,
        device="gpu" if isinstance(place.device, GpuDevice) else "cpu",
        device_id=place.device.gpu if isinstance(place.device, GpuDevice) else place.device.slot,
        coordinates=msgspec.structs.asdict(coordinate),
        sizes=_sizes(trainer),
        stages=None
        if stages is None
        else tuple(
            StageRow(
                virtual_stage=number,
                first_layer=stage.first_layer,
                layer_count=stage.layer_count,
                embedding=stage.embedding,
                mtp_layers=stage.mtp_layers,
                loss=stage.loss,
            )
            for number, stage in enumerate(stages.rank(coordinate.pp))
        ),
        groups=tuple(
            RankGroupRow(
                family=family,
                size=len(group),
                position=group.index(rank),
                crosses_hosts=crosses(group, trainer.ranks_per_host),
                ranks=tuple(group),
            )
            for family, group in trainer.layout.groups_of(rank).items()
        ),
        shared_with=tuple(shared),
        memory=memory_rows(memory.parts) if memory is not None else None,
        memory_bytes=memory.total_bytes if memory is not None else None,
        host_memory=memory_rows(memory.host_parts) if memory is not None else None,
        gpu_memory_bytes=gpu_bytes,
        ports=_ports(topology, host.host_id),
    )


def _stages(trainer: CompiledTrainer, model: ModelDescription | None) -> StageLayout | None:
    """Which layers each stage holds, if that is known.

    Raises:
        CommandError: the model does not fit the topology.
    """
    from art_topology.commands.sources import CommandError
    from art_topology.stages import StageError, known_stages

    try:
        return known_stages(trainer.parallel, model)
    except StageError as error:
        raise CommandError(f"the model does not fit the topology: {error}") from error


def _memory(
    trainer: CompiledTrainer,
    model: ModelDescription | None,
    workload: WorkloadSpec | None,
    stages: StageLayout | None,
    pp_rank: int,
) -> MemoryEstimate | None:
    from art_topology.commands.sources import CommandError
    from art_topology.memory import trainer_memory

    if model is None or workload is None or stages is None:
        return None
    try:
        return trainer_memory(
            model,
            trainer.layout,
            stages,
            workload,
            pp_rank=pp_rank,
            vpp_group=trainer.parallel.vpp_microbatch_group_size,
        )
    except ValueError as error:
        raise CommandError(f"the model does not fit the topology: {error}") from error


def _show_topology(about: TopologyDocument) -> None:
    from art_topology.commands.output import say, say_diagnostics, table

    say(about.summary, "bold")
    say(f"fingerprint {about.fingerprint}")
    say()
    rows = [
        [
            str(host.node_rank),
            f"{host.host_id}{' (controller)' if host.controller else ''}",
            host.address,
            f"{host.gpus}{f' {host.gpu_model}' if host.gpu_model else ''}",
            f"{host.free_cpu_slots} of {host.cpu_slots}",
            _span(host.trainer_ranks),
            ", ".join(host.services) or "-",
        ]
        for host in about.hosts
    ]
    names = ("node", "host", "address", "GPUs", "free CPU slots", "trainer ranks", "services")
    table(names, rows, right=(0,))
    if about.trainer is not None:
        say()
        say("trainer: " + ", ".join(f"{name} {size:,}" for name, size in about.trainer.items()))
    for name, parallel in about.services.items():
        say(f"service {name}: " + ", ".join(f"{key} {value}" for key, value in parallel.items()))
    say()
    _show_ports(about.ports)
    if about.warnings:
        say()
        say_diagnostics(about.warnings)


def _span(ranks: tuple[int, int] | None) -> str:
    if ranks is None:
        return "-"
    first, last = ranks
    return str(first) if first == last else f"{first} to {last}"


def _show_ports(ports: tuple[PortRow, ...]) -> None:
    from art_topology.commands.output import table

    rows = [
        [port.host_id, port.address, str(port.port) if port.port else "chosen by the host", port.purpose]
        for port in ports
    ]
    if rows:
        table(("host", "address", "port", "listens for"), rows)


def _show_rank(about: RankDocument, has_model: bool, has_workload: bool) -> None:
    from art_topology.commands.groups import shortened
    from art_topology.commands.output import say, table

    device = "GPU" if about.device == "gpu" else "CPU slot"
    say(f"rank {about.rank:,} of {about.world_size:,}", "bold")
    host = f"{about.host_id} ({about.address}), node rank {about.node_rank}"
    say(f"host {host}; {device} {about.device_id}, local rank {about.local_rank}")
    if about.shared_with:
        say(f"takes turns on its {device} with {', '.join(about.shared_with)}")
    say()
    axes = list(about.coordinates)
    numbers = (("coordinate", about.coordinates), ("of", about.sizes))
    rows = [[name, *(str(values[axis]) for axis in axes)] for name, values in numbers]
    table(("axis", *axes), rows, right=range(1, len(axes) + 1))
    say()
    if about.stages is not None:
        for stage in about.stages:
            say(_stage_words(about, stage.virtual_stage))
        say()
    elif not has_model:
        say("layers and memory: not known without a model (--model config.json)")
        say()
    rows = [
        [
            group.family,
            f"{group.position} of {group.size}",
            "yes" if group.crosses_hosts else "no",
            shortened(group.ranks),
        ]
        for group in about.groups
    ]
    table(("group", "position from 0", "crosses hosts", "ranks"), rows)
    say()
    if about.memory is not None:
        _show_memory(about)
    elif has_model and not has_workload:
        say("memory: not known without a workload (--workload step.toml)\n")
    _show_ports(about.ports)


def _stage_words(about: RankDocument, number: int) -> str:
    stage = (about.stages or ())[number]
    held = ["embedding"] if stage.embedding else []
    if stage.layer_count:
        last = stage.first_layer + stage.layer_count - 1
        one = stage.layer_count == 1
        held.append(f"layer {last}" if one else f"layers {stage.first_layer} to {last} ({stage.layer_count})")
    held += [f"{stage.mtp_layers} of multi-token prediction"] if stage.mtp_layers else []
    held += ["output and loss"] if stage.loss else []
    virtual = f", virtual stage {number}" if len(about.stages or ()) > 1 else ""
    return f"stage {about.coordinates['pp']}{virtual}: {', '.join(held) or 'nothing'}"


def _fit(about: RankDocument) -> str:
    from art_topology.passes.memory import REFUSED, TIGHT

    if not about.gpu_memory_bytes or not about.memory_bytes:
        return ""
    share = about.memory_bytes / about.gpu_memory_bytes
    return (
        f" ({share:.0%}: it does not fit)"
        if share > REFUSED
        else " (it may not fit)"
        if share > TIGHT
        else ""
    )


def _show_memory(about: RankDocument) -> None:
    from art_topology.commands.output import say
    from art_topology.commands.plan import gib
    from art_topology.commands.plan_tables import show_bytes

    of = f" of {gib(about.gpu_memory_bytes)}" if about.gpu_memory_bytes else ""
    say(f"memory of a rank of this stage: {gib(about.memory_bytes or 0)}{of} GiB{_fit(about)}", "bold")
    show_bytes(about.memory or ())
    if about.host_memory:
        say("in host memory", "bold")
        show_bytes(about.host_memory)
    say()
