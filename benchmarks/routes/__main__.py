"""``python -m benchmarks.routes``; run from the repository's root."""

import argparse
import asyncio
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

import msgspec
import numpy as np
from benchmarks import table
from benchmarks.routes.task import Sources, by_index, copy_to_new_segment, make_groups, token_by_token

from art_dataplane import Lease, ShmSegmentStore, TrajectoryRecord, TrajectoryStore, read_records
from art_dataplane.batch import view_tensors
from art_dataplane.packing_plan import PackingPlan, plan_packing
from art_dataplane.routes import RoutePlan, SequenceRoutes, check_routes

_MIB = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures all ways in turn; returns an exit status."""
    options = _parser().parse_args(arguments)
    made = make_groups(
        options.groups,
        options.group_size,
        options.prompt,
        options.completion,
        options.layers,
        options.topk,
        options.experts,
    )
    figures: dict[str, list[float]] = {}
    with ShmSegmentStore(f"benchmark-{os.getpid()}", 8 << 30, recycle_bytes=4 << 30) as segments:
        groups = asyncio.run(_through_shared_memory(made, segments))
        del made
        plan = _measure(groups, segments, options, figures)
        if plan is None:
            return 1
        del groups
    _report(plan, options, {name: median(seconds) * 1e3 for name, seconds in figures.items()})
    table.write(options.json, _rows(figures), figures)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = table.parser(
        "routes",
        "Puts the routes of a mixture-of-experts model into a batch, beside two plain ways.",
        repeats=9,
    )
    for name, default, what in (
        ("groups", 16, "groups of trajectories"),
        ("group-size", 8, "trajectories of a group"),
        ("prompt", 512, "tokens of a group's prompt"),
        ("completion", 961, "tokens of a completion; the last one is not computed"),
        ("layers", 48, "layers with experts"),
        ("topk", 8, "experts of each token in each layer"),
        ("experts", 256, "experts of a layer"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=f"{what}; default {default}"
        )
    return parser


async def _through_shared_memory(
    groups: list[list[TrajectoryRecord]], segments: ShmSegmentStore
) -> list[list[TrajectoryRecord]]:
    """The records as a packing worker has them: views of a segment of their owner."""
    owner = TrajectoryStore("owner", 1 << 20, 8 << 30, segments=segments)
    refs = [owner.put(record) for group in groups for record in group]
    records = iter(read_records(await owner.fetch(refs, Lease("benchmark", 1, "benchmark", 600.0), 60.0)))
    return [[next(records) for _ in group] for group in groups]


def _measure(
    groups: list[list[TrajectoryRecord]],
    segments: ShmSegmentStore,
    options: argparse.Namespace,
    figures: dict[str, list[float]],
) -> PackingPlan | None:
    records = [record for group in groups for record in group]
    bare = [
        [
            msgspec.structs.replace(
                record, exchanges=(msgspec.structs.replace(record.exchanges[0], routes=None),)
            )
            for record in group
        ]
        for group in groups
    ]

    blocks = [record.exchanges[0].routes.experts for record in records]
    sequences = [SequenceRoutes.of_chain([block], len(block) - 1, "") for block in blocks]
    end = options.prompt + options.completion - 1
    begins = [options.prompt if index % options.group_size else 0 for index in range(len(records))]

    def timed[T](name: str, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = work()
        figures.setdefault(name, []).append(time.perf_counter() - started)
        return result

    def plan_of(given: list[list[TrajectoryRecord]]) -> PackingPlan:
        length = 8 * (options.prompt + options.completion * options.group_size)
        return plan_packing(given, packed_sequence_length=length, policy_version=0)

    def check() -> None:
        for record, block in zip(records, blocks, strict=True):
            check_routes(block, record.record_id, expert_count=options.experts)

    def place() -> None:
        plan = RoutePlan(blocks[0].dtype, options.layers, options.topk)
        for routes, begin in zip(sequences, begins, strict=True):
            plan.place(routes, begin, end)

    def write(plan: PackingPlan) -> object:
        with segments.reserve(plan.byte_count) as reservation:
            plan.write(reservation.buffer)
            return reservation.commit()

    plan, sources = None, None
    for turn in range(1 + options.repeats):
        if turn == 1:
            figures.clear()
        timed("check", check)
        timed("plan without routes", lambda: plan_of(bare))
        plan = timed("plan", lambda: plan_of(groups))
        timed("place", place)
        location = timed("write", lambda plan=plan: write(plan))
        with segments.map(location) as mapped:
            tensors = view_tensors(plan.tensors, mapped.view)
            if sources is None:
                sources = Sources(groups, tensors["token_ids"])
            for name, way in (("token by token", token_by_token), ("by index", by_index)):
                routes = timed(name, lambda way=way, sources=sources: way(sources))
                batch = [routes if key == "routes" else array for key, array in tensors.items()]
                segment = timed("new segment", lambda batch=batch: copy_to_new_segment(batch))
                segment.close()
                segment.unlink()
                if not np.array_equal(routes, tensors["routes"]):
                    print(f"the routes that were put together {name} are others", file=sys.stderr)
                    return None
            del tensors, routes, batch
        segments.drop(location, reusable=True)
    return plan


def _rows(figures: dict[str, list[float]]) -> list[table.Row]:
    def both(first: str, second: list[float]) -> list[float]:
        return [one + other for one, other in zip(figures[first], second, strict=True)]

    ways = ("token by token", "by index")
    rows = [
        table.compare(
            "routes of a planned batch, in order",
            name,
            figures["place"],
            figures[name],
            note="replay finalization: ART notes which run of tokens goes where, and nothing is copied yet",
        )
        for name in ways
    ]
    for index, name in enumerate(ways):  # a new segment is written for each way in each turn
        copied = both(name, figures["new segment"][index :: len(ways)])
        rows.append(
            table.compare(
                "  until the batch can be mapped",
                f"{name}, new shm",
                both("place", figures["write"]),
                copied,
                note="replay and shared-memory finalization: the batch into a segment; ART's is recycled",
            )
        )
    return rows


def _report(plan: PackingPlan, options: argparse.Namespace, ms: dict[str, float]) -> None:
    tokens, layers, topk = next(spec.shape for spec in plan.tensors if spec.name == "routes")
    byte_count = next(spec.byte_count for spec in plan.tensors if spec.name == "routes")
    print(f"{tokens:,} physical tokens of {plan.counts.logical_tokens:,} logical")
    print(f"{layers} layers, top {topk} of {options.experts} experts")
    print(f"{byte_count / _MIB:.1f} of {plan.byte_count / _MIB:.1f} MiB are routes")
    print(
        f"Python {platform.python_version()}, NumPy {np.__version__}, {os.cpu_count()} processors; "
        f"medians of {options.repeats}"
    )
    print()
    for name, text in (
        ("check", "when records arrive: ids and zeros of all blocks checked"),
        ("plan without routes", "the batch is planned, without routes"),
        ("plan", "the same with routes: prompts compared, each run placed"),
        ("place", "  of that, placing the runs: what is left once rows are decided"),
        ("write", "the batch is written to its segment and committed"),
        ("token by token", "plain: routes put together token by token"),
        ("by index", "plain: routes joined, then taken by an index for each token"),
        ("new segment", "plain: the batch copied to a new segment"),
    ):
        print(f"{text:<66}{ms[name]:10.3f} ms")
    print()
    print("replay finalization: routes of a planned batch brought into its order")
    for name in ("token by token", "by index"):
        print(f"{f'  {name} / placing':<66}{ms[name] / ms['place']:10,.0f}")
    print("replay and shared-memory finalization: from rows decided to a batch that can be mapped")
    for name in ("token by token", "by index"):
        ratio = (ms[name] + ms["new segment"]) / (ms["place"] + ms["write"])
        print(f"{f'  {name} and new segment / placing and writing':<66}{ratio:10.1f}")
    print("the routes are the same every way")


if __name__ == "__main__":
    sys.exit(main())
