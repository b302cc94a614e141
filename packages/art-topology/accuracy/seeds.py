"""What this project's own runs measured, predicted: GLM-5.2 on B300 and layouts across hosts of H200.

The runs' workloads are known only in part (rows of 128K tokens, LoRA, completion-heavy); the rest is ``ROWS``
and ``WORKLOAD`` below, fixed before the first prediction. Ratios between layouts are compared, since they
depend little on what is not known.
"""

from __future__ import annotations

from functools import cache
from math import log

import msgspec

from accuracy.predict import describe, machine_of
from art_topology.cost import LoopCost, RolloutCost, StepCost, loop_cost, rollout_cost, trainer_step_cost
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
SPLIT_GROUPS = tuple(range(16, 257, 8))
"""Sizes of groups among which the workload of the split is sought: a row is one group, so that larger groups
have shorter completions, which are generated faster."""
MINIMA = (
    ("llama-3.1-70b", "DGX-H200"),
    ("gpt-oss-120b", "DGX-H200"),
    ("mixtral-8x22b", "DGX-H200"),
    ("qwen3-235b-a22b", "DGX-H200"),
    ("deepseek-v3", "DGX-B300"),
    ("glm-5.2", "DGX-B300"),
)
SPEED_OVER_WIDE = 1.120
"""Measured: GLM-5.2 on two B300 nodes, CP8/EP8/DP2 over CP16/EP16."""
SPEED_OVER_PIPED = 1.433
"""Measured: likewise over PP2/VPP3."""
SCORE_KEPT = 0.964
"""Measured: score per GPU of 16 trainer and 8 inference GPUs over 8 and 8."""
FILL = 1.0
"""Share of a GPU's memory that a layout may need: all, for GLM-5.2 ran with CP8/EP8, which fills 95 %."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A statement of the runs beside the planner's; ``measured`` and ``predicted`` are ratios or amounts."""

    what: str
    measured: float
    predicted: float
    form: str = "{:.3f}"
    why: str = ""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A division of the served model, with its rollouts and the score that 16 + 8 GPUs keep."""

    tp: int
    dp: int
    decode_step_s: float
    rollout_s: float
    kept: float


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A workload in whose loop neither 8 + 8 nor 16 + 8 GPUs waste more than the other.

    Args:
        group_size: Completions of a row.
        completion_tokens: Their length.
        small_s: A training step on 8 GPUs.
        large_s: On 16.
        rollout_s: The rollouts of a step on 8 GPUs.
        kept: Score per GPU of 16 + 8 over 8 + 8.
    """

    group_size: int
    completion_tokens: int
    small_s: float
    large_s: float
    rollout_s: float
    kept: float


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer layout that fits, with its speed."""

    name: str
    tokens_per_s: float


class Minimum(msgspec.Struct, frozen=True, kw_only=True):
    """The layouts of a model at the least number of GPUs that hold it, fastest first."""

    model: str
    machine: str
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
    workload: WorkloadSpec = WORKLOAD,
    ranks_per_host: int | None = None,
) -> StepCost:
    """The cost of a step on a layout without a pipeline."""
    ranks, stages = _ranks(1, cp, dp, 1, ep), StageLayout.uniform(len(model.layers), 1)
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
    piped = _piped(model, WORKLOAD)
    part = msgspec.structs.replace(model, layers=model.layers[:24])
    one = step(part, "DGX-H200", cp=8, ep=8)
    split = step(part, "DGX-H200", cp=8, ep=8, ranks_per_host=4)
    short = step(part, "DGX-H200", cp=8, ep=8, workload=HALF_LENGTH)
    long = step(part, "DGX-H200", cp=16, ep=16)
    weak = (long.tokens_per_s / 16) / (short.tokens_per_s / 8)
    share = balanced_split()
    return (
        Finding(
            what="GLM-5.2, two B300 nodes: speed of CP8/EP8/DP2 over CP16/EP16",
            measured=SPEED_OVER_WIDE,
            predicted=wide.step_s / best.step_s,
        ),
        Finding(
            what="GLM-5.2, two B300 nodes: speed of CP8/EP8/DP2 over PP2/VPP3 (with CP8/EP8)",
            measured=SPEED_OVER_PIPED,
            predicted=piped.step_s / best.step_s,
            why=(
                "The planner knows the bubble, sends between stages, uneven stages and rows that differ. "
                "With few rows in a step they cost up to two fifths of what was measured (below). What "
                "remains it does not know: a row goes through six virtual stages, each with its own passes "
                "of recomputation, messages whose shapes change from row to row and are agreed on before "
                "they are sent, and a wait for the other stage whenever rows differ; how long the rows of "
                "the runs were is not published. No constant was set to close the gap."
            ),
        ),
        Finding(
            what="The same: logical tokens per second of CP8/EP8/DP2",
            measured=15_713,
            predicted=best.logical_tokens_per_s,
            form="{:,.0f}",
            why=(
                "What sparse attention reaches on Blackwell was set by the next line, so this is no "
                "independent prediction. The rest of the error is the unknown share of prompts: the assumed "
                f"workload has {best.logical_tokens / best.physical_tokens:.2f} logical tokens to a computed "
                "one."
            ),
        ),
        Finding(
            what="The same: useful MFU",
            measured=0.0979,
            predicted=best.mfu,
            form="{:.4f}",
            why=(
                "Calibrated on this very figure: one factor for the assumed fractions of sparse attention "
                "and of its indexer on Blackwell. All other lines are predicted with it."
            ),
        ),
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
            measured=SCORE_KEPT,
            predicted=share.kept,
            why=(
                "Predicted for the workload at which neither of the two layouts waits more than the other "
                "(below); which workload was run is not published, and the score follows it."
            ),
        ),
    )


def _piped(model: ModelDescription, workload: WorkloadSpec) -> StepCost:
    """PP2/VPP3 with CP8/EP8 on 16 GPUs."""
    stages = StageLayout.uniform(len(model.layers), 2, 3)
    return trainer_step_cost(model, _ranks(1, 8, 1, 2, 8), stages, workload, machine_of("DGX-B300"))


def _rollouts(tp: int, dp: int, workload: WorkloadSpec = WORKLOAD) -> RolloutCost:
    """GLM-5.2 served by 8 GPUs, its experts divided among all."""
    parallel = VllmParallelSpec(tp=tp, dp=dp, expert_parallel=True)
    return rollout_cost(glm(), parallel, workload, machine_of("DGX-B300"))


def _loops(rollout: RolloutCost, workload: WorkloadSpec = WORKLOAD) -> tuple[LoopCost, LoopCost]:
    """The loop with 8 trainer and 8 inference GPUs, and with 16 and 8."""
    model, machine = glm(), machine_of("DGX-B300")
    trainers = (step(model, "DGX-B300", cp=8, ep=8, dp=dp, workload=workload) for dp in (1, 2))
    small, large = (loop_cost(model, workload, machine, trainer, rollout) for trainer in trainers)
    return small, large


@cache
def balanced_split() -> Split:
    """Of rows filled by one group, those at which rollouts take the geometric mean of the trainer's steps on
    8 and on 16 GPUs: beside 8 they idle as large a share as the trainer does beside them with 16. TP1 with
    DP8 serves them."""
    found: list[tuple[float, Split]] = []
    for group in SPLIT_GROUPS:
        length = (LENGTH - WORKLOAD.prompt_tokens) // group
        workload = msgspec.structs.replace(WORKLOAD, group_size=group, completion_tokens=length)
        rollout = _rollouts(1, 8, workload)
        small, large = _loops(rollout, workload)
        small_s, large_s = small.trainer.step_s, large.trainer.step_s
        split = Split(
            group_size=group,
            completion_tokens=length,
            small_s=small_s,
            large_s=large_s,
            rollout_s=rollout.rollout_s,
            kept=large.score / small.score,
        )
        found.append((abs(2 * log(rollout.rollout_s) - log(small_s) - log(large_s)), split))
    return min(found, key=lambda pair: pair[0])[1]


def rows_matter() -> tuple[tuple[int, float, float], ...]:
    """Rows of a step, and for so many the speed of CP8/EP8/DP2 over CP16/EP16 and over PP2/VPP3."""
    model, found = glm(), []
    for rows in (2, 4, 8, ROWS, 32):
        workload = msgspec.structs.replace(WORKLOAD, groups_per_step=rows)
        best = step(model, "DGX-B300", cp=8, ep=8, dp=2, workload=workload)
        wide = step(model, "DGX-B300", cp=16, ep=16, workload=workload)
        found.append((rows, wide.step_s / best.step_s, _piped(model, workload).step_s / best.step_s))
    return tuple(found)


def service_matters() -> tuple[Service, ...]:
    """The service's divisions of the model over 8 GPUs, and with each the score of 16 + 8 over 8 + 8."""
    found = []
    for tp, dp in ((8, 1), (4, 2), (2, 4), (1, 8)):
        rollout = _rollouts(tp, dp)
        small, large = _loops(rollout)
        found.append(
            Service(
                tp=tp,
                dp=dp,
                decode_step_s=rollout.decode_step_s,
                rollout_s=rollout.rollout_s,
                kept=large.score / small.score,
            )
        )
    return tuple(found)


def trainer_seconds() -> tuple[float, float]:
    """Seconds of a training step on 8 GPUs and on 16."""
    small, large = (step(glm(), "DGX-B300", cp=8, ep=8, dp=dp).step_s for dp in (1, 2))
    return small, large


def minima() -> tuple[Minimum, ...]:
    """For each model the least number of GPUs on which some layout fits, and all that fit, fastest first."""
    found = []
    for name, machine in MINIMA:
        model = msgspec.structs.replace(describe(name), mtp_layers=())
        gpus, candidates = 1, _candidates(model, machine, 1)
        while not candidates and gpus < 64:
            gpus *= 2
            candidates = _candidates(model, machine, gpus)
        found.append(Minimum(model=name, machine=machine, gpus=gpus, candidates=candidates))
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
    if trainer_memory(model, ranks, stages, WORKLOAD).total_bytes > FILL * memory_bytes:
        return []
    cost = trainer_step_cost(model, ranks, stages, WORKLOAD, machine_of(machine))
    axes = (("TP", tp), ("CP", cp), ("EP", ep), ("PP", pp), ("DP", dp))
    name = "/".join(f"{axis}{size}" for axis, size in axes if size > 1) or "one GPU"
    return [Candidate(name=name, tokens_per_s=cost.tokens_per_s)]


def _ranks(tp: int, cp: int, dp: int, pp: int, ep: int) -> RankLayout:
    etp = 1
    return RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, etp=etp, ep=ep, expert_dp=tp * cp * dp // (etp * ep))
