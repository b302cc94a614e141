"""What ``quantization_config`` of a ``config.json`` says: which weights are quantized, and how.

Sources of the fields: the quantization configurations of transformers 5.19 and of vLLM, and
the quantization arguments of compressed-tensors. What cannot be read is said to be unknown, never guessed.
"""

import re
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import msgspec

from art_topology.models.description import LayerShape
from art_topology.models.matrices import Matrix
from art_topology.models.quantization import (
    DECLARED,
    Formats,
    Quantization,
    WeightFormat,
    can_be_quantized,
    told_of,
)

SOURCE = "quantization_config"

_MODULES: dict[str, tuple[str, ...]] = {
    "q": ("self_attn.q_proj", "attn.q_proj"),
    "k": ("self_attn.k_proj", "attn.k_proj"),
    "v": ("self_attn.v_proj", "attn.v_proj"),
    "o": ("self_attn.o_proj", "attn.o_proj"),
    "q_down": ("self_attn.q_a_proj", "attn.wq_a"),
    "q_up": ("self_attn.q_b_proj", "attn.wq_b"),
    "kv_down": ("self_attn.kv_a_proj_with_mqa",),
    "kv_up": ("self_attn.kv_b_proj",),
    "kv": ("self_attn.kv_proj", "attn.wkv"),
    "o_down": ("self_attn.o_a_proj", "attn.wo_a"),
    "o_up": ("self_attn.o_b_proj", "attn.wo_b"),
    "indexer_q": ("self_attn.indexer.wq_b", "attn.indexer.wq_b"),
    "indexer_k": ("self_attn.indexer.wk",),
    "linear_qk": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz"),
    "linear_v": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz"),
    "linear_z": ("linear_attn.in_proj_z", "linear_attn.in_proj_qkvz"),
    "linear_o": ("linear_attn.out_proj",),
    "gate": ("mlp.gate_proj", "mlp.gate_up_proj"),
    "up": ("mlp.up_proj", "mlp.gate_up_proj"),
    "down": ("mlp.down_proj",),
    "expert_gate": (
        "mlp.experts.0.gate_proj",
        "mlp.experts.gate_up_proj",
        "block_sparse_moe.experts.0.w1",
        "ffn.experts.0.w1",
    ),
    "expert_up": (
        "mlp.experts.0.up_proj",
        "mlp.experts.gate_up_proj",
        "block_sparse_moe.experts.0.w3",
        "ffn.experts.0.w3",
    ),
    "expert_down": (
        "mlp.experts.0.down_proj",
        "mlp.experts.down_proj",
        "block_sparse_moe.experts.0.w2",
        "ffn.experts.0.w2",
    ),
    "shared_gate": ("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj", "ffn.shared_experts.w1"),
    "shared_up": ("mlp.shared_experts.up_proj", "mlp.shared_expert.up_proj", "ffn.shared_experts.w3"),
    "shared_down": ("mlp.shared_experts.down_proj", "mlp.shared_expert.down_proj", "ffn.shared_experts.w2"),
}
"""How checkpoints call the matrices of a layer."""
_HEAD = ("lm_head", "model.lm_head", "language_model.lm_head")


class _UnreadError(Exception):
    """Why the fields do not say how the weights are stored."""


_Rule = tuple[Callable[[Matrix, tuple[str, ...]], bool], WeightFormat | None]
"""Which matrices it takes, by themselves and by their names, and their form; None: the dtype."""


def read_quantization(
    values: Mapping[str, Any],
    layers: tuple[LayerShape, ...],
    mtp_layers: tuple[LayerShape, ...],
    head: Matrix,
) -> Quantization | None:
    """How the checkpoint of a configuration is stored; None: in the dtype.

    Args:
        values: The configuration.
        layers: Its decoder layers.
        mtp_layers: Its layers of multi-token prediction.
        head: Its vocabulary head.
    """
    config = values.get("quantization_config") or values.get("compression_config")
    if config is None:
        return None
    try:
        rules = _rules(config, values)
    except _UnreadError as unread:
        return Quantization(source=SOURCE, unread=str(unread))
    every, chosen = (*layers, *mtp_layers), []
    names: dict[str, tuple[str, ...]] = {}
    for index, layer in enumerate(every):
        found = []
        for matrix in layer.matrices():
            if can_be_quantized(matrix):
                fmt = _first(rules, matrix, _names(index, matrix.name, names))
                found += [(matrix.name, fmt)] if fmt is not None else []
        chosen.append(tuple(found))
    formats: tuple[Formats, ...] = tuple(chosen)
    output = _first(rules, head, _HEAD) if _takes_head(config) else None
    told = told_of(tuple((layer.matrices(), f) for layer, f in zip(every, formats, strict=True)), output)
    if not told:
        return None
    return Quantization(source=SOURCE, layers=formats, output=output, told=told)


def _names(index: int, matrix: str, known: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    modules = known.setdefault(matrix, _MODULES.get(matrix, (matrix,)))
    return tuple(f"model.layers.{index}.{module}" for module in modules)


def _first(rules: list[_Rule], matrix: Matrix, names: tuple[str, ...]) -> WeightFormat | None:
    return next((fmt for takes, fmt in rules if takes(matrix, names)), None)


def _takes_head(config: Mapping[str, Any]) -> bool:
    """Whether the vocabulary head can be quantized: where it is asked for."""
    if config.get("lm_head") is True:
        return True
    groups = config.get("config_groups")
    return isinstance(groups, Mapping) and any(
        isinstance(group, Mapping) and "lm_head" in str(group.get("targets")) for group in groups.values()
    )


def _rules(config: object, values: Mapping[str, Any]) -> list[_Rule]:
    if not isinstance(config, Mapping):
        raise _UnreadError(f"it is {_short(config)}, not an object")
    method = config.get("quant_method", "compressed-tensors" if "config_groups" in config else None)
    reader = _METHODS.get(method) if isinstance(method, str) else None
    if reader is None:
        raise _UnreadError(f"quant_method {_short(method)} is not known")
    return [*_kept(config), *reader(config, values)]


def _kept(config: Mapping[str, Any]) -> list[_Rule]:
    """What stays in the dtype, however the methods call it."""
    found: list[_Rule] = []
    for name in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"):
        entries = config.get(name)
        if entries is None:
            continue
        if not isinstance(entries, list | tuple) or not all(isinstance(entry, str) for entry in entries):
            raise _UnreadError(f"{name} is {_short(entries)}, not a list of names")
        found.append((_named(entries), None))
    return found


def _named(entries: list[str] | tuple[str, ...]) -> Callable[[Matrix, tuple[str, ...]], bool]:
    """Takes matrices that an entry names: a module, one around it, its last parts, a pattern with ``*``, or
    ``re:`` with a regular expression."""
    plain, patterns = set(), []
    for entry in entries:
        try:
            if entry.startswith("re:"):
                patterns.append(re.compile(entry.removeprefix("re:")))
            elif "*" in entry:
                pieces = (re.escape(piece) for piece in entry.split("*"))
                patterns.append(re.compile(".*".join(pieces) + r"(\..*)?$"))
            else:
                plain.add(_inside(entry))
        except re.error as error:
            raise _UnreadError(f"{_short(entry)} is no regular expression: {error}") from None

    def takes(_: Matrix, names: tuple[str, ...]) -> bool:
        whole = [spelled for name in names for spelled in (name, f"language_model.{name}")]
        return any(part in plain for name in names for part in _pieces(name)) or any(
            pattern.match(name) for pattern in patterns for name in whole
        )

    return takes


def _inside(entry: str) -> str:
    """The entry from its layer on: what is before differs among families."""
    name = entry.removesuffix(".weight")
    layer = re.search(r"(?:^|\.)(layers\.\d+(?:\.|$).*)", name)
    return layer[1] if layer else name


def _pieces(name: str) -> list[str]:
    """All runs of the parts of a name."""
    parts = name.split(".")
    spans = combinations(range(len(parts) + 1), 2)
    return [".".join(parts[first:last]) for first, last in spans]


def _all(_: Matrix, __: tuple[str, ...]) -> bool:
    return True


def _experts(matrix: Matrix, _: tuple[str, ...]) -> bool:
    return matrix.part == "routed_experts"


def _fp8(config: Mapping[str, Any], values: Mapping[str, Any]) -> list[_Rule]:
    block = config.get("weight_block_size")
    if block is None:
        fmt = WeightFormat(name="fp8", bits=8, rows=0, columns=0, scale_bytes=4)
    elif _is_block(block):
        fmt = WeightFormat(name="fp8", bits=8, rows=block[0], columns=block[1], scale_bytes=4)
    else:
        raise _UnreadError(f"weight_block_size is {_short(block)}, not two sizes of a block")
    experts = config.get("expert_dtype", values.get("expert_dtype"))
    if experts in (None, "fp8"):
        return [(_all, fmt)]
    if experts != "fp4":
        raise _UnreadError(f"expert_dtype is {_short(experts)}, neither fp4 nor fp8")
    return [(_experts, DECLARED["mxfp4"]), (_all, fmt)]


def _rows_of_fp8(config: Mapping[str, Any], values: Mapping[str, Any]) -> list[_Rule]:
    return [(_all, WeightFormat(name="fp8", bits=8, rows=1, columns=0, scale_bytes=4))]


def _mxfp4(config: Mapping[str, Any], values: Mapping[str, Any]) -> list[_Rule]:
    return [(_experts, DECLARED["mxfp4"])]


def _gptq(config: Mapping[str, Any], values: Mapping[str, Any]) -> list[_Rule]:
    fmt = _grouped(config, zeros=True, index=config.get("quant_method") == "gptq")
    rules: list[_Rule] = []
    dynamic = config.get("dynamic")
    if isinstance(dynamic, Mapping):
        for pattern, other in dynamic.items():
            named = _named([f"re:{str(pattern).removeprefix('+:').removeprefix('-:')}"])
            if str(pattern).startswith("-:"):
                rules.append((named, None))
            elif isinstance(other, Mapping):
                rules.append((named, _grouped({**config, **other}, zeros=True, index=bool(fmt.input_bytes))))
    return [*rules, (_all, fmt)]


def _awq(config: Mapping[str, Any], values: Mapping[str, Any]) -> list[_Rule]:
    return [(_all, _grouped(config, zeros=config.get("zero_point", True) is not False, index=False))]


def _grouped(config: Mapping[str, Any], *, zeros: bool, index: bool) -> WeightFormat:
    bits = config.get("bits", config.get("w_bit"))
    group = config.get("group_size", config.get("q_group_size"))
    if bits not in (2, 3, 4, 8):
        raise _UnreadError(f"bits is {_short(bits)}, not 2, 3, 4 or 8")
    if group != -1 and not _is_size(group):
        raise _UnreadError(f"group_size is {_short(group)}, neither a size nor -1")
    return WeightFormat(
        name=f"int{bits}",
        bits=bits,
        rows=1,
        columns=0 if group == -1 else group,
        scale_bytes=2,
        zero_bits=bits if zeros else 0,
        input_bytes=4 if index else 0,
    )


def _compressed(config: Mapping[str, Any], values: Mapping[str, Any]) -> list[_Rule]:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise _UnreadError(f"config_groups is {_short(groups)}, not an object with groups")
    named: list[_Rule] = []
    classes: list[_Rule] = []
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise _UnreadError(f"config_groups.{name} is {_short(group)}, not an object")
        targets = group.get("targets", ["Linear"])
        if not isinstance(targets, list | tuple) or not all(isinstance(target, str) for target in targets):
            raise _UnreadError(f"config_groups.{name}.targets is {_short(targets)}, not a list of names")
        kind = group.get("format", config.get("format"))
        fmt = _compressed_format(group.get("weights"), name, str(kind))
        if any(target in ("Linear", "FusedMoE") for target in targets):
            classes.append((_all, fmt))
        named.append((_named([target for target in targets if target not in ("Linear", "FusedMoE")]), fmt))
    return [*named, *classes]


def _compressed_format(weights: object, name: str, kind: str) -> WeightFormat | None:
    if weights is None:
        return None
    where = f"config_groups.{name}.weights"
    if not isinstance(weights, Mapping):
        raise _UnreadError(f"{where} is {_short(weights)}, not an object")
    bits, number, strategy = weights.get("num_bits"), weights.get("type", "int"), weights.get("strategy")
    group: Any = weights.get("group_size")
    block: Any = weights.get("block_structure")
    if kind.startswith(("nvfp4", "mxfp4")):
        return DECLARED[kind[:5]]
    if bits not in (2, 3, 4, 8) or number not in ("int", "float"):
        raise _UnreadError(f"{where} has {_short(number)} numbers of {_short(bits)} bits")
    form = f"fp{bits}" if number == "float" else f"int{bits}"
    zeros = bits if weights.get("symmetric", True) is False else 0
    fmt = WeightFormat(name=form, bits=bits, rows=1, columns=0, scale_bytes=2, zero_bits=zeros)
    if strategy == "block" and _is_block(block):
        return msgspec.structs.replace(fmt, rows=block[0], columns=block[1])
    if strategy == "tensor":
        return msgspec.structs.replace(fmt, rows=0)
    if strategy == "channel" or (strategy is None and group is None):
        return fmt
    if strategy in (None, "group", "tensor_group") and _is_size(group):
        return msgspec.structs.replace(fmt, columns=group)
    raise _UnreadError(f"{where} has strategy {_short(strategy)} with groups of {_short(group)}")


def _modelopt(config: Mapping[str, Any], values: Mapping[str, Any]) -> list[_Rule]:
    inside = config.get("quantization")
    fields = inside if isinstance(inside, Mapping) else config
    kind = fields.get("quant_algo")
    kept = _kept(fields) if fields is not config else []
    if kind == "NVFP4":
        return [*kept, (_all, DECLARED["nvfp4"])]
    if kind == "FP8":
        return [*kept, (_all, WeightFormat(name="fp8", bits=8, rows=0, columns=0, scale_bytes=4))]
    raise _UnreadError(f"quant_algo is {_short(kind)}, neither FP8 nor NVFP4")


_METHODS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], list[_Rule]]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _rows_of_fp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed,
    "gptq": _gptq,
    "auto-round": _gptq,
    "awq": _awq,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
}
"""By ``quant_method``."""


def _is_block(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_size, value))


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 2**20


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
