"""Attention of each layer, from the fields of a configuration."""

import msgspec

from art_topology.models.attention import GqaShape, IndexerShape, MlaShape
from art_topology.models.compressed import CompressedAttentionShape
from art_topology.models.conventions import Convention
from art_topology.models.description import AttentionShape
from art_topology.models.fields import Fields
from art_topology.models.linear import GatedDeltaNetShape

_FULL = ("full_attention", "attention", "global_attention", "indexed_attention", "deepseek_sparse_attention")
_COMPRESSED = {
    0: "sliding_attention",
    1: "sliding_attention",
    4: "compressed_sparse_attention",
    128: "heavily_compressed_attention",
}
_LAYER_TYPES = "the kind of attention of each layer"


def read_attention(
    fields: Fields, convention: Convention, hidden_size: int, layers: int
) -> tuple[AttentionShape, ...]:
    """The attention of every layer, then that of a layer of multi-token prediction."""
    if fields.has("o_lora_rank") or fields.has("compress_ratios") or fields.has("compress_rates"):
        return _compressed(fields, hidden_size, layers)
    if fields.has("kv_lora_rank"):
        return _latent(fields, hidden_size, layers)
    return _grouped(fields, convention, hidden_size, layers)


def _heads(fields: Fields) -> int:
    return fields.count("num_attention_heads", "heads of queries in a layer")


def _grouped(
    fields: Fields, convention: Convention, hidden_size: int, layers: int
) -> tuple[AttentionShape, ...]:
    kinds = _kinds(fields, convention, layers)
    linear = _linear(fields, hidden_size) if "linear_attention" in kinds else None
    shared_from = layers - fields.count(
        "num_kv_shared_layers", "last layers that use the keys and values of earlier ones", 0, least=0
    )
    if shared_from < 1 and fields.has("num_kv_shared_layers"):
        fields.conflict(
            f"num_kv_shared_layers leaves {shared_from} of num_hidden_layers = {layers} with keys of their "
            "own; at least 1 must have them",
            "num_kv_shared_layers",
            "num_hidden_layers",
        )
    found: list[AttentionShape] = []
    for index, (kind, override) in enumerate(zip(kinds, fields.overrides(layers), strict=True)):
        if kind == "linear_attention" and linear is not None:
            found.append(linear)
            continue
        shape = _softmax(fields.of_layer(override), convention, hidden_size, kind, mixed=len(set(kinds)) > 1)
        found.append(msgspec.structs.replace(shape, shares_kv=index >= shared_from))
    return (*found, _softmax(fields, convention, hidden_size, "full_attention", mixed=len(set(kinds)) > 1))


def _softmax(fields: Fields, convention: Convention, hidden_size: int, kind: str, mixed: bool) -> GqaShape:
    shape = _grouped_shape(fields, convention, hidden_size)
    if kind == "sliding_attention":
        window = fields.count("sliding_window", "tokens that layers with a window attend to")
        return msgspec.structs.replace(shape, window=window)
    return _without_window(fields, convention, shape, mixed)


def _grouped_shape(fields: Fields, convention: Convention, hidden_size: int) -> GqaShape:
    heads = _heads(fields)
    kv_heads = fields.count(
        ("num_key_value_heads", "num_query_groups"), "heads of keys and values in a layer", heads
    )
    if heads % kv_heads:
        fields.conflict(
            f"num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}: queries "
            "share keys in equal groups",
            "num_attention_heads",
            "num_key_value_heads",
        )
    head_dim = fields.maybe_count("head_dim", "features of a head")
    if head_dim is None:
        if hidden_size % heads:
            fields.conflict(
                f"head_dim is missing and hidden_size = {hidden_size} is not a multiple of "
                f"num_attention_heads = {heads}: features of a head",
                "num_attention_heads",
                "hidden_size",
                "head_dim",
            )
        head_dim = max(1, hidden_size // heads)
    bias = fields.flag("attention_bias", "the projections of attention add a bias", default=False)
    given = fields.flag(
        "qkv_bias",
        "queries, keys and values add a bias",
        bias if convention.qkv_bias is None else convention.qkv_bias,
    )
    norm = "none" if fields.raw("use_qk_norm") is False else convention.qk_norm
    if fields.raw("use_qk_norm") is True and norm == "none":
        norm = "head"
    if not convention.known and not fields.has("use_qk_norm"):
        fields.assume("No field says whether queries and keys are normalized: taken as not.")
    return GqaShape(
        hidden_size=hidden_size,
        query_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=fields.count("v_head_dim", "features of a value head", head_dim),
        qkv_bias=given,
        output_bias=bias and convention.output_bias,
        qk_norm=norm,
        output_gate=fields.flag(
            "attn_output_gate", "attention gates its output", default=convention.output_gate
        ),
        sinks=convention.sinks,
    )


def _without_window(fields: Fields, convention: Convention, shape: GqaShape, mixed: bool) -> GqaShape:
    """Layers that attend to everything may have heads of their own beside layers with a window (Gemma 4)."""
    if not mixed and convention.global_head_dim is None:
        return shape
    value_is_key = fields.flag("attention_k_eq_v", "values are the keys in layers without a window", False)
    head_dim, kv_heads = shape.head_dim, shape.kv_heads
    if not fields.has("per_layer_config"):
        head_dim = fields.count(
            "global_head_dim",
            "features of a head in layers without a window",
            convention.global_head_dim or head_dim,
        )
    if value_is_key and not fields.has("per_layer_config"):
        kv_heads = fields.count(
            "num_global_key_value_heads", "heads of keys and values in layers without a window", kv_heads
        )
    if shape.query_heads % kv_heads:
        fields.conflict(
            f"num_attention_heads = {shape.query_heads} is not a multiple of "
            f"num_global_key_value_heads = {kv_heads}: queries share keys in equal groups",
            "num_attention_heads",
            "num_global_key_value_heads",
            "num_key_value_heads",
        )
    return msgspec.structs.replace(
        shape, head_dim=head_dim, value_dim=head_dim, kv_heads=kv_heads, value_is_key=value_is_key
    )


def _kinds(fields: Fields, convention: Convention, layers: int) -> tuple[str, ...]:
    kinds = fields.words("layer_types", _LAYER_TYPES, layers)
    if kinds is None:
        kinds = _default_kinds(fields, convention, layers)
    known = ("sliding_attention", "linear_attention", *_FULL)
    for kind in sorted(set(kinds) - set(known)):
        fields.problem(
            f"layer_types names {kind!r}, whose weights no field describes; known: {', '.join(known)}"
        )
    kinds = tuple("full_attention" if kind in _FULL else kind for kind in kinds)
    return (*kinds[:-1], "full_attention") if convention.last_is_full and kinds else kinds


def _default_kinds(fields: Fields, convention: Convention, layers: int) -> tuple[str, ...]:
    if fields.has("linear_num_value_heads"):
        interval = fields.count("full_attention_interval", "each n-th layer has full attention", 4)
        return _every(interval, layers, "full_attention", "linear_attention")
    if not fields.has("sliding_window"):
        return ("full_attention",) * layers
    if fields.raw("use_sliding_window") is False:
        return ("full_attention",) * layers
    if fields.has("sliding_window_pattern"):
        pattern = fields.count("sliding_window_pattern", "each n-th layer has no window")
        return _every(pattern, layers, "full_attention", "sliding_attention")
    if convention.windows == "late":
        if not fields.flag("use_sliding_window", "layers from max_window_layers on have a window", False):
            return ("full_attention",) * layers
        first = fields.count("max_window_layers", "layers without a window", 28, least=0)
        return tuple("sliding_attention" if i >= first else "full_attention" for i in range(layers))
    if isinstance(convention.windows, int):
        return _every(convention.windows, layers, "full_attention", "sliding_attention")
    if not convention.known:
        fields.assume(
            "sliding_window is set, but no field says for which layers: all are taken to be without."
        )
        return ("full_attention",) * layers
    return ("sliding_attention",) * layers


def _every(step: int, layers: int, each: str, others: str) -> tuple[str, ...]:
    return tuple(others if (i + 1) % step else each for i in range(layers))


def _linear(fields: Fields, hidden_size: int) -> GatedDeltaNetShape:
    shape = GatedDeltaNetShape(
        hidden_size=hidden_size,
        key_heads=fields.count("linear_num_key_heads", "heads of keys of linear attention"),
        value_heads=fields.count("linear_num_value_heads", "heads of values of linear attention"),
        key_dim=fields.count("linear_key_head_dim", "features of a key head of linear attention"),
        value_dim=fields.count("linear_value_head_dim", "features of a value head of linear attention"),
        conv_kernel=fields.count("linear_conv_kernel_dim", "tokens of the short convolution"),
    )
    if shape.value_heads % shape.key_heads:
        fields.conflict(
            f"linear_num_value_heads = {shape.value_heads} is not a multiple of linear_num_key_heads = "
            f"{shape.key_heads}: values share keys in equal groups",
            "linear_num_value_heads",
            "linear_num_key_heads",
        )
    return shape


def _latent(fields: Fields, hidden_size: int, layers: int) -> tuple[AttentionShape, ...]:
    for kind in sorted(set(fields.words("layer_types", _LAYER_TYPES, layers) or ()) - set(_FULL)):
        fields.problem(f"layer_types names {kind!r} beside latent attention (kv_lora_rank); known: {_FULL}")
    query_rank = fields.maybe_count("q_lora_rank", "features of the queries' latent")
    shape = MlaShape(
        hidden_size=hidden_size,
        heads=_heads(fields),
        query_rank=query_rank,
        kv_rank=fields.count("kv_lora_rank", "features of the latent of keys and values"),
        nope_dim=fields.count("qk_nope_head_dim", "features of a head without position"),
        rope_dim=fields.count("qk_rope_head_dim", "features of a head with position", least=0),
        value_dim=fields.count("v_head_dim", "features of a value head"),
        bias=fields.flag("attention_bias", "the projections of attention add a bias", default=False),
    )
    topk = fields.maybe_count("index_topk", "keys that sparse attention keeps for each query")
    if topk is None:
        return (shape,) * (layers + 1)
    if query_rank is None:
        fields.problem("q_lora_rank is missing: features of the latent that the indexer's queries come from")
    indexer = _indexer(fields, query_rank or 1, topk)
    owner = msgspec.structs.replace(shape, indexer=indexer, topk=topk)
    sharer = msgspec.structs.replace(shape, topk=topk)
    kinds = _indexer_kinds(fields, layers)
    return (*(owner if kind == "full" else sharer for kind in kinds), owner)


def _indexer(fields: Fields, query_inputs: int, topk: int) -> IndexerShape:
    return IndexerShape(
        heads=fields.count("index_n_heads", "heads of the indexer"),
        head_dim=fields.count("index_head_dim", "features of a head of the indexer"),
        topk=topk,
        query_inputs=query_inputs,
    )


def _indexer_kinds(fields: Fields, layers: int) -> tuple[str, ...]:
    """``full`` where a layer has an indexer, ``shared`` where it uses an earlier layer's (GLM-5.2)."""
    kinds = fields.words("indexer_types", "which layers own an indexer (full) or share one (shared)", layers)
    pattern = fields.raw("index_topk_pattern")
    if kinds is None and isinstance(pattern, str) and len(pattern) >= layers:
        kinds = tuple({"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern[:layers])
    if kinds is None:
        step = fields.count("index_topk_freq", "each n-th layer owns an indexer", 1)
        offset = fields.count("index_skip_topk_offset", "first layers that own one", 2, least=0)
        kinds = tuple("shared" if max(i - offset + 1, 0) % step else "full" for i in range(layers))
    for kind in sorted(set(kinds) - {"full", "shared"}):
        fields.problem(f"indexer_types names {kind!r}; known are 'full' (owns an indexer) and 'shared'")
    if kinds and kinds[0] == "shared":
        fields.problem("indexer_types makes the first layer share an indexer that no layer before it owns")
    return kinds


def _compressed(fields: Fields, hidden_size: int, layers: int) -> tuple[AttentionShape, ...]:
    heads = _heads(fields)
    query_rank = fields.count("q_lora_rank", "features of the queries' latent")
    window = CompressedAttentionShape(
        hidden_size=hidden_size,
        heads=heads,
        head_dim=fields.count("head_dim", "features of a query, and of the one key and value"),
        query_rank=query_rank,
        output_groups=fields.count("o_groups", "groups of heads of the output projection"),
        output_rank=fields.count("o_lora_rank", "features of each group of the output projection"),
        window=fields.count("sliding_window", "tokens that are attended to one by one"),
    )
    if heads * window.head_dim % window.output_groups:
        fields.conflict(
            f"num_attention_heads * head_dim = {heads * window.head_dim} is not a multiple of o_groups = "
            f"{window.output_groups}: heads are projected in equal groups",
            "num_attention_heads",
            "head_dim",
            "o_groups",
        )
    kinds = _compressed_kinds(fields, layers)
    shapes = {"sliding_attention": window}
    rates = fields.raw("compress_rates")
    rates = rates if isinstance(rates, dict) else {}
    rate = Fields({**rates, **{k: fields.raw(k) for k in ("compress_rate_csa", "compress_rate_hca")}})
    if "heavily_compressed_attention" in kinds:
        step = rate.count(("heavily_compressed_attention", "compress_rate_hca"), "tokens of an entry", 128)
        shapes["heavily_compressed_attention"] = msgspec.structs.replace(window, rate=step)
    if "compressed_sparse_attention" in kinds:
        topk = fields.count("index_topk", "compressed entries that are kept for each query")
        step = rate.count(("compressed_sparse_attention", "compress_rate_csa"), "tokens of an entry", 4)
        shapes["compressed_sparse_attention"] = msgspec.structs.replace(
            window, rate=step, overlap=True, indexer=_indexer(fields, query_rank, topk)
        )
    return (*(shapes.get(kind, window) for kind in kinds), window)


def _compressed_kinds(fields: Fields, layers: int) -> tuple[str, ...]:
    kinds = fields.words("layer_types", _LAYER_TYPES, layers)
    ratios = fields.numbers("compress_ratios", "tokens of a compressed entry in each layer")
    if kinds is None and ratios:
        if len(ratios) < layers:
            fields.conflict(
                f"compress_ratios has {len(ratios)} entries for num_hidden_layers = {layers}",
                "num_hidden_layers",
            )
            return ("sliding_attention",) * layers
        for ratio in sorted(set(ratios) - set(_COMPRESSED)):
            fields.problem(
                f"compress_ratios has {ratio}; known are 0 and 1 (none), 4 (sparse) and 128 (heavy)"
            )
        kinds = tuple(_COMPRESSED.get(ratio, "sliding_attention") for ratio in ratios[:layers])
    if kinds is None:
        fields.problem("layer_types (or compress_ratios) is missing: which layers compress keys, and how")
        return ("sliding_attention",) * layers
    for kind in sorted(set(kinds) - set(_COMPRESSED.values())):
        fields.problem(
            f"layer_types names {kind!r}; known beside compressed attention: {tuple(_COMPRESSED.values())}"
        )
    return kinds
