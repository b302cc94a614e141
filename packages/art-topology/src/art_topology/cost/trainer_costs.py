"""The numbers of a training step on a layout.

The slowest pipeline rank sets the pace: its time for a row times its rows, the pipeline's bubble, what rows
of different work cost, and what happens once per step. Here are numbers alone, since a search computes
thousands of them; :mod:`art_topology.cost.trainer_step` adds the reasons.
"""

from copy import copy
from typing import Literal

import msgspec

from art_topology.cost.arithmetic import processor
from art_topology.cost.calibration import Calibration
from art_topology.cost.communication import Group, network, place
from art_topology.cost.layers import KINDS, Division, LayerCosts
from art_topology.cost.pipeline import bubble_s, slack
from art_topology.cost.row import mean_row
from art_topology.cost.states import (
    Held,
    held_by_embedding,
    held_by_head,
    held_by_layer,
    synchronization_s,
    updated_weights,
)
from art_topology.hardware import Machine
from art_topology.models import LayerShape, ModelDescription
from art_topology.models.flops import adapted
from art_topology.ranks import RankLayout
from art_topology.stages import StageLayout
from art_topology.workload import Offload, WorkloadSpec

Recompute = Literal["none", "selective", "full"]


class RowTime(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one row on a layout without its data parallelism.

    Args:
        forward: Seconds by kind on the slowest pipeline rank.
        backward: Likewise, without what is computed again.
        recompute_s: What is computed again on that rank.
        copies_s: Offload's copies of that rank.
        stage_s: All of it, for each pipeline rank.
        held: Weights of the rank that holds most.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    recompute_s: float
    copies_s: float
    stage_s: tuple[float, ...]
    held: Held

    @property
    def compute_s(self) -> float:
        """Everything on the slowest rank but copies."""
        return sum(self.forward) + sum(self.backward) + self.recompute_s


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one step: its numbers without their reasons."""

    row: RowTime
    rows: int
    bubble_s: float
    slack_s: float
    sends_s: float
    copies_exposed_s: float
    reduce_s: float
    gather_s: float
    hidden_s: float
    optimizer_s: float

    @property
    def step_s(self) -> float:
        """The step."""
        return (
            self.rows * (self.row.compute_s + self.copies_exposed_s)
            + self.bubble_s
            + self.slack_s
            + self.sends_s
            + self.reduce_s
            + self.gather_s
            - self.hidden_s
            + self.optimizer_s
        )


class TrainerCosts:
    """Times of training steps of one model and workload on one machine, whatever the layout."""

    def __init__(
        self,
        model: ModelDescription,
        workload: WorkloadSpec,
        machine: Machine,
        *,
        ranks_per_host: int | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.model, self.workload, self.machine = model, workload, machine
        self.calibration = calibration or Calibration()
        self.row = mean_row(workload)
        self.device = processor(machine.gpu, workload.dtype, workload.dtype_bytes, self.calibration)
        self.network = network(machine, ranks_per_host or machine.gpus_per_host, self.calibration)
        self.layers = LayerCosts(model, workload, self.row, self.device, self.network, self.calibration)
        self.shapes: tuple[LayerShape, ...] = tuple(dict.fromkeys((*model.layers, *model.mtp_layers)))
        numbers = {shape: number for number, shape in enumerate(self.shapes)}
        self._numbers = tuple(numbers[shape] for shape in model.layers)
        self._mtp_numbers = tuple(numbers[shape] for shape in model.mtp_layers)
        self._held: dict[Division, tuple[list[Held], Held, Held]] = {}

    def with_savings(self, recompute: Recompute, offload: tuple[Offload, ...]) -> "TrainerCosts":
        """The same with other recomputation and offload; what was computed of layers is shared."""
        other = copy(self)
        other.workload = msgspec.structs.replace(self.workload, recompute=recompute, offload=offload)
        return other

    def row_time(self, division: Division, stages: StageLayout) -> RowTime:
        """One row on stages of ranks that are divided so."""
        times = [self.layers.layer(shape, division) for shape in self.shapes]
        embedding, head = self.layers.ends(division)
        held, held_embedding, held_head = self._held_of(division)
        best: tuple[float, tuple[float, ...], tuple[float, ...], float, float] | None = None
        stage_s, most = [], Held()
        for pp_rank in range(stages.pp):
            counts, has_embedding, has_head, again = self._contents(stages, pp_rank)
            forward, backward = [0.0] * len(KINDS), [0.0] * len(KINDS)
            mine, recompute_s = Held(), 0.0
            for number, count in counts.items():
                time = times[number]
                for kind in range(len(KINDS)):
                    forward[kind] += count * time.forward[kind]
                    backward[kind] += count * time.backward[kind]
                mine = mine.plus(held[number], count)
                if self.workload.recompute == "selective":
                    recompute_s += count * time.core_s
                elif self.workload.recompute == "full":
                    recompute_s += again.get(number, 0) * time.forward_s
            for present, time, weights in (
                (has_embedding, embedding, held_embedding),
                (has_head, head, held_head),
            ):
                if present:
                    forward = [a + b for a, b in zip(forward, time.forward, strict=True)]
                    backward = [a + b for a, b in zip(backward, time.backward, strict=True)]
                    mine = mine.plus(weights)
            copies_s = self._copies_s(mine, sum(counts.values()), division)
            compute_s = sum(forward) + sum(backward) + recompute_s
            total_s = max(compute_s, copies_s)
            stage_s.append(total_s)
            if mine.total > most.total:
                most = mine
            if best is None or total_s > best[0]:
                best = (total_s, tuple(forward), tuple(backward), recompute_s, copies_s)
        assert best is not None
        return RowTime(
            forward=best[1],
            backward=best[2],
            recompute_s=best[3],
            copies_s=best[4],
            stage_s=tuple(stage_s),
            held=most,
        )

    def _contents(
        self, stages: StageLayout, pp_rank: int
    ) -> tuple[dict[int, int], bool, bool, dict[int, int]]:
        """How many layers of each shape a rank holds, whether embedding and head, and how many layers of each
        shape it computes again with full recomputation."""
        counts: dict[int, int] = {}
        again: dict[int, int] = {}
        limit = self.workload.recompute_layers
        for stage in stages.stages[pp_rank]:
            for place_, layer in enumerate(stage.layers):
                number = self._numbers[layer]
                counts[number] = counts.get(number, 0) + 1
                if limit is None or place_ < limit:
                    again[number] = again.get(number, 0) + 1
            for number in self._mtp_numbers[: stage.mtp_layers]:
                counts[number] = counts.get(number, 0) + 1
                again[number] = again.get(number, 0) + 1
        row = stages.stages[pp_rank]
        return counts, any(s.embedding for s in row), any(s.loss for s in row), again

    def _held_of(self, division: Division) -> tuple[list[Held], Held, Held]:
        found = self._held.get(division)
        if found is None:
            found = self._held[division] = (
                [held_by_layer(shape, division, self.workload) for shape in self.shapes],
                held_by_embedding(self.model, division, self.workload),
                held_by_head(self.model, division, self.workload),
            )
        return found

    def _copies_s(self, held: Held, layers: int, division: Division) -> float:
        """Offload's copies for one row: weights in once for each pass; inputs of layers out and in again."""
        offload, moved = self.workload.offload, 0.0
        if "weights" in offload:
            moved += (3 if self.workload.recompute == "full" else 2) * held.total * self.device.dtype_bytes
        if "activations" in offload:
            tokens = self.row.tokens / division.cp / division.tp
            moved += layers * tokens * self.model.hidden_size * self.device.dtype_bytes
        return moved / self.network.host_bytes_per_s

    def step_time(self, layout: RankLayout, stages: StageLayout) -> StepTime:
        """One step on a layout."""
        division = Division(layout.tp, layout.cp, layout.ep, layout.etp)
        return self.step_of_rows(layout, stages.vpp, self.row_time(division, stages))

    def step_of_rows(self, layout: RankLayout, vpp: int, row: RowTime) -> StepTime:
        """One step on a layout, of rows whose times are known."""
        rows = -(-self.row.rows // layout.dp)
        slowest = max(row.stage_s)
        variation = self.calibration.row_variation if self.row.varies else 0.0
        reduce_s, gather_s = synchronization_s(row.held, layout, self.workload, self.network)
        hideable = self.calibration.dp_overlap * (reduce_s + gather_s)
        updated = updated_weights(row.held, layout, self.workload)
        optimizer_s = self.device.moved_s(updated * self.calibration.optimizer_bytes)
        if "optimizer" in self.workload.offload:
            optimizer_s += 12 * updated / self.network.host_bytes_per_s
        return StepTime(
            row=row,
            rows=rows,
            bubble_s=bubble_s(row.stage_s, vpp),
            slack_s=rows * slowest * slack(layout.pp, layout.dp, coupled_rows(layout), rows, variation),
            sends_s=self._sends_s(layout, vpp, rows),
            copies_exposed_s=max(0.0, row.copies_s - row.compute_s),
            reduce_s=reduce_s,
            gather_s=gather_s,
            hidden_s=min(hideable, sum(row.backward)),
            optimizer_s=optimizer_s,
        )

    def _sends_s(self, layout: RankLayout, vpp: int, rows: int) -> float:
        """Activations and gradients between stages. Interleaved schedules send behind the work of other
        rows."""
        if layout.pp == 1:
            return 0.0
        tokens = self.row.tokens / layout.cp / layout.tp
        volume = tokens * self.model.hidden_size * self.device.dtype_bytes
        once = self.network.send_s(self.stage_group(layout).crosses, volume)
        return 2 * once * (layout.pp - 1 + (rows if vpp == 1 else 0))

    def stage_group(self, layout: RankLayout) -> Group:
        """How the pipeline lies on the domains."""
        return place(layout.pp, layout.tp * layout.cp * layout.dp, self.network.domain)

    def useful_flops_per_token(self) -> float:
        """Arithmetic that one token needs: products forward and for the gradients of inputs, of weights where
        they are trained, and the core of attention forward and twice that backward."""
        total, frozen, adapters = 0.0, 0.0, 0.0
        matrices = [*self.model.embedding_matrices(), *self.model.head_matrices()]
        core = 0.0
        for layer in (*self.model.layers, *self.model.mtp_layers):
            matrices += layer.matrices()
            attention, indexer = self.layers.core(layer.attention)
            core += 3 * attention + indexer
        for matrix in matrices:
            total += matrix.forward_flops
            frozen += matrix.forward_flops if matrix.part == "indexer" else 0
            if adapted(matrix, self.workload):
                rank = self.workload.lora_rank or 0
                adapters += 2 * matrix.active * rank * (matrix.inputs + matrix.outputs)
        passes = 3 if self.workload.lora_rank is None else 2
        return passes * total - (passes - 1) * frozen + 3 * adapters + core


def coupled_rows(layout: RankLayout) -> int:
    """Data-parallel ranks, each with a row of its own, in one expert-parallel group."""
    return min(layout.dp, max(1, layout.etp * layout.ep // (layout.tp * layout.cp)))
