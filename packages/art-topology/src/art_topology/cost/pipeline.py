"""The pipeline: its bubble, and what it costs that rows and stages differ."""

from collections.abc import Sequence
from functools import cache
from math import sqrt
from statistics import NormalDist


def bubble_s(stage_s: Sequence[float], vpp: int) -> float:
    """Time in which the slowest rank of a pipeline waits for others, per step, in seconds.

    With 1F1B a step takes ``m * max + (sum - max)``: the slowest rank's time for its ``m`` rows, and one way
    through all others. Interleaving ``vpp`` virtual stages lets the next rank begin after one of them: a
    ``vpp``-th of it.

    Args:
        stage_s: Time of each rank for one row, forward and backward, all its virtual stages together.
        vpp: Virtual stages of each rank.
    """
    return (sum(stage_s) - max(stage_s)) / vpp


def slack(pp: int, dp: int, coupled: int, rows: int, variation: float) -> float:
    """Extra time for rows that differ, as a fraction of a rank's time without it.

    Ranks that wait for each other in every layer or stage run at the pace of the longest of their rows: the
    ``pp`` stages of a pipeline, and data-parallel ranks that share a group of experts. All others meet once
    per step, where deviations of ``rows`` rows partly cancel. Both are expected maxima of normal variables.

    Args:
        pp: Pipeline stages.
        dp: Data-parallel ranks.
        coupled: Data-parallel ranks in one expert-parallel group, a divisor of ``dp``.
        rows: Rows of each data-parallel rank.
        variation: Standard deviation of the work of a row over its mean.
    """
    step = expected_maximum(dp // coupled) / sqrt(rows)
    return variation * (expected_maximum(pp * coupled) + step)


@cache
def expected_maximum(count: int) -> float:
    """The expected largest of ``count`` standard normal variables, by Blom's approximation; 0 for one."""
    if count == 1:
        return 0.0
    return float(NormalDist().inv_cdf((count - 0.375) / (count + 0.25)))
