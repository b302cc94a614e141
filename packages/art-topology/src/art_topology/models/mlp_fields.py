"""The feed-forward layer of each layer, from the fields of a configuration."""

from art_topology.models.conventions import Convention
from art_topology.models.description import MlpShape
from art_topology.models.fields import Fields
from art_topology.models.mlp import DenseShape, MoeShape

_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "n_experts")
_TOPK = (
    "num_experts_per_tok",
    "top_k_experts",
    "moe_topk",
    "num_experts_per_token",
    "n_experts_per_tok",
    "n_experts_per_token",
    "experts_per_token",
    "moe_top_k",
    "moe_k",
    "moe_router_topk",
)
_EXPERT_SIZE = ("moe_intermediate_size", "expert_ffn_hidden_size")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_SHARED_SIZE = "shared_expert_intermediate_size"
_WHERE = (
    "moe_layer_freq",
    "mlp_only_layers",
    "first_k_dense_replace",
    "decoder_sparse_step",
    "moe_layer_start_index",
    "moe_layer_end_index",
    "moe_layer_interval",
    "enable_moe_block",
)
"""Fields that say which layers have experts."""


def read_mlps(fields: Fields, convention: Convention, hidden_size: int, layers: int) -> tuple[MlpShape, ...]:
    """The feed-forward layer of every layer, then that of a layer of multi-token prediction."""
    kinds = _kinds(fields, convention, layers)
    moe = _moe(fields, convention, hidden_size) if set(kinds) - {"dense"} else None
    sizes = _dense_sizes(fields, layers) if "dense" in kinds else (0,) * layers
    bias = fields.flag("mlp_bias", "the feed-forward layers add a bias", default=False)
    found: list[MlpShape] = []
    for kind, size in zip(kinds, sizes, strict=True):
        if kind == "dense" or moe is None:
            found.append(DenseShape(hidden_size=hidden_size, inner_size=size, bias=bias))
        else:
            found.append(moe)
    last = found[-1] if found else DenseShape(hidden_size=hidden_size, inner_size=1)
    return (*found, last if moe is None else moe)


def _kinds(fields: Fields, convention: Convention, layers: int) -> tuple[str, ...]:
    """``dense`` or ``moe`` for each layer."""
    experts = fields.count(
        _EXPERTS, "routed experts of a layer", _default_experts(fields, convention), least=0
    )
    switched_off = fields.raw("enable_moe_block") is False
    kinds = fields.words(
        "mlp_layer_types", "which layers have experts (sparse) and which do not (dense)", layers
    )
    if kinds is not None:
        known = ("dense", "sparse", "moe", "hash_moe")
        for kind in sorted(set(kinds) - set(known)):
            fields.problem(f"mlp_layer_types names {kind!r}; known: {', '.join(known)}")
        if experts == 0 and set(kinds) - {"dense"}:
            fields.problem(f"{_EXPERTS[0]} is missing, but mlp_layer_types has layers with experts")
        fields.understood((*_TOPK, *_EXPERT_SIZE, *_SHARED, _SHARED_SIZE, *_WHERE))
        return tuple("dense" if kind == "dense" else "moe" for kind in kinds)
    if experts == 0 or switched_off:
        if switched_off or fields.names(_EXPERTS) or fields.is_broken(_EXPERTS[0]):
            fields.understood((*_TOPK, *_EXPERT_SIZE, *_SHARED, _SHARED_SIZE, *_WHERE))
        return ("dense",) * layers
    fields.understood((*_SHARED, *_WHERE))
    dense_first = fields.count("first_k_dense_replace", "first layers without experts", 0, least=0)
    only_dense = set(fields.numbers("mlp_only_layers", "layers without experts"))
    step = fields.count("decoder_sparse_step", "each n-th layer has experts", 1)
    every = fields.raw("moe_layer_freq")
    if isinstance(every, list | tuple):
        chosen = fields.numbers("moe_layer_freq", "1 for each layer with experts, 0 for the others")
        if len(chosen) < layers:
            fields.conflict(
                f"moe_layer_freq has {len(chosen)} entries for num_hidden_layers = {layers}",
                "num_hidden_layers",
            )
            return ("moe",) * layers
        return tuple("moe" if chosen[i] else "dense" for i in range(layers))
    freq = fields.count("moe_layer_freq", "each n-th layer has experts", 1)
    start = fields.count("moe_layer_start_index", "the first layer with experts", 0, least=0)
    end = fields.count("moe_layer_end_index", "the last layer with experts", layers, least=-1)
    interval = fields.count("moe_layer_interval", "each n-th layer has experts", 1)

    def has_experts(index: int) -> bool:
        return (
            max(dense_first, start) <= index <= (layers if end == -1 else end)
            and index not in only_dense
            and (index + 1) % step == 0
            and (index + 1) % interval == 0
            and index % freq == 0
        )

    return tuple("moe" if has_experts(i) else "dense" for i in range(layers))


def _default_experts(fields: Fields, convention: Convention) -> int | None:
    """0 where nothing speaks of experts; None where their number must be there."""
    if fields.names(_EXPERTS) or fields.raw("enable_moe_block") is False or fields.has("mlp_layer_types"):
        return 0
    model_type, names = fields.raw("model_type"), fields.raw("architectures")
    said = [model_type, *names] if isinstance(names, list | tuple) else [model_type]
    named = any(isinstance(name, str) and "moe" in name.lower() for name in said)
    per_token = any(fields.raw(name) for name in (*_TOPK, *_EXPERT_SIZE))
    return None if convention.experts or named or per_token else 0


def _moe(fields: Fields, convention: Convention, hidden_size: int) -> MoeShape:
    experts = fields.count(_EXPERTS, "routed experts of a layer")
    topk = fields.count(_TOPK, "experts that each token is sent to")
    if topk > experts:
        fields.conflict(
            f"{fields.found(_TOPK)} = {topk} is more than the {experts} experts of a layer",
            "num_experts_per_tok",
            "num_experts",
        )
    expert_size = fields.maybe_count(_EXPERT_SIZE, "features inside an expert")
    if expert_size is None:
        expert_size = fields.count("intermediate_size", "features inside an expert")
        if not convention.known:
            fields.assume("No moe_intermediate_size: intermediate_size is taken as the experts'.")
    beside = fields.raw("enable_moe_block") is True
    shared = fields.count(_SHARED_SIZE, "features inside the shared expert", 0, least=0)
    gated = shared > 0
    if beside:
        shared = fields.count("intermediate_size", "features inside the dense layer beside the experts")
    elif not gated:
        count = fields.count(_SHARED, "shared experts", 0, least=0)
        shared = count * expert_size
    return MoeShape(
        hidden_size=hidden_size,
        experts=experts,
        topk=topk,
        expert_size=expert_size,
        shared_size=shared,
        bias=convention.expert_bias,
        router_bias=convention.expert_bias,
        shared_gate=gated,
        router_scale=beside,
    )


def _dense_sizes(fields: Fields, layers: int) -> tuple[int, ...]:
    raw = fields.raw("intermediate_size")
    if isinstance(raw, list | tuple):
        sizes = fields.numbers("intermediate_size", "features inside each feed-forward layer")
        if len(sizes) < layers:
            fields.conflict(
                f"intermediate_size has {len(sizes)} entries for num_hidden_layers = {layers}",
                "num_hidden_layers",
            )
            return (1,) * layers
        return sizes[:layers]
    size = fields.count("intermediate_size", "features inside a feed-forward layer without experts")
    overridden = [override.get("intermediate_size", size) for override in fields.overrides(layers)]
    if not fields.flag("use_double_wide_mlp", "layers with shared keys are twice as wide", default=False):
        return tuple(overridden)
    shared = fields.count("num_kv_shared_layers", "last layers that use earlier keys and values", 0, least=0)
    first = layers - shared
    return tuple(2 * size if i >= first > 0 else size for i, size in enumerate(overridden))
