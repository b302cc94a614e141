"""The asynchronous loop: trainer and rollouts side by side."""

from art_topology.cost.calibration import Calibration
from art_topology.cost.communication import network
from art_topology.cost.parts import CostPart, LoopCost, RolloutCost, StepCost
from art_topology.hardware import Machine
from art_topology.models import ModelDescription, parameters
from art_topology.models.flops import adapted
from art_topology.workload import WorkloadSpec


def loop_cost(
    model: ModelDescription,
    workload: WorkloadSpec,
    machine: Machine,
    trainer: StepCost,
    rollout: RolloutCost,
    *,
    provisioned_gpus: int | None = None,
    calibration: Calibration | None = None,
) -> LoopCost:
    """Joins a training step and its rollouts to one step of the asynchronous loop.

    Args:
        model: The model.
        workload: The step.
        machine: GPUs and links.
        trainer: The training step.
        rollout: The rollouts that feed it.
        provisioned_gpus: GPUs that are paid for, idle ones included; by default those of both.
        calibration: Other constants than the defaults.
    """
    values = calibration or Calibration()
    trained_s = trainer.step_s + values.loop_overhead_s
    pace_s = max(trained_s, rollout.rollout_s)
    publication = _publication(model, workload, machine, pace_s, values)
    step_s = pace_s + publication.exposed_s
    tokens = rollout.completion_tokens
    trained = f"training takes {trainer.step_s:.2f} s and {values.loop_overhead_s:.2f} s around it"
    rolled = f"rollouts {rollout.rollout_s:.2f} s"
    pace, other = ("trainer", "service") if trained_s >= rollout.rollout_s else ("rollouts", "trainer")
    idle_s = step_s - min(trained_s, rollout.rollout_s)
    idle = f"the {other} idles {idle_s / step_s:.0%} of the time"
    set_by = f"the {pace} {'sets' if pace == 'trainer' else 'set'} the pace, {idle}"
    if publication.exposed_s > 0:
        set_by = f"the publication of {publication.total_s:.2f} s sets the pace, {idle}"
    return LoopCost(
        trainer=trainer,
        rollout=rollout,
        publication=publication,
        step_s=step_s,
        accepted_tokens_per_s=tokens / step_s,
        waiting="service" if trained_s >= rollout.rollout_s else "trainer",
        idle_s=idle_s,
        gpus=provisioned_gpus or trainer.gpus + rollout.gpus,
        why=f"{trained}, {rolled}: {set_by}",
    )


def published_weights(model: ModelDescription, workload: WorkloadSpec) -> int:
    """Weights that a new policy consists of: adapters, or the whole model."""
    if workload.lora_rank is None:
        return parameters(model).total
    matrices = [matrix for layer in model.layers for matrix in layer.matrices()]
    matrices += model.head_matrices()
    return sum(m.adapter_parameter_count(workload.lora_rank) for m in matrices if adapted(m, workload))


def publication_s(
    model: ModelDescription, workload: WorkloadSpec, machine: Machine, calibration: Calibration
) -> float:
    """Time of a publication by itself, in seconds."""
    copied_s, sent_s, _ = _transfer(model, workload, machine, calibration)
    return 2 * copied_s + sent_s


def _publication(
    model: ModelDescription, workload: WorkloadSpec, machine: Machine, pace_s: float, calibration: Calibration
) -> CostPart:
    """Behind the next step, as far as it fits."""
    copied_s, sent_s, moved = _transfer(model, workload, machine, calibration)
    total_s = 2 * copied_s + sent_s
    return CostPart(
        name="publication",
        total_s=total_s,
        hidden_s=min(total_s, pace_s),
        why=f"{moved / 1e9:,.2f} GB to host memory and back ({copied_s:.2f} s each) and between hosts "
        f"({sent_s:.2f} s) by one adapter, behind the next step",
    )


def _transfer(
    model: ModelDescription, workload: WorkloadSpec, machine: Machine, calibration: Calibration
) -> tuple[float, float, float]:
    """Seconds to or from host memory, seconds across the network to every serving host, and the bytes."""
    moved = published_weights(model, workload) * workload.dtype_bytes
    links = network(machine, machine.gpus_per_host, calibration)
    return moved / links.host_bytes_per_s, moved / links.out_bytes_per_s, moved
