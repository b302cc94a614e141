"""Merging equal prefixes: ART's forest and AReaL's tries, on samples group by group and shuffled."""

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from benchmarks.packing import data, peers
from benchmarks.table import Row, compare

from art_dataplane.prefix_forest import (
    Forest,
    find_neighbours,
    lay_out_rows,
    sort_sequences,
    write_forest,
)
from art_dataplane.tree_rows import assign_rows

GROUPS, SAMPLES, ROW = 96, 16, 16_384


def measure(turns: Callable[..., Any], seed: int) -> tuple[list[Row], dict[str, Any]]:
    """Times both in both orders, and compares what each computes with what is different."""
    grouped = data.common_prompts(GROUPS, SAMPLES, seed)
    build, version = peers.areal_tries()
    found: dict[str, Any] = {"areal": version}
    table: list[Row] = []
    for order, rollouts in (("grouped", grouped), ("shuffled", data.shuffled(grouped, seed))):
        sequences = [each.tokens for each in rollouts]
        logical, least = sum(map(len, sequences)), data.distinct_prefixes(sequences)
        batch = peers.padded(sequences)
        seconds, results = turns(
            art=lambda sequences=sequences: merge(sequences), areal=lambda batch=batch: build(batch, ROW)
        )
        forest, out, given = results["art"]
        _check(forest, out, given, sequences)
        physical = {"art": len(out[0]), "areal": sum(results["areal"][1])}
        rows = {"art": len(forest.row_offsets) - 1, "areal": len(results["areal"][1])}
        print(f"Merge {len(sequences):,} sequences, {logical:,} tokens, {order}, {ROW:,} to a row")
        names = {"art": "ART: rows, ids, positions, subtree ends", "areal": f"AReaL {version}: tries"}
        for side, name in names.items():
            print(
                f"  {name:<42}{1e3 * median(seconds[side]):9.1f} ms {rows[side]:5,} rows, sharing "
                f"{logical / physical[side]:.3f}, {100 * least / physical[side]:.1f} % of the ideal"
            )
        print(f"  {'ideal, everything once':<42}{'':>24} sharing {logical / least:.3f}")
        faster = compare(
            f"merge prefixes, {order}",
            f"AReaL {version}",
            seconds["art"],
            seconds["areal"],
            aim=10.0,
            note=f"{len(sequences):,} samples; ART: rows, ids, positions and subtree ends; AReaL: the tries "
            "of its own _greedy_build_tries, not the masks that it makes of them later",
        )
        sharing = compare(
            f"  tokens that are left, {order}",
            "the ideal",
            [physical["art"]],
            [least],
            unit="tokens",
            aim=0.98,
            note="ideal: every different prefix computed once, whatever the rows",
        )
        table += [faster, sharing]
        print(f"  time, AReaL / ART, median of pairs: {faster.ratio:.1f}")
        found[order] = {"seconds": seconds, "physical": physical, "least": least, "logical": logical}
    return table, found


def merge(sequences: list[np.ndarray]) -> tuple[Forest, list[np.ndarray], np.ndarray]:
    """ART's way from token arrays to rows: the forest, its three tensors, and which sequence stands where."""
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    tokens = np.concatenate(sequences)
    starts = np.cumsum(lengths) - lengths
    parts = sort_sequences(tokens, starts, lengths)
    forest = lay_out_rows(parts, *assign_rows(parts.lengths, parts.shared, ROW))
    given = parts.order[forest.chosen]
    out = [np.empty(forest.row_offsets[-1], np.int32) for _ in range(3)]
    write_forest(forest, find_neighbours(forest.shared), tokens, starts[given], *out)
    return forest, out, given


def _check(forest: Forest, out: list[np.ndarray], given: np.ndarray, sequences: list[np.ndarray]) -> None:
    """The last token of each sequence sees exactly the sequence in its row."""
    token_ids, positions, subtree_end = out
    if np.diff(forest.row_offsets).max() > ROW or sorted(given.tolist()) != list(range(len(sequences))):
        raise SystemExit("ART's rows are too long or lack sequences")
    for index, number in enumerate(given.tolist()):
        row = forest.row_offsets[forest.row[index]]
        last = int(forest.start[index + 1]) - 1 - int(row)
        seen = np.flatnonzero(subtree_end[row : row + last + 1] > last) + row
        if not np.array_equal(token_ids[seen], sequences[number]) or not np.array_equal(
            positions[seen], np.arange(len(seen))
        ):
            raise SystemExit(f"sequence {number} is not what its last token sees")
