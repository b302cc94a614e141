"""What commands print with ``--json``. Keys keep their names and meaning; new ones may be added.

``art-topology schema --output COMMAND`` prints the JSON Schema of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from art_topology.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Mapping


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all documents."""


class Refusal(Document, frozen=True, kw_only=True):
    """Of every command that could not do its work; the exit code says which kind of reason.

    Args:
        ok: Always false.
        message: What is wrong; empty where the diagnostics say it.
        diagnostics: What is wrong with a file.
    """

    ok: Literal[False] = False
    message: str
    diagnostics: tuple[Diagnostic, ...]


class CheckedFile(Document, frozen=True, kw_only=True):
    """One file of ``check``.

    Args:
        file: Its name as it was given.
        ok: Whether it passes: no errors and, with ``--strict``, no warnings.
        errors: How many.
        warnings: How many.
        diagnostics: All of them, with line and column.
        summary: What it describes, in words; empty if it has errors.
        hosts: How many; null if it has errors, as all that follow.
        gpus: How many all hosts have.
        trainer_ranks: How many; 0 without a trainer.
        services: Their names.
        fingerprint: SHA-256 of the compiled topology, in hex.
    """

    file: str
    ok: bool
    errors: int
    warnings: int
    diagnostics: tuple[Diagnostic, ...]
    summary: str = ""
    hosts: int | None = None
    gpus: int | None = None
    trainer_ranks: int | None = None
    services: tuple[str, ...] | None = None
    fingerprint: str | None = None


class CheckDocument(Document, frozen=True, kw_only=True):
    """Of ``check``.

    Args:
        ok: Whether all files pass.
        files: As they were given.
    """

    ok: bool
    files: tuple[CheckedFile, ...]


class PartRow(Document, frozen=True, kw_only=True):
    """A part of a sum of bytes or of times.

    Args:
        name: What for.
        why: The formula with its numbers, one line.
        bytes: Of memory; null for a time.
        exposed_s: What it adds to the step, in seconds; null for memory, as all that follow.
        hidden_s: What runs behind other parts, in seconds.
    """

    name: str
    why: str
    bytes: int | None = None
    exposed_s: float | None = None
    hidden_s: float | None = None


class PlanRow(Document, frozen=True, kw_only=True):
    """One plan of ``plan``.

    Args:
        number: Its place, from 1: what ``--why`` takes.
        name: The layout in short.
        score: Accepted tokens per second and GPU of the cluster: what plans are ordered by.
        step_s: Time of a step of the loop, in seconds.
        trainer_step_s: Time of the training step alone.
        rollout_s: Time of the rollouts of a step alone.
        publication_exposed_s: What publication of a policy adds.
        accepted_tokens_per_s: Completion tokens trained on per second.
        trainer_tokens_per_s: Physical tokens of the trainer alone.
        mfu: Useful arithmetic of the trainer, as a fraction of its GPUs' peak.
        trainer_gpus: How many.
        service_gpus: How many.
        trainer: How Megatron divides the model (fields of ``trainer.parallel``).
        service: How vLLM divides it (fields of ``services.parallel``).
        recompute: Activations that are computed again.
        offload: What lies in host memory.
        pace: What sets the pace of the loop, in words.
        waiting: Which side waits for the other: "trainer" or "service".
        idle_s: How long it waits in a step.
        unused_gpus: GPUs of the cluster that the plan does not use.
        used_score: Accepted tokens per second and GPU that is used.
        tight: The trainer needs more than nine tenths of a GPU's memory.
        trainer_memory: Of the fullest rank, part by part.
        trainer_memory_bytes: Their sum.
        trainer_host_memory_bytes: What that rank keeps in host memory.
        service_memory: Of the fullest worker, part by part.
        kv_budget_bytes: What it has for keys and values.
        concurrent_sequences: Sequences that fit at once, over all copies.
        trainer_time: Of the training step, part by part.
        rollout_time: Of the rollouts, part by part.
    """

    number: int
    name: str
    score: float
    step_s: float
    trainer_step_s: float
    rollout_s: float
    publication_exposed_s: float
    accepted_tokens_per_s: float
    trainer_tokens_per_s: float
    mfu: float
    trainer_gpus: int
    service_gpus: int
    trainer: dict[str, Any]
    service: dict[str, Any]
    recompute: str
    offload: tuple[str, ...]
    pace: str
    waiting: str
    idle_s: float
    unused_gpus: int
    used_score: float
    tight: bool
    trainer_memory: tuple[PartRow, ...]
    trainer_memory_bytes: int
    trainer_host_memory_bytes: int
    service_memory: tuple[PartRow, ...]
    kv_budget_bytes: int
    concurrent_sequences: int
    trainer_time: tuple[PartRow, ...]
    rollout_time: tuple[PartRow, ...]


class RejectionRow(Document, frozen=True, kw_only=True):
    """Divisions that cannot run, by first reason.

    Args:
        side: "trainer" or "service".
        code: The compiler's code, or "trainer-memory", "service-memory", "host-memory", "split".
        count: How many.
        example: One of them, in short.
        reason: Why it cannot run.
    """

    side: str
    code: str
    count: int
    example: str
    reason: str


class PlanDocument(Document, frozen=True, kw_only=True):
    """Of ``plan``.

    Args:
        ok: Whether any layout can run.
        model_type: As the configuration names it.
        parameters: Of the model.
        active_parameters: Of them, what a token uses.
        machine: What all hosts are.
        gpu: Their GPUs.
        gpu_memory_bytes: Of one.
        network: The link between hosts.
        hosts: How many.
        gpus: How many, of all hosts.
        workload: The step that was planned, every default filled in.
        assumptions: What was taken for granted, one sentence each.
        searched: Divisions of trainer and service that were considered.
        duration_s: Time of the search, in seconds.
        plans: The best, best first.
        rejected: Why others cannot run, most frequent first.
        written: The file of ``--write``; null without.
        fewer: The best plan on fewer GPUs, if its score per GPU is higher by more than 2 %.
        next_steps: Where no layout can run: what would work, one sentence each.
    """

    ok: bool
    model_type: str
    parameters: int
    active_parameters: int
    machine: str
    gpu: str
    gpu_memory_bytes: int
    network: str
    hosts: int
    gpus: int
    workload: dict[str, Any]
    assumptions: tuple[str, ...]
    searched: int
    duration_s: float
    plans: tuple[PlanRow, ...]
    rejected: tuple[RejectionRow, ...]
    written: str | None = None
    fewer: PlanRow | None = None
    next_steps: tuple[str, ...] = ()


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


class GroupRow(Document, frozen=True, kw_only=True):
    """One group.

    Args:
        family: Such as "tp".
        index: Its number within the family, by first rank.
        ranks: All of them.
    """

    family: str
    index: int
    ranks: tuple[int, ...]


class FamilyRow(Document, frozen=True, kw_only=True):
    """A family of groups.

    Args:
        family: Such as "tp".
        groups: How many.
        size: Ranks of each.
        crosses_hosts: Whether any of them has ranks on several hosts.
    """

    family: str
    groups: int
    size: int
    crosses_hosts: bool


class GroupsDocument(Document, frozen=True, kw_only=True):
    """Of ``groups``. It is written as it is made, however many groups there are.

    Args:
        ok: Always true: the command did its work.
        file: As it was given.
        world_size: Ranks of the trainer.
        families: Those that were asked for.
        groups: All groups of these families, or with ``--rank`` those of the rank.
    """

    ok: Literal[True] = True
    file: str
    world_size: int
    families: tuple[FamilyRow, ...]
    groups: tuple[GroupRow, ...]


class ChangeRow(Document, frozen=True, kw_only=True):
    """One difference.

    Args:
        paths: Where, in the compiled topology.
        message: What was and what is.
        restarts: What has to start again.
        why: Why.
    """

    paths: tuple[str, ...]
    message: str
    restarts: tuple[str, ...]
    why: str


class DiffDocument(Document, frozen=True, kw_only=True):
    """Of ``diff``.

    Args:
        ok: Always true: the command did its work.
        equal: Whether both mean the same.
        summary: What restarts and what stays warm, one line.
        changes: All differences.
        restarts: What has to start again for all of them.
        warm: What need not.
        old_fingerprint: Of the first.
        new_fingerprint: Of the second.
    """

    ok: Literal[True] = True
    equal: bool
    summary: str
    changes: tuple[ChangeRow, ...]
    restarts: tuple[str, ...]
    warm: tuple[str, ...]
    old_fingerprint: str
    new_fingerprint: str


class WrittenDocument(Document, frozen=True, kw_only=True):
    """Of ``init``.

    Args:
        ok: Always true: the command did its work.
        file: What was written.
        hosts: How many it has.
        gpus: How many, of all hosts.
    """

    ok: Literal[True] = True
    file: str
    hosts: int
    gpus: int


class PictureDocument(Document, frozen=True, kw_only=True):
    """Of ``render``.

    Args:
        ok: Always true: the command did its work.
        file: What was written.
        width: In pixels.
        height: In pixels.
        hosts_drawn: Their names.
        hosts: How many there are.
    """

    ok: Literal[True] = True
    file: str
    width: int
    height: int
    hosts_drawn: tuple[str, ...]
    hosts: int


DOCUMENTS: Mapping[str, tuple[type[Document], ...]] = {
    "check": (CheckDocument,),
    "plan": (PlanDocument, Refusal),
    "explain": (RankDocument, TopologyDocument, Refusal),
    "groups": (GroupsDocument, Refusal),
    "render": (PictureDocument, Refusal),
    "diff": (DiffDocument, Refusal),
    "init": (WrittenDocument, Refusal),
}
"""What each command may print."""
