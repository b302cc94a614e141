"""The statistics page: one memory-mapped page that the API server writes and anybody on the host may read.

Layout, little-endian, all after an eight-byte magic and a sequence number that is odd while a write is in
progress: ``step_at, beat_at, busy_since`` (seconds of CLOCK_MONOTONIC, 0 for never or idle), ``kv_usage`` (0
to 1), then the counters ``unfinished, running, waiting, steps, prompt_tokens, generation_tokens,
prefix_queries, prefix_hits, preemptions``. art-serving's ``metrics.py`` reads the same layout.

Stalled means: requests are unfinished and no engine step ended for the time allowed, counted from when the
first of them came; or the API server itself has not written for that time.
"""

import mmap
import os
import struct
import time
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

MAGIC = b"ARTSTAT1"
_LAYOUT = struct.Struct("<ddddQQQQQQQQQ")
_HEADER = struct.Struct("<8sQ")
PAGE_BYTES = 4096


class StatsPage:
    """The writing side; single-threaded use."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, PAGE_BYTES)
            self._map = mmap.mmap(descriptor, PAGE_BYTES)
        finally:
            os.close(descriptor)
        self._sequence = 0
        self.step_at = 0.0
        self.busy_since = 0.0
        self.kv_usage = 0.0
        self.unfinished = self.running = self.waiting = self.steps = 0
        self.prompt_tokens = self.generation_tokens = 0
        self.prefix_queries = self.prefix_hits = self.preemptions = 0
        self.write()

    def beat(self, unfinished: int) -> None:
        """Says that the API server lives, and how many requests it has not answered."""
        if unfinished == 0:
            self.busy_since = 0.0
        elif self.busy_since == 0.0:
            self.busy_since = time.monotonic()
        self.unfinished = unfinished
        self.write()

    def write(self) -> None:
        """Makes the current values visible."""
        self._sequence += 1
        self._map[: _HEADER.size] = _HEADER.pack(MAGIC, self._sequence)
        end = _HEADER.size + _LAYOUT.size
        self._map[_HEADER.size : end] = _LAYOUT.pack(
            self.step_at,
            time.monotonic(),
            self.busy_since,
            self.kv_usage,
            self.unfinished,
            self.running,
            self.waiting,
            self.steps,
            self.prompt_tokens,
            self.generation_tokens,
            self.prefix_queries,
            self.prefix_hits,
            self.preemptions,
        )
        self._sequence += 1
        self._map[: _HEADER.size] = _HEADER.pack(MAGIC, self._sequence)

    def stalled_for_s(self) -> float:
        """Seconds that unfinished requests have waited without an engine step; 0 when nothing waits."""
        if self.busy_since == 0.0:
            return 0.0
        return time.monotonic() - max(self.busy_since, self.step_at)

    def logger(self) -> Any:
        """A stat logger factory for ``AsyncLLM`` that writes to this page."""
        return lambda _config, _engine_index: _PageLogger(self)


class _PageLogger(StatLoggerBase):
    """Called by vLLM in the API server with the outputs of each engine step."""

    def __init__(self, page: StatsPage) -> None:
        self._page = page

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Adds one step."""
        page = self._page
        if scheduler_stats is not None:
            page.steps += 1
            page.step_at = time.monotonic()
            page.running = scheduler_stats.num_running_reqs
            page.waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            page.kv_usage = scheduler_stats.kv_cache_usage
            page.prefix_queries += scheduler_stats.prefix_cache_stats.queries
            page.prefix_hits += scheduler_stats.prefix_cache_stats.hits
            if scheduler_stats.connector_prefix_cache_stats is not None:  # copied from an equal prompt
                page.prefix_hits += scheduler_stats.connector_prefix_cache_stats.hits
        if iteration_stats is not None:
            page.prompt_tokens += iteration_stats.num_prompt_tokens
            page.generation_tokens += iteration_stats.num_generation_tokens
            page.preemptions += iteration_stats.num_preempted_reqs
        page.write()

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
