"""Models, workloads and machines of the planner's tests."""

import pytest

from art_topology.hardware import Machine, default_hardware
from art_topology.models import ModelDescription, load_model_config
from art_topology.workload import WorkloadSpec

DENSE = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="session")
def dense() -> ModelDescription:
    """Eight billion parameters, 32 layers."""
    return load_model_config(DENSE)


@pytest.fixture(scope="session")
def moe() -> ModelDescription:
    """Thirty billion parameters, 128 experts, 48 layers."""
    return load_model_config(MOE)


@pytest.fixture(scope="session")
def h100() -> Machine:
    """Eight H100 with NVLink, InfiniBand between hosts."""
    return default_hardware().machine("H100")


@pytest.fixture
def pretraining() -> WorkloadSpec:
    """Rows that one document fills."""
    return WorkloadSpec(
        packed_sequence_length=8192,
        groups_per_step=64,
        group_size=1,
        prompt_tokens=1,
        completion_tokens=8191,
    )


@pytest.fixture
def rollouts() -> WorkloadSpec:
    """Groups of eight completions, adapters of rank 16."""
    return WorkloadSpec(
        packed_sequence_length=16384,
        groups_per_step=32,
        group_size=8,
        prompt_tokens=512,
        completion_tokens=1536,
        lora_rank=16,
    )
