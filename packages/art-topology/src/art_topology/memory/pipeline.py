"""How many microbatches' activations a pipeline rank holds at once: 1F1B, and its interleaved form."""

from functools import lru_cache


@lru_cache(maxsize=65536)
def in_flight(pp: int, vpp: int, pp_rank: int, microbatches: int, group: int) -> tuple[tuple[int, ...], ...]:
    """The states of a rank with most microbatches in flight: for each, how many of each virtual stage.

    Without virtual stages rank ``p`` of ``pp`` starts ``pp - p`` forward passes before its first backward
    pass. With them (Megatron's interleaved schedule) it starts ``2 (pp - p - 1) + (vpp - 1) group + 1``
    passes of one virtual stage each, ``group`` microbatches at a time through each virtual stage, and then
    alternates.

    Args:
        pp: Pipeline ranks.
        vpp: Virtual stages of each rank.
        pp_rank: The rank.
        microbatches: Rows that one data-parallel rank computes in a step.
        group: Microbatches that run at a time for one virtual stage.

    Returns:
        Distinct states; where stages are of one size any will do.
    """
    if vpp == 1:
        return ((min(pp - pp_rank, microbatches),),)
    total = microbatches * vpp
    warmup = min(total, 2 * (pp - pp_rank - 1) + (vpp - 1) * group + 1)
    held = [0] * vpp
    for step in range(warmup):
        held[_stage(step, vpp, group, microbatches)] += 1
    states = {tuple(held)}
    for step in range(min(total - warmup, 2 * vpp * group)):
        held[vpp - 1 - _stage(step, vpp, group, microbatches)] -= 1
        held[_stage(warmup + step, vpp, group, microbatches)] += 1
        states.add(tuple(held))
    return tuple(sorted(states))


def _stage(step: int, vpp: int, group: int, microbatches: int) -> int:
    """The virtual stage of the ``step``-th forward pass; the last group may be smaller."""
    block, rest = divmod(step, vpp * group)
    size = min(group, microbatches - block * group)
    return min(rest // max(size, 1), vpp - 1)
