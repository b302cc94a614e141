"""Finds the places of one model's trainer and service in a runtime's topology.

What a topology names is used; what it leaves out is put on the controller's host and compiled again, so that
a mistake shows before anything starts.
"""

from typing import Any, Literal

import msgspec

from art.errors import ConfigError
from art_topology import (
    ClusterSpec,
    CpuPlacement,
    HostSpec,
    MegatronTopologyConfig,
    ModelServiceMemberSpec,
    ModelServiceSpec,
    RuntimeTopology,
    TrainerMeshSpec,
    compile_topology,
)

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM can be told as the largest rank of an adapter."""

MOST_LORA_RANK = _RANKS[-1]


class Placed(msgspec.Struct, frozen=True):
    """Where one model's parts run.

    Args:
        trainer_host, service_host: indices in node order.
        service: as the topology has it.
        listeners: address, port and purpose of what these parts listen on; port 0 is chosen by who listens.
    """

    trainer_host: int
    service: ModelServiceSpec
    service_host: int
    listeners: tuple[tuple[str, int, str], ...] = ()


def place(
    topology: RuntimeTopology,
    *,
    parallel: MegatronTopologyConfig,
    service_name: str,
    base_model: str,
    max_model_len: int,
    max_lora_rank: int,
    dtype: Literal["float32", "bfloat16"],
    seed: int,
) -> Placed:
    """Places one model.

    Raises:
        TopologyError: the hosts have no place for what the topology leaves out.
        ConfigError: the topology names services, but none called ``service_name``, or asks for more than one
            trainer rank or host, which this version does not run.
    """
    if topology.services and service_name not in {service.name for service in topology.services}:
        names = ", ".join(service.name for service in topology.services)
        raise ConfigError(
            f"the topology has the services {names}; none is named {service_name!r} as the model is"
        )
    if topology.trainer is None or not topology.services:
        topology = _completed(
            topology,
            TrainerMeshSpec(
                placements=(CpuPlacement(host_id=topology.controller_host_id),), parallel=parallel
            ),
            ModelServiceSpec(
                name=service_name,
                base_model=base_model,
                members=(
                    ModelServiceMemberSpec(placement=CpuPlacement(host_id=topology.controller_host_id)),
                ),
                max_model_len=max_model_len,
                max_lora_rank=_rank_for_vllm(max_lora_rank),
                dtype=dtype,
                seed=seed,
            ),
        )
    trainer, service = topology.trainer, topology.service(service_name)
    assert trainer is not None
    if trainer.world_size != 1 or len(service.members) != 1:
        raise ConfigError(
            f"this version runs one trainer rank and one member of a service; the topology asks for "
            f"{trainer.world_size} ranks and {len(service.members)} members"
        )
    index = {host.host_id: number for number, host in enumerate(topology.hosts)}
    return Placed(
        trainer_host=index[trainer.hosts[0].host_id],
        service=service.spec,
        service_host=index[service.members[0].host_id],
        listeners=(
            (trainer.rendezvous.host, trainer.rendezvous.port, "the trainer's rendezvous"),
            (service.leader.host, service.leader.port, f"the API of {service_name!r}"),
        ),
    )


def _completed(
    topology: RuntimeTopology, trainer: TrainerMeshSpec, service: ModelServiceSpec
) -> RuntimeTopology:
    ports = topology.worker_ports
    cluster = ClusterSpec(
        hosts=tuple(HostSpec(**_common(host, HostSpec)) for host in topology.hosts),
        worker_port=ports[0] if ports else None,
        skypilot=len(ports) > 1,
        **{name: value for name, value in _common(topology, ClusterSpec).items() if name != "hosts"},
    )
    if topology.trainer is not None or topology.services:
        raise ConfigError(
            "the topology names a trainer or services, but not both; name both, or neither to have them "
            "placed"
        )
    return compile_topology(cluster=cluster, trainer=trainer, services=(service,))


def _common(value: msgspec.Struct, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of ``value`` that ``kind`` has, too."""
    names = {field.name for field in msgspec.structs.fields(kind)}
    fields = {field.name for field in msgspec.structs.fields(type(value))}
    return {name: getattr(value, name) for name in sorted(names & fields)}


def _rank_for_vllm(rank: int) -> int:
    """The smallest rank of vLLM's list that holds ``rank``.

    Raises:
        ConfigError: none does.
    """
    for candidate in _RANKS:
        if rank <= candidate:
            return candidate
    raise ConfigError(f"a LoRA rank of {rank} is more than vLLM serves ({MOST_LORA_RANK})")
