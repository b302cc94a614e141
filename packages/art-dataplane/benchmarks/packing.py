"""Times the path of a batch on this machine: encode and put, fetch and decode, plan, write, map.

    python benchmarks/packing.py

Shapes: the demo's (4 groups x 16 samples, 40 + 8 tokens), and 10,000 trajectories in groups of 16 with a
prompt of 300 to 700 tokens and completions of 50 to 1,000. Prints the median of the repetitions.
"""

import asyncio
import statistics
import time

import numpy as np

from art_dataplane import (
    Lease,
    Outcome,
    PackingRequest,
    Selection,
    ShmBatchMapper,
    ShmSegmentStore,
    TokenRecord,
    TrajectoryRecord,
    TrajectoryStore,
    VersionSpan,
    pack_selection,
    sweep,
)


def make_groups(
    count: int, size: int, prompt: tuple[int, int], completion: tuple[int, int]
) -> list[list[TrajectoryRecord]]:
    """Random groups; ``prompt`` and ``completion`` are ranges of lengths."""
    random = np.random.default_rng(0)
    groups = []
    for group in range(count):
        prompt_ids = random.integers(0, 49_152, random.integers(*prompt), dtype=np.int32)
        records = []
        for index in range(size):
            length = int(random.integers(*completion))
            exchange = TokenRecord(
                prompt_ids=prompt_ids,
                completion_ids=random.integers(0, 49_152, length, dtype=np.int32),
                logprobs=-random.random(length, dtype=np.float32),
                prompt_spans=(VersionSpan(0, len(prompt_ids), 3),),
                completion_spans=(VersionSpan(0, length, 3),),
            )
            records.append(
                TrajectoryRecord(f"g{group}-r{index}", f"g{group}", (exchange,), float(random.random()))
            )
        groups.append(records)
    return groups


async def measure(name: str, groups: list[list[TrajectoryRecord]], row: int, repetitions: int) -> None:
    """Runs the path ``repetitions`` times and prints the medians."""
    timings: dict[str, list[float]] = {}
    for ticket in range(repetitions):
        with ShmSegmentStore("benchmark", 4 << 30) as segments:
            store = TrajectoryStore("w", 1 << 20, 4 << 30, segments=segments)
            begin = time.perf_counter()
            refs = tuple(tuple(store.put(record) for record in group) for group in groups)
            timings.setdefault("put", []).append(time.perf_counter() - begin)
            request = PackingRequest(Selection(refs, Lease("l", 1, "p", 60.0)), row, ticket, 3)
            result = await pack_selection(request, {"w": store}, segments, 60.0, owner="p")
            ref = result.ref
            if ref is None:
                raise RuntimeError("nothing was packed")
            for stage in ("fetch_s", "plan_s", "write_s"):
                timings.setdefault(stage, []).append(getattr(result.timing, stage))
            begin = time.perf_counter()
            with ShmBatchMapper().map(ref) as batch:
                batch.row(0)
            timings.setdefault("map", []).append(time.perf_counter() - begin)
            segments.release(ref.location, ref.lease, Outcome.CONSUMED)
    counts = result.counts
    fill = counts.physical_tokens / (counts.row_count * row)
    print(
        f"{name}: {counts.trajectory_count} trajectories, {counts.logical_tokens} logical and "
        f"{counts.physical_tokens} physical tokens in {counts.row_count} rows of {row} (fill {fill:.4f})"
    )
    print(
        "  "
        + ", ".join(f"{stage} {1e3 * statistics.median(times):.2f} ms" for stage, times in timings.items())
    )


async def main() -> None:
    """Runs both shapes."""
    await measure("demo", make_groups(4, 16, (40, 41), (8, 9)), 2048, 20)
    await measure("10k", make_groups(625, 16, (300, 700), (50, 1000)), 32_768, 3)
    sweep("benchmark")


if __name__ == "__main__":
    asyncio.run(main())
