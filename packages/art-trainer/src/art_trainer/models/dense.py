"""What dense decoder families have in common: GQA, SwiGLU, RMSNorm before each block, RoPE, no biases.

A family is a :class:`DenseFamily`, which says only how it differs. A config is covered when everything in it
that changes the computation is: a setting that this version does not compute is refused by its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from art_trainer.errors import UnsupportedModelError
from art_trainer.layout import FusedLayout
from art_trainer.models.base import ModelDescription
from art_trainer.models.rope import read_rope

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a dense decoder layer, as PEFT calls them."""

_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
_REQUIRED = (*_SIZES, "max_position_embeddings", "rms_norm_eps")
_FIXED: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "is_causal": True,
    "quantization_config": None,
}


@dataclass(frozen=True)
class DenseFamily:
    """A handler, as data; see :class:`art_trainer.models.base.ModelFamily`.

    Args:
        name: for messages.
        architectures: names in a config's ``architectures``.
        required: keys that a config of this family has to have, besides those of every family.
        fixed: keys with the one value that is covered, which is also what their absence means.
        query_key_norm: queries and keys are normalized per head, before they are rotated.
        default_theta: base of the rotary embedding where the config has none; None if it has to have one.
    """

    name: str
    architectures: tuple[str, ...]
    required: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    query_key_norm: bool = False
    default_theta: float | None = None

    def describe(self, config: Mapping[str, Any]) -> ModelDescription:
        """Reads the content of ``config.json``.

        Raises:
            UnsupportedModelError: a key is missing, or has a value that is not covered.
        """
        self._check(config)
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        groups = config.get("num_key_value_heads") or heads
        width = config.get("head_dim") or hidden // heads
        if heads % groups:
            raise UnsupportedModelError(
                f"num_attention_heads is {heads}, no multiple of num_key_value_heads, which is {groups}"
            )
        if width % 2:
            raise UnsupportedModelError(f"the width of a head is {width}; an odd one cannot be rotated")
        tied = bool(config.get("tie_word_embeddings", False))
        options = {
            "num_layers": config["num_hidden_layers"],
            "hidden_size": hidden,
            "ffn_hidden_size": config["intermediate_size"],
            "num_attention_heads": heads,
            "num_query_groups": groups,
            "kv_channels": width,
            "qk_layernorm": self.query_key_norm,
            "layernorm_epsilon": config["rms_norm_eps"],
            "normalization": "RMSNorm",
            "gated_linear_unit": True,
            "add_bias_linear": False,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        }
        return ModelDescription(
            options=options,
            vocabulary=config["vocab_size"],
            max_positions=config["max_position_embeddings"],
            tied=tied,
            rope=read_rope(config, width, self.default_theta),
            weights=_weights(options, config["vocab_size"], tied),
            targets=TARGETS,
        )

    def _check(self, config: Mapping[str, Any]) -> None:
        missing = [name for name in (*_REQUIRED, *self.required) if config.get(name) is None]
        if missing:
            raise UnsupportedModelError(f"config.json lacks {', '.join(missing)}")
        for name in _SIZES:
            if not isinstance(config[name], int) or config[name] < 1:
                raise UnsupportedModelError(f"{name} is {config[name]!r}; it has to be a positive integer")
        for name, wanted in {**_FIXED, **self.fixed}.items():
            if config.get(name, wanted) != wanted:
                raise UnsupportedModelError(
                    f"{name} is {config[name]!r}; the {self.name} handler covers {wanted!r}"
                )
        windows = _windowed_layers(config)
        if windows:
            raise UnsupportedModelError(
                f"{windows} of {config['num_hidden_layers']} layers have attention that is not full "
                "(layer_types, or use_sliding_window with max_window_layers); "
                f"the {self.name} handler covers full attention"
            )


def _windowed_layers(config: Mapping[str, Any]) -> int:
    """How many layers do not attend to everything before them, as transformers derives it."""
    types, layers = config.get("layer_types"), config["num_hidden_layers"]
    if types is None:
        used = config.get("use_sliding_window") and config.get("sliding_window", 4096) is not None
        return max(layers - config.get("max_window_layers", 0), 0) if used else 0
    if len(types) != layers:
        raise UnsupportedModelError(f"layer_types has {len(types)} entries; num_hidden_layers is {layers}")
    return sum(kind != "full_attention" for kind in types)


def _weights(options: Mapping[str, Any], vocabulary: int, tied: bool) -> dict[str, FusedLayout]:
    """For each Megatron parameter, in the model's order, the Hugging Face parameters it is made of."""
    weights = {"embedding.word_embeddings.weight": FusedLayout(("model.embed_tokens.weight",), (vocabulary,))}
    for index in range(options["num_layers"]):
        layer = _layer(options, f"model.layers.{index}.")
        weights |= {f"decoder.layers.{index}.{name}.weight": layout for name, layout in layer.items()}
    weights["decoder.final_layernorm.weight"] = FusedLayout(("model.norm.weight",), (options["hidden_size"],))
    if not tied:
        weights["output_layer.weight"] = FusedLayout(("lm_head.weight",), (vocabulary,))
    return weights


def _layer(options: Mapping[str, Any], prefix: str) -> dict[str, FusedLayout]:
    """The modules of one Megatron layer; ``prefix`` is the Hugging Face layer's."""
    hidden, inner, groups = options["hidden_size"], options["ffn_hidden_size"], options["num_query_groups"]
    width = options["kv_channels"]
    queries, keys = options["num_attention_heads"] * width, groups * width

    def layout(rows: Mapping[str, int], groups: int = 1) -> FusedLayout:
        return FusedLayout(tuple(f"{prefix}{name}.weight" for name in rows), tuple(rows.values()), groups)

    heads = {"self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys}
    layer = {
        "input_layernorm": layout({"input_layernorm": hidden}),
        "self_attention.linear_qkv": layout(heads, groups),
        "self_attention.linear_proj": layout({"self_attn.o_proj": hidden}),
        "pre_mlp_layernorm": layout({"post_attention_layernorm": hidden}),
        "mlp.linear_fc1": layout({"mlp.gate_proj": inner, "mlp.up_proj": inner}),
        "mlp.linear_fc2": layout({"mlp.down_proj": hidden}),
    }
    if options["qk_layernorm"]:
        layer["self_attention.q_layernorm"] = layout({"self_attn.q_norm": width})
        layer["self_attention.k_layernorm"] = layout({"self_attn.k_norm": width})
    return layer
