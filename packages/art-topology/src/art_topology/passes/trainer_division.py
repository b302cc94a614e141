"""The division of the trainer's model among its ranks, as a pure function of the parallelism.

Sources: ``parallel_state.initialize_model_parallel``, ``ModelParallelConfig.__post_init__`` and
``TransformerConfig.__post_init__`` of megatron-core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec

from art_topology.passes.dimensions import linear_fault, tensor_faults, undivided_expert
from art_topology.passes.faults import Fault, divisors, nearest
from art_topology.passes.findings import either
from art_topology.passes.model_facts import ModelFacts
from art_topology.passes.pipeline import PATH, balanced_layout, pipeline_faults, virtual_stages, widest_stage
from art_topology.trainer import MegatronTopologyConfig

if TYPE_CHECKING:
    from art_topology.workload import WorkloadSpec


_MOST_GROUPS = 2**40


class Mesh(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks are: how many, and how many of them on each host.

    ``world`` is None where it is in doubt. ``on_gpus`` says whether they are GPUs.
    """

    world: int | None
    per_host: int
    on_gpus: bool


def trainer_faults(
    parallel: MegatronTopologyConfig, mesh: Mesh, facts: ModelFacts | None, workload: WorkloadSpec | None
) -> list[Fault]:
    """Everything that is wrong with the division."""
    stages = pipeline_faults(parallel, facts)
    found = stages + _sequence_parallel(parallel, facts)
    divided = mesh.world is not None and _divide(parallel, mesh, mesh.world, found)
    if facts is not None:
        found += _model(parallel, facts)
    if workload is not None:
        unsettled = mesh.world is not None and not divided
        found += _workload(parallel, mesh if divided else None, facts, workload, not stages, unsettled)
    return found


def divides_tokens(parallel: MegatronTopologyConfig) -> bool:
    """Whether sequence parallelism is on."""
    return parallel.tp > 1 if parallel.sequence_parallel is None else parallel.sequence_parallel


def trainer_candidates(
    parallel: MegatronTopologyConfig, name: str, mesh: Mesh, facts: ModelFacts | None
) -> Iterable[Any]:
    """Values of a field that are worth trying."""
    value = getattr(parallel, name)
    match name:
        case "pipeline_layout":
            better = balanced_layout(parallel, facts) if facts is not None else None
            return [*([better] if better not in (None, value) else []), None]
        case "sequence_parallel":
            return [None, True]
        case "account_for_embedding_in_pipeline_split" | "account_for_loss_in_pipeline_split":
            return [False]
        case "vpp":
            return [None, *nearest(range(2, 17), value or 1)]
        case "vpp_microbatch_group_size":
            return [parallel.pp, None]
        case "num_layers_in_first_pipeline_stage" | "num_layers_in_last_pipeline_stage":
            most = max(facts.layers if facts is not None else 0, value or 0) + (parallel.vpp or 1)
            return [*sorted(range(1, min(most, 4096)), key=lambda n: (abs(n - value), n)), None]
        case _:
            return nearest(divisors(mesh.world if mesh.world is not None else value), value)


def _sequence_parallel(parallel: MegatronTopologyConfig, facts: ModelFacts | None) -> list[Fault]:
    path = f"{PATH}.sequence_parallel"
    if parallel.sequence_parallel and parallel.tp == 1:
        message = "sequence_parallel divides tokens among the tp ranks, but tp=1"
        return [
            Fault(
                code="ART-T310",
                path=path,
                message=message,
                otherwise="set tp above 1",
                fields=("sequence_parallel",),
            )
        ]
    has_experts = parallel.ep * parallel.etp > 1 or (facts is not None and bool(facts.experts))
    if parallel.sequence_parallel is False and parallel.tp > 1 and has_experts:
        message = f"the experts of a model with tp={parallel.tp} train only with sequence parallelism"
        return [Fault(code="ART-T311", path=path, message=message, fields=("sequence_parallel",))]
    return []


def _divide(parallel: MegatronTopologyConfig, mesh: Mesh, world: int, found: list[Fault]) -> bool:
    """Adds what is wrong with the division of the ranks; returns whether nothing is."""
    if world % parallel.pp:
        found.append(
            Fault(
                code="ART-T304",
                path=f"{PATH}.pp",
                message=f"{world} trainer ranks cannot be divided into pp={parallel.pp} pipeline stages",
                otherwise=f"a multiple of {parallel.pp} ranks",
                fields=("pp",),
            )
        )
        return False
    stage, before = world // parallel.pp, len(found)
    for code, axes in (("ART-T305", ("tp", "cp")), ("ART-T306", ("etp", "ep"))):
        sizes = [int(getattr(parallel, axis)) for axis in axes]
        unit = prod(sizes)
        if stage % unit == 0:
            continue
        widest = axes[sizes.index(max(sizes))]
        ranks = (
            f"{stage} trainer ranks"
            if parallel.pp == 1
            else (f"the {stage} ranks of each of {parallel.pp} stages")
        )
        found.append(
            Fault(
                code=code,
                path=f"{PATH}.{widest}",
                message=f"{ranks} cannot be divided into groups of "
                f"{axes[0]}*{axes[1]} = {sizes[0]}*{sizes[1]} = {unit}",
                otherwise=f"a multiple of {unit * parallel.pp} ranks in all",
                fields=(widest, *(axis for axis in axes if axis != widest)),
            )
        )
    if len(found) > before:
        return False
    if mesh.on_gpus and world > mesh.per_host:
        for axis in ("tp", "etp"):
            size = int(getattr(parallel, axis))
            if mesh.per_host % size:
                found.append(
                    Fault(
                        code="ART-T309",
                        path=f"{PATH}.{axis}",
                        message=f"hosts of {mesh.per_host} ranks do not hold whole groups of {axis}={size}: "
                        "every layer would wait for the network between hosts",
                        fields=(axis,),
                    )
                )
    return True


def _model(parallel: MegatronTopologyConfig, facts: ModelFacts) -> list[Fault]:
    found = tensor_faults(facts, parallel.tp, PATH, padded=False)
    unit = parallel.tp * parallel.cp
    found += linear_fault(
        facts, unit, f"tp*cp = {parallel.tp}*{parallel.cp} = {unit}", f"{PATH}.cp", ("cp", "tp")
    )
    if not facts.experts:
        found += [
            Fault(
                code="ART-T806",
                path=f"{PATH}.{axis}",
                message=f"{axis}={getattr(parallel, axis)} divides experts, but the model has none",
                fields=(axis,),
            )
            for axis in ("ep", "etp")
            if getattr(parallel, axis) > 1
        ]
        return found
    uneven = next((count for count in facts.experts if count % parallel.ep), None)
    if uneven is not None:
        message = f"ep={parallel.ep} does not divide the {uneven} experts of a layer"
        found.append(Fault(code="ART-T807", path=f"{PATH}.ep", message=message, fields=("ep",)))
    if facts.biased_experts and parallel.etp > 1:
        message = f"etp={parallel.etp} divides experts that have biases, which megatron-core does not train"
        found.append(Fault(code="ART-T812", path=f"{PATH}.etp", message=message, fields=("etp",)))
    elif (width := undivided_expert(facts, parallel.etp)) is not None:
        message = f"etp={parallel.etp} does not divide an expert's width of {width}"
        found.append(Fault(code="ART-T808", path=f"{PATH}.etp", message=message, fields=("etp",)))
    return found


def _workload(
    parallel: MegatronTopologyConfig,
    mesh: Mesh | None,
    facts: ModelFacts | None,
    workload: WorkloadSpec,
    stages_are_right: bool,
    unsettled: bool,
) -> list[Fault]:
    found = [] if unsettled else _row(parallel, workload)
    found += _sequence(1 if unsettled else _row_unit(parallel), workload)
    if workload.group_size == 1:
        found.append(
            Fault(
                code="ART-T908",
                path="workload.group_size",
                message="group_size = 1: a completion has no others of its prompt to be compared with, so "
                "its advantage is zero and nothing is learned from it",
                otherwise="use several completions per prompt, such as 8",
                suggestion=("workload.group_size", 8),
            )
        )
    found += _recompute(parallel, facts, workload, stages_are_right)
    if mesh is None or mesh.world is None:
        return found
    dp = mesh.world // (parallel.tp * parallel.cp * parallel.pp)
    return found + _rows(parallel, dp, workload)


def _rows(parallel: MegatronTopologyConfig, dp: int, workload: WorkloadSpec) -> list[Fault]:
    """Whether the rows of a step, by the mean lengths, fill the ranks and the interleaved schedule."""
    rows = workload.rows_per_step
    count, group, vpp = (
        -(-rows // dp),
        parallel.vpp_microbatch_group_size or parallel.pp,
        virtual_stages(parallel),
    )
    if rows < dp:
        code = "ART-T905"
        message = (
            f"the groups of a step fill about {rows} rows of {workload.packed_sequence_length} tokens, but "
            f"there are dp={dp} data-parallel ranks: some would have nothing to do"
        )
        otherwise = "less data parallelism"
    elif vpp is not None and vpp > 1 and not _fills(count, group, parallel.pp):
        rest = count % group
        code = "ART-T906"
        message = (
            f"a step has about {count} microbatches on each rank, which do not fill groups of {group}"
            + (f": {rest} are left over, fewer than pp={parallel.pp}" if group <= count else "")
        )
        otherwise = f"a smaller vpp_microbatch_group_size of at least pp={parallel.pp}"
    else:
        return []

    def works(rows: int) -> bool:
        return rows >= dp and (not vpp or vpp == 1 or _fills(-(-rows // dp), group, parallel.pp))

    groups = _more_groups(workload, dp * group if vpp and vpp > 1 else dp, works)
    hint = either("" if groups is None else f"{groups} groups per step", otherwise)
    path = "workload.groups_per_step"
    suggestion = None if groups is None else (path, groups)
    return [Fault(code=code, path=path, message=message, otherwise=f"use {hint}", suggestion=suggestion)]


def _fills(count: int, group: int, pp: int) -> bool:
    """Whether microbatches fill their groups, or leave enough of them over for the pipeline."""
    return count >= group and not 0 < count % group < pp


def _more_groups(workload: WorkloadSpec, rows: int, works: Callable[[int], bool]) -> int | None:
    """The next number of groups per step whose rows work; about ``rows`` rows at least are needed."""
    per_row = workload.packed_sequence_length // workload.group_tokens
    first = max(workload.groups_per_step + 1, (rows - 1) * per_row)
    step = max(1, per_row // 4)
    for groups in range(first, first + 2000 * step, step):
        if groups > _MOST_GROUPS:
            return None
        if works(msgspec.structs.replace(workload, groups_per_step=groups).rows_per_step):
            return groups
    return None


def _row(parallel: MegatronTopologyConfig, workload: WorkloadSpec) -> list[Fault]:
    length, path = workload.packed_sequence_length, "workload.packed_sequence_length"
    unit = _row_unit(parallel)
    if length % unit == 0:
        return []
    need = workload.prompt_tokens + workload.completion_tokens
    fits = -(-max(length, need) // unit) * unit
    axis_is_odd = length % 64 == 0 and need <= length
    by = "cp" if length % parallel.cp else "tp"
    said = (
        f"cp={parallel.cp}"
        if unit == parallel.cp
        else f"tp*cp = {parallel.tp}*{parallel.cp} = {unit} (with sequence parallelism)"
    )
    return [
        Fault(
            code="ART-T901",
            path=path,
            message=f"a row of {length} tokens cannot be divided by {said}",
            otherwise=f"rows of {fits} tokens" if axis_is_odd else f"use {fits}",
            fields=(by, *(axis for axis in ("cp", "tp") if axis != by)) if axis_is_odd else (),
            suggestion=None if axis_is_odd else (path, fits),
            related=(f"{PATH}.{by}",),
        )
    ]


def _row_unit(parallel: MegatronTopologyConfig) -> int:
    """What divides the tokens of a row."""
    return parallel.cp * (parallel.tp if divides_tokens(parallel) else 1)


def _sequence(unit: int, workload: WorkloadSpec) -> list[Fault]:
    """Whether a row holds a sequence; ``unit`` divides the row that is proposed."""
    length, path = workload.packed_sequence_length, "workload.packed_sequence_length"
    need = workload.prompt_tokens + workload.completion_tokens
    if need <= length:
        return []
    fits = -(-need // unit) * unit
    return [
        Fault(
            code="ART-T902",
            path=path,
            message=f"a row of {length} tokens does not hold a prompt of {workload.prompt_tokens} and a "
            f"completion of {workload.completion_tokens} tokens",
            otherwise=f"use at least {fits}",
            suggestion=(path, fits),
            related=("workload.prompt_tokens", "workload.completion_tokens"),
        )
    ]


def _recompute(
    parallel: MegatronTopologyConfig,
    facts: ModelFacts | None,
    workload: WorkloadSpec,
    stages_are_right: bool,
) -> list[Fault]:
    layers, path = workload.recompute_layers, "workload.recompute_layers"
    if layers is None:
        return []
    if workload.recompute != "full":
        message = f"recompute_layers={layers} has no meaning with recompute = {workload.recompute!r}"
        otherwise, better = 'leave it out, or set recompute = "full"', None
    elif facts is not None and stages_are_right and layers > (most := widest_stage(parallel, facts)):
        message = f"recompute_layers={layers}, but no stage has more than {most} layers"
        otherwise, better = f"use {most}, or leave it out for all", most
    else:
        return []
    return [
        Fault(code="ART-T907", path=path, message=message, otherwise=otherwise, suggestion=(path, better))
    ]
