"""What happens once per step: gradients are summed, the optimizer moves; and what offload copies."""

import msgspec

from art_topology.cost.communication import Network, place
from art_topology.cost.layer_times import Division
from art_topology.memory.weights import share_of
from art_topology.models import LayerShape, Matrix, ModelDescription, Vector
from art_topology.ranks import RankLayout
from art_topology.workload import WorkloadSpec


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that a rank holds.

    Args:
        dense: All of them outside routed experts.
        expert: All of them in routed experts.
        trained_dense: Those that are trained outside routed experts: all, or adapters.
        trained_expert: Likewise in routed experts.
    """

    dense: float = 0.0
    expert: float = 0.0
    trained_dense: float = 0.0
    trained_expert: float = 0.0

    @property
    def total(self) -> float:
        """All weights, adapters included."""
        return self.dense + self.expert

    def plus(self, other: "Held", times: int = 1) -> "Held":
        """The sum with so many of another."""
        return Held(
            dense=self.dense + times * other.dense,
            expert=self.expert + times * other.expert,
            trained_dense=self.trained_dense + times * other.trained_dense,
            trained_expert=self.trained_expert + times * other.trained_expert,
        )


def held_by_layer(shape: LayerShape, division: Division, workload: WorkloadSpec) -> Held:
    """A rank's share of one layer."""
    return _held(shape.matrices(), shape.vectors(), division, workload)


def held_by_embedding(model: ModelDescription, division: Division, workload: WorkloadSpec) -> Held:
    """A rank's share of the embedding."""
    return _held(model.embedding_matrices(), model.embedding_vectors(), division, workload)


def held_by_head(model: ModelDescription, division: Division, workload: WorkloadSpec) -> Held:
    """A rank's share of the vocabulary head."""
    return _held(model.head_matrices(), model.head_vectors(), division, workload)


def _held(
    matrices: tuple[Matrix, ...], vectors: tuple[Vector, ...], division: Division, workload: WorkloadSpec
) -> Held:
    share = share_of(matrices, vectors, workload, tp=division.tp, ep=division.ep, etp=division.etp)
    full = workload.lora_rank is None
    return Held(
        dense=share.dense + share.adapters,
        expert=share.experts + share.expert_adapters,
        trained_dense=share.dense if full else share.adapters,
        trained_expert=share.experts if full else share.expert_adapters,
    )


def synchronization_s(
    held: Held, layout: RankLayout, workload: WorkloadSpec, network: Network, gradient_bytes: int = 4
) -> tuple[float, float]:
    """Time to sum gradients, and to gather weights again where each rank updates its share.

    Weights outside experts are summed over data and context parallel ranks, experts over the ranks that hold
    the same ones.
    """
    dense = place(layout.dp * layout.cp, layout.tp, network.domain)
    expert = place(layout.expert_dp, layout.etp * layout.ep, network.domain)
    reduced = gathered = 0.0
    for group, count in ((dense, held.trained_dense), (expert, held.trained_expert)):
        if not count:
            continue
        if workload.distributed_optimizer:
            reduced += network.gather_s(group, gradient_bytes * count)
            gathered += network.gather_s(group, workload.dtype_bytes * count)
        else:
            reduced += network.reduce_s(group, gradient_bytes * count)
    return reduced, gathered


def updated_weights(held: Held, layout: RankLayout, workload: WorkloadSpec) -> float:
    """Weights that one rank updates."""
    if not workload.distributed_optimizer:
        return held.trained_dense + held.trained_expert
    return held.trained_dense / (layout.dp * layout.cp) + held.trained_expert / layout.expert_dp
