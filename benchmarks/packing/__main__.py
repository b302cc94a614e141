"""``python -m benchmarks.packing``; run from the repository's root."""

import gc
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from benchmarks import table
from benchmarks.packing import merging, planning, writing

PARTS = {"rows": planning.measure, "write": writing.measure, "merge": merging.measure}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the parts that are asked for; returns an exit status."""
    parser = table.parser(
        "packing", "Packs the same sequences with ART, NeMo-RL's procedure, TRL and AReaL.", repeats=5
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default all")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default 0")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}")
    print(
        f"Python {platform.python_version()}, NumPy {np.__version__}, {os.cpu_count()} processors; medians "
        f"of {options.repeats} turns"
    )
    figures: dict[str, Any] = {}
    rows: list[table.Row] = []
    for name in options.parts or PARTS:
        print()
        more, figures[name] = PARTS[name](_Turns(options.repeats), options.seed)
        rows += more
    table.write(options.json, rows, figures)
    return 0


class _Turns:
    """Lets the sides take turns and keeps what each took."""

    def __init__(self, repeats: int) -> None:
        self._repeats = repeats

    def __call__(self, **sides: Callable[[], Any]) -> tuple[dict[str, list[float]], dict[str, Any]]:
        """Seconds of all turns and last result of each side, by its name; all run once before that."""
        results = {name: side() for name, side in sides.items()}
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(self._repeats):
            for name, side in sides.items():
                results[name] = None
                gc.collect()
                begin = time.perf_counter()
                results[name] = side()
                seconds[name].append(time.perf_counter() - begin)
        return seconds, results


if __name__ == "__main__":
    sys.exit(main())
