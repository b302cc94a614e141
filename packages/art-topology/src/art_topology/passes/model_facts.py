"""The sizes of a model that parallelism has to divide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from art_topology.models import LayerShape, Matrix, ModelDescription


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What occurs in some layer, each size once and ascending.

    Args:
        layers: Decoder layers.
        mtp_layers: Multi-token prediction layers.
        query_heads: Heads of queries; of compressed attention also its output groups.
        kv_heads: Key and value heads of grouped-query attention.
        linear_heads: Key and value heads of linear attention.
        mlp_widths: Of dense MLPs and shared experts.
        experts: Routed experts of a layer.
        expert_widths: Of routed experts.
        biased_experts: Whether some of their matrices add a bias.
        vocab_size: Tokens of the vocabulary.
        max_positions: Longest context the model was made for, in tokens, if it is known.
        blocked: Matrices outside routed experts that tensor parallelism divides and that are quantized in
            blocks, with the block's outputs and inputs. They count for services only.
    """

    layers: int
    mtp_layers: int
    query_heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    linear_heads: tuple[int, ...]
    mlp_widths: tuple[int, ...]
    experts: tuple[int, ...]
    expert_widths: tuple[int, ...]
    biased_experts: bool
    vocab_size: int
    max_positions: int | None
    blocked: tuple[tuple[Matrix, int, int], ...] = ()


def facts_of(model: ModelDescription) -> ModelFacts:
    """Collects them."""
    found: dict[str, set[int]] = {
        name: set()
        for name in ("query_heads", "kv_heads", "linear_heads", "mlp_widths", "experts", "expert_widths")
    }
    seen: set[tuple[object, object]] = set()
    for layer in (*model.layers, *model.mtp_layers):
        if (layer.attention, layer.mlp) not in seen:
            seen.add((layer.attention, layer.mlp))
            _add(layer, found)
    return ModelFacts(
        layers=len(model.layers),
        mtp_layers=len(model.mtp_layers),
        biased_experts=any(getattr(mlp, "experts", 0) and getattr(mlp, "bias", False) for _, mlp in seen),
        vocab_size=model.vocab_size,
        max_positions=int(model.max_position_embeddings * model.position_scale)
        if model.max_position_embeddings is not None
        else None,
        blocked=_blocked(model),
        **{name: tuple(sorted(sizes)) for name, sizes in found.items()},
    )


def _blocked(model: ModelDescription) -> tuple[tuple[Matrix, int, int], ...]:
    found = {
        (matrix, fmt.rows, fmt.columns): None
        for layer, formats in dict.fromkeys(model.stored_layers())
        for matrix in (layer.matrices() if formats else ())
        for name, fmt in formats
        if name == matrix.name
        and fmt.rows > 1
        and fmt.columns
        and matrix.part != "routed_experts"
        and matrix.divided != "none"
    }
    return tuple(found)


def _add(layer: LayerShape, found: dict[str, set[int]]) -> None:
    from art_topology.models import (
        CompressedAttentionShape,
        DenseShape,
        GatedDeltaNetShape,
        GqaShape,
        MlaShape,
    )

    match layer.attention:
        case GqaShape(query_heads=heads, kv_heads=kv_heads, shares_kv=shares_kv):
            found["query_heads"].add(heads)
            if not shares_kv:
                found["kv_heads"].add(kv_heads)
        case MlaShape(heads=heads):
            found["query_heads"].add(heads)
        case CompressedAttentionShape(heads=heads, output_groups=groups):
            found["query_heads"] |= {heads, groups}
        case GatedDeltaNetShape(key_heads=key_heads, value_heads=value_heads):
            found["linear_heads"] |= {key_heads, value_heads}
    if layer.mlp is None:
        return
    if isinstance(layer.mlp, DenseShape):
        found["mlp_widths"].add(layer.mlp.inner_size)
        return
    found["experts"].add(layer.mlp.experts)
    found["expert_widths"].add(layer.mlp.expert_size)
    if layer.mlp.shared_size:
        found["mlp_widths"].add(layer.mlp.shared_size)
