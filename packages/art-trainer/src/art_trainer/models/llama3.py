"""Llama 3 and every dense model with its architecture (SmolLM2 among them): GQA, SwiGLU, RMSNorm, RoPE."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from art_trainer.errors import UnsupportedModelError
from art_trainer.layout import FusedLayout
from art_trainer.models.base import ModelDescription

_REQUIRED = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "rms_norm_eps",
    "vocab_size",
)  # fmt: skip


class Llama3:
    """The handler; stateless."""

    architectures: tuple[str, ...] = ("LlamaForCausalLM",)
    targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    def describe(self, config: Mapping[str, Any]) -> ModelDescription:
        """See :class:`art_trainer.models.base.ModelFamily`."""
        missing = [name for name in _REQUIRED if name not in config]
        if missing:
            raise UnsupportedModelError(f"config.json lacks {', '.join(missing)}")
        for name, wanted in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
            if config.get(name, wanted) != wanted:
                raise UnsupportedModelError(
                    f"{name} is {config[name]!r}; the Llama 3 handler covers {wanted!r}"
                )
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        groups = config.get("num_key_value_heads") or heads
        width = config.get("head_dim") or hidden // heads
        tied = bool(config.get("tie_word_embeddings", False))
        options = {
            "num_layers": config["num_hidden_layers"],
            "hidden_size": hidden,
            "ffn_hidden_size": config["intermediate_size"],
            "num_attention_heads": heads,
            "num_query_groups": groups,
            "kv_channels": width,
            "layernorm_epsilon": config["rms_norm_eps"],
            "normalization": "RMSNorm",
            "gated_linear_unit": True,
            "activation_func": torch.nn.functional.silu,
            "add_bias_linear": False,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        }
        return ModelDescription(
            options=options,
            vocabulary=config["vocab_size"],
            max_positions=config.get("max_position_embeddings", 2048),
            tied=tied,
            inverse_frequencies=_inverse_frequencies(config, width),
            weights=_weights(options, config["vocab_size"], tied),
            targets=self.targets,
        )


def _weights(options: Mapping[str, Any], vocabulary: int, tied: bool) -> dict[str, FusedLayout]:
    hidden, inner, groups = options["hidden_size"], options["ffn_hidden_size"], options["num_query_groups"]
    query_rows = options["num_attention_heads"] * options["kv_channels"]
    key_rows = groups * options["kv_channels"]
    weights = {"embedding.word_embeddings.weight": FusedLayout(("model.embed_tokens.weight",), (vocabulary,))}
    for index in range(options["num_layers"]):
        ours, theirs = f"decoder.layers.{index}.", f"model.layers.{index}."
        weights |= {
            ours + "input_layernorm.weight": FusedLayout((theirs + "input_layernorm.weight",), (hidden,)),
            ours + "self_attention.linear_qkv.weight": FusedLayout(
                tuple(theirs + f"self_attn.{name}_proj.weight" for name in "qkv"),
                (query_rows, key_rows, key_rows),
                groups,
            ),
            ours + "self_attention.linear_proj.weight": FusedLayout(
                (theirs + "self_attn.o_proj.weight",), (hidden,)
            ),
            ours + "pre_mlp_layernorm.weight": FusedLayout(
                (theirs + "post_attention_layernorm.weight",), (hidden,)
            ),
            ours + "mlp.linear_fc1.weight": FusedLayout(
                (theirs + "mlp.gate_proj.weight", theirs + "mlp.up_proj.weight"), (inner, inner)
            ),
            ours + "mlp.linear_fc2.weight": FusedLayout((theirs + "mlp.down_proj.weight",), (hidden,)),
        }
    weights["decoder.final_layernorm.weight"] = FusedLayout(("model.norm.weight",), (hidden,))
    if not tied:
        weights["output_layer.weight"] = FusedLayout(("lm_head.weight",), (vocabulary,))
    return weights


def _inverse_frequencies(config: Mapping[str, Any], width: int) -> Tensor:
    """RoPE of ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before)."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = rope.get("rope_theta") or config.get("rope_theta") or 10_000.0
    kind = rope.get("rope_type") or rope.get("type") or "default"
    plain: Tensor = 1.0 / (theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width))
    if kind == "default":
        return plain
    if kind != "llama3":
        raise UnsupportedModelError(
            f"rope type is {kind!r}; the Llama 3 handler covers 'default' and 'llama3'"
        )
    return _llama3_scaling(plain, rope)


def _llama3_scaling(plain: Tensor, rope: Mapping[str, Any]) -> Tensor:
    """Llama 3.1's rule: long wavelengths are divided by ``factor``, short ones kept, others between."""
    low, high, original = (
        rope[name] for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    turns = original * plain / (2 * math.pi)  # rotations within the original context
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    scaled: Tensor = plain * (kept + (1 - kept) / rope["factor"])
    return scaled
