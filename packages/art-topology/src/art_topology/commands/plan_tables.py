"""What ``plan`` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from art_topology.commands.documents.base import PartRow, memory_rows
from art_topology.commands.documents.plan import PlanDocument, PlanRow, RejectionRow
from art_topology.commands.output import say, table
from art_topology.commands.plan import gib
from art_topology.models import checkpoint_bytes, parameters
from art_topology.planner.problem import TIGHT
from art_topology.summary import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from art_topology.commands.plan_inputs import Asked
    from art_topology.planner import Plan, PlanReport, RejectionCount

_MEMORY = ("trainer-memory", "service-memory", "host-memory")


def show_plans(problem: Asked, report: PlanReport, limit: int, fewer: Plan | None = None) -> None:
    """The heading and the table of plans; ``fewer`` is the best plan found on fewer GPUs."""
    _show_problem(problem)
    told = f"{report.searched:,} divisions of trainer and service in {report.duration_s:.1f} s"
    say(f"searched   {told}")
    if not report.ranked:
        return
    say()
    room, some = problem.machine.gpu.memory_bytes, report.ranked[:limit]
    unused = any(plan.unused_gpus for plan in some)
    rows = [
        [
            str(number),
            f"{plan.score:,.1f}",
            f"{plan.cost.step_s:,.1f}",
            f"{plan.cost.trainer.step_s:,.1f}",
            f"{plan.cost.rollout.rollout_s:,.1f}",
            _idle(plan),
            *([f"{plan.unused_gpus:,}"] if unused else []),
            f"{plan.cost.trainer.mfu:.1%}",
            gib(plan.trainer_memory.total_bytes) + (" tight" if _tight(plan, room) else ""),
            gib(plan.service_memory.kv_budget_bytes),
            plan.layout.name,
        ]
        for number, plan in enumerate(some, start=1)
    ]
    times = ("#", "tokens/s/GPU", "step s", "train s", "rollout s", "idle", *(["unused"] if unused else []))
    names = (*times, "MFU", "trainer GiB", "KV GiB", "layout")
    table(names, rows, right=range(len(names) - 1))
    say()
    say("tokens/s/GPU: completion tokens trained on, per GPU of the cluster. --why N explains every number.")
    say("idle: which side waits for the other, and for what share of a step.")
    if any(_tight(plan, room) for plan in some):
        say(f"tight: more than {TIGHT:.0%} of a GPU's memory; --memory-margin 0.1 leaves such plans out.")
    for text in _spare(report, fewer):
        say(text)


def _idle(plan: Plan) -> str:
    """The side that waits, and its share of a step."""
    return f"{plan.cost.waiting} {plan.cost.idle_s / plan.cost.step_s:.0%}"


def _tight(plan: Plan, room: int) -> bool:
    return plan.trainer_memory.total_bytes > TIGHT * room


def _spare(report: PlanReport, fewer: Plan | None) -> list[str]:
    """What the first plan leaves unused, and whether fewer GPUs would be used better."""
    best, told = report.ranked[0], []
    if best.unused_gpus:
        told.append(_unused(best, 1))
        told.append(
            f"{best.used_gpus:,} GPUs are enough for that step: plan 1 on a cluster of so many has "
            f"{best.used_score:,.1f} tokens/s/GPU."
        )
    if fewer is not None:
        told.append(
            f"Fewer do more each: {fewer.used_gpus:,} GPUs have {fewer.used_score:,.1f} tokens/s/GPU, steps "
            f"of {fewer.cost.step_s:,.1f} s: {fewer.layout.name}."
        )
    return told


def _unused(plan: Plan, number: int) -> str:
    unused = counted(plan.unused_gpus, "GPU")
    reason = (
        "neither the trainer nor the service, which is one vLLM deployment, makes a step shorter"
        if plan.cost.publication.exposed_s <= 0
        else f"the publication of a policy, {plan.cost.publication.total_s:,.1f} s by one network adapter, "
        "stays as long as it is"
    )
    return (
        f"{unused} of {plan.cost.gpus:,} {'is' if plan.unused_gpus == 1 else 'are'} unused by plan {number}: "
        f"with more, {reason}."
    )


def _show_problem(problem: Asked) -> None:
    count, machine = parameters(problem.model), problem.machine
    active = f", {count.active / 1e9:,.2f} billion active" if count.active != count.total else ""
    say(f"model      {problem.model.model_type}, {count.total / 1e9:,.2f} billion parameters{active}")
    hosts = counted(len(problem.cluster.hosts), "host")
    gpu = f"{machine.gpu.name} ({gib(machine.gpu.memory_bytes)} GiB)"
    link = f", {machine.scale_out.name} between hosts" if len(problem.cluster.hosts) > 1 else ""
    inside = f"{machine.scale_up.name} within hosts"
    say(f"cluster    {hosts} {machine.name}, {problem.gpus:,} x {gpu}, {inside}{link}")
    step = problem.workload
    weights = f"adapters of rank {step.lora_rank}" if step.lora_rank is not None else "all weights"
    rows = f"{counted(step.rows_per_step, 'row')} of {step.packed_sequence_length:,}"
    say(
        f"workload   {counted(step.groups_per_step, 'group')} of {step.group_size:,} with "
        f"{step.prompt_tokens:,} + {step.completion_tokens:,} tokens in {rows}; {weights}, {step.dtype} "
        f"({problem.workload_source})"
    )
    if (told := served_weights(problem)) is not None:
        say(f"served     {told}")
    fixed = [f"recompute {problem.recompute}"] if problem.recompute is not None else []
    if problem.offload is not None:
        fixed.append(f"offload {' and '.join(problem.offload) or 'none'}")
    if fixed:
        say(f"only       {', '.join(fixed)}, as was asked for")
    for assumption in (*problem.model.assumptions, *problem.remarks):
        say(f"assumed    {assumption}")


def served_weights(problem: Asked) -> str | None:
    """How the service's weights are stored, if somebody says so; None: in the dtype, like the trainer's."""
    known = problem.model.quantization
    served = problem.model.with_weights(problem.service_weights)
    form = served.quantization
    size = checkpoint_bytes(served, problem.workload.dtype_bytes)
    dtype, which = problem.workload.dtype, "--service-weights"
    if form is not None and not form.unread:
        source = f"config.json's {form.source}" if form is known else which
        return (
            f"{gib(size)} GiB of weights, {form.told} ({source}), the rest {dtype}; the trainer holds all in "
            f"{dtype}"
        )
    if problem.service_weights == "unquantized":
        return f"{gib(size)} GiB of weights, all {dtype} ({which})"
    if form is not None:
        return (
            f"{gib(size)} GiB of weights, as if all were {dtype}: {form.unread} in config.json's "
            f"{form.source}; say it with {which}"
        )
    return None


def show_why(problem: Asked, plan: Plan, number: int) -> None:
    """Every number of one plan, part by part."""
    cost, memory, service = plan.cost, plan.trainer_memory, plan.service_memory
    _show_problem(problem)
    say()
    say(f"plan {number}: {plan.layout.name}", "bold")
    accepted = f"{cost.accepted_tokens_per_s:,.0f} over {cost.gpus:,} GPUs"
    say(f"{plan.score:,.1f} accepted tokens per second and GPU: {accepted}")
    say(f"a step of the loop takes {cost.step_s:,.2f} s: {cost.why}")
    if plan.unused_gpus:
        say(_unused(plan, number))
    say()
    trainer = cost.trainer
    say(
        f"training step: {trainer.step_s:,.2f} s on {counted(trainer.gpus, 'GPU')}, "
        f"{trainer.tokens_per_s:,.0f} tokens/s, MFU {trainer.mfu:.1%}",
        "bold",
    )
    _show_times(trainer.parts)
    each = f"{trainer.step_s:,.2f} s / {trainer.gpus:,} GPUs / {trainer.peak_flops:.4g} FLOP/s of peak"
    say(f"MFU: {trainer.useful_flops:.4g} useful FLOP / {each}")
    say()
    rollout = cost.rollout
    rate = f"{rollout.tokens_per_s:,.0f} tokens/s, {rollout.concurrent_sequences:,.0f} sequences at once"
    say(f"rollouts: {rollout.rollout_s:,.2f} s on {counted(rollout.gpus, 'GPU')}, {rate}", "bold")
    _show_times(rollout.parts)
    say()
    say("publication of a policy", "bold")
    _show_times((cost.publication,))
    say()
    limit = gib(problem.machine.gpu.memory_bytes)
    full = memory.total_bytes / problem.machine.gpu.memory_bytes
    total = f"{gib(memory.total_bytes)} of {limit} GiB, {full:.1%}{' (tight)' if full > TIGHT else ''}"
    say(f"memory of the trainer's fullest rank (stage {memory.pp_rank}): {total}", "bold")
    show_bytes(memory.parts)
    if memory.host_parts:
        say()
        say(f"in host memory, for each rank: {gib(memory.host_bytes)} GiB", "bold")
        show_bytes(memory.host_parts)
    say()
    kept = f"{gib(service.kv_budget_bytes)} of {limit} GiB are for the KV cache"
    say(f"memory of the service's fullest worker: {kept}", "bold")
    show_bytes(service.parts)
    sequence = f"{service.kv_bytes_per_sequence / 2**20:,.1f} MiB for a sequence"
    fit = f"{service.max_concurrent_sequences:,} sequences fit at once"
    say(f"{service.kv_bytes_per_token:,.0f} bytes for a token, {sequence}: {fit}")


def _show_times(parts: Iterable[Any]) -> None:
    rows = [
        [part.name, _seconds(part.exposed_s), _seconds(part.hidden_s) if part.hidden_s else "", part.why]
        for part in parts
    ]
    table(("part", "s", "hidden s", "why"), rows, right=(1, 2))


def show_bytes(parts: Iterable[Any]) -> None:
    """Parts of a memory, in GiB."""
    rows = [[part.name, f"{part.bytes / 2**30:,.2f}", part.why] for part in parts]
    table(("part", "GiB", "why"), rows, right=(1,))


def _seconds(seconds: float) -> str:
    return f"{seconds:,.3f}" if seconds < 10 else f"{seconds:,.1f}"


def show_rejected(report: PlanReport, steps: tuple[str, ...] = ()) -> None:
    """Why divisions cannot run, by first reason; where none can, what would work."""
    say()
    if report.ranked:
        say("cannot run, by first reason", "bold")
    else:
        say("no layout can run; why, by first reason:", "bold red")
    rows = [
        [found.side, found.code, f"{found.count:,}", f"{_half(found)}: {found.example.reason}"]
        for found in by_relevance(report)
    ]
    table(("side", "code", "how many", "for example"), rows, right=(2,))
    if steps:
        say()
        say("what would work:", "bold")
        for step in steps:
            say(f"- {step}")


def by_relevance(report: PlanReport) -> list[RejectionCount]:
    """Rejections in the order in which they are shown: the most frequent first or, where no layout can run,
    what keeps all of them from it first, which is memory and the lengths of sequences."""
    if report.ranked:
        return list(report.rejected)
    return sorted(report.rejected, key=lambda found: (_rank(found.code), -found.count))


def _rank(code: str) -> int:
    if code in _MEMORY:
        return 0
    return 1 if code.startswith("ART-T9") else 2


def _half(found: Any) -> str:
    """The rejected side of the example's name."""
    trainer, _, service = found.example.layout.name.partition(" + ")
    return trainer if found.side == "trainer" else str(service)


def plan_document(
    problem: Asked,
    report: PlanReport,
    limit: int,
    written: str | None,
    steps: tuple[str, ...] = (),
    fewer: Plan | None = None,
) -> PlanDocument:
    """The whole answer, for programs."""
    count, machine = parameters(problem.model), problem.machine
    return PlanDocument(
        ok=bool(report.ranked),
        model_type=problem.model.model_type,
        parameters=count.total,
        active_parameters=count.active,
        machine=machine.name,
        gpu=machine.gpu.name,
        gpu_memory_bytes=machine.gpu.memory_bytes,
        network=machine.scale_out.name,
        hosts=len(problem.cluster.hosts),
        gpus=problem.gpus,
        workload=msgspec.to_builtins(problem.workload),
        assumptions=problem.model.assumptions,
        served_weights=served_weights(problem),
        searched=report.searched,
        duration_s=report.duration_s,
        plans=tuple(
            _row(number, plan, machine.gpu.memory_bytes)
            for number, plan in enumerate(report.ranked[:limit], start=1)
        ),
        rejected=tuple(
            RejectionRow(
                side=found.side,
                code=found.code,
                count=found.count,
                example=_half(found),
                reason=found.example.reason,
            )
            for found in by_relevance(report)
        ),
        written=written,
        next_steps=steps,
        fewer=_row(1, fewer, machine.gpu.memory_bytes) if fewer is not None else None,
    )


def _row(number: int, plan: Plan, gpu_bytes: int) -> PlanRow:
    cost = plan.cost
    return PlanRow(
        number=number,
        name=plan.layout.name,
        score=plan.score,
        step_s=cost.step_s,
        trainer_step_s=cost.trainer.step_s,
        rollout_s=cost.rollout.rollout_s,
        publication_exposed_s=cost.publication.exposed_s,
        accepted_tokens_per_s=cost.accepted_tokens_per_s,
        trainer_tokens_per_s=cost.trainer.tokens_per_s,
        mfu=cost.trainer.mfu,
        trainer_gpus=plan.layout.trainer_gpus,
        service_gpus=plan.layout.service_gpus,
        trainer=msgspec.to_builtins(plan.layout.trainer) | {"dp": plan.layout.dp},
        service=msgspec.to_builtins(plan.layout.service),
        recompute=plan.layout.recompute,
        offload=plan.layout.offload,
        pace=cost.why,
        waiting=cost.waiting,
        idle_s=cost.idle_s,
        unused_gpus=plan.unused_gpus,
        used_score=plan.used_score,
        tight=plan.trainer_memory.total_bytes > TIGHT * gpu_bytes,
        trainer_memory=memory_rows(plan.trainer_memory.parts),
        trainer_memory_bytes=plan.trainer_memory.total_bytes,
        trainer_host_memory_bytes=plan.trainer_memory.host_bytes,
        service_memory=memory_rows(plan.service_memory.parts),
        kv_budget_bytes=plan.service_memory.kv_budget_bytes,
        concurrent_sequences=plan.service_memory.max_concurrent_sequences,
        trainer_time=_times(cost.trainer.parts),
        rollout_time=_times(cost.rollout.parts),
    )


def _times(parts: Iterable[Any]) -> tuple[PartRow, ...]:
    return tuple(
        PartRow(name=part.name, why=part.why, exposed_s=part.exposed_s, hidden_s=part.hidden_s)
        for part in parts
    )
