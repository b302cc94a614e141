"""The numbers of a training step on a layout.

The slowest pipeline rank sets the pace: its time for a row times its rows, the pipeline's bubble, what rows
of different work cost, and what happens once per step. Here are numbers alone, since a search computes
thousands of them; :mod:`art_topology.cost.trainer_step` adds the reasons.
"""

from collections import Counter
from copy import copy

import msgspec

from art_topology.cost.arithmetic import processor
from art_topology.cost.calibration import Calibration
from art_topology.cost.communication import Group, network, place
from art_topology.cost.layer_times import KINDS, Division, Times
from art_topology.cost.layers import LayerCosts
from art_topology.cost.pipeline import bubble_s, slack
from art_topology.cost.program import TrainerProgram
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
from art_topology.models.flops import linear_flops
from art_topology.ranks import RankLayout
from art_topology.stages import StageLayout
from art_topology.workload import Offload, WorkloadSpec
from art_topology.workload import Recompute as Recompute


class RowTime(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one row on a layout without its data parallelism.

    Args:
        slowest: The pipeline rank that takes longest.
        forward_s: Its forward pass, in seconds.
        backward_s: Its backward pass, without what is computed again.
        recompute_s: What it computes again.
        copies_s: Offload's copies of that rank, beside its work.
        stage_s: Work of each pipeline rank, and what copies add to it.
        held: Weights of the rank that holds most.
    """

    slowest: int
    forward_s: float
    backward_s: float
    recompute_s: float
    copies_s: float
    stage_s: tuple[float, ...]
    held: Held

    @property
    def compute_s(self) -> float:
        """Everything on the slowest rank but copies."""
        return self.forward_s + self.backward_s + self.recompute_s


class StageContents(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline rank holds.

    Args:
        counts: Layers of each shape, by the shape's number.
        again: Those of them that are computed again with full recomputation.
        embedding: Whether it embeds the tokens.
        loss: Whether it computes logits and loss.
        layers: All its layers.
    """

    counts: tuple[tuple[int, int], ...]
    again: tuple[tuple[int, int], ...]
    embedding: bool
    loss: bool
    layers: int


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What all pipeline ranks hold: the distinct ones, and which of them each rank has."""

    distinct: tuple[StageContents, ...]
    of_rank: tuple[int, ...]


class _StageTime(msgspec.Struct, frozen=True):
    """Seconds of one row on one pipeline rank; ``paced_s`` with what copies add to the work."""

    forward_s: float
    backward_s: float
    recompute_s: float
    copies_s: float
    paced_s: float


class _Sums(msgspec.Struct, frozen=True):
    """Seconds of a layer, or of an end: forward, backward, what selective recomputation computes again."""

    forward_s: float
    backward_s: float
    again_s: float


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
        program: TrainerProgram | None = None,
    ) -> None:
        self.model, self.workload, self.machine = model, workload, machine
        self.calibration = calibration or Calibration()
        self.program = program or TrainerProgram()
        self.row = mean_row(workload)
        self.device = processor(machine.gpu, workload.dtype, workload.dtype_bytes, self.calibration)
        self.network = network(machine, ranks_per_host or machine.gpus_per_host, self.calibration)
        self.layers = LayerCosts(
            model, workload, self.row, self.device, self.network, self.calibration, self.program
        )
        self.shapes: tuple[LayerShape, ...] = tuple(dict.fromkeys((*model.layers, *model.mtp_layers)))
        numbers = {shape: number for number, shape in enumerate(self.shapes)}
        self._numbers = tuple(numbers[shape] for shape in model.layers)
        self._mtp_numbers = tuple(numbers[shape] for shape in model.mtp_layers)
        self._held: dict[Division, tuple[list[Held], Held, Held]] = {}
        self._sums: dict[Division, tuple[list[_Sums], _Sums, _Sums]] = {}

    def with_savings(self, recompute: Recompute, offload: tuple[Offload, ...]) -> "TrainerCosts":
        """The same with other recomputation and offload; what was computed of layers is shared."""
        other = copy(self)
        other.workload = with_savings(self.workload, recompute, offload)
        return other

    def contents(self, stages: StageLayout) -> Contents:
        """What each pipeline rank holds."""
        each = tuple(self._contents(stages, pp_rank) for pp_rank in range(stages.pp))
        distinct = tuple(dict.fromkeys(each))
        return Contents(distinct=distinct, of_rank=tuple(distinct.index(stage) for stage in each))

    def row_time(self, division: Division, contents: Contents) -> RowTime:
        """One row on stages of ranks that are divided so."""
        found = [self._stage_time(stage, division) for stage in contents.distinct]
        slowest = max(range(len(found)), key=lambda index: found[index].paced_s)
        totals = [self._total(stage, division) for stage in contents.distinct]
        fullest = contents.distinct[max(range(len(totals)), key=totals.__getitem__)]
        time = found[slowest]
        return RowTime(
            slowest=contents.of_rank.index(slowest),
            forward_s=time.forward_s,
            backward_s=time.backward_s,
            recompute_s=time.recompute_s,
            copies_s=time.copies_s,
            stage_s=tuple(found[index].paced_s for index in contents.of_rank),
            held=self._held_by(fullest, division),
        )

    def _stage_time(self, stage: StageContents, division: Division) -> _StageTime:
        sums, embedding, head = self._sums_of(division)
        recompute = self.workload.recompute
        forward = backward = again = 0.0
        for number, count in stage.counts:
            shape = sums[number]
            forward += count * shape.forward_s
            backward += count * shape.backward_s
            if recompute == "selective":
                again += count * shape.again_s
        if recompute == "full":
            again = sum(count * sums[number].forward_s for number, count in stage.again)
        if stage.embedding:
            forward += embedding.forward_s
            backward += embedding.backward_s
        if stage.loss:
            forward += head.forward_s
            backward += head.backward_s
        work_s, copies_s = forward + backward + again, 0.0
        if self.workload.offload:
            copies_s = self._copies_s(self._total(stage, division), stage.layers, division)
        paced_s = work_s + self._copies_exposed_s(copies_s, work_s)
        return _StageTime(forward, backward, again, copies_s, paced_s)

    def _total(self, stage: StageContents, division: Division) -> float:
        """Weights that a rank holds."""
        held, embedding, head = self._held_of(division)
        layers = sum(count * held[number].total for number, count in stage.counts)
        return layers + embedding.total * stage.embedding + head.total * stage.loss

    def all_layers_s(self, division: Division) -> float:
        """All layers of the model, embedding and head for one row, forward and backward, as if on one
        rank."""
        sums, embedding, head = self._sums_of(division)
        counts = Counter(self._numbers)
        total = sum(n * (sums[number].forward_s + sums[number].backward_s) for number, n in counts.items())
        return total + sum(end.forward_s + end.backward_s for end in (embedding, head))

    def kinds(self, division: Division, stage: StageContents) -> tuple[Times, Times]:
        """Forward and backward seconds of one row on one pipeline rank, for each of
        :data:`~art_topology.cost.layer_times.KINDS`."""
        times = [(self.layers.layer(self.shapes[number], division), count) for number, count in stage.counts]
        embedding, head = self.layers.ends(division)
        times += [(embedding, 1)] if stage.embedding else []
        times += [(head, 1)] if stage.loss else []
        forward = [sum(count * time.forward[kind] for time, count in times) for kind in range(len(KINDS))]
        backward = [sum(count * time.backward[kind] for time, count in times) for kind in range(len(KINDS))]
        return tuple(forward), tuple(backward)

    def _contents(self, stages: StageLayout, pp_rank: int) -> StageContents:
        counts: dict[int, int] = {}
        again: dict[int, int] = {}
        limit = self.workload.recompute_layers
        row = stages.stages[pp_rank]
        for stage in row:
            for index, layer in enumerate(stage.layers):
                number = self._numbers[layer]
                counts[number] = counts.get(number, 0) + 1
                if limit is None or index < limit:
                    again[number] = again.get(number, 0) + 1
            for number in self._mtp_numbers[:1] * stage.mtp_layers:
                counts[number] = counts.get(number, 0) + 1
                again[number] = again.get(number, 0) + 1
        return StageContents(
            counts=tuple(counts.items()),
            again=tuple(again.items()),
            embedding=any(stage.embedding for stage in row),
            loss=any(stage.loss for stage in row),
            layers=sum(counts.values()),
        )

    def _sums_of(self, division: Division) -> tuple[list[_Sums], _Sums, _Sums]:
        found = self._sums.get(division)
        if found is None:
            ends = self.layers.ends(division)
            layers = [self.layers.layer(shape, division) for shape in self.shapes]
            sums = [_Sums(time.forward_s, time.backward_s, time.again_s) for time in (*layers, *ends)]
            found = self._sums[division] = (sums[:-2], sums[-2], sums[-1])
        return found

    def weights_of(self, division: Division, stage: StageContents) -> tuple[Held, float]:
        """Weights that a rank holds, and how many of them belong to embedding and head. A head that is tied
        to an embedding on the same rank is none of its own."""
        held = self._held_by(stage, division)
        _, embedding, head = self._held_of(division)
        ends = embedding.total * stage.embedding + head.total * stage.loss
        if stage.embedding and stage.loss and self.model.tied_embeddings:
            tied = sum(m.local(division.tp).parameter_count for m in self.model.head_matrices())
            return msgspec.structs.replace(held, dense=held.dense - tied), ends - tied
        return held, ends

    def _held_by(self, stage: StageContents, division: Division) -> Held:
        held, held_embedding, held_head = self._held_of(division)
        total = Held()
        for number, count in stage.counts:
            total = total.plus(held[number], count)
        if stage.embedding:
            total = total.plus(held_embedding)
        return total.plus(held_head) if stage.loss else total

    def _held_of(self, division: Division) -> tuple[list[Held], Held, Held]:
        found = self._held.get(division)
        if found is None:
            found = self._held[division] = (
                [held_by_layer(shape, division, self.workload) for shape in self.shapes],
                held_by_embedding(self.model, division, self.workload),
                held_by_head(self.model, division, self.workload),
            )
        return found

    def _copies_exposed_s(self, copies_s: float, work_s: float) -> float:
        """What copies add to the work beside them."""
        return copies_s - min(self.calibration.copies_overlap * copies_s, work_s)

    def _copies_s(self, held: float, layers: int, division: Division) -> float:
        """Offload's copies for one row: weights in once for each pass; inputs of layers out and in again."""
        offload, moved = self.workload.offload, 0.0
        if "weights" in offload:
            moved += (3 if self.workload.recompute == "full" else 2) * held * self.device.dtype_bytes
        if "activations" in offload:
            tokens = self.row.tokens / division.cp / division.tp
            moved += layers * tokens * self.model.hidden_size * self.device.dtype_bytes
        return moved / self.network.host_bytes_per_s

    def step_time(self, layout: RankLayout, stages: StageLayout) -> StepTime:
        """One step on a layout."""
        division = Division(layout.tp, layout.cp, layout.ep, layout.etp)
        row = self.row_time(division, self.contents(stages))
        return self.step_of_rows(layout, stages.vpp, row, self.synchronization_s(layout, row))

    def synchronization_s(self, layout: RankLayout, row: RowTime) -> tuple[float, float]:
        """Time to sum gradients, and to gather weights again."""
        return synchronization_s(row.held, layout, self.workload, self.network, self.program.gradient_bytes)

    def step_of_rows(
        self, layout: RankLayout, vpp: int, row: RowTime, synchronization: tuple[float, float]
    ) -> StepTime:
        """One step on a layout, of rows whose times are known."""
        rows = -(-self.row.rows // layout.dp)
        slowest = max(row.stage_s)
        variation = self.calibration.row_variation if self.row.varies else 0.0
        reduce_s, gather_s = synchronization
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
            copies_exposed_s=self._copies_exposed_s(row.copies_s, row.compute_s),
            reduce_s=reduce_s,
            gather_s=gather_s,
            hidden_s=min(hideable, row.backward_s),
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
        ends = (*self.model.embedding_matrices(), *self.model.head_matrices())
        total = linear_flops(ends, self.workload).total_flops
        for layer, count in Counter((*self.model.layers, *self.model.mtp_layers)).items():
            core, indexer = self.layers.core(layer.attention)
            linear = linear_flops(layer.matrices(), self.workload).total_flops
            total += count * (linear + 3 * core + indexer)
        return total


def with_savings(workload: WorkloadSpec, recompute: Recompute, offload: tuple[Offload, ...]) -> WorkloadSpec:
    """The workload with other recomputation and offload. How many layers are recomputed is kept only where
    that is what the workload says of full recomputation."""
    layers = workload.recompute_layers if recompute == workload.recompute == "full" else None
    return msgspec.structs.replace(workload, recompute=recompute, offload=offload, recompute_layers=layers)


def coupled_rows(layout: RankLayout) -> int:
    """Data-parallel ranks, each with a row of its own, in one expert-parallel group."""
    return min(layout.dp, max(1, layout.etp * layout.ep // (layout.tp * layout.cp)))
