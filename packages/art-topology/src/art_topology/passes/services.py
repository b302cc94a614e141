"""Model services: names, members, workers."""

from collections import Counter
from collections.abc import Sequence

from art_topology.passes.findings import Findings
from art_topology.serving import ModelServiceSpec

VLLM_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of ``max_lora_rank`` that vLLM takes (``vllm.config.lora.MaxLoRARanks``)."""


def check_services(services: Sequence[ModelServiceSpec], findings: Findings) -> frozenset[int]:
    """Checks every service by itself and returns the indices of those whose workers are settled."""
    _check_names(services, findings)
    settled = set()
    for k, service in enumerate(services):
        _check_lora_rank(service, k, findings)
        distinct = _check_distinct_hosts(service, k, findings)
        if _check_workers(service, k, findings) and distinct:
            settled.add(k)
    return frozenset(settled)


def _check_names(services: Sequence[ModelServiceSpec], findings: Findings) -> None:
    first: dict[str, int] = {}
    for k, service in enumerate(services):
        if service.name in first:
            findings.error(
                "ART-T401",
                f"services[{k}].name",
                f"a second model service has the name {service.name!r}",
                "give every service a name of its own",
                [f"services[{first[service.name]}].name"],
            )
        first.setdefault(service.name, k)


def _check_lora_rank(service: ModelServiceSpec, k: int, findings: Findings) -> None:
    if service.max_lora_rank in VLLM_LORA_RANKS:
        return
    enough = next((rank for rank in VLLM_LORA_RANKS if rank > service.max_lora_rank), None)
    findings.error(
        "ART-T405",
        f"services[{k}].max_lora_rank",
        f"vLLM does not accept max_lora_rank={service.max_lora_rank} of service {service.name!r}",
        f"use {enough}, which also holds smaller adapters"
        if enough
        else f"vLLM's largest is {VLLM_LORA_RANKS[-1]}",
    )


def _check_distinct_hosts(service: ModelServiceSpec, k: int, findings: Findings) -> bool:
    first: dict[str, int] = {}
    distinct = True
    for i, member in enumerate(service.members):
        if member.host_id in first:
            distinct = False
            findings.error(
                "ART-T402",
                f"services[{k}].members[{i}].placement.host_id",
                f"service {service.name!r} has two members on host {member.host_id!r}",
                "merge them into one member, or use two services",
                [f"services[{k}].members[{first[member.host_id]}].placement.host_id"],
            )
        first.setdefault(member.host_id, i)
    return distinct


def _check_workers(service: ModelServiceSpec, k: int, findings: Findings) -> bool:
    counts = [member.placement.process_count for member in service.members]
    usual = Counter(counts).most_common(1)[0][0]
    odd = [i for i, count in enumerate(counts) if count != usual]
    if odd:
        findings.error(
            "ART-T403",
            f"services[{k}].members[{odd[0]}].placement",
            f"member {odd[0]} of service {service.name!r} has {counts[odd[0]]} workers and member "
            f"{counts.index(usual)} has {usual}",
            "give every member equally many workers",
            [f"services[{k}].members[{i}].placement" for i in [*odd[1:], counts.index(usual)]],
        )
        return False
    parallel, workers = service.parallel, sum(counts)
    if workers == parallel.world_size:
        return True
    findings.error(
        "ART-T404",
        f"services[{k}].parallel",
        f"service {service.name!r} has {workers} workers ({len(counts)} members with {usual}), "
        f"but tp*pp*dp = {parallel.tp}*{parallel.pp}*{parallel.dp} = {parallel.world_size}",
        f"place {parallel.world_size} workers, or choose tp, pp and dp with the product {workers}",
        [f"services[{k}].members"],
    )
    return False
