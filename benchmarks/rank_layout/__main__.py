"""``python -m benchmarks.rank_layout``; run from the repository's root."""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import table
from benchmarks.rank_layout.task import sizes

ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 600.0
_MIB = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures both in turn, each time in a process of its own; returns an exit status."""
    options = _parser().parse_args(arguments)
    results: dict[str, list[dict[str, Any]]] = {"ours": [], "megatron": []}
    with tempfile.TemporaryDirectory(prefix="rank-layout-") as bytecode:
        for side in results:  # writes bytecode, so that imports are not timed with their compilation
            _measure(side, 1, bytecode)
        for _ in range(options.repeats):
            for side, found in results.items():
                found.append(_measure(side, options.hosts, bytecode))
        single = [_measure("ours", 1, bytecode) for _ in range(options.repeats)]
    ours, megatron = results["ours"], results["megatron"]
    if any(one["groups"] != ours[0]["groups"] for one in (*ours, *megatron)):
        print("the two sides put a rank into different groups", file=sys.stderr)
        return 1
    _report(options.hosts, ours, megatron, single)
    table.write(options.json, _rows(ours, megatron), {**results, "single_host": single})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = table.parser(
        "rank_layout",
        "Compiles a large topology and answers which groups a rank is in, beside megatron-core.",
        repeats=5,
    )
    parser.add_argument("--hosts", type=int, default=16_384, metavar="N", help="of 8 GPUs; default 16,384")
    return parser


def _measure(side: str, hosts: int, bytecode: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.rank_layout.{side}", str(hosts)],
        cwd=ROOT,
        env=environment | {"PYTHONPYCACHEPREFIX": bytecode},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise SystemExit(f"{side} failed with status {done.returncode}:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _report(
    hosts: int, ours: list[dict[str, Any]], megatron: list[dict[str, Any]], single: list[dict[str, Any]]
) -> None:
    layout = ", ".join(f"{name} {size}" for name, size in sizes(hosts).items())
    print(f"{ours[0]['ranks']:,} ranks on {hosts:,} hosts of 8 GPUs: {layout}")
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} processors; medians of {len(ours)} processes"
    )
    print()
    print(f"art-topology, {ours[0]['families']} families")
    parts = ("import", "specify", "compile", "answer")
    for part in parts:
        print(f"  {part:<34}{_seconds(ours, part):10.4f} s")
    total = median(sum(one["seconds"][part] for part in parts) for one in ours)
    print(f"  {'all of it':<34}{total:10.4f} s")
    print(f"  {'most memory of the process':<34}{_peak(ours):10.1f} MiB")
    print(f"  {'all of it for one host':<34}{median(sum(x['seconds'].values()) for x in single):10.4f} s")
    print(f"  {'answer for one host':<34}{_seconds(single, 'answer'):10.4f} s")
    print()
    print(f"megatron-core's RankGenerator, {megatron[0]['families']} families")
    print(f"  {'import (not compared)':<34}{_seconds(megatron, 'import'):10.4f} s")
    print(f"  {'generate':<34}{_seconds(megatron, 'generate'):10.4f} s")
    print(f"  {'answer, by looking through lists':<34}{_seconds(megatron, 'answer'):10.4f} s")
    print(f"  {'memory above that of the import':<34}{_peak(megatron, 'bytes_before'):10.1f} MiB")
    print()
    both = _seconds(megatron, "generate") + _seconds(megatron, "answer")
    print(
        f"generate and answer / specify, compile and answer: {both / (total - _seconds(ours, 'import')):.1f}"
    )
    print(f"generate and answer / answer: {both / _seconds(ours, 'answer'):,.0f}")
    print(f"the groups of {len(ours[0]['groups'])} ranks are the same on both sides")


def _rows(ours: list[dict[str, Any]], megatron: list[dict[str, Any]]) -> list[table.Row]:
    def seconds(results: list[dict[str, Any]], *parts: str) -> list[float]:
        return [sum(one["seconds"][part] for part in parts) for one in results]

    peer = f"megatron-core {version('megatron-core')}"
    theirs = seconds(megatron, "generate", "answer")
    return [
        table.compare(
            f"groups of {ours[0]['ranks']:,} ranks",
            peer,
            seconds(ours, "specify", "compile", "answer"),
            theirs,
            note="ART: hosts and trainer written down, compiled with every check, five ranks asked; "
            "megatron-core: RankGenerator makes all groups, which are then looked through; no imports",
        ),
        table.compare(
            "  of five ranks, once compiled",
            peer,
            seconds(ours, "answer"),
            theirs,
            note="ART: the answer for five ranks alone, from a topology that is compiled already",
        ),
        table.compare(
            "  most memory",
            peer,
            [one["peak_bytes"] for one in ours],
            [one["peak_bytes"] - one["bytes_before"] for one in megatron],
            unit="MiB",
            note="ART: of the whole process, Python included; megatron-core: only what the groups add",
        ),
    ]


def _seconds(results: list[dict[str, Any]], part: str) -> float:
    return median(one["seconds"][part] for one in results)


def _peak(results: list[dict[str, Any]], above: str | None = None) -> float:
    return median(one["peak_bytes"] - (one[above] if above else 0) for one in results) / _MIB


if __name__ == "__main__":
    sys.exit(main())
