"""What a search is about: the model, the step, and a cluster of equal hosts."""

import msgspec

from art_topology.cluster import ClusterSpec
from art_topology.cost.calibration import Calibration
from art_topology.hardware import HardwareTable, Machine, default_hardware
from art_topology.models import ModelDescription
from art_topology.passes.model_facts import ModelFacts, facts_of
from art_topology.planner.results import Split
from art_topology.serving import ServedWeights
from art_topology.spec import SpecError
from art_topology.workload import Offload, Recompute, WorkloadSpec

Savings = tuple[Recompute, tuple[Offload, ...]]
"""What a rank does to need less memory: recomputation and offload."""

OFFLOADS: tuple[tuple[Offload, ...], ...] = (
    (),
    ("optimizer",),
    ("optimizer", "activations"),
    ("optimizer", "activations", "weights"),
)
"""Offload that a search tries, one after the other: the next only where no recomputation fits with the one
before. What copies cost beside the work is the least certain of all times, so that a layout without them is
preferred."""
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")
"""Recomputation that a search tries."""
SAVINGS: tuple[Savings, ...] = tuple((recompute, offload) for offload in OFFLOADS for recompute in RECOMPUTES)
"""All savings that a search tries."""

HOST_MEMORY_FRACTION = 0.8
"""Share of a host's memory that offload may fill; the rest is for rollouts, batches and the system."""
MEMORY_MARGIN = 0.04
"""Share of a GPU's memory that a trainer's rank leaves free unless another is asked for. With more,
GLM-5.2 with CP8/EP8 on eight B300, which ran and for which 95.8 % are predicted, would be refused."""
TIGHT = 0.9
"""Share of a GPU's memory above which a plan is called tight: predictions of memory err by as much as what is
left."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A search.

    Args:
        model: The model, as it is trained.
        served: The same model with its weights as the service has them.
        facts: Sizes of the model that parallelism has to divide.
        served_facts: The same of the service's weights.
        workload: The step.
        machine: What all hosts are.
        hosts: How many hosts.
        gpus_per_host: GPUs of each.
        memory_limit_bytes: What a trainer's rank may fill.
        host_limit_bytes: What the offloads of all trainer ranks of a host may fill.
        utilization: Share of a GPU's memory that the service may use.
        savings: Recomputation and offload that are tried.
        calibration: Constants of the costs.
        service_weights: What the service says of its weights.
    """

    model: ModelDescription
    served: ModelDescription
    facts: ModelFacts
    served_facts: ModelFacts
    workload: WorkloadSpec
    machine: Machine
    hosts: int
    gpus_per_host: int
    memory_limit_bytes: int
    host_limit_bytes: int
    utilization: float
    savings: tuple[Savings, ...]
    calibration: Calibration
    service_weights: ServedWeights = "auto"

    @property
    def gpus(self) -> int:
        """All GPUs of the cluster."""
        return self.hosts * self.gpus_per_host


def problem_of(
    model: ModelDescription,
    cluster: ClusterSpec,
    workload: WorkloadSpec,
    *,
    hardware: HardwareTable | None,
    machine: str | None,
    savings: tuple[Savings, ...],
    memory_margin: float,
    gpu_memory_utilization: float,
    calibration: Calibration | None,
    service_weights: ServedWeights = "auto",
) -> Problem:
    """Looks the hardware up.

    Raises:
        SpecError: the hosts have no GPU or slices of GPUs, differ, or name none that is in the table; the
            sequences are longer than the model's context; or the margin is not from 0 to below 1.
    """
    if not 0 <= memory_margin < 1:
        raise SpecError(f"the share of memory kept free is {memory_margin}: it is at least 0 and below 1")
    _check_slices(cluster)
    _check_lengths(model, workload)
    counts = {len(host.gpus) for host in cluster.hosts}
    if counts != {max(counts)} or max(counts) == 0:
        raise SpecError(
            f"a plan needs hosts with equally many GPUs, at least one each; these have {sorted(counts)}"
        )
    names = {host.gpu_model for host in cluster.hosts}
    if machine is None and (len(names) > 1 or None in names):
        found = ", ".join(sorted(str(name) for name in names))
        raise SpecError(
            f"a plan needs GPUs of one kind, and the hosts say {found}: set gpu_model of every host to the "
            "same name, or name the machine"
        )
    (per_host,) = counts
    table = hardware or default_hardware()
    node = table.machine(machine if machine is not None else str(names.pop()))
    if per_host > node.gpus_per_host:
        raise SpecError(f"hosts have {per_host} GPUs, but a {node.name} has {node.gpus_per_host}")
    served = model.with_weights(service_weights)
    return Problem(
        model=model,
        served=served,
        served_facts=facts_of(served),
        service_weights=service_weights,
        facts=facts_of(model),
        workload=workload,
        machine=node,
        hosts=len(cluster.hosts),
        gpus_per_host=per_host,
        memory_limit_bytes=int(node.gpu.memory_bytes * (1 - memory_margin)),
        host_limit_bytes=int((node.host_memory_bytes or 0) * HOST_MEMORY_FRACTION),
        utilization=gpu_memory_utilization,
        savings=savings,
        calibration=calibration or Calibration(),
    )


def savings_of(
    workload: WorkloadSpec,
    *,
    search: bool,
    recompute: Recompute | None = None,
    offload: tuple[Offload, ...] | None = None,
) -> tuple[Savings, ...]:
    """The savings that are tried: all of :data:`SAVINGS`, less what is given.

    Args:
        workload: What it says is given, where it is not the default.
        search: Otherwise all that the workload says is given, defaults too.
        recompute: The only one to try.
        offload: The only one to try.
    """
    if recompute is None and (not search or workload.recompute != "none"):
        recompute = workload.recompute
    if offload is None and (not search or workload.offload):
        offload = workload.offload
    recomputes = RECOMPUTES if recompute is None else (recompute,)
    offloads = OFFLOADS if offload is None else (offload,)
    return tuple((again, away) for away in offloads for again in recomputes)


def _check_slices(cluster: ClusterSpec) -> None:
    for host in cluster.hosts:
        slices = [gpu for gpu in host.gpus if isinstance(gpu, str) and gpu.upper().startswith("MIG-")]
        if slices:
            raise SpecError(
                f"host {host.host_id!r} offers {len(slices)} MIG slices, such as {slices[0]}: a plan is made "
                "for whole GPUs, as it does not know a slice's memory and share of the processors; offer the "
                "GPUs by index or GPU UUID"
            )


def _check_lengths(model: ModelDescription, workload: WorkloadSpec) -> None:
    longest = model.max_position_embeddings
    length = workload.prompt_tokens + workload.completion_tokens
    if longest is not None and length > longest:
        raise SpecError(
            f"sequences of {workload.prompt_tokens:,} + {workload.completion_tokens:,} = {length:,} tokens "
            f"are longer than the model's context of {longest:,} (max_position_embeddings): shorten prompts "
            f"or completions by {length - longest:,} tokens, or extend the context in its config.json"
        )


_SHARED_HOSTS = 4
"""Most hosts that are divided between trainer and service. Larger clusters give each whole hosts."""
_EVERY_COUNT = 8
"""Up to so many hosts every number of hosts is tried; above that, steps of a quarter of the power of two
below."""


def host_counts(hosts: int) -> tuple[int, ...]:
    """How many hosts one side may have: 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40 and so on, and what is
    left over when the other side has one of these."""
    found, count, step = set(), 1, 1
    while count < hosts:
        found |= {count, hosts - count}
        if count >= _EVERY_COUNT * step:
            step *= 2
        count += step
    return tuple(sorted(found))


def splits_of(problem: Problem, trainer_gpus: int | None) -> tuple[Split, ...]:
    """All divisions of the cluster that the search considers: whole hosts for each side, or, on few hosts,
    the same number of GPUs of every host. One host is always shared.

    Args:
        problem: The search.
        trainer_gpus: Only those with so many GPUs for the trainer.
    """
    hosts, per_host = problem.hosts, problem.gpus_per_host
    found: list[Split] = []
    counts = set(host_counts(hosts))
    if trainer_gpus is not None and trainer_gpus % per_host == 0 and 0 < trainer_gpus // per_host < hosts:
        counts |= {trainer_gpus // per_host, hosts - trainer_gpus // per_host}
    found += [
        Split(
            trainer_hosts=trained,
            trainer_gpus_per_host=per_host,
            service_hosts=served,
            service_gpus_per_host=per_host,
        )
        for trained in sorted(counts)
        for served in sorted(counts)
        if trained + served <= hosts
    ]
    if hosts <= _SHARED_HOSTS:
        found += [
            Split(
                trainer_hosts=hosts,
                trainer_gpus_per_host=trained,
                service_hosts=hosts,
                service_gpus_per_host=served,
                shared=True,
            )
            for trained in range(1, per_host)
            for served in range(1, per_host - trained + 1)
        ]
    return tuple(s for s in found if trainer_gpus is None or s.trainer_gpus == trainer_gpus)
