"""Models: what a Hugging Face ``config.json`` says, and the arithmetic of parameters and FLOPs on it."""

from art_topology.models.attention import GqaShape, IndexerShape, MlaShape
from art_topology.models.compressed import CompressedAttentionShape
from art_topology.models.config import ModelConfigError, load_model_config
from art_topology.models.description import (
    AttentionShape,
    LayerShape,
    MlpShape,
    ModelDescription,
    checkpoint_bytes,
)
from art_topology.models.flops import FlopCount, FlopPart, flops_per_token, layer_flops
from art_topology.models.linear import GatedDeltaNetShape
from art_topology.models.matrices import Matrix, Vector
from art_topology.models.mlp import DenseShape, MoeShape
from art_topology.models.parameter_count import ParameterCount, parameters
from art_topology.models.quantization import Quantization, WeightFormat

__all__ = [
    "AttentionShape",
    "CompressedAttentionShape",
    "DenseShape",
    "FlopCount",
    "FlopPart",
    "GatedDeltaNetShape",
    "GqaShape",
    "IndexerShape",
    "LayerShape",
    "Matrix",
    "MlaShape",
    "MlpShape",
    "ModelConfigError",
    "ModelDescription",
    "MoeShape",
    "ParameterCount",
    "Quantization",
    "Vector",
    "WeightFormat",
    "checkpoint_bytes",
    "flops_per_token",
    "layer_flops",
    "load_model_config",
    "parameters",
]
