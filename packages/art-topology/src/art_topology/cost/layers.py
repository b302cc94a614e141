"""The time of one layer on one rank: forward and backward, by what takes it.

Every time here is for one row on a rank that holds ``tokens / cp`` of its tokens. Layers of the same shape
under the same parallelism take the same time, so each is computed once.
"""

from math import sqrt

import msgspec

from art_topology.cost.arithmetic import Processor
from art_topology.cost.calibration import ByArchitecture, Calibration
from art_topology.cost.communication import Group, Network, dispatch_copies, place
from art_topology.cost.layer_times import (
    KINDS,
    Division,
    Kind,
    LayerTime,
    context_numbers,
)
from art_topology.cost.pipeline import expected_maximum
from art_topology.cost.program import TrainerProgram
from art_topology.cost.row import Row, core_flops, indexer_flops
from art_topology.models import (
    AttentionShape,
    CompressedAttentionShape,
    GatedDeltaNetShape,
    LayerShape,
    Matrix,
    MlaShape,
    ModelDescription,
    MoeShape,
)
from art_topology.models.flops import adapted
from art_topology.workload import WorkloadSpec

_UP_PROJECTIONS = ("q_up", "kv_up")


class LayerCosts:
    """Times of layers for one model, workload and machine, each computed once."""

    def __init__(
        self,
        model: ModelDescription,
        workload: WorkloadSpec,
        row: Row,
        device: Processor,
        network: Network,
        calibration: Calibration,
        program: TrainerProgram,
    ) -> None:
        self._model, self._workload, self._row = model, workload, row
        self._device, self._network, self._calibration = device, network, calibration
        self._program = program
        self._known: dict[tuple[LayerShape, Division], LayerTime] = {}
        self._ends: dict[Division, tuple[LayerTime, LayerTime]] = {}
        self._core: dict[AttentionShape, tuple[float, float]] = {}

    def layer(self, shape: LayerShape, division: Division) -> LayerTime:
        """The time of one layer."""
        key = (shape, division)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._measure(shape, division)
        return found

    def ends(self, division: Division) -> tuple[LayerTime, LayerTime]:
        """The time of the embedding, and of the head with the loss."""
        found = self._ends.get(division)
        if found is None:
            found = self._ends[division] = (self._embedding(division), self._head(division))
        return found

    def core(self, shape: AttentionShape) -> tuple[float, float]:
        """Forward FLOPs of one token in the core, and in the scores of the indexer."""
        found = self._core.get(shape)
        if found is None:
            found = self._core[shape] = (
                core_flops(shape, self._workload),
                indexer_flops(shape, self._workload),
            )
        return found

    def _measure(self, shape: LayerShape, division: Division) -> LayerTime:
        forward, backward = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
        self._products(shape.matrices(), shape, division, forward, backward)
        self._attention(shape.attention, division, forward, backward)
        self._kernels(shape, division, forward, backward)
        self._tensor_parallel(shape, division, forward, backward)
        self._context_parallel(shape.attention, division, forward, backward)
        if isinstance(shape.mlp, MoeShape):
            self._expert_parallel(shape.mlp, division, forward, backward)
        again = self._again(shape, division, forward)
        self._launches(shape, forward, backward)
        return LayerTime(forward=tuple(forward.values()), backward=tuple(backward.values()), again_s=again)

    def _again(self, shape: LayerShape, division: Division, forward: dict[Kind, float]) -> float:
        """What selective recomputation computes again."""
        found, parts = 0.0, self._program.recomputed
        if "core_attention" in parts:
            found += forward["attention"] + forward["indexer"]
        numbers = 0.0
        if "norms" in parts:
            numbers += 2 * shape.norms * self._stream_numbers(shape, division)
        if "activations" in parts:
            numbers += self._activation_numbers(shape, division)
        if "mla_up" in parts:
            for matrix in shape.matrices():
                if matrix.name in _UP_PROJECTIONS:
                    found += self._product(matrix, matrix.inputs, matrix.outputs, shape, division)
        return found + self._device.moved_s(numbers * self._device.dtype_bytes)

    def _products(
        self,
        matrices: tuple[Matrix, ...],
        shape: LayerShape | None,
        division: Division,
        forward: dict[Kind, float],
        backward: dict[Kind, float],
    ) -> None:
        trains_all = self._workload.lora_rank is None
        for matrix in matrices:
            forward["products"] += self._product(matrix, matrix.inputs, matrix.outputs, shape, division)
            if matrix.part != "indexer":
                backward["products"] += self._gradients(matrix, shape, division, trains_all)
            if adapted(matrix, self._workload):
                pair = self._adapter(matrix, shape, division)
                forward["adapters"] += pair
                backward["adapters"] += 2 * pair

    def _product(
        self,
        matrix: Matrix,
        inputs: int,
        outputs: int,
        shape: LayerShape | None,
        division: Division,
        *,
        weights: bool = False,
    ) -> float:
        """A product on one rank, or the gradient of its weights."""
        tokens = self._row.tokens / division.cp
        whole = msgspec.structs.replace(matrix, inputs=inputs, outputs=outputs)
        if matrix.part == "routed_experts" and shape is not None and isinstance(shape.mlp, MoeShape):
            local = whole.local(division.etp, division.ep)
            rows = self._rows_per_expert(shape.mlp, division)
            return self._device.grouped_s(rows, local.inputs, local.outputs, local.copies, weights=weights)
        local = whole.local(division.tp)
        divided = matrix.divided != "none" or matrix.divided_copies
        rows = tokens if divided else tokens / division.tp
        if local.copies > 1:
            return self._device.grouped_s(rows, local.inputs, local.outputs, local.copies, weights=weights)
        return self._device.product_s(rows, local.inputs, local.outputs, weights=weights)

    def _gradients(
        self, matrix: Matrix, shape: LayerShape | None, division: Division, trained: bool
    ) -> float:
        """Gradient of the input, whose sums are as long as the output is wide; and of the weights, whose
        sums are as long as there are rows."""
        turned = "rows" if matrix.divided == "columns" else "columns"
        other = msgspec.structs.replace(matrix, divided=turned if matrix.divided != "none" else "none")
        found = self._product(other, matrix.outputs, matrix.inputs, shape, division)
        if trained:
            found += self._product(matrix, matrix.inputs, matrix.outputs, shape, division, weights=True)
        return found

    def _adapter(self, matrix: Matrix, shape: LayerShape | None, division: Division) -> float:
        """Down to the rank, and up again, added to the output of the frozen matrix, which is read for it."""
        rank = self._workload.lora_rank or 0
        down = msgspec.structs.replace(matrix, divided="rows" if matrix.divided == "rows" else "none")
        up = msgspec.structs.replace(matrix, divided="columns" if matrix.divided == "columns" else "none")
        added = self._rows(matrix, shape, division) * matrix.local(self._tp(matrix, division)).outputs
        return (
            self._product(down, matrix.inputs, rank, shape, division)
            + self._product(up, rank, matrix.outputs, shape, division)
            + self._device.moved_s(added * self._device.dtype_bytes)
        )

    def _tp(self, matrix: Matrix, division: Division) -> int:
        return division.etp if matrix.part == "routed_experts" else division.tp

    def _rows(self, matrix: Matrix, shape: LayerShape | None, division: Division) -> float:
        """Rows that a rank multiplies with a matrix, over all copies."""
        if matrix.part == "routed_experts" and shape is not None and isinstance(shape.mlp, MoeShape):
            return self._routed_rows(shape.mlp, division)
        tokens = self._row.tokens / division.cp
        return tokens if matrix.divided != "none" else tokens / division.tp

    def _routed_rows(self, moe: MoeShape, division: Division) -> float:
        """Rows that the fullest expert-parallel rank multiplies, over all its experts."""
        tokens = self._row.tokens / division.cp / division.tp
        return tokens * division.etp * moe.topk * self.imbalance(moe, division)

    def imbalance(self, moe: MoeShape, division: Division) -> float:
        """Tokens of the fullest expert-parallel rank over the mean. A rank's experts cancel in part; all
        ranks wait for the fullest, the expected maximum of normal variables."""
        if not self._row.varies:
            return 1.0
        held = max(1.0, moe.experts / division.ep)
        return 1.0 + self._calibration.expert_variation / sqrt(held) * expected_maximum(division.ep)

    def _rows_per_expert(self, moe: MoeShape, division: Division) -> float:
        return self._routed_rows(moe, division) * division.ep / moe.experts

    def _attention(
        self,
        shape: AttentionShape,
        division: Division,
        forward: dict[Kind, float],
        backward: dict[Kind, float],
    ) -> None:
        tokens = self._row.tokens / division.cp
        core, indexer = self.core(shape)
        ahead, back = self.attention_flops_per_s(shape)
        times = 2.0 if isinstance(shape, GatedDeltaNetShape) else 2.5
        floor = self._device.moved_s(4 * tokens * shape.core_width / division.tp * self._device.dtype_bytes)
        forward["attention"] += max(core * tokens / division.tp / ahead, floor) + self._device.kernel_s
        backward["attention"] += (
            max(times * core * tokens / division.tp / back, 2 * floor) + self._device.kernel_s
        )
        if indexer:
            reached = self._fraction(self._calibration.indexer_fraction)
            forward["indexer"] += indexer * tokens / reached + self._device.kernel_s

    def attention_flops_per_s(self, shape: AttentionShape) -> tuple[float, float]:
        """What the core of attention reaches, forward and backward, in FLOP/s."""
        values = self._calibration
        if isinstance(shape, GatedDeltaNetShape):
            reached = values.linear_attention_fraction * self._device.peak_flops
            return reached, reached
        sparse = (isinstance(shape, MlaShape) and shape.topk is not None) or (
            isinstance(shape, CompressedAttentionShape) and shape.indexer is not None
        )
        if sparse:
            return self._fraction(values.sparse_forward_fraction), self._fraction(
                values.sparse_backward_fraction
            )
        return self._fraction(values.attention_forward_fraction), self._fraction(
            values.attention_backward_fraction
        )

    def _fraction(self, table: ByArchitecture) -> float:
        return table.of(self._device.architecture) * self._device.peak_flops

    def _stream_numbers(self, shape: LayerShape, division: Division) -> float:
        """Numbers of the residual stream that a rank holds between its matrices."""
        tokens = self._row.tokens / division.cp
        if self._program.sequence_parallel:
            tokens /= division.tp
        return tokens * shape.hidden_size * shape.streams

    def _activation_numbers(self, shape: LayerShape, division: Division) -> float:
        """What activations of the feed-forward layer read and write: two read, one written."""
        numbers = 0.0
        for matrix in shape.mlp.matrices() if shape.mlp else ():
            if matrix.divided == "columns":
                local = matrix.local(self._tp(matrix, division))
                numbers += 1.5 * self._rows(matrix, shape, division) * local.outputs
        return numbers

    def _kernels(
        self, shape: LayerShape, division: Division, forward: dict[Kind, float], backward: dict[Kind, float]
    ) -> None:
        """Norms, residuals and rotations on the tokens of the rank; activations of the feed-forward layer;
        and for experts, rows that are permuted and put back, sorted, and given their bias."""
        numbers = self._stream_numbers(shape, division) * self._calibration.kernel_passes
        numbers += self._activation_numbers(shape, division)
        if isinstance(shape.mlp, MoeShape):
            passes = 4.0
            if self._program.dispatcher == "all_to_all" and shape.mlp.experts > division.ep:
                passes += 4.0
            if shape.mlp.bias:
                passes += self._calibration.bias_passes
            numbers += passes * self._routed_rows(shape.mlp, division) * shape.hidden_size
        seconds = self._device.moved_s(numbers * self._device.dtype_bytes)
        forward["kernels"] += seconds
        backward["kernels"] += 2 * seconds

    def _launches(self, shape: LayerShape, forward: dict[Kind, float], backward: dict[Kind, float]) -> None:
        """What a layer takes beyond its kernels because the host starts them one by one."""
        values, program = self._calibration, self._program
        count = float(values.launches_per_layer)
        if shape.is_moe:
            count += values.expert_launches
            count *= {"none": 1.0, "router": values.router_graph, "attention": values.attention_graph}[
                program.cuda_graphs
            ]
        if self._workload.lora_rank is not None:
            count += 3 * sum(adapted(matrix, self._workload) for matrix in shape.matrices())
        needed = count * values.launch_s
        waits = 0.0
        if shape.is_moe and program.dispatcher == "all_to_all":
            waits = values.counts_s
            if program.expert_overlap:
                needed *= 2
        forward["launches"] = max(0.0, needed - sum(forward.values())) + waits
        backward["launches"] = max(0.0, 2 * needed - sum(backward.values())) + waits

    def _tensor_parallel(
        self, shape: LayerShape, division: Division, forward: dict[Kind, float], backward: dict[Kind, float]
    ) -> None:
        """All-gather before and reduce-scatter after attention and the feed-forward layer, on the
        sequence."""
        group = place(division.tp, 1, self._network.domain)
        dense = shape.mlp is not None and not (isinstance(shape.mlp, MoeShape) and shape.mlp.shared_size == 0)
        volume = self._row.tokens / division.cp * shape.hidden_size * self._device.dtype_bytes
        seconds = (4 if dense else 2) * self._network.gather_s(group, volume)
        forward["tp"] += seconds
        backward["tp"] += seconds

    def _context_parallel(
        self,
        shape: AttentionShape,
        division: Division,
        forward: dict[Kind, float],
        backward: dict[Kind, float],
    ) -> None:
        """All-gather of keys and values; backward again, with a reduce-scatter of their gradients in
        float32."""
        if division.cp == 1:
            return
        group = place(division.cp, division.tp, self._network.domain)
        numbers = context_numbers(shape, self._row.tokens, division)
        gathered = self._network.gather_s(group, numbers * self._device.dtype_bytes)
        forward["cp"] += gathered
        backward["cp"] += gathered + self._network.gather_s(group, numbers * 4)

    def _expert_parallel(
        self, moe: MoeShape, division: Division, forward: dict[Kind, float], backward: dict[Kind, float]
    ) -> None:
        """Dispatch and combine among the ranks of the experts; gather and scatter among those of one
        expert."""
        tokens = self._row.tokens / division.cp / division.tp
        width = moe.hidden_size * self._device.dtype_bytes
        seconds = 0.0
        if division.ep > 1:
            group = self.expert_group(division)
            up, out = self.copies(moe, group)
            volume = tokens * width * self.imbalance(moe, division)
            seconds += 2 * self._network.exchange_s(group, up * volume, out * volume)
        if division.etp > 1:
            slices = place(division.etp, 1, self._network.domain)
            volume = self._routed_rows(moe, division) * width
            seconds += 2 * self._network.gather_s(slices, volume)
        for times in (forward, backward):
            behind = self._calibration.expert_overlap * sum(times.values())
            hidden = min(seconds, behind) if self._program.expert_overlap else 0.0
            times["ep"] += seconds - hidden

    def copies(self, moe: MoeShape, group: Group) -> tuple[float, float]:
        """How often a token is sent within a domain, and out of it."""
        if self._program.dispatcher == "fused":
            return dispatch_copies(group, moe.experts, moe.topk)
        within = moe.topk * (group.local - 1) / group.size
        return within, moe.topk * (group.size - group.local) / group.size

    def expert_group(self, division: Division) -> Group:
        """How the expert-parallel group lies on the domains."""
        return place(division.ep, division.etp, self._network.domain)

    def _embedding(self, division: Division) -> LayerTime:
        tokens = self._row.tokens / division.cp
        times = {
            "kernels": self._device.moved_s(3 * tokens * self._model.hidden_size * self._device.dtype_bytes)
        }
        if division.tp > 1:
            group = place(division.tp, 1, self._network.domain)
            volume = tokens * self._model.hidden_size * self._device.dtype_bytes
            times["tp"] = self._network.gather_s(group, volume)
        forward = tuple(times.get(kind, 0.0) for kind in KINDS)
        backward = forward if self._workload.lora_rank is None else tuple(0.0 for _ in KINDS)
        return LayerTime(forward=forward, backward=backward)

    def _head(self, division: Division) -> LayerTime:
        """Logits and log-probabilities; logits are written, read twice and their gradient written, in
        float32."""
        forward, backward = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
        self._products(self._model.head_matrices(), None, division, forward, backward)
        tokens = self._row.tokens / division.cp
        logits = tokens * self._model.vocab_size / division.tp * 4
        forward["kernels"] += self._device.moved_s(3 * logits)
        backward["kernels"] += self._device.moved_s(3 * logits)
        group = place(division.tp, 1, self._network.domain)
        volume = tokens * self._model.hidden_size * self._device.dtype_bytes
        forward["tp"] += self._network.gather_s(group, volume)
        backward["tp"] += self._network.gather_s(group, volume)
        return LayerTime(forward=tuple(forward.values()), backward=tuple(backward.values()))
