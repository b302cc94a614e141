"""The division of a served model among a service's workers, as a pure function of the parallelism.

Sources: ``vllm.config.parallel`` (``nnodes_within_dp``), ``ModelConfig.verify_with_parallel_config``,
``FusedMoEParallelConfig.make``, ``distributed.utils.get_pp_indices`` and ``validate_fp8_block_shape`` of
vLLM 0.32.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from art_topology.passes.dimensions import linear_fault, tensor_faults, undivided_expert
from art_topology.passes.faults import Fault, divisors, nearest
from art_topology.passes.model_facts import ModelFacts
from art_topology.serving import VllmParallelSpec


class Crew(msgspec.Struct, frozen=True, kw_only=True):
    """The workers of a service: how many, and how many on each member; ``workers`` is None where in doubt."""

    name: str
    path: str
    workers: int | None
    per_member: int
    members: int
    on_gpus: bool


def service_faults(parallel: VllmParallelSpec, crew: Crew, facts: ModelFacts | None) -> list[Fault]:
    """Everything that is wrong with the division."""
    found = [] if crew.workers is None else _packing(parallel, crew, crew.workers)
    refused = _model(parallel, crew, facts) if facts is not None else []
    if not found:
        return refused
    # A division that does not make the workers is wrong as it stands; what it would do to the model follows.
    return [msgspec.structs.replace(fault, otherwise=_NEW) for fault in found] if refused else found


_NEW = "choose tp, pp and dp anew"
"""Where a division is wrong whatever the workers are."""


def service_candidates(parallel: VllmParallelSpec, name: str, crew: Crew) -> Iterable[Any]:
    """Values of a field that are worth trying."""
    if name == "expert_parallel":
        return [not parallel.expert_parallel]
    value = int(getattr(parallel, name))
    if crew.workers is None:
        return nearest(divisors(value), value)
    return sorted(divisors(crew.workers), key=lambda size: (size != value, abs(size - value), size))


def _packing(parallel: VllmParallelSpec, crew: Crew, workers: int) -> list[Fault]:
    if workers != parallel.world_size:
        return [
            Fault(
                code="ART-T404",
                path=crew.path,
                message=f"service {crew.name!r} has {workers} workers"
                + (f" ({crew.members} members with {crew.per_member})" if crew.members > 1 else "")
                + f", but tp*pp*dp = {parallel.tp}*{parallel.pp}*{parallel.dp} = "
                f"{parallel.world_size}",
                otherwise=f"place {parallel.world_size} workers",
                fields=("dp", "tp", "pp"),
                related=(f"{crew.path.removesuffix('.parallel')}.members",),
            )
        ]
    replica = parallel.tp * parallel.pp
    if crew.per_member % replica and replica % crew.per_member:
        return [
            Fault(
                code="ART-T406",
                path=crew.path,
                message=f"members of {crew.per_member} workers neither hold whole replicas of tp*pp = "
                f"{parallel.tp}*{parallel.pp} = {replica} workers nor are held whole by one",
                fields=("dp", "pp", "tp"),
            )
        ]
    if crew.on_gpus and crew.members > 1 and crew.per_member % parallel.tp:
        return [
            Fault(
                code="ART-T407",
                path=f"{crew.path}.tp",
                message=f"members of {crew.per_member} workers do not hold whole groups of tp={parallel.tp}: "
                "every layer would wait for the network between hosts",
                fields=("dp", "pp", "tp"),
            )
        ]
    return []


def _model(parallel: VllmParallelSpec, crew: Crew, facts: ModelFacts) -> list[Fault]:
    others = ("dp", "pp") if crew.workers is not None else ()
    found = [
        msgspec.structs.replace(fault, fields=(*others, *fault.fields))
        for fault in (
            *tensor_faults(facts, parallel.tp, crew.path, padded=True),
            *linear_fault(facts, parallel.tp, f"tp={parallel.tp}", f"{crew.path}.tp", ("tp",)),
        )
    ]
    found += _blocks(parallel, crew, facts, found)
    if parallel.pp > facts.layers:
        found.append(
            Fault(
                code="ART-T809",
                path=f"{crew.path}.pp",
                message=f"{facts.layers} layers cannot fill pp={parallel.pp} stages",
                fields=(*(name for name in ("dp", "tp") if crew.workers is not None), "pp"),
            )
        )
    return found + _experts(parallel, crew, facts)


def _blocks(parallel: VllmParallelSpec, crew: Crew, facts: ModelFacts, known: list[Fault]) -> list[Fault]:
    """Whether shares of matrices that are quantized in blocks are whole blocks. Only where tp divides the
    matrices at all; routed experts get smaller blocks where they have to (vLLM refines their scales)."""
    if parallel.tp == 1 or known:
        return []
    for matrix, rows, columns in facts.blocked:
        share, outputs = matrix.local(parallel.tp), matrix.divided == "columns"
        size, block = (share.outputs, rows) if outputs else (share.inputs, columns)
        if size % block:
            side = "outputs" if outputs else "inputs"
            message = (
                f"tp={parallel.tp} leaves a worker {size} {side} of {_MATRICES[matrix.part]}, which are no "
                f"whole blocks of {block} quantized weights"
            )
            fields = ("pp", "dp", "tp") if crew.workers is not None else ("tp",)
            return [Fault(code="ART-T816", path=f"{crew.path}.tp", message=message, fields=fields)]
    return []


_MATRICES = {
    "attention": "a projection of attention",
    "dense_mlp": "an MLP's matrix",
    "shared_experts": "a shared expert's matrix",
    "indexer": "a projection of the indexer",
}


def _experts(parallel: VllmParallelSpec, crew: Crew, facts: ModelFacts) -> list[Fault]:
    parts = parallel.tp * parallel.dp
    said = f"tp*dp = {parallel.tp}*{parallel.dp} = {parts}"
    others = ("dp", "pp", "tp") if crew.workers is not None else ("tp", "dp")
    if parallel.expert_parallel and not facts.experts:
        return [
            Fault(
                code="ART-T806",
                path=f"{crew.path}.expert_parallel",
                message="expert_parallel divides experts, but the model has none",
                fields=("expert_parallel",),
            )
        ]
    if parallel.expert_parallel and facts.experts[0] < parts:
        message = f"{said} workers share the {facts.experts[0]} experts of a layer: some would have none"
        return [Fault(code="ART-T807", path=f"{crew.path}.expert_parallel", message=message, fields=others)]
    if not parallel.expert_parallel and (width := undivided_expert(facts, parts)) is not None:
        message = f"{said} workers do not divide an expert's width of {width}"
        fields = (*others, "expert_parallel")
        return [Fault(code="ART-T808", path=f"{crew.path}.tp", message=message, fields=fields)]
    return []
