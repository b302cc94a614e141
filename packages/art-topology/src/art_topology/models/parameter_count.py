"""How many parameters a model has, by part, and how many of them one token uses."""

from typing import get_args

import msgspec

from art_topology.models.description import ModelDescription
from art_topology.models.matrices import Matrix, Part, Vector


class ParameterCount(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters by part; ``total`` is their sum, without ``mtp``, as ``transformers`` counts a model.

    Args:
        embedding: Vocabulary and per-layer embeddings.
        output: The vocabulary head; 0 where it is tied to the embedding.
        attention: Projections and other weights of attention.
        indexer: What selects the keys of sparse attention.
        dense_mlp: Feed-forward layers without experts.
        routed_experts: Experts that a router chooses among.
        shared_experts: Feed-forward layers beside routed experts.
        router: Routers.
        norms: Norms.
        other: Per-layer inputs, hyper-connections.
        mtp: Layers of multi-token prediction.
        active: Parameters that one token uses: all but the routed experts it is not sent to. Embeddings count
            whole, as models are announced.
    """

    embedding: int
    output: int
    attention: int
    indexer: int
    dense_mlp: int
    routed_experts: int
    shared_experts: int
    router: int
    norms: int
    other: int
    mtp: int
    active: int

    @property
    def total(self) -> int:
        """All parameters, without those of multi-token prediction."""
        parts = msgspec.structs.asdict(self)
        return sum(value for name, value in parts.items() if name not in ("mtp", "active"))


def parameters(model: ModelDescription) -> ParameterCount:
    """Counts the parameters of a model."""
    head = tuple(m for m in model.head_matrices() if not (m.name == "output" and model.tied_embeddings))
    matrices = [*model.embedding_matrices(), *head]
    vectors = [*model.embedding_vectors(), *model.head_vectors()]
    for layer in model.layers:
        matrices += layer.matrices()
        vectors += layer.vectors()
    counts = _by_part(matrices, vectors)
    idle = sum(m.parameter_count - m.active_parameter_count for m in matrices)
    return ParameterCount(
        **counts,
        mtp=sum(layer.parameter_count for layer in model.mtp_layers),
        active=sum(counts.values()) - idle,
    )


def _by_part(matrices: list[Matrix], vectors: list[Vector]) -> dict[str, int]:
    found = dict.fromkeys(get_args(Part), 0)
    for matrix in matrices:
        found[matrix.part] += matrix.parameter_count
    for vector in vectors:
        found[vector.part] += vector.size
    return found
