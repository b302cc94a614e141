"""What ``plan --json`` prints."""

from __future__ import annotations

from typing import Any

from art_topology.commands.documents.base import Document, PartRow


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
        served_weights: How the service's weights are stored, in words; null: in the workload's dtype.
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
    served_weights: str | None = None
    fewer: PlanRow | None = None
    next_steps: tuple[str, ...] = ()
