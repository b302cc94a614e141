"""The page ``docs/benchmarks.md``, made from one run of the benchmarks."""

import datetime
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import table
from benchmarks.suite import SUITE, Benchmark

_PACKAGES = ("art-topology", "art-dataplane", "art-trainer", "art-serving", "openpipe-art", "numpy")

_INTRODUCTION = """\
ART beside others that do the same, on the same input in the same run, turn by turn. Less is better in every
unit. A ratio is the other side's figure divided by ART's: the median of the ratios of all turns, so its last
digit can differ from that of both medians' ratio. Every benchmark compares what its sides found and fails if
one is wrong. `benchmarks/NAME/README.md` says what each does."""

_MORE = """\
Environments with the peers are built on the first run and kept. `--list` lists the benchmarks, names choose
some of them, and without `--quick` each takes more turns."""


def machine() -> dict[str, str]:
    """Where a run takes place, with the load at this moment."""
    cores = sorted(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = []
    for name in _PACKAGES:
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            packages.append(f"{name} not installed")
    return {
        "Date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "Processors": f"{len(cores)} of {_processor()}",
        "Memory": f"{memory:.0f} GiB",
        "System": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "Python": f"{platform.python_version()}; {', '.join(packages)}",
        "Load at the start": load(),
    }


def load() -> str:
    """The load average of the last 1, 5 and 15 minutes."""
    return ", ".join(f"{value:.2f}" for value in os.getloadavg())


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def write(
    path: Path,
    arguments: Sequence[str],
    where: Mapping[str, str],
    results: Mapping[str, Sequence[table.Row]],
    quick: bool,
) -> None:
    """Writes the page."""
    command = shlex.join(["python", "-m", "benchmarks", *arguments])
    rows = [row for found in results.values() for row in found]
    aims = [row for row in rows if row.aim is not None]
    missed = [row for row in aims if not row.reached]
    lines = [
        "# Benchmarks",
        "",
        f"<!-- Made by `{command}`. Change benchmarks/, not this page. -->",
        "",
        _INTRODUCTION,
        "",
        f"{len(aims)} of {len(rows)} comparisons have an aim; {len(aims) - len(missed)} of them reach it.",
        *_missed(results),
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in where.items()),
        "",
        "From the root of a clone:",
        "",
        f"    uv run --group integration {command}",
        "",
        _MORE,
    ]
    for benchmark in SUITE:
        if benchmark.name in results:
            lines += ["", *_section(benchmark, results[benchmark.name], quick)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _section(benchmark: Benchmark, rows: Sequence[table.Row], quick: bool) -> list[str]:
    command = shlex.join(["python", "-m", benchmark.module, *benchmark.arguments(quick)])
    lines = [f"## {benchmark.name}", "", f"`{command}`: {benchmark.about}.", "", table.markdown(rows), ""]
    return lines + [f"- {note}" for note in benchmark.notes]


def _missed(results: Mapping[str, Sequence[table.Row]]) -> list[str]:
    lines = [
        f"- {name}: {_shortfall(row)}"
        for name, rows in results.items()
        for row in rows
        if row.reached is False
    ]
    return ["", "Not reached in this run; the notes of each benchmark say why:", "", *lines] if lines else []


def _shortfall(row: table.Row) -> str:
    reached = table.ratio_text(row.ratio) or table.figure_text(row.ours, row.unit)
    return f"{row.what.strip()}: {reached}, aim {row.aim}{f', beside {row.peer}' if row.peer else ''}"
