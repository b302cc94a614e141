"""The feed-forward layer of each layer, from the fields of a configuration."""

from art_topology.models.conventions import Convention
from art_topology.models.description import MlpShape
from art_topology.models.fields import Fields
from art_topology.models.mlp import DenseShape, MoeShape

_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
_TOPK = ("num_experts_per_tok", "top_k_experts", "moe_topk", "num_experts_per_token")
_EXPERT_SIZE = ("moe_intermediate_size", "expert_ffn_hidden_size")


def read_mlps(fields: Fields, convention: Convention, hidden_size: int, layers: int) -> tuple[MlpShape, ...]:
    """The feed-forward layer of every layer, then that of a layer of multi-token prediction."""
    kinds = _kinds(fields, layers)
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


def _kinds(fields: Fields, layers: int) -> tuple[str, ...]:
    """``dense`` or ``moe`` for each layer."""
    experts = fields.count(_EXPERTS, "routed experts of a layer", 0, least=0)
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
        return tuple("dense" if kind == "dense" else "moe" for kind in kinds)
    if experts == 0 or switched_off:
        return ("dense",) * layers
    dense_first = fields.count("first_k_dense_replace", "first layers without experts", 0, least=0)
    only_dense = set(fields.numbers("mlp_only_layers", "layers without experts"))
    step = fields.count("decoder_sparse_step", "each n-th layer has experts", 1)
    every = fields.raw("moe_layer_freq")
    if isinstance(every, list | tuple):
        chosen = fields.numbers("moe_layer_freq", "1 for each layer with experts, 0 for the others")
        if len(chosen) < layers:
            fields.problem(f"moe_layer_freq has {len(chosen)} entries for num_hidden_layers = {layers}")
            return ("moe",) * layers
        return tuple("moe" if chosen[i] else "dense" for i in range(layers))
    freq = fields.count("moe_layer_freq", "each n-th layer has experts", 1)

    def has_experts(index: int) -> bool:
        return (
            index >= dense_first and index not in only_dense and (index + 1) % step == 0 and index % freq == 0
        )

    return tuple("moe" if has_experts(i) else "dense" for i in range(layers))


def _moe(fields: Fields, convention: Convention, hidden_size: int) -> MoeShape:
    experts = fields.count(_EXPERTS, "routed experts of a layer")
    topk = fields.count(_TOPK, "experts that each token is sent to")
    if topk > experts:
        fields.problem(f"num_experts_per_tok = {topk} is more than the {experts} experts of a layer")
    expert_size = fields.maybe_count(_EXPERT_SIZE, "features inside an expert")
    if expert_size is None:
        expert_size = fields.count("intermediate_size", "features inside an expert")
        if not convention.known:
            fields.assume("No moe_intermediate_size: intermediate_size is taken as the experts'.")
    beside = fields.raw("enable_moe_block") is True
    shared = fields.count("shared_expert_intermediate_size", "features inside the shared expert", 0, least=0)
    gated = shared > 0
    if beside:
        shared = fields.count("intermediate_size", "features inside the dense layer beside the experts")
    elif not gated:
        count = fields.count(("n_shared_experts", "num_shared_experts"), "shared experts", 0, least=0)
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
            fields.problem(f"intermediate_size has {len(sizes)} entries for num_hidden_layers = {layers}")
            return (1,) * layers
        return sizes[:layers]
    size = fields.count("intermediate_size", "features inside a feed-forward layer without experts")
    overridden = [override.get("intermediate_size", size) for override in fields.overrides(layers)]
    if not fields.flag("use_double_wide_mlp", "layers with shared keys are twice as wide", default=False):
        return tuple(overridden)
    shared = fields.count("num_kv_shared_layers", "last layers that use earlier keys and values", 0, least=0)
    first = layers - shared
    return tuple(2 * size if i >= first > 0 else size for i, size in enumerate(overridden))
