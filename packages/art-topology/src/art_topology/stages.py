"""Which layers each pipeline stage holds, and where embedding, multi-token prediction and loss stand.

The decoder layers of a model are cut into ``pp * vpp`` runs. Rank ``p`` of a pipeline holds ``vpp`` of them;
a microbatch passes them in the order virtual stage by virtual stage, within it rank by rank (megatron-core's
interleaved schedule). What always holds of a :class:`StageLayout`:

- every layer is held once, in order: each run begins where the one before it in the microbatch's order ends
- the embedding stands at the very beginning, the loss at the very end
- all multi-token prediction (MTP) layers stand together, after the last decoder layer, in the last virtual
  stage of their rank

Sources: ``megatron.core.transformer.pipeline_parallel_layer_layout`` for the strings,
``transformer_block.get_num_layers_to_build`` and ``TransformerConfig.__post_init__`` for the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from art_topology.stage_layout import Stage, StageLayout, check_order
from art_topology.stage_strings import StageError, read_stages
from art_topology.trainer import MegatronTopologyConfig

if TYPE_CHECKING:
    from art_topology.models import ModelDescription

__all__ = [
    "Stage",
    "StageError",
    "StageLayout",
    "lay_out_stages",
    "parse_layout",
    "stages_of",
]


def parse_layout(text: str, pp: int, *, num_layers: int | None = None, mtp: int | None = None) -> StageLayout:
    """Reads a ``pipeline_model_parallel_layout`` string of megatron-core.

    ``E`` is the embedding, ``t`` a decoder layer, ``m`` a multi-token prediction layer, ``L`` the loss; ``|``
    separates stages, ``x*3`` and ``(tt|)*3`` repeat, commas are decoration. Stage ``i`` is virtual stage
    ``i // pp`` of rank ``i % pp``: ``"Et*3|(tt|)*29,m|L"`` with ``pp=16`` has two virtual stages on each
    rank.

    Args:
        text: The string.
        pp: Pipeline ranks; the number of stages must be a multiple.
        num_layers: Decoder layers of the model, if they are to be checked.
        mtp: Multi-token prediction layers of the model, if they are to be checked.

    Raises:
        StageError: it cannot be read, megatron-core would refuse it, or the embedding is not in the first
            stage or the loss not in the last (megatron-core accepts these and then builds them elsewhere).
    """
    if pp < 1:
        raise StageError(f"pp={pp} is below 1", "use pp=1 or more", "pp")
    symbols = read_stages(text)
    if len(symbols) % pp:
        nearest = max(1, round(len(symbols) / pp)) * pp
        raise StageError(
            f"the layout has {len(symbols)} stages, which is no multiple of pp={pp}",
            f"write {nearest} stages, or use another pp",
            "pipeline_layout",
        )
    check_order(symbols)
    layout = StageLayout.of_symbols(symbols, pp)
    if num_layers is not None and layout.num_layers != num_layers:
        balanced = StageLayout.balanced(num_layers, pp, layout.vpp, mtp=layout.mtp_layers)
        raise StageError(
            f"the layout places {layout.num_layers} decoder layers, but the model has {num_layers}",
            f"write {num_layers} times 't', as in {balanced.to_layout_string()!r}",
            "pipeline_layout",
        )
    if mtp is not None and layout.mtp_layers != mtp:
        raise StageError(
            f"the layout places {layout.mtp_layers} multi-token prediction layers, but the model has {mtp}",
            f"write {mtp} times 'm', all in one stage after the last 't'" if mtp else "leave 'm' out",
            "pipeline_layout",
        )
    return layout


def lay_out_stages(
    num_layers: int,
    pp: int,
    vpp: int | None = None,
    *,
    pipeline_layout: str | None = None,
    account_for_embedding: bool = False,
    account_for_loss: bool = False,
    first_stage_layers: int | None = None,
    last_stage_layers: int | None = None,
    mtp: int = 0,
) -> StageLayout:
    """By the layout string if there is one, otherwise as :meth:`StageLayout.uniform`.

    Args:
        num_layers: Decoder layers of the model.
        pp: Pipeline ranks.
        vpp: Virtual stages of each rank; None: one, or what the string says.
        pipeline_layout: As :func:`parse_layout` reads it.
        account_for_embedding: Counts the embedding as one layer of the first stage.
        account_for_loss: Counts the loss as one layer of the last stage.
        first_stage_layers: Layers of the first rank, all its virtual stages together.
        last_stage_layers: Layers of the last rank, likewise.
        mtp: Multi-token prediction layers.

    Raises:
        StageError: the layers cannot be divided so, the string is combined with another option, or has
            another number of virtual stages than ``vpp``.
    """
    if pipeline_layout is None:
        return StageLayout.uniform(
            num_layers,
            pp,
            vpp,
            account_for_embedding=account_for_embedding,
            account_for_loss=account_for_loss,
            first_stage_layers=first_stage_layers,
            last_stage_layers=last_stage_layers,
            mtp=mtp,
        )
    others = {
        "account_for_embedding_in_pipeline_split": account_for_embedding or None,
        "account_for_loss_in_pipeline_split": account_for_loss or None,
        "num_layers_in_first_pipeline_stage": first_stage_layers,
        "num_layers_in_last_pipeline_stage": last_stage_layers,
    }
    if given := {name: value for name, value in others.items() if value is not None}:
        raise StageError(
            "a pipeline layout says where every layer stands, so "
            f"{' and '.join(f'{name}={value}' for name, value in given.items())} cannot be given too",
            f"leave {' and '.join(given)} out",
            "pipeline_layout",
        )
    layout = parse_layout(pipeline_layout, pp, num_layers=num_layers, mtp=mtp)
    if vpp is not None and vpp != layout.vpp:
        raise StageError(
            f"the layout has {layout.pp * layout.vpp} stages, {layout.vpp} for each of pp={pp} ranks, "
            f"but vpp={vpp}",
            f"use vpp={layout.vpp} or leave it out, or write {pp * vpp} stages",
            "pipeline_layout",
        )
    return layout


def stages_of(parallel: MegatronTopologyConfig, num_layers: int, *, mtp: int = 0) -> StageLayout:
    """:func:`lay_out_stages` as the trainer's topology says.

    Args:
        parallel: Its ``pp``, ``vpp`` and the five fields about stages are used.
        num_layers: Decoder layers of the model.
        mtp: Multi-token prediction layers of the model.

    Raises:
        StageError: the layers cannot be divided so; ``field`` names a field of ``parallel``, ``num_layers``
            or ``mtp``.
    """
    return lay_out_stages(
        num_layers,
        parallel.pp,
        parallel.vpp,
        pipeline_layout=parallel.pipeline_layout,
        account_for_embedding=parallel.account_for_embedding_in_pipeline_split,
        account_for_loss=parallel.account_for_loss_in_pipeline_split,
        first_stage_layers=parallel.num_layers_in_first_pipeline_stage,
        last_stage_layers=parallel.num_layers_in_last_pipeline_stage,
        mtp=mtp,
    )


def known_stages(parallel: MegatronTopologyConfig, model: ModelDescription | None) -> StageLayout | None:
    """The stages of a trainer as far as they are known: by its model, else by its layout string, else None.

    Args:
        parallel: How the trainer divides the model.
        model: The model; its multi-token prediction layers are placed where the layout string has any.

    Raises:
        StageError: the model does not fit.
    """
    text = parallel.pipeline_layout
    if model is not None:
        mtp = len(model.mtp_layers) if "m" in (text or "") else 0
        return stages_of(parallel, len(model.layers), mtp=mtp)
    return parse_layout(text, parallel.pp) if text is not None else None
