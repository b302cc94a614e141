"""What the fields of a configuration mean where families differ and no field says so.

An architecture fixes some things without writing them down: Qwen 2 always adds biases to queries, keys and
values, Qwen 3 always normalizes them. ``model_type`` selects such a reading of the fields and nothing else;
no size comes from here. A ``model_type`` that is not listed gets the reading of most models.

Source of every entry: the modeling file of that name in transformers 5.19.
"""

from typing import Literal

import msgspec


class Convention(msgspec.Struct, frozen=True, kw_only=True):
    """How to read the fields of one family.

    Args:
        known: The family is listed here; otherwise what is assumed is said to be.
        tied: Whether the vocabulary head is the embedding where ``tie_word_embeddings`` is absent.
        qkv_bias: Biases of queries, keys and values are always there; None: ``attention_bias`` says.
        output_bias: ``attention_bias`` covers the output projection of attention too.
        qk_norm: Norms of queries and keys (see GqaShape), where ``use_qk_norm`` is absent.
        output_gate: Attention gates its output, where ``attn_output_gate`` is absent.
        sinks: Attention has a learned logit per head.
        norms: Norms of a layer.
        moe_norms: Further norms of a layer with experts.
        expert_bias: Experts and router add biases.
        windows: Which layers attend to ``sliding_window`` tokens where ``layer_types`` is absent: ``all``,
            every layer but each ``n``-th (an integer), or those from ``max_window_layers`` on, if
            ``use_sliding_window`` (``late``).
        last_is_full: The last layer attends to everything, whatever ``layer_types`` says.
        global_head_dim: Features of a head of layers without a window, where the field is absent.
        experts: Layers have experts: their number has to be there.
    """

    known: bool = True
    tied: bool | None = None
    qkv_bias: bool | None = None
    output_bias: bool = True
    qk_norm: Literal["none", "head", "all"] = "none"
    output_gate: bool = False
    sinks: bool = False
    norms: int = 2
    moe_norms: int = 0
    expert_bias: bool = False
    windows: Literal["all", "late"] | int = "all"
    last_is_full: bool = False
    global_head_dim: int | None = None
    experts: bool = False


_QWEN2 = Convention(qkv_bias=True, output_bias=False, windows="late", tied=False)
_QWEN3 = Convention(qk_norm="head", windows="late", tied=False)
_QWEN3_NEXT = Convention(qk_norm="head", output_gate=True, tied=False)
_GEMMA2 = Convention(tied=True, norms=4, windows=2)
_GEMMA4 = Convention(
    tied=True,
    qk_norm="head",
    norms=4,
    moe_norms=3,
    windows=6,
    last_is_full=True,
    global_head_dim=512,
)
_PLAIN = Convention(tied=False)
_EXPERTS = Convention(tied=False, experts=True)

CONVENTIONS: dict[str, Convention] = {
    "llama": _PLAIN,
    "mistral": _PLAIN,
    "ministral3": _PLAIN,
    "mixtral": _EXPERTS,
    "qwen2": _QWEN2,
    "qwen2_moe": msgspec.structs.replace(_QWEN2, experts=True),
    "qwen3": _QWEN3,
    "qwen3_moe": msgspec.structs.replace(_QWEN3, windows="all", experts=True),
    "qwen3_next": msgspec.structs.replace(_QWEN3_NEXT, experts=True),
    "qwen3_5_text": _QWEN3_NEXT,
    "qwen3_5_moe_text": msgspec.structs.replace(_QWEN3_NEXT, experts=True),
    "gemma2": _GEMMA2,
    "gemma3_text": msgspec.structs.replace(_GEMMA2, qk_norm="head", windows=6),
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "gpt_oss": Convention(tied=False, experts=True, sinks=True, expert_bias=True, windows=2),
    "glm4_moe": Convention(tied=False, experts=True, output_bias=False),
    "deepseek_v2": _EXPERTS,
    "deepseek_v3": _EXPERTS,
    "deepseek_v32": _EXPERTS,
    "deepseek_v4": _EXPERTS,
    "kimi_k2": _EXPERTS,
    "glm_moe_dsa": _EXPERTS,
    "glm4_moe_lite": _EXPERTS,
}


def convention_of(model_type: str) -> Convention:
    """The reading for a ``model_type``; for one that is not listed, that of most models."""
    for name in (model_type, f"{model_type}_text"):
        if name in CONVENTIONS:
            return CONVENTIONS[name]
    return Convention(known=False)
