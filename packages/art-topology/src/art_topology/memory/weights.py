"""The weights that a rank of the trainer holds, by what divides them and what becomes of them."""

import math
from collections import Counter
from functools import lru_cache

import msgspec

from art_topology.models.description import LayerShape, ModelDescription
from art_topology.models.flops import adapted
from art_topology.models.matrices import Matrix, Vector
from art_topology.ranks import RankLayout
from art_topology.stages import Stage, StageLayout
from art_topology.workload import WorkloadSpec


class RankParameters(msgspec.Struct, frozen=True, kw_only=True):
    """How many weights the fullest rank of a stage holds.

    Args:
        dense: Of its layers, without routed experts; held by ``dp * cp`` ranks.
        experts: Of routed experts; held by the ranks of expert data parallelism.
        ends: Of embedding, vocabulary head and what belongs to them; held like ``dense``.
        adapters: Of adapters on everything but routed experts.
        expert_adapters: Of adapters on routed experts.
    """

    dense: int = 0
    experts: int = 0
    ends: int = 0
    adapters: int = 0
    expert_adapters: int = 0

    @property
    def base(self) -> int:
        """All weights but adapters."""
        return self.dense + self.experts + self.ends

    def __add__(self, other: "RankParameters") -> "RankParameters":
        return RankParameters(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        )

    def times(self, count: int) -> "RankParameters":
        """``count`` of it."""
        return RankParameters(**{name: count * getattr(self, name) for name in self.__struct_fields__})


def rank_parameters(
    model: ModelDescription,
    layout: RankLayout,
    stages: StageLayout,
    workload: WorkloadSpec,
    pp_rank: int,
    *,
    vocab_multiple: int = 1,
) -> RankParameters:
    """The weights of the fullest rank of a pipeline stage.

    Divided sizes are rounded up. Weights that tensor parallelism does not divide (norms, routers, latent
    projections) are on every rank of the group. With tied embeddings the vocabulary matrix lies on the first
    and the last stage, and wherever multi-token prediction stands, as in Megatron.

    Args:
        model: What is trained.
        layout: How it is divided.
        stages: Which layers lie on which stage.
        workload: Which adapters there are.
        pp_rank: The pipeline stage.
        vocab_multiple: The vocabulary is padded to a multiple of this times ``tp``.

    Raises:
        ValueError: the stages hold another number of layers than the model has, or fewer layers of
            multi-token prediction are described than they hold.
    """
    check_layers(model, stages)
    total = RankParameters()
    for layer, count in stage_layers(model, stages, pp_rank).items():
        total += layer_rank_parameters(layer, layout, workload).times(count)
    return total + _ends(model, layout, stages, workload, pp_rank, vocab_multiple)


def check_layers(model: ModelDescription, stages: StageLayout) -> None:
    """Whether the stages hold the layers of the model.

    Raises:
        ValueError: they do not.
    """
    if stages.num_layers != len(model.layers):
        raise ValueError(f"the stages hold {stages.num_layers} layers, the model has {len(model.layers)}")
    if stages.mtp_layers and not model.mtp_layers:
        raise ValueError(
            f"the stages hold {stages.mtp_layers} multi-token prediction layers, the model has none"
        )


def stage_layers(model: ModelDescription, stages: StageLayout, pp_rank: int) -> Counter[LayerShape]:
    """The layers of a pipeline rank, equal ones counted together, those of multi-token prediction
    included."""
    return Counter(layer for stage in stages.rank(pp_rank) for layer in layers_of(model, stage))


def layers_of(model: ModelDescription, stage: Stage) -> tuple[LayerShape, ...]:
    """The layers of one (virtual) stage, those of multi-token prediction last."""
    layers = model.layers[stage.first_layer : stage.first_layer + stage.layer_count]
    return (*layers, *model.mtp_layers[:1] * stage.mtp_layers)


@lru_cache(maxsize=4096)
def layer_rank_parameters(layer: LayerShape, layout: RankLayout, workload: WorkloadSpec) -> RankParameters:
    """The weights of one layer on its fullest rank."""
    return share_of(layer.matrices(), layer.vectors(), workload, tp=layout.tp, ep=layout.ep, etp=layout.etp)


def share_of(
    matrices: tuple[Matrix, ...],
    vectors: tuple[Vector, ...],
    workload: WorkloadSpec,
    *,
    tp: int,
    ep: int,
    etp: int,
) -> RankParameters:
    """The weights of these on their fullest rank, all outside experts as ``dense``."""
    dense = sum(vector.local(tp) for vector in vectors)
    experts = adapters = expert_adapters = 0
    for matrix in matrices:
        routed = matrix.part == "routed_experts"
        share = matrix.local(etp, ep) if routed else matrix.local(tp)
        low = _adapter(matrix, share, workload)
        if routed:
            experts += share.parameter_count
            expert_adapters += low
        else:
            dense += share.parameter_count
            adapters += low
    return RankParameters(dense=dense, experts=experts, adapters=adapters, expert_adapters=expert_adapters)


def _adapter(matrix: Matrix, share: Matrix, workload: WorkloadSpec) -> int:
    if workload.lora_rank is None or not adapted(matrix, workload):
        return 0
    return share.adapter_parameter_count(workload.lora_rank)


def _ends(
    model: ModelDescription,
    layout: RankLayout,
    stages: StageLayout,
    workload: WorkloadSpec,
    pp_rank: int,
    vocab_multiple: int,
) -> RankParameters:
    table = math.ceil(model.vocab_size / (vocab_multiple * layout.tp)) * vocab_multiple * model.hidden_size
    held = stages.rank(pp_rank)
    first, last = any(stage.embedding for stage in held), any(stage.loss for stage in held)
    mtp = any(stage.mtp_layers for stage in held)
    count = adapters = 0
    if first or mtp:
        count += table
    if first:
        count += sum(_vector(vector, layout.tp, table) for vector in model.embedding_vectors()) - table
        count += sum(matrix.local(layout.tp).parameter_count for matrix in model.embedding_matrices())
    if last:
        count += sum(vector.local(layout.tp) for vector in model.head_vectors())
        for matrix in model.head_matrices():
            share = matrix.local(layout.tp)
            adapters += _adapter(matrix, share, workload)
            if matrix.name != "output":
                count += share.parameter_count
            elif not (model.tied_embeddings and (first or mtp)):
                count += table
    return RankParameters(ends=count, adapters=adapters)


def _vector(vector: Vector, tp: int, table: int) -> int:
    return table if vector.name == "embedding" else vector.local(tp)
