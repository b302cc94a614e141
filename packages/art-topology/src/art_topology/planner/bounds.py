"""A lower bound of a rank's memory that costs microseconds: the parts of
:func:`~art_topology.memory.trainer_memory` that decide whether a layout fits.

It is the sum of weights, gradients and activations on the first and on the last pipeline
stage, computed from the same sizes. Optimizer states, buffers, logits and the runtime come on top, so what is
above the limit here is above it there; what is below is asked again in full before it is planned.
"""

from art_topology.cost.layer_times import Division
from art_topology.cost.trainer_costs import Contents, StageContents, TrainerCosts, with_savings
from art_topology.memory.activations import kept_bytes
from art_topology.memory.assumptions import MemoryAssumptions
from art_topology.memory.pipeline import in_flight
from art_topology.planner.problem import Problem, Savings
from art_topology.ranks import RankLayout
from art_topology.stages import StageLayout
from art_topology.workload import Recompute

_Kept = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""For each shape of layer: what it keeps whole, with its core recomputed, and recomputed whole."""


class TrainerBounds:
    """Bounds for one model and workload; what depends on a division alone is computed once."""

    def __init__(self, problem: Problem, costs: TrainerCosts) -> None:
        self._problem, self._costs = problem, costs
        self._assumptions = MemoryAssumptions()
        self._kept: dict[Division, _Kept] = {}

    def at_least(
        self,
        division: Division,
        stages: StageLayout,
        contents: Contents,
        savings: Savings,
        rows: int,
    ) -> float:
        """Bytes that the fuller of the first and the last stage needs at least.

        Args:
            division: Its axes.
            stages: Its stages.
            contents: What they hold.
            savings: Recomputation and offload.
            rows: Fewest rows of a data-parallel rank.
        """
        first, last = contents.of_rank[0], contents.of_rank[-1]
        ends = [(0, contents.distinct[first])]
        if last != first:
            ends.append((stages.pp - 1, contents.distinct[last]))
        return max(
            self._states(division, stage, savings)
            + self._activations(division, stages, stage, rank, savings, rows)
            for rank, stage in ends
        )

    def _states(self, division: Division, stage: StageContents, savings: Savings) -> float:
        """Weights and gradients; optimizer states may be shared by so many ranks that they come to
        nothing."""
        workload, assume = self._problem.workload, self._assumptions
        held, ends = self._costs.weights_of(division, stage)
        trained = held.trained_dense + held.trained_expert
        frozen = workload.lora_rank is not None
        layers = held.total - ends - (trained if frozen else 0)
        if "weights" in savings[1] and stage.layers > 2:
            layers *= 2 / stage.layers
        weights = (layers + ends) * workload.dtype_bytes
        if frozen:
            return weights + trained * (assume.adapter_bytes + 4)
        states = 0.0
        if "optimizer" not in savings[1] and not workload.distributed_optimizer:
            states = (8 if workload.dtype_bytes == 4 else 12) * trained
        return weights + trained * assume.gradient_bytes + states

    def _activations(
        self,
        division: Division,
        stages: StageLayout,
        stage: StageContents,
        rank: int,
        savings: Savings,
        rows: int,
    ) -> float:
        recompute, offload = savings
        whole, selective, full = self._kept_by(division)
        again = max((whole[n] for n, _ in stage.counts), default=0) if recompute == "full" else 0
        if "activations" in offload:
            return again
        if recompute == "full":
            recomputed = dict(stage.again)
            kept = sum(
                recomputed.get(n, 0) * full[n] + (count - recomputed.get(n, 0)) * whole[n]
                for n, count in stage.counts
            )
        else:
            sizes = selective if recompute == "selective" else whole
            kept = sum(count * sizes[n] for n, count in stage.counts)
        states = in_flight(stages.pp, stages.vpp, rank, rows, stages.pp)
        flying = min(min(sum(state) for state in states) / stages.vpp, rows)
        return kept * flying * self._least_share(stages, rank) + again

    def _least_share(self, stages: StageLayout, rank: int) -> float:
        """With virtual stages of different sizes the small ones may be those in flight."""
        counts = [stage.layer_count for stage in stages.rank(rank)]
        total = sum(counts)
        return min(counts) * len(counts) / total if total else 0.0

    def _kept_by(self, division: Division) -> _Kept:
        found = self._kept.get(division)
        if found is None:
            layout = RankLayout(
                tp=division.tp,
                cp=division.cp,
                dp=division.etp * division.ep,
                pp=1,
                etp=division.etp,
                ep=division.ep,
                expert_dp=division.tp * division.cp,
            )
            found = self._kept[division] = (
                self._kept_with(layout, "none"),
                self._kept_with(layout, "selective"),
                self._kept_with(layout, "full"),
            )
        return found

    def _kept_with(self, layout: RankLayout, recompute: Recompute) -> tuple[int, ...]:
        workload, full = with_savings(self._problem.workload, recompute, ()), recompute == "full"
        return tuple(
            kept_bytes(shape, layout, workload, self._assumptions, full) for shape in self._costs.shapes
        )
