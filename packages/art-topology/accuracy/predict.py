"""Predictions for the rows, through the public functions of the planner only."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec

from accuracy.rows import HERE, Layout, Row
from art_topology.cost import Calibration, TrainerProgram, rollout_cost, trainer_step_cost
from art_topology.cost.calibration import everywhere
from art_topology.hardware import HardwareTable, Machine, load_hardware
from art_topology.memory import MemoryAssumptions, MemoryEstimate, trainer_memory
from art_topology.models import (
    DenseShape,
    GqaShape,
    LayerShape,
    ModelDescription,
    MoeShape,
    load_model_config,
    parameters,
)
from art_topology.ranks import RankLayout
from art_topology.serving import VllmParallelSpec
from art_topology.stages import StageLayout, parse_layout
from art_topology.workload import WorkloadSpec

STATIC_PARTS = {
    "weights",
    "weights of experts",
    "embedding and head",
    "adapters",
    "gradients",
    "gradients of experts",
    "optimizer",
    "optimizer of experts",
    "workspaces",
}
"""What a rank holds between steps."""
PROGRAM = MemoryAssumptions(
    logit_chunk_tokens=1 << 30,
    logit_copies_bytes=4,
    vocab_multiple=128,
    expert_imbalance=1.0,
    cuda_context_bytes=0,
    nccl_bytes=0,
    nccl_all_to_all_bytes=0,
    allocator_share=0.0,
)
"""What Megatron-LM and NeMo do in these runs, and what torch's allocator counts: all logits at once, a padded
vocabulary, experts of equal load; neither CUDA's context nor NCCL's buffers."""
UNFUSED_BYTES = (13, 19)
"""What attention without flash kernels moves for each query, key and head, forward and backward: scores,
softmax, dropout and products each read and write the whole matrix, in 16 bit with masks of 1 byte."""
RL_PROMPT_TOKENS = 128
RL_GROUP_SIZE = 16


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner says of one row, in parameters, bytes or seconds."""

    row: Row
    value: float
    parts: tuple[tuple[str, float], ...] = ()

    @property
    def error(self) -> float:
        """Relative error, with its sign: above 0 the planner predicts more than was measured."""
        return self.value / self.row.value - 1


@cache
def hardware() -> HardwareTable:
    """The package's table with the machines of the rows."""
    return load_hardware(HERE / "machines.toml")


def machine_of(name: str) -> Machine:
    """A machine by its node's name."""
    return hardware().machine(name)


@cache
def config_of(name: str) -> dict[str, Any]:
    """The configuration of a model of ``models/``."""
    found = json.loads((HERE / "models" / f"{name}.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def describe(name: str, overrides: dict[str, int] | None = None) -> ModelDescription:
    """A model of ``models/``: from its configuration, or from shapes where it has none."""
    config = {**config_of(name), **(overrides or {})}
    for key in ("layer_types", "indexer_types"):
        if key in config:
            config[key] = config[key][: config["num_hidden_layers"]]
    return _from_shapes(name, config["shapes"]) if "shapes" in config else load_model_config(config)


def _from_shapes(name: str, shapes: dict[str, Any]) -> ModelDescription:
    hidden, head, bias = shapes["hidden_size"], shapes["head_dim"], shapes["bias"]
    attention = GqaShape(
        hidden_size=hidden, query_heads=shapes["query_heads"], kv_heads=shapes["kv_heads"], head_dim=head,
        value_dim=head, qkv_bias=bias, output_bias=bias,
    )  # fmt: skip
    moe = shapes.get("moe")
    mlps: list[DenseShape | MoeShape] = []
    if not moe or "moe_every" in shapes:
        mlps += [
            DenseShape(hidden_size=hidden, inner_size=shapes["inner_size"], gated=shapes["gated"], bias=bias)
        ] * (shapes.get("moe_every", 2) - 1)
    if moe:
        mlps.append(MoeShape(hidden_size=hidden, gated=shapes["gated"], bias=bias, **moe))
    layers = [LayerShape(hidden_size=hidden, attention=attention, mlp=mlp) for mlp in mlps]
    return ModelDescription(
        model_type=name, hidden_size=hidden, vocab_size=shapes["vocab_size"],
        tied_embeddings=shapes["tied_embeddings"], max_position_embeddings=None,
        layers=tuple(layers * (shapes["layers"] // len(layers))),
    )  # fmt: skip


def ranks_of(layout: Layout) -> RankLayout:
    """The rank layout of a row."""
    return RankLayout(
        tp=layout.tp, cp=layout.cp, dp=layout.dp, pp=layout.pp, etp=layout.etp, ep=layout.ep,
        expert_dp=layout.tp * layout.cp * layout.dp // (layout.etp * layout.ep),
    )  # fmt: skip


def stages_of(layout: Layout, num_layers: int, mtp: int = 0) -> StageLayout:
    """The division of the layers: as the row says, else as megatron-core divides them."""
    vpp = layout.vpp if layout.vpp > 1 else None
    if layout.stages == "balanced":
        return StageLayout.balanced(num_layers, layout.pp, vpp, mtp=mtp)
    if layout.stages.startswith("runs="):
        runs = ["t" * int(size) for size in layout.stages.removeprefix("runs=").split(",")]
        text = "E" + "|".join(runs) + "m" * mtp + "L"
        return parse_layout(text, layout.pp, num_layers=num_layers, mtp=mtp)
    ends = dict(part.split("=") for part in layout.stages.split(",") if "=" in part)
    return StageLayout.uniform(
        num_layers,
        layout.pp,
        vpp,
        first_stage_layers=int(ends["first"]) if "first" in ends else None,
        last_stage_layers=int(ends["last"]) if "last" in ends else None,
        mtp=mtp,
    )


def workload_of(row: Row) -> WorkloadSpec:
    """A training step of separate sequences: ``global_batch`` of them, ``micro_batch`` packed into a row."""
    assert row.sequence_length
    assert row.global_batch
    assert row.micro_batch
    assert row.recompute
    return WorkloadSpec(
        packed_sequence_length=row.sequence_length * row.micro_batch,
        groups_per_step=row.global_batch,
        group_size=1,
        prompt_tokens=1,
        completion_tokens=row.sequence_length - 1,
        lora_rank=row.lora_rank,
        lora_targets=row.lora_targets,
        recompute=row.recompute,
    )


def model_of(row: Row) -> ModelDescription:
    """The model of a row; it has the layers for further tokens only where the row trains them."""
    model = describe(row.model, row.overrides)
    if row.kind == "parameters":
        return model
    return msgspec.structs.replace(model, mtp_layers=model.mtp_layers[: row.mtp_layers])


def predict(row: Row) -> Prediction:
    """The prediction for one row."""
    return _PREDICTORS[row.kind](row)


def _parameters(row: Row) -> Prediction:
    model = model_of(row)
    total = parameters(model).total + row.not_parameters
    if row.include_mtp:
        total += sum(layer.parameter_count for layer in model.mtp_layers)
    return Prediction(row=row, value=total)


def memory_of(row: Row) -> MemoryEstimate:
    """The planner's estimate for the rank of a memory row."""
    assert row.layout is not None
    model = model_of(row)
    stages = stages_of(row.layout, len(model.layers), row.mtp_layers)
    program = msgspec.structs.replace(
        PROGRAM, mask_bytes=2.0 if row.dropout else 0.0, sequence_parallel=row.sequence_parallel
    )
    return trainer_memory(
        model, ranks_of(row.layout), stages, workload_of(row), pp_rank=row.pp_rank, assumptions=program
    )


def _memory(row: Row) -> Prediction:
    parts = tuple((part.name, float(part.bytes)) for part in memory_of(row).parts)
    if row.measures == "allocated":
        parts = tuple(part for part in parts if part[0] in STATIC_PARTS)
    return Prediction(row=row, value=sum(size for _, size in parts), parts=parts)


def calibration_of(row: Row, values: Calibration | None = None) -> Calibration:
    """The cost model's constants; for attention without flash kernels, what that can reach by its traffic.

    Per query, key and head it multiplies 4 numbers of the head forward and 8 backward, and skips none of them
    for the causal mask; the planner counts half of the 4, and 2.5 times that backward.
    """
    values = values or Calibration()
    attention = model_of(row).layers[0].attention
    if row.attention == "flash" or not isinstance(attention, GqaShape):
        return values
    assert row.machine is not None
    gpu = machine_of(row.machine).gpu
    peak = gpu.peak_flops["bfloat16"]
    product = values.matmul_fraction.of(gpu.architecture) * peak
    moved = values.memory_fraction * gpu.memory_bandwidth_bytes_per_s
    head = attention.head_dim
    forward = 2 * head / (UNFUSED_BYTES[0] / moved + 4 * head / product) / peak
    backward = 5 * head / (UNFUSED_BYTES[1] / moved + 8 * head / product) / peak
    return msgspec.structs.replace(
        values,
        attention_forward_fraction=everywhere(forward),
        attention_backward_fraction=everywhere(backward),
    )


def program_of(row: Row) -> TrainerProgram:
    """What the source says of the program of a row."""
    return TrainerProgram(
        sequence_parallel=row.sequence_parallel,
        dispatcher=row.dispatcher,
        expert_overlap=row.expert_overlap,
        cuda_graphs=row.cuda_graphs,
        recomputed=row.recomputed,
        gradient_bytes=row.gradient_bytes,
    )


def step_of(
    row: Row, workload: WorkloadSpec, *, values: Calibration | None = None, machine: Machine | None = None
) -> Prediction:
    """A training step of a row, with other constants or on another machine where they are given."""
    assert row.layout is not None
    assert row.machine is not None
    assert row.gpus is not None
    model = model_of(row)
    stages = stages_of(row.layout, len(model.layers), row.mtp_layers)
    machine = machine or machine_of(row.machine)
    cost = trainer_step_cost(
        model, ranks_of(row.layout), stages, workload, machine,
        ranks_per_host=min(machine.gpus_per_host, row.gpus), calibration=calibration_of(row, values),
        program=program_of(row),
    )  # fmt: skip
    parts = tuple((part.name, part.exposed_s) for part in cost.parts)
    return Prediction(row=row, value=cost.step_s, parts=parts)


def _step_time(row: Row) -> Prediction:
    return step_of(row, workload_of(row))


def _rl_step(row: Row) -> Prediction:
    """Generation, then log-probabilities (a forward pass: a third of training), then the updates."""
    assert row.samples
    assert row.mean_sequence_length
    assert row.global_batch
    assert row.generation_tp
    assert row.machine is not None
    assert row.gpus is not None
    assert row.sequence_length is not None
    step = WorkloadSpec(
        packed_sequence_length=row.sequence_length,
        groups_per_step=row.samples // RL_GROUP_SIZE,
        group_size=RL_GROUP_SIZE,
        prompt_tokens=RL_PROMPT_TOKENS,
        completion_tokens=row.mean_sequence_length - RL_PROMPT_TOKENS,
        prompt_sharing=False,
        recompute=row.recompute or "none",
    )
    update = msgspec.structs.replace(step, groups_per_step=row.global_batch // RL_GROUP_SIZE)
    machine = machine_of(row.machine)
    parallel = VllmParallelSpec(tp=row.generation_tp, dp=row.gpus // row.generation_tp)
    generation = rollout_cost(model_of(row), parallel, step, machine).rollout_s
    updates = row.samples // row.global_batch * step_of(row, update).value
    parts = (("generation", generation), ("log-probabilities", updates / 3), ("training", updates))
    return Prediction(row=row, value=sum(seconds for _, seconds in parts), parts=parts)


_PREDICTORS = {
    "parameters": _parameters,
    "memory": _memory,
    "step_time": _step_time,
    "rl_step": _rl_step,
}
