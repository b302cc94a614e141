"""What ``explain --json`` prints: one rank, or the whole topology."""

from __future__ import annotations

from typing import Any, Literal

from art_topology.commands.documents.base import Document, PartRow
from art_topology.diagnostics import Diagnostic


class StageRow(Document, frozen=True, kw_only=True):
    """A run of layers on one rank.

    Args:
        virtual_stage: Its number among those of the rank, from 0.
        first_layer: The first decoder layer, from 0; with no layer, where the next run begins.
        layer_count: How many decoder layers.
        embedding: Whether it embeds the tokens.
        mtp_layers: Layers of multi-token prediction.
        loss: Whether it computes logits and loss.
    """

    virtual_stage: int
    first_layer: int
    layer_count: int
    embedding: bool
    mtp_layers: int
    loss: bool


class RankGroupRow(Document, frozen=True, kw_only=True):
    """The group of a rank in one family.

    Args:
        family: Such as "tp" or "cp-dp".
        size: How many ranks it has.
        position: The rank's number within it, from 0.
        crosses_hosts: Whether this group has ranks on several hosts.
        ranks: All of them.
    """

    family: str
    size: int
    position: int
    crosses_hosts: bool
    ranks: tuple[int, ...]


class PortRow(Document, frozen=True, kw_only=True):
    """Something that listens on a host.

    Args:
        host_id: The host.
        address: IP address or name.
        port: 0: chosen by the host when it listens.
        purpose: What for.
    """

    host_id: str
    address: str
    port: int
    purpose: str


class RankDocument(Document, frozen=True, kw_only=True):
    """Of ``explain --rank``.

    Args:
        ok: Always true: the command did its work.
        file: As it was given.
        rank: The rank.
        world_size: Of how many.
        host_id: Its host.
        address: Of the host.
        node_rank: Of the host.
        local_rank: Its number among the trainer's ranks there.
        device: "gpu" or "cpu".
        device_id: Index or UUID of the GPU, or number of the CPU slot.
        coordinates: On all axes, each from 0.
        sizes: Of all axes.
        stages: Its layers; null where they are not known (no model and no pipeline layout).
        groups: All groups that it is in.
        shared_with: Services whose workers have the same device.
        memory: Of ranks of its stage, part by part; null without model and workload.
        memory_bytes: Their sum.
        host_memory: What such a rank keeps in host memory.
        gpu_memory_bytes: Of its GPU; null if it is not known.
        ports: What listens on its host.
    """

    ok: Literal[True] = True
    file: str
    rank: int
    world_size: int
    host_id: str
    address: str
    node_rank: int
    local_rank: int
    device: str
    device_id: int | str
    coordinates: dict[str, int]
    sizes: dict[str, int]
    stages: tuple[StageRow, ...] | None
    groups: tuple[RankGroupRow, ...]
    shared_with: tuple[str, ...]
    memory: tuple[PartRow, ...] | None
    memory_bytes: int | None
    host_memory: tuple[PartRow, ...] | None
    gpu_memory_bytes: int | None
    ports: tuple[PortRow, ...]


class HostRow(Document, frozen=True, kw_only=True):
    """A host and what runs on it.

    Args:
        host_id: Its name.
        node_rank: Its place.
        address: IP address or name.
        gpus: How many.
        gpu_model: What they are, if that was said.
        cpu_slots: How many.
        free_cpu_slots: Those left for rollout workers.
        trainer_ranks: First and last rank on it; null if there is none.
        services: Services with a member on it.
        controller: Whether the controller runs on it.
    """

    host_id: str
    node_rank: int
    address: str
    gpus: int
    gpu_model: str | None
    cpu_slots: int
    free_cpu_slots: int
    trainer_ranks: tuple[int, int] | None
    services: tuple[str, ...]
    controller: bool


class TopologyDocument(Document, frozen=True, kw_only=True):
    """Of ``explain`` without a rank.

    Args:
        ok: Always true: the command did its work.
        file: As it was given.
        summary: In words.
        fingerprint: SHA-256 of the compiled topology, in hex.
        hosts: In node order.
        trainer: Sizes of all axes; null without a trainer.
        services: For each, how vLLM divides the model.
        ports: Everything that listens.
        warnings: What is worth a second look.
    """

    ok: Literal[True] = True
    file: str
    summary: str
    fingerprint: str
    hosts: tuple[HostRow, ...]
    trainer: dict[str, int] | None
    services: dict[str, dict[str, Any]]
    ports: tuple[PortRow, ...]
    warnings: tuple[Diagnostic, ...]
