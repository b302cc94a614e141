"""``python -m benchmarks``: runs the benchmarks and prints one table; run from the repository's root."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import page, table
from benchmarks.environments import EnvironmentBuildError, interpreter
from benchmarks.running import BenchmarkFailedError, run
from benchmarks.suite import SUITE

_BUILD_DEADLINE_S = 1800.0
_BUSY = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is asked for, one after the other; returns an exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    known = {benchmark.name: benchmark for benchmark in SUITE}
    if unknown := [name for name in options.names if name not in known]:
        _parser().error(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    if options.list:
        for benchmark in SUITE:
            print(f"{benchmark.name:<15}{benchmark.about}")
        return 0
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # ends the running benchmark first, as Ctrl-C does
    chosen = [benchmark for benchmark in SUITE if not options.names or benchmark.name in options.names]
    where = page.machine()
    for name, value in where.items():
        _say(f"{name}: {value}")
    if os.getloadavg()[0] > _BUSY:
        _say("This machine is busy: all sides will be slower, and not all alike.")
    results: dict[str, list[table.Row]] = {}
    failures: list[str] = []
    for number, benchmark in enumerate(chosen, 1):
        prefix = f"[{number}/{len(chosen)}] {benchmark.name}"
        begin = time.monotonic()
        try:
            python = interpreter(
                benchmark.folder, lambda text, prefix=prefix: _say(f"{prefix}: {text}"), _BUILD_DEADLINE_S
            )
            if options.build:
                _say(f"{prefix}: {python}")
                continue
            begin = time.monotonic()
            _say(f"{prefix}: running, for at most {benchmark.deadline_s:.0f} s ...")
            found = run(python, [benchmark.module, *benchmark.arguments(options.quick)], benchmark.deadline_s)
        except (EnvironmentBuildError, BenchmarkFailedError) as error:
            failures.append(benchmark.name)
            _say(f"{prefix}: FAILED after {time.monotonic() - begin:.0f} s")
            print(f"{benchmark.name} failed: {error}", file=sys.stderr, flush=True)
        else:
            results[benchmark.name] = found
            _say(f"{prefix}: done in {time.monotonic() - begin:.0f} s")
    return _conclude(options, given, where, results, failures)


def _conclude(
    options: argparse.Namespace,
    given: Sequence[str],
    where: dict[str, str],
    results: dict[str, list[table.Row]],
    failures: Sequence[str],
) -> int:
    if results:
        print(f"\n{table.text(results)}", flush=True)
    if options.json and results:
        table.write(options.json, [row for rows in results.values() for row in rows], {"machine": where})
    if failures:
        print(f"\nfailed: {', '.join(failures)}", file=sys.stderr)
        if options.markdown:
            print(f"{options.markdown} was not written, since it would lack them", file=sys.stderr)
        return 1
    if options.markdown and results:
        page.write(options.markdown, given, where, results, options.quick)
        _say(f"written: {options.markdown}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Runs the benchmarks, each in a process of its own, and prints one table of ratios.",
        epilog="A benchmark with a requirements.txt runs in an environment that uv builds in the user's "
        "cache. An aim that was not reached is told in the table; the exit status tells only whether all "
        "benchmarks ran and found their results right.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a benchmark; default all")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and do nothing else")
    parser.add_argument("--build", action="store_true", help="build the environments and run nothing")
    parser.add_argument("--quick", action="store_true", help="fewer turns; all of them take some six minutes")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where to write all rows")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="where to write the table as a page")
    return parser


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
