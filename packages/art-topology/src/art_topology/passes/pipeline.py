"""Pipeline stages, virtual stages and microbatch groups: what can be said without the ranks.

Sources: ``TransformerConfig.__post_init__``, ``PipelineParallelLayerLayout`` and
``schedules.forward_backward_pipelining_with_interleaving`` of megatron-core.
"""

from art_topology.passes.faults import Fault
from art_topology.passes.model_facts import ModelFacts
from art_topology.stages import StageError, StageLayout, parse_layout, stages_of
from art_topology.trainer import MegatronTopologyConfig

PATH = "trainer.parallel"
_ACCOUNTS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
_ENDS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")


def virtual_stages(parallel: MegatronTopologyConfig) -> int | None:
    """How many virtual stages a rank has, by the layout string if there is one; None if that is wrong."""
    if parallel.pipeline_layout is None:
        return parallel.vpp or 1
    try:
        layout = parse_layout(parallel.pipeline_layout, parallel.pp)
    except StageError:
        return None
    return layout.vpp if parallel.vpp in (None, layout.vpp) else None


def pipeline_faults(parallel: MegatronTopologyConfig, facts: ModelFacts | None) -> list[Fault]:
    """Everything that is wrong with the division into stages."""
    found = _combined(parallel) + _layout_string(parallel)
    vpp = virtual_stages(parallel)
    if vpp is not None:
        found += _virtual(parallel, vpp)
    if not found:
        found = _ends(parallel)
    if not found and facts is not None:
        found = _layers(parallel, facts)
    return found


def stages_for(parallel: MegatronTopologyConfig, facts: ModelFacts) -> StageLayout:
    """Which layers each stage holds.

    Raises:
        StageError: they cannot be divided so.
    """
    return stages_of(parallel, facts.layers, mtp=_mtp(parallel, facts))


def widest_stage(parallel: MegatronTopologyConfig, facts: ModelFacts) -> int:
    """Most layers of a virtual stage. Only for a division without faults."""
    layout = stages_for(parallel, facts)
    return max(stage.layer_count for stage in layout.in_order)


def balanced_layout(parallel: MegatronTopologyConfig, facts: ModelFacts) -> str | None:
    """A layout string with which the layers fill the stages; None if there are more stages than layers."""
    vpp = virtual_stages(parallel) or parallel.vpp or 1
    if parallel.pp * vpp > facts.layers or (vpp > 1 and parallel.pp == 1):
        return None
    return StageLayout.balanced(facts.layers, parallel.pp, vpp).to_layout_string()


def _combined(parallel: MegatronTopologyConfig) -> list[Fault]:
    accounts = tuple(name for name in _ACCOUNTS if getattr(parallel, name))
    ends = tuple(name for name in _ENDS if getattr(parallel, name) is not None)
    if parallel.pipeline_layout is not None and (accounts or ends):
        first, others = "pipeline_layout", accounts + ends
        why = "says where every layer stands"
    elif accounts and ends:
        first, others = ends[0], accounts
        why = "sets the layers of a stage"
    else:
        return []
    return [
        Fault(
            code="ART-T313",
            path=f"{PATH}.{first}",
            message=f"{first} {why}, so {' and '.join(others)} cannot be given too",
            otherwise=f"leave {' and '.join(others)} out" if len(others) > 1 else "",
            fields=(*others[:1], first) if len(others) == 1 else (first, *others),
            related=tuple(f"{PATH}.{name}" for name in others),
        )
    ]


def _layout_string(parallel: MegatronTopologyConfig) -> list[Fault]:
    text = parallel.pipeline_layout
    if text is None:
        return []
    try:
        layout = parse_layout(text, parallel.pp)
    except StageError as error:
        return [
            Fault(
                code="ART-T312",
                path=f"{PATH}.pipeline_layout",
                message=error.message,
                otherwise=error.hint,
                fields=("pipeline_layout",),
            )
        ]
    if parallel.vpp in (None, layout.vpp):
        return []
    return [
        Fault(
            code="ART-T312",
            path=f"{PATH}.vpp",
            message=f"the pipeline layout has {layout.pp * layout.vpp} stages, {layout.vpp} for each of "
            f"pp={parallel.pp} ranks, but vpp={parallel.vpp}",
            otherwise=f"write {parallel.pp * (parallel.vpp or 1)} stages",
            fields=("vpp",),
            related=(f"{PATH}.pipeline_layout",),
        )
    ]


def _virtual(parallel: MegatronTopologyConfig, vpp: int) -> list[Fault]:
    group = parallel.vpp_microbatch_group_size
    by_layout = parallel.vpp in (None, 1) and vpp > 1
    if vpp > 1 and parallel.pp == 1:
        name = "pipeline_layout" if by_layout else "vpp"
        return [
            Fault(
                code="ART-T307",
                path=f"{PATH}.{name}",
                message=f"{vpp} virtual stages interleave pipeline stages, but pp=1 has only one"
                if by_layout
                else f"vpp={vpp} interleaves pipeline stages, but pp=1 has only one",
                otherwise="set pp above 1",
                fields=(name, "vpp_microbatch_group_size"),
            )
        ]
    path = f"{PATH}.vpp_microbatch_group_size"
    if group is not None and vpp == 1:
        message = (
            f"vpp_microbatch_group_size={group} has no meaning without virtual stages (vpp={parallel.vpp})"
        )
        otherwise = "set vpp above 1"
    elif group is not None and group < parallel.pp:
        message = f"vpp_microbatch_group_size={group} is below pp={parallel.pp}: the pipeline would run dry"
        otherwise = "leave it out"
    else:
        return []
    return [
        Fault(
            code="ART-T308",
            path=path,
            message=message,
            otherwise=otherwise,
            fields=("vpp_microbatch_group_size",),
        )
    ]


def _ends(parallel: MegatronTopologyConfig) -> list[Fault]:
    given = {name: int(getattr(parallel, name)) for name in _ENDS if getattr(parallel, name) is not None}
    vpp = parallel.vpp or 1
    found = [
        Fault(
            code="ART-T314",
            path=f"{PATH}.{name}",
            message=f"{name}={count} cannot be divided into vpp={vpp} virtual stages",
            fields=(name,),
        )
        for name, count in given.items()
        if count % vpp
    ]
    if not found and len(given) == 2 and (parallel.pp == 1 or (parallel.pp == 2 and vpp > 1)):
        why = (
            "with pp=1 the first stage is the last"
            if parallel.pp == 1
            else f"with pp=2 and vpp={vpp} megatron-core divides by the stages between them, which are none"
        )
        found.append(
            Fault(
                code="ART-T314",
                path=f"{PATH}.{_ENDS[1]}",
                message=f"the layers of the first and of the last stage are given, but {why}",
                fields=(_ENDS[1], *(_ENDS[:1] if parallel.pp == 1 else ())),
                related=(f"{PATH}.{_ENDS[0]}",),
            )
        )
    return found


def _layers(parallel: MegatronTopologyConfig, facts: ModelFacts) -> list[Fault]:
    by_layout = parallel.pipeline_layout is not None
    count = parallel.pp * (parallel.vpp or 1)
    if not by_layout and count > facts.layers + 2:
        message = f"{facts.layers} layers cannot fill {count} stages (pp={parallel.pp}, vpp={parallel.vpp})"
        return [Fault(code="ART-T809", path=f"{PATH}.pp", message=message, fields=("pp", "vpp"))]
    try:
        stages_for(parallel, facts)
    except StageError as error:
        name = error.field if error.field in parallel.__struct_fields__ else "pp"
        ends = tuple(end for end in _ENDS if getattr(parallel, end) is not None)
        fields = ("pipeline_layout",) if by_layout else (*ends, "pipeline_layout", name)
        return [
            Fault(
                code="ART-T810" if by_layout else "ART-T809",
                path=f"{PATH}.{name}",
                message=error.message,
                otherwise="" if by_layout else error.hint,
                fields=tuple(dict.fromkeys(fields)),
            )
        ]
    return []


def _mtp(parallel: MegatronTopologyConfig, facts: ModelFacts) -> int:
    """The MTP layers to be placed: those of the model or, as a layout may leave them out, none."""
    if parallel.pipeline_layout is None:
        return 0
    return facts.mtp_layers if "m" in parallel.pipeline_layout else 0
