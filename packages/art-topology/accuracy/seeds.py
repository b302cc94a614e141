"""What this project's own runs measured, predicted: GLM-5.2 on B300 and layouts across hosts of H200.

The runs' workloads are known only in part (rows of 128K tokens, LoRA, completion-heavy); the rest is ``ROWS``
and ``WORKLOAD`` below, fixed before the first prediction. Ratios between layouts are compared, since they
depend little on what is not known.
"""

from __future__ import annotations

import msgspec

from accuracy.predict import describe, machine_of
from art_topology.cost import StepCost, loop_cost, rollout_cost, trainer_step_cost
from art_topology.memory import trainer_memory
from art_topology.models import ModelDescription
from art_topology.ranks import RankLayout
from art_topology.serving import VllmParallelSpec
from art_topology.stages import StageLayout
from art_topology.workload import WorkloadSpec

ROWS = 16
"""Packed rows of a step."""
LENGTH = 131_072
WORKLOAD = WorkloadSpec(
    packed_sequence_length=LENGTH,
    groups_per_step=ROWS,
    group_size=16,
    prompt_tokens=2048,
    completion_tokens=8064,
    lora_rank=16,
    recompute="full",
)
"""One group of 16 completions fills a row."""
HALF_LENGTH = msgspec.structs.replace(
    WORKLOAD, packed_sequence_length=LENGTH // 2, group_size=8, completion_tokens=7936
)
SMALL_MODELS = ("llama-3.1-8b", "qwen3-8b", "qwen3-30b-a3b", "gpt-oss-120b", "qwen3-235b-a22b", "glm-5.2")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A statement of the runs beside the planner's; ``measured`` and ``predicted`` are ratios or amounts."""

    what: str
    measured: float | None
    predicted: float
    form: str = "{:.3f}"
    why: str = ""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer layout that fits, with its speed."""

    name: str
    tokens_per_s: float


class Minimum(msgspec.Struct, frozen=True, kw_only=True):
    """The layouts of a model at the least number of GPUs that hold it, fastest first."""

    model: str
    gpus: int
    candidates: tuple[Candidate, ...]

    @property
    def wanted(self) -> str:
        """The layout with context and expert parallelism over all GPUs (context only, for a dense model)."""
        return f"CP{self.gpus}/EP{self.gpus}" if self.gpus > 1 else "one GPU"

    @property
    def place(self) -> int | None:
        """Its place, from 1; None where it does not fit."""
        for place, candidate in enumerate(self.candidates, 1):
            if candidate.name in (self.wanted, f"CP{self.gpus}"):
                return place
        return None


def step(
    model: ModelDescription,
    machine: str,
    *,
    cp: int,
    ep: int,
    dp: int = 1,
    pp: int = 1,
    vpp: int = 1,
    tp: int = 1,
    workload: WorkloadSpec = WORKLOAD,
    ranks_per_host: int | None = None,
) -> StepCost:
    """The cost of a step on a layout."""
    ranks = _ranks(tp, cp, dp, pp, ep)
    stages = StageLayout.balanced(len(model.layers), pp, vpp if vpp > 1 else None)
    return trainer_step_cost(
        model, ranks, stages, workload, machine_of(machine), ranks_per_host=ranks_per_host
    )


def glm() -> ModelDescription:
    """GLM-5.2, all 78 layers, without the layer for further tokens."""
    return msgspec.structs.replace(describe("glm-5.2"), mtp_layers=())


def findings() -> tuple[Finding, ...]:
    """Measured and predicted, one by one."""
    model = glm()
    best = step(model, "DGX-B300", cp=8, ep=8, dp=2)
    wide = step(model, "DGX-B300", cp=16, ep=16)
    stages = StageLayout.uniform(len(model.layers), 2, 3)
    piped = trainer_step_cost(model, _ranks(1, 8, 1, 2, 8), stages, WORKLOAD, machine_of("DGX-B300"))
    part = msgspec.structs.replace(model, layers=model.layers[:24])
    one = step(part, "DGX-H200", cp=8, ep=8)
    split = step(part, "DGX-H200", cp=8, ep=8, ranks_per_host=4)
    short = step(part, "DGX-H200", cp=8, ep=8, workload=HALF_LENGTH)
    long = step(part, "DGX-H200", cp=16, ep=16)
    weak = (long.tokens_per_s / 16) / (short.tokens_per_s / 8)
    return (
        Finding(
            what="GLM-5.2, two B300 nodes: speed of CP8/EP8/DP2 over CP16/EP16",
            measured=1.120,
            predicted=wide.step_s / best.step_s,
        ),
        Finding(
            what="GLM-5.2, two B300 nodes: speed of CP8/EP8/DP2 over PP2/VPP3 (with CP8/EP8)",
            measured=1.433,
            predicted=piped.step_s / best.step_s,
        ),
        Finding(
            what="The same: logical tokens per second of CP8/EP8/DP2",
            measured=15_713,
            predicted=best.logical_tokens_per_s,
            form="{:,.0f}",
        ),
        Finding(what="The same: useful MFU", measured=0.0979, predicted=best.mfu, form="{:.4f}"),
        Finding(
            what="H200, CP8/EP8: throughput kept when 8 GPUs of a host become 4 + 4 of two",
            measured=0.950,
            predicted=one.step_s / split.step_s,
        ),
        Finding(
            what="H200: throughput per GPU kept from CP8/EP8 at 64K to CP16/EP16 at 128K",
            measured=0.946,
            predicted=weak,
        ),
        Finding(
            what="GLM-5.2: score per GPU of 16 trainer and 8 inference GPUs over 8 and 8",
            measured=0.964,
            predicted=_scores()[1] / _scores()[0],
        ),
    )


def _scores() -> tuple[float, float]:
    """Accepted tokens per second per GPU with 8 and 8 GPUs, and with 16 and 8."""
    model, machine = glm(), machine_of("DGX-B300")
    rollout = rollout_cost(model, VllmParallelSpec(tp=8, expert_parallel=True), WORKLOAD, machine)
    small, large = (step(model, "DGX-B300", cp=8, ep=8, dp=dp) for dp in (1, 2))
    scores = [loop_cost(model, WORKLOAD, machine, trainer, rollout).score for trainer in (small, large)]
    return scores[0], scores[1]


def minima(machine: str = "DGX-H200") -> tuple[Minimum, ...]:
    """For each model the least number of GPUs on which some layout fits, and all that fit, fastest first."""
    found = []
    for name in SMALL_MODELS:
        model = msgspec.structs.replace(describe(name), mtp_layers=())
        gpus, candidates = 1, _candidates(model, machine, 1)
        while not candidates and gpus < 64:
            gpus *= 2
            candidates = _candidates(model, machine, gpus)
        found.append(Minimum(model=name, gpus=gpus, candidates=candidates))
    return tuple(found)


def _candidates(model: ModelDescription, machine: str, gpus: int) -> tuple[Candidate, ...]:
    node = machine_of(machine)
    found = []
    sizes = [1 << power for power in range(gpus.bit_length())]
    for tp in sizes:
        for cp in sizes:
            for pp in sizes:
                if gpus % (tp * cp * pp) or (model.kv_heads or tp) % tp:
                    continue
                dp = gpus // (tp * cp * pp)
                for ep in sizes if model.experts else [1]:
                    if (model.experts or 1) % ep or (tp * cp * dp) % ep:
                        continue
                    found += _candidate(model, machine, node.gpu.memory_bytes, (tp, cp, dp, pp, ep))
    return tuple(sorted(found, key=lambda candidate: -candidate.tokens_per_s))


def _candidate(
    model: ModelDescription, machine: str, memory_bytes: int, sizes: tuple[int, int, int, int, int]
) -> list[Candidate]:
    tp, cp, dp, pp, ep = sizes
    ranks = _ranks(*sizes)
    stages = StageLayout.balanced(len(model.layers), pp)
    if trainer_memory(model, ranks, stages, WORKLOAD).total_bytes > 0.92 * memory_bytes:
        return []
    cost = trainer_step_cost(model, ranks, stages, WORKLOAD, machine_of(machine))
    axes = (("TP", tp), ("CP", cp), ("EP", ep), ("PP", pp), ("DP", dp))
    name = "/".join(f"{axis}{size}" for axis, size in axes if size > 1) or "one GPU"
    return [Candidate(name=name, tokens_per_s=cost.tokens_per_s)]


def _ranks(tp: int, cp: int, dp: int, pp: int, ep: int) -> RankLayout:
    etp = 1
    return RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, etp=etp, ep=ep, expert_dp=tp * cp * dp // (etp * ep))
