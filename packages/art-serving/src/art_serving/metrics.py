"""Reads the statistics page that a member's server writes: microseconds, no HTTP, also when the server stands
still.

The layout is that of ``art_vllm_runtime.stats_page``; the magic changes when it does.
"""

import mmap
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from art_serving.deployment import EngineStats
from art_serving.errors import ServingError

_MAGIC = b"ARTSTAT1"
_HEADER = struct.Struct("<8sQ")
_LAYOUT = struct.Struct("<ddddQQQQQQQQQ")
_TRIES = 1000


class StatsReader:
    """A member's page, mapped read-only.

    Raises:
        ServingError: the page does not exist, or has another layout.
    """

    def __init__(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise ServingError(f"there is no statistics page at {path}") from error
        try:
            self._map = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)

    def read(self) -> EngineStats:
        """The current values, all of one moment.

        Raises:
            ServingError: another layout, or a writer that died in the middle of a write.
        """
        for _ in range(_TRIES):
            magic, before = _HEADER.unpack_from(self._map)
            if magic != _MAGIC:
                raise ServingError(f"the statistics page starts with {magic!r}, not {_MAGIC!r}")
            values = _LAYOUT.unpack_from(self._map, _HEADER.size)
            if before % 2 == 0 and _HEADER.unpack_from(self._map)[1] == before:
                return _stats(*values)
        raise ServingError(f"the statistics page was being written {_TRIES} times in a row")

    def close(self) -> None:
        """Unmaps the page."""
        self._map.close()


def _stats(
    step_at: float,
    beat_at: float,
    busy_since: float,
    kv_usage: float,
    unfinished: int,
    running: int,
    waiting: int,
    steps: int,
    prompt_tokens: int,
    generation_tokens: int,
    prefix_queries: int,
    prefix_hits: int,
    preemptions: int,
) -> EngineStats:
    now = time.monotonic()
    return EngineStats(
        unfinished=unfinished,
        running=running,
        waiting=waiting,
        steps=steps,
        kv_usage=kv_usage,
        prompt_tokens=prompt_tokens,
        generation_tokens=generation_tokens,
        prefix_queries=prefix_queries,
        prefix_hits=prefix_hits,
        preemptions=preemptions,
        step_age_s=now - step_at if step_at else None,
        stalled_s=now - max(busy_since, step_at) if busy_since else 0.0,
        beat_age_s=now - beat_at,
    )


def stall(stats: EngineStats, timeout_s: float) -> str | None:
    """Why the member counts as stalled, or None."""
    if stats.beat_age_s > timeout_s:
        return f"the API server has not run for {stats.beat_age_s:.1f} s"
    if stats.stalled_s > timeout_s:
        return f"{stats.unfinished} requests run, but no engine step ended for {stats.stalled_s:.1f} s"
    return None


def pooled(stats: Sequence[EngineStats]) -> EngineStats:
    """The members of one service as one: counters add up, ages and usage are the worst.

    Raises:
        ValueError: there are none.
    """
    ages = [one.step_age_s for one in stats if one.step_age_s is not None]
    return EngineStats(
        unfinished=sum(one.unfinished for one in stats),
        running=sum(one.running for one in stats),
        waiting=sum(one.waiting for one in stats),
        steps=sum(one.steps for one in stats),
        kv_usage=max(one.kv_usage for one in stats),
        prompt_tokens=sum(one.prompt_tokens for one in stats),
        generation_tokens=sum(one.generation_tokens for one in stats),
        prefix_queries=sum(one.prefix_queries for one in stats),
        prefix_hits=sum(one.prefix_hits for one in stats),
        preemptions=sum(one.preemptions for one in stats),
        step_age_s=max(ages) if ages else None,
        stalled_s=max(one.stalled_s for one in stats),
        beat_age_s=max(one.beat_age_s for one in stats),
    )
