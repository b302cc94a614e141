"""The frozen model that trains an adapter: megatron-core's ``GPTModel`` with this package's norm, activation
and forest attention in its layer spec. It returns hidden states; logits are made in ``logprobs``, and only
where they are needed.
"""

import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor

from art_trainer import platform
from art_trainer.attention import ForestAttention, ForestPlan, plan_forest
from art_trainer.layers import RMSNorm, SwiGLU
from art_trainer.lora import Adapter, add_adapter
from art_trainer.models.base import ModelDescription
from art_trainer.rows import PackedRow
from art_trainer.specs import LoraSpec
from art_trainer.weights import load_weights

with platform.quiet_megatron(), platform.without_compiler():
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.mlp import MLP, MLPSubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig


class TrainableModel:
    """Owns one frozen Megatron model and its adapter."""

    def __init__(
        self, description: ModelDescription, dtype: torch.dtype, lora: LoraSpec, model_path: str
    ) -> None:
        """Builds the model and loads its weights.

        Raises:
            ModelLoadError: the folder's weights do not fit the description.
            SpecError: ``lora`` targets a layer that the family cannot adapt.
        """
        self.description = description
        self.dtype = dtype
        self._frequencies = description.rope.inverse_frequencies()
        with platform.quiet_megatron():
            self.module = _build(description, dtype)
        self.base_parameter_count = load_weights(
            self.module, description.weights, description.tied, model_path
        )
        self.adapter: Adapter = add_adapter(self.module, description, lora)
        self.module.eval()  # no layer draws random numbers; nothing is checkpointed

    @property
    def output_weight(self) -> Tensor:
        """The output projection ``[V, H]``, frozen."""
        name = "embedding.word_embeddings.weight" if self.description.tied else "output_layer.weight"
        return self.module.get_parameter(name)

    def plan(self, row: PackedRow) -> ForestPlan:
        """Plans the attention of a row."""
        options = self.description.options
        return plan_forest(
            row.subtree_end,
            row.position_ids,
            self._frequencies,
            heads_per_group=options["num_attention_heads"] // options["num_query_groups"],
            dtype=self.dtype,
        )

    def hidden_states(self, row: PackedRow) -> Tensor:
        """Final, normalized hidden states ``[T, H]`` of a packed row, in the model's dtype."""
        hidden: Tensor = self.module(
            torch.from_numpy(row.token_ids)[None],
            torch.from_numpy(row.position_ids)[None],
            self.plan(row),
            output_processor=_keep_hidden,
        )
        return hidden[:, 0]


def _keep_hidden(hidden_states: Tensor, **_: Any) -> Tensor:
    """An ``output_processor`` for ``GPTModel.forward`` that leaves the logits out."""
    return hidden_states


def _build(description: ModelDescription, dtype: torch.dtype) -> torch.nn.Module:
    platform.keep_given_groups()
    config = TransformerConfig(
        **description.options,
        **platform.CPU_MODEL_OPTIONS,
        params_dtype=dtype,
        activation_func=torch.nn.functional.silu,  # of every family so far; SwiGLU computes it
        use_te_activation_func=True,
    )
    block = TransformerBlockSubmodules(
        layer_specs=[_layer_spec(config.qk_layernorm)] * config.num_layers, layer_norm=RMSNorm
    )
    model: torch.nn.Module = GPTModel(
        config,
        block,
        vocab_size=description.vocabulary,
        max_sequence_length=description.max_positions,
        position_embedding_type="none",  # ForestAttention rotates by depth in the tree
        share_embeddings_and_output_weights=description.tied,
        pg_collection=platform.single_rank_groups(),
    )
    return model


def _layer_spec(query_key_norm: bool) -> ModuleSpec:
    """Megatron's local layer with its parallel linear layers and everything in between replaced."""
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    head_norm = RMSNorm if query_key_norm else None
    layer = spec.submodules
    linears = layer.mlp.keywords["submodules"]
    mlp = MLPSubmodules(linears.linear_fc1, linears.linear_fc2, activation_func=SwiGLU)
    attention = layer.self_attention
    inner = dataclasses.replace(
        attention.submodules,
        core_attention=ForestAttention,
        q_layernorm=head_norm,
        k_layernorm=head_norm,
    )
    layer = dataclasses.replace(
        layer,
        input_layernorm=RMSNorm,
        pre_mlp_layernorm=RMSNorm,
        self_attention=dataclasses.replace(attention, submodules=inner),
        mlp=functools.partial(MLP.as_mlp_submodule, submodules=mlp),
    )
    return dataclasses.replace(spec, submodules=layer)
