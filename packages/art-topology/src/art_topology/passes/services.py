"""Model services: names, members, workers, and the requests they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from art_topology.cluster import GpuPlacement
from art_topology.passes.faults import report_faults
from art_topology.passes.findings import Findings, Suggestion, closest, free_name, listed
from art_topology.passes.hosts import HostTable
from art_topology.passes.model_facts import ModelFacts, facts_of
from art_topology.passes.service_division import Crew, service_candidates, service_faults
from art_topology.passes.trainer import overfull, resized, so_many
from art_topology.serving import ModelServiceSpec

if TYPE_CHECKING:
    from art_topology.models import ModelDescription
    from art_topology.workload import WorkloadSpec

VLLM_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of ``max_lora_rank`` that vLLM takes (``vllm.config.lora.MaxLoRARanks``)."""


def check_services(
    services: Sequence[ModelServiceSpec],
    table: HostTable,
    served: ServedModel,
    findings: Findings,
) -> frozenset[int]:
    """Checks every service by itself and returns the indices of those whose workers are settled."""
    _check_names(services, findings)
    settled = set()
    for k, service in enumerate(services):
        _check_lora_rank(service, k, findings)
        distinct = _check_distinct_hosts(service, k, findings)
        equal = _check_equal_members(service, k, table, findings)
        facts = served.facts_for(service)
        certain = distinct and equal and not _would_fit(service, table)
        if _check_division(service, k, facts, certain, findings):
            settled.add(k)
        if served.is_by(service):
            _check_requests(service, k, served, findings)
    _check_served(served, services, findings)
    _check_positions(served, services, findings)
    return frozenset(settled)


class ServedModel:
    """The model and workload of the topology, and which services they are about.

    Args:
        facts: Of the model; None if it is unknown.
        workload: What a step asks of the services; None if it is unknown.
        name: ``base_model`` of the services that serve it; by default that of all, if they have one in
            common.
        services: All of the topology.
        model: The model, for services that say otherwise how its weights are stored.
    """

    def __init__(
        self,
        facts: ModelFacts | None,
        workload: WorkloadSpec | None,
        name: str | None,
        services: Sequence[ModelServiceSpec],
        model: ModelDescription | None = None,
    ) -> None:
        self._model = model
        self.facts = facts
        self.workload = workload
        names = {service.base_model for service in services}
        self.name = name if name is not None or len(names) != 1 else next(iter(names))

    @property
    def positions(self) -> int | None:
        """Longest context the model was made for, in tokens, if that is known."""
        return None if self.facts is None else self.facts.max_positions

    def facts_for(self, service: ModelServiceSpec) -> ModelFacts | None:
        """Of the model as a service has it; None if it serves another, or the model is unknown."""
        if not self.is_by(service):
            return None
        if self._model is None or service.weights == "auto":
            return self.facts
        return facts_of(self._model.with_weights(service.weights))

    def is_by(self, service: ModelServiceSpec) -> bool:
        """Whether a service serves it."""
        return service.base_model == self.name


def _check_names(services: Sequence[ModelServiceSpec], findings: Findings) -> None:
    first: dict[str, int] = {}
    names = {service.name for service in services}
    for k, service in enumerate(services):
        if first.setdefault(service.name, k) == k:
            continue
        free = free_name(service.name, 2, names)
        names.add(free)
        findings.report(
            "ART-T401",
            f"services[{k}].name",
            f"a second model service has the name {service.name!r}",
            f"give every service a name of its own, such as {free!r}",
            [f"services[{first[service.name]}].name"],
            (f"services[{k}].name", free),
        )


def _check_lora_rank(service: ModelServiceSpec, k: int, findings: Findings) -> None:
    if service.max_lora_rank in VLLM_LORA_RANKS:
        return
    enough = next((rank for rank in VLLM_LORA_RANKS if rank > service.max_lora_rank), None)
    path = f"services[{k}].max_lora_rank"
    findings.report(
        "ART-T405",
        path,
        f"vLLM does not accept max_lora_rank={service.max_lora_rank} of service {service.name!r}",
        f"use {enough}, which also holds smaller adapters"
        if enough
        else f"use vLLM's largest, {VLLM_LORA_RANKS[-1]}, and a smaller adapter",
        suggestion=(path, enough or VLLM_LORA_RANKS[-1]),
    )


def _check_distinct_hosts(service: ModelServiceSpec, k: int, findings: Findings) -> bool:
    first: dict[str, int] = {}
    distinct = True
    for i, member in enumerate(service.members):
        if first.setdefault(member.host_id, i) != i:
            distinct = False
            findings.report(
                "ART-T402",
                f"services[{k}].members[{i}].placement.host_id",
                f"service {service.name!r} has two members on host {member.host_id!r}",
                "merge them into one member, or use two services",
                [f"services[{k}].members[{first[member.host_id]}].placement.host_id"],
            )
    return distinct


def _check_equal_members(service: ModelServiceSpec, k: int, table: HostTable, findings: Findings) -> bool:
    counts = [member.placement.process_count for member in service.members]
    usual = Counter(counts).most_common(1)[0][0]
    odd = [i for i, count in enumerate(counts) if count != usual]
    if not odd:
        return True
    path = f"services[{k}].members[{odd[0]}].placement"
    better = resized(path, service.members[odd[0]].placement, usual, table)
    findings.report(
        "ART-T403",
        path,
        f"member {odd[0]} of service {service.name!r} has {counts[odd[0]]} workers and member "
        f"{counts.index(usual)} has {usual}",
        "give every member equally many workers: "
        + so_many(usual, service.members[odd[0]].placement, table, better),
        [f"services[{k}].members[{i}].placement" for i in [*odd[1:], counts.index(usual)]],
        better,
    )
    return False


def _would_fit(service: ModelServiceSpec, table: HostTable) -> bool:
    """Whether a service has more workers than slots of its hosts (ART-T204), and its division is right for as
    many as there are: then the workers are what is wrong."""
    placements = [member.placement for member in service.members]
    if not any(overfull(placement, table) for placement in placements):
        return False
    hosts = [table.get(placement.host_id) for placement in placements]
    slots = sum(host.cpu_slots for host in hosts if host is not None)
    return slots == service.parallel.world_size


def _check_division(
    service: ModelServiceSpec, k: int, facts: ModelFacts | None, settled: bool, findings: Findings
) -> bool:
    first = service.members[0].placement
    crew = Crew(
        name=service.name,
        path=f"services[{k}].parallel",
        workers=sum(m.placement.process_count for m in service.members) if settled else None,
        per_member=first.process_count,
        members=len(service.members),
        on_gpus=isinstance(first, GpuPlacement),
    )
    faults = report_faults(
        service.parallel,
        crew.path,
        lambda parallel: service_faults(parallel, crew, facts),
        lambda parallel, name: service_candidates(parallel, name, crew),
        findings,
    )
    return settled and not any(fault.code in ("ART-T404", "ART-T406") for fault in faults)


def _check_requests(service: ModelServiceSpec, k: int, served: ServedModel, findings: Findings) -> None:
    path, longest = f"services[{k}].max_model_len", service.max_model_len
    positions = served.positions
    if positions is not None and longest is not None and longest > positions:
        findings.report(
            "ART-T811",
            path,
            f"service {service.name!r} takes requests of {longest} tokens, but the model was made for "
            f"{positions}: vLLM refuses to start",
            f"use at most {positions}, or scale the model's positions in its config.json (rope_scaling)",
            suggestion=(path, positions),
        )
    workload = served.workload
    if workload is None:
        return
    need = workload.prompt_tokens + workload.completion_tokens
    most = longest if longest is not None else positions
    if most is not None and need > most:
        findings.report(
            "ART-T903",
            path if longest is not None else "workload.completion_tokens",
            f"service {service.name!r} takes requests of at most {most} tokens"
            + ("" if longest is not None else ", the positions that the model was made for")
            + f", but a prompt of {workload.prompt_tokens} and a completion of {workload.completion_tokens} "
            f"have {need}",
            *_enough_room(workload, path, need, longest, positions),
        )
    rank = workload.lora_rank
    if rank is not None and rank > service.max_lora_rank and service.max_lora_rank in VLLM_LORA_RANKS:
        enough = next((size for size in VLLM_LORA_RANKS if size >= rank), None)
        findings.report(
            "ART-T904",
            f"services[{k}].max_lora_rank",
            f"service {service.name!r} takes adapters up to rank {service.max_lora_rank}, but rank {rank} is "
            "trained",
            f"use max_lora_rank={enough}"
            if enough
            else f"train an adapter of at most rank {VLLM_LORA_RANKS[-1]}, vLLM's largest",
            ["workload.lora_rank"],
            (f"services[{k}].max_lora_rank", enough)
            if enough
            else ("workload.lora_rank", service.max_lora_rank),
        )


def _enough_room(
    workload: WorkloadSpec, path: str, need: int, longest: int | None, positions: int | None
) -> tuple[str, list[str], Suggestion]:
    """Hint, related places and suggestion for requests that are too long."""
    related = ["workload.prompt_tokens", "workload.completion_tokens"]
    if positions is None or need <= positions:
        return f"use at least {need}", related, (path, need)
    left = positions - workload.prompt_tokens
    if left < 1:
        return f"the model's {positions} positions do not hold the prompt: shorten it", related, None
    raised = f", with max_model_len={positions}" if longest is not None and longest < positions else ""
    hint = f"plan completions of at most {left} tokens{raised}"
    now = (positions if longest is None else min(longest, positions)) - workload.prompt_tokens
    if now < left and now > 0:
        hint = f"plan completions of at most {now} tokens, or of {left}{raised}"
    return hint, related, ("workload.completion_tokens", now) if now > 0 else None


def _check_served(served: ServedModel, services: Sequence[ModelServiceSpec], findings: Findings) -> None:
    """Checks that the services of the model are known, without which rules about it would be silent."""
    if (served.facts is None and served.workload is None) or not services:
        return
    if any(map(served.is_by, services)):
        return
    names = list(dict.fromkeys(service.base_model for service in services))
    known = served.name
    better = (closest(known, names) if known is not None else None) or names[0]
    inside = served.facts is not None
    findings.report(
        "ART-T408",
        ("model.name" if known is not None else "model") if inside else "workload",
        (
            f"no service serves {known!r}"
            if known is not None
            else "the services serve different models, and it is not said which is trained"
        )
        + f" (base_model is {listed(names)}): no service is checked against the model and the workload",
        f'say which with name = "{better}" under [model]',
        suggestion=("model.name", better) if inside else None,
    )


def _check_positions(served: ServedModel, services: Sequence[ModelServiceSpec], findings: Findings) -> None:
    """Checks the workload's lengths against the model where no service has."""
    workload, positions = served.workload, served.positions
    if workload is None or positions is None or any(map(served.is_by, services)):
        return
    need = workload.prompt_tokens + workload.completion_tokens
    if need > positions:
        left = positions - workload.prompt_tokens
        findings.report(
            "ART-T813",
            "workload.completion_tokens",
            f"a prompt of {workload.prompt_tokens} and a completion of {workload.completion_tokens} have "
            f"{need} tokens, but the model was made for {positions}",
            f"plan completions of at most {left} tokens" if left > 0 else "plan shorter prompts",
            ["workload.prompt_tokens"],
            ("workload.completion_tokens", left) if left > 0 else None,
        )
