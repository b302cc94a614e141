"""Which sequences share a row, from their lengths alone: ART's bins and NeMo-RL's procedure."""

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from benchmarks.packing import data, peers
from benchmarks.table import Row, compare

from art_dataplane.bins import lower_bound, pack_bins

COUNT, ROW = 16_384, 8_192


def measure(turns: Callable[..., Any], seed: int) -> tuple[list[Row], dict[str, Any]]:
    """Times both on 16,384 sequences, and counts the bins of both on sizes that are harder to place."""
    sizes = data.lengths(COUNT, ROW, seed).tolist()
    seconds, bins = turns(
        art=lambda: pack_bins(sizes, ROW), nemo_rl=lambda: peers.modified_first_fit_decreasing(sizes, ROW)
    )
    print(f"Rows of {COUNT:,} sequences, {sum(sizes):,} tokens, {ROW:,} to a row")
    names = {"art": "ART", "nemo_rl": "NeMo-RL's modified first fit decreasing"}
    for side, name in names.items():
        _check(bins[side], sizes, ROW)
        fill = sum(sizes) / (len(bins[side]) * ROW)
        print(f"  {name:<42}{1e3 * median(seconds[side]):9.1f} ms {len(bins[side]):7,} rows, fill {fill:.4f}")
    print(f"  {'no packing has fewer than':<42}{lower_bound(sizes, ROW):20,} rows")
    faster = compare(
        f"plan rows of {COUNT:,} sequences",
        "NeMo-RL's procedure",
        seconds["art"],
        seconds["nemo_rl"],
        aim=2.0,
        note="which sequences share a row; NeMo-RL's modified first fit decreasing, written here from its "
        "description, since its package on the registry is a placeholder",
    )
    print(f"  time, NeMo-RL / ART, median of pairs: {faster.ratio:.1f}")
    print("Rows on other sizes: ART, NeMo-RL, lower bound")
    others = {name: _count(made, row) for name, (made, row) in _harder(seed).items()}
    for name, counts in others.items():
        print(f"  {name:<42}" + "".join(f"{count:8,}" for count in counts))
    counts = [len(bins["art"]), len(bins["nemo_rl"])]
    if any(ours > theirs for ours, theirs, *_ in [counts, *others.values()]):
        raise SystemExit("ART needs more rows than NeMo-RL's procedure")
    denser = compare(
        "  rows that they take",
        "NeMo-RL's procedure",
        counts[:1],
        counts[1:],
        unit="rows",
        aim=1.0,
        note="on five kinds of sizes: the benchmark fails if ART needs more on any",
    )
    return [faster, denser], {"seconds": seconds, "rows": counts, "others": others}


def _harder(seed: int) -> dict[str, tuple[list[int], int]]:
    random = np.random.default_rng(seed)
    return {
        "6,000 of 200 to 600 in 4,096": (random.integers(200, 601, 6_000).tolist(), 4_096),
        "512 of 2,500 to 6,000 in 16,384": (random.integers(2_500, 6_001, 512).tolist(), 16_384),
        "1,024 of 3,000 to 9,000 in 16,384": (random.integers(3_000, 9_001, 1_024).tolist(), 16_384),
        "16,384 of 16 to 2,048 in 2,048": (data.lengths(16_384, 2_048, seed).tolist(), 2_048),
    }


def _count(sizes: list[int], row: int) -> list[int]:
    ours = pack_bins(sizes, row)
    theirs = peers.modified_first_fit_decreasing(sizes, row)
    for bins in (ours, theirs):
        _check(bins, sizes, row)
    return [len(ours), len(theirs), lower_bound(sizes, row)]


def _check(bins: list[list[int]], sizes: list[int], row: int) -> None:
    if sorted(index for content in bins for index in content) != list(range(len(sizes))):
        raise SystemExit("a sequence is not in exactly one row")
    if max(sum(sizes[index] for index in content) for content in bins) > row:
        raise SystemExit("a row is too long")
