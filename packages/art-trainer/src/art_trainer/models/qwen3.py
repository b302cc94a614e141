"""Qwen 3 dense: a norm per head on queries and keys, and heads whose width is a size of its own.

The width of a head, the number of key/value heads and the rotary base are not derived from other sizes, and
what programs assume when they are absent differs (a base of 10,000 or of 1,000,000): they have to be there.
"""

from art_trainer.models.dense import DenseFamily

QWEN3 = DenseFamily(
    name="Qwen 3",
    architectures=("Qwen3ForCausalLM",),
    required=("head_dim", "num_key_value_heads"),
    fixed={"dual_chunk_attention_config": None},
    query_key_norm=True,
)
