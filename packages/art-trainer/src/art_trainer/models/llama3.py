"""Llama 3 and every dense model with its architecture, SmolLM2 among them."""

from art_trainer.models.dense import DenseFamily

LLAMA3 = DenseFamily(
    name="Llama 3",
    architectures=("LlamaForCausalLM",),
    fixed={"mlp_bias": False},
    default_theta=10_000.0,
)
