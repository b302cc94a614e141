"""What the workload makes of a row: how many tokens it has, and how much of the context they see on the
mean."""

from collections.abc import Callable

import msgspec

from art_topology.models import AttentionShape
from art_topology.workload import WorkloadSpec


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The mean row of a step.

    Args:
        rows: Rows of the step, over all data-parallel ranks.
        tokens: Physical tokens of a row, on the mean (the last row is rarely full).
        varies: Whether rows hold documents of different lengths, so that their work differs.
    """

    rows: int
    tokens: float
    varies: bool


def mean_row(workload: WorkloadSpec) -> Row:
    """The mean row. Rows that documents of one length fill exactly, as in pretraining, do not vary."""
    document = workload.prompt_tokens + workload.completion_tokens
    return Row(
        rows=workload.rows_per_step,
        tokens=workload.physical_tokens_per_step / workload.rows_per_step,
        varies=workload.group_size > 1 or workload.packed_sequence_length % document != 0,
    )


def core_flops(shape: AttentionShape, workload: WorkloadSpec) -> float:
    """Forward FLOPs of the core of attention for one physical token, mean over the step."""
    return _mean(shape.core_flops, workload)


def indexer_flops(shape: AttentionShape, workload: WorkloadSpec) -> float:
    """Forward FLOPs of the indexer's scores for one physical token, mean over the step."""
    return _mean(shape.indexer_flops, workload)


def _mean(of_length: Callable[[float], float], workload: WorkloadSpec) -> float:
    """Prompts are seen from within; completions see their prompt too. ``of_length`` is a mean from position
    1."""
    prompt, completion = workload.prompt_tokens, workload.completion_tokens
    whole = prompt + completion
    if not workload.prompt_sharing or workload.group_size == 1:
        return of_length(whole)
    completions = workload.completions_per_step * completion
    prompts = max(0, workload.physical_tokens_per_step - completions)
    on_prompt = of_length(prompt)
    on_completion = (of_length(whole) * whole - on_prompt * prompt) / completion
    return (prompts * on_prompt + completions * on_completion) / (prompts + completions)
