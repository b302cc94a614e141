"""The time of one training step on a layout, part by part, each with its reason."""

from art_topology.cost.calibration import Calibration
from art_topology.cost.communication import Group, place
from art_topology.cost.layer_times import KINDS, Division, Kind
from art_topology.cost.parts import CostPart, StepCost
from art_topology.cost.program import TrainerProgram
from art_topology.cost.states import updated_weights
from art_topology.cost.trainer_costs import StepTime, TrainerCosts, coupled_rows
from art_topology.hardware import Machine
from art_topology.models import ModelDescription, MoeShape
from art_topology.ranks import RankLayout
from art_topology.stages import StageLayout
from art_topology.workload import WorkloadSpec

_NAMES: dict[Kind, str] = {
    "products": "matrix products",
    "adapters": "adapters",
    "attention": "attention",
    "indexer": "indexer",
    "kernels": "other kernels",
    "launches": "kernel launches",
    "tp": "tensor parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
}


def trainer_step_cost(
    model: ModelDescription,
    layout: RankLayout,
    stages: StageLayout,
    workload: WorkloadSpec,
    machine: Machine,
    *,
    ranks_per_host: int | None = None,
    calibration: Calibration | None = None,
    program: TrainerProgram | None = None,
) -> StepCost:
    """Predicts one training step: ``workload.rows_per_step`` rows, each a microbatch of executed batch size
    one.

    Args:
        model: The model.
        layout: The trainer's rank layout.
        stages: Layers of each pipeline stage; its ``vpp`` is the number of virtual stages.
        workload: The step.
        machine: GPUs and links.
        ranks_per_host: Trainer ranks on each host, consecutive; by default all GPUs of a host.
        calibration: Other constants than the defaults.
        program: Facts of another trainer's software; by default ART's.

    Raises:
        ValueError: the stages do not belong to the model or the layout.
        SpecError: the GPU has no arithmetic in the workload's dtype.
    """
    if stages.num_layers != len(model.layers) or stages.pp != layout.pp:
        raise ValueError(
            f"stages of {stages.num_layers} layers on pp={stages.pp} ranks do not belong to a model of "
            f"{len(model.layers)} layers on pp={layout.pp}"
        )
    costs = TrainerCosts(
        model, workload, machine, ranks_per_host=ranks_per_host, calibration=calibration, program=program
    )
    return explained(costs, layout, stages)


def explained(costs: TrainerCosts, layout: RankLayout, stages: StageLayout) -> StepCost:
    """The same from costs that are there already."""
    time = costs.step_time(layout, stages)
    parts = [*_kind_parts(costs, layout, stages, time), *_pipeline_parts(costs, layout, stages, time)]
    parts += _once_parts(costs, layout, time)
    return StepCost(
        parts=tuple(part for part in parts if part.total_s > 0),
        step_s=time.step_s,
        rows=costs.row.rows,
        physical_tokens=costs.workload.physical_tokens_per_step,
        logical_tokens=costs.workload.logical_tokens_per_step,
        useful_flops=costs.useful_flops_per_token() * costs.workload.physical_tokens_per_step,
        gpus=layout.world_size,
        peak_flops=costs.device.peak_flops,
    )


def _kind_parts(
    costs: TrainerCosts, layout: RankLayout, stages: StageLayout, time: StepTime
) -> list[CostPart]:
    reasons = _reasons(costs, layout)
    plural = "s" if time.rows > 1 else ""
    per = f"{time.rows} row{plural} of {costs.row.tokens:,.0f} tokens on the slowest stage"
    parts = []
    division = Division(layout.tp, layout.cp, layout.ep, layout.etp)
    contents = costs.contents(stages)
    slowest = contents.distinct[contents.of_rank[time.row.slowest]]
    forward, backward = costs.kinds(division, slowest)
    for kind, ahead, back in zip(KINDS, forward, backward, strict=True):
        why = f"{per}, each {_ms(ahead)} forward and {_ms(back)} backward: {reasons[kind]}"
        parts.append(CostPart(name=_NAMES[kind], total_s=time.rows * (ahead + back), why=why))
    what = {"selective": "the core of attention", "full": "the forward pass of whole layers"}
    parts.append(
        CostPart(
            name="recomputation",
            total_s=time.rows * time.row.recompute_s,
            why=f"{per}, each {_ms(time.row.recompute_s)}: "
            f"{what.get(costs.workload.recompute, 'nothing')} again, with its communication",
        )
    )
    copied = time.rows * time.row.copies_s
    parts.append(
        CostPart(
            name="offload copies",
            total_s=copied,
            hidden_s=copied - time.rows * time.copies_exposed_s,
            why=f"{per}, each {_ms(time.row.copies_s)} of copies at "
            f"{_rate(costs.network.host_bytes_per_s)}, behind {_ms(time.row.compute_s)} of work",
        )
    )
    return parts


def _reasons(costs: TrainerCosts, layout: RankLayout) -> dict[Kind, str]:
    device, domain, values = costs.device, costs.network.domain, costs.calibration
    tokens = costs.row.tokens / layout.cp
    rank = costs.workload.lora_rank
    reasons: dict[Kind, str] = {
        "products": f"{tokens:,.0f} tokens per rank, matrices over tp={layout.tp}, products at most at "
        f"{device.matmul_flops / 1e12:,.0f} of {device.peak_flops / 1e12:,.0f} TFLOP/s, experts at "
        f"{device.grouped_flops / 1e12:,.0f}, and {device.kernel_s * 1e6:.0f} us a kernel; backward "
        + ("twice" if rank is None else "once, since the weights are frozen"),
        "adapters": f"rank {rank}: {_rate(device.memory_bytes_per_s)} of memory bounds them",
        "attention": _attention_reason(costs),
        "indexer": "every query against all keys before it; not divided by tp, no backward pass",
        "kernels": f"{_rate(device.memory_bytes_per_s)} of memory, {values.kernel_passes:.0f} passes over "
        "the hidden state in a layer, activations and permuted rows; logits in float32",
        "launches": f"{values.launch_s * 1e6:.0f} us each, where that is longer than the kernels",
        "tp": f"gather and scatter of {tokens:,.0f} x {costs.model.hidden_size:,} numbers around each half "
        f"of a layer, over {_group(place(layout.tp, 1, domain), costs)}",
        "cp": f"keys and values of a row gathered over {_group(place(layout.cp, layout.tp, domain), costs)}, "
        "gradients scattered in float32",
        "ep": "",
    }
    moe = next((layer.mlp for layer in costs.model.layers if isinstance(layer.mlp, MoeShape)), None)
    if moe is not None:
        division = Division(layout.tp, layout.cp, layout.ep, layout.etp)
        group = costs.layers.expert_group(division)
        up, out = costs.layers.copies(moe, group)
        reasons["ep"] = (
            f"each of {tokens / layout.tp:,.0f} tokens dispatched and combined, {up:.2f} copies within a "
            f"domain and {out:.2f} between, over {_group(group, costs)}, "
            f"{costs.layers.imbalance(moe, division):.2f} times for the fullest rank"
        )
    return reasons


def _attention_reason(costs: TrainerCosts) -> str:
    found = []
    for attention in dict.fromkeys(shape.attention for shape in costs.shapes):
        flops, _ = costs.layers.core(attention)
        ahead, back = costs.layers.attention_flops_per_s(attention)
        found.append(
            f"{type(attention).__name__.removesuffix('Shape')} {flops / 1e6:,.1f} MFLOP a token at "
            f"{ahead / 1e12:,.0f} TFLOP/s, backward 2.5 times that at {back / 1e12:,.0f}"
        )
    return "; ".join(dict.fromkeys(found))


def _pipeline_parts(
    costs: TrainerCosts, layout: RankLayout, stages: StageLayout, time: StepTime
) -> list[CostPart]:
    stage_s = time.row.stage_s
    group, coupled = costs.stage_group(layout), coupled_rows(layout)
    return [
        CostPart(
            name="pipeline bubble",
            total_s=time.bubble_s,
            why=f"(sum {sum(stage_s):.3f} s - slowest {max(stage_s):.3f} s of {layout.pp} stages) / "
            f"vpp={stages.vpp}; the mean stage takes {sum(stage_s) / layout.pp:.3f} s a row",
        ),
        CostPart(
            name="unequal rows",
            total_s=time.slack_s,
            why=f"work of a row varies by {costs.calibration.row_variation:.0%}: the longest of "
            f"{layout.pp * coupled} rows in stages and expert groups that wait for each other, the "
            f"fullest of {layout.dp // coupled} others with {time.rows} rows",
        ),
        CostPart(
            name="pipeline sends",
            total_s=time.sends_s,
            why=f"activations and gradients of {costs.row.tokens / layout.cp / layout.tp:,.0f} tokens "
            f"between stages over {_group(group, costs)}"
            + ("" if stages.vpp == 1 else ", behind the work of other rows but for filling and draining"),
        ),
    ]


def _once_parts(costs: TrainerCosts, layout: RankLayout, time: StepTime) -> list[CostPart]:
    held, domain = time.row.held, costs.network.domain
    both = time.reduce_s + time.gather_s
    share = time.reduce_s / both if both else 0.0
    dense = place(layout.dp * layout.cp, layout.tp, domain)
    expert = place(layout.expert_dp, layout.etp * layout.ep, domain)
    numbers = f"{held.trained_dense:,.0f} weights over {_group(dense, costs)}" + (
        f", {held.trained_expert:,.0f} of experts over {_group(expert, costs)}" if held.trained_expert else ""
    )
    updated = updated_weights(held, layout, costs.workload)
    return [
        CostPart(
            name="gradient reduction",
            total_s=time.reduce_s,
            hidden_s=time.hidden_s * share,
            why=f"gradients in {costs.program.gradient_bytes} bytes of {numbers}",
        ),
        CostPart(
            name="weight gathering",
            total_s=time.gather_s,
            hidden_s=time.hidden_s * (1 - share),
            why=f"{costs.workload.dtype} weights after each rank updated its share: {numbers}",
        ),
        CostPart(
            name="optimizer",
            total_s=time.optimizer_s,
            why=f"{updated:,.0f} weights x {costs.calibration.optimizer_bytes:.0f} bytes at "
            f"{_rate(costs.device.memory_bytes_per_s)}"
            + (
                f", their states copied at {_rate(costs.network.host_bytes_per_s)}"
                if "optimizer" in costs.workload.offload
                else ""
            ),
        ),
    ]


def _group(group: Group, costs: TrainerCosts) -> str:
    machine, links = costs.machine, costs.network
    if group.size == 1:
        return "one rank"
    if not group.crosses:
        return f"{group.size} ranks on {machine.scale_up.name} ({_rate(links.up_bytes_per_s)})"
    return (
        f"{group.size} ranks, {group.local} to a domain, on {machine.scale_up.name} "
        f"({_rate(links.up_bytes_per_s)}) and {machine.scale_out.name} ({_rate(links.out_bytes_per_s)})"
    )


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.0f} GB/s"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"
