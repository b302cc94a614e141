"""``python -m benchmarks.shared_memory``; run from the repository's root."""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from benchmarks.shared_memory.ours import Ours
from benchmarks.shared_memory.task import CONSUMERS, Side, look, make_array, stamp

_ISOLATED = "ART_BENCHMARK_ISOLATED"
_WARM_UP = 3
_NEW = 5  # turns with new pages: each takes memory for good
_ASKED = {"mapped": False, "every page read": True}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures all sides in turn; returns an exit status."""
    options = _parser().parse_args(arguments)
    if _ISOLATED not in os.environ:
        return _isolated(sys.argv[1:] if arguments is None else list(arguments))
    ours = Ours(options.mib)
    sides: list[Side] = [ours, Ours(options.mib, fresh=True)]
    if "torch" not in options.without:
        from benchmarks.shared_memory.torch_side import Torch

        sides.append(Torch())
    if "ray" not in options.without:
        from benchmarks.shared_memory.ray_side import Ray, RayNew

        ray_side = Ray(options.mib, new=_NEW * len(_ASKED))
        sides += [ray_side, RayNew(ray_side)]
    array = make_array(options.mib, 0)
    digest = hashlib.blake2b(array).hexdigest()
    for side in sides:
        if list(side.digests(array)) != [digest] * CONSUMERS:
            print(f"the consumers of {side.name} had other bytes", file=sys.stderr)
            return 1
    figures = _measure(sides, ours, array, options.repeats)
    for side in sides:
        side.close()
    _report(options.mib, options.repeats, figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shared_memory",
        description="Hands an array to two processes, beside torch.multiprocessing and Ray's object store.",
    )
    parser.add_argument("--mib", type=int, default=128, metavar="N", help="size of the array; default 128")
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="turns of each side; default 15")
    parser.add_argument(
        "--without", nargs="*", choices=("torch", "ray"), default=[], help="peers to leave out"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="where to write all figures")
    return parser


def _isolated(arguments: list[str]) -> int:
    """Runs this in a network namespace with nothing but loopback, with a home folder that goes afterwards."""
    with tempfile.TemporaryDirectory(prefix="benchmark-home-") as home:
        environment = os.environ | {
            _ISOLATED: "1", "HOME": home, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.shared_memory", *arguments]
        return subprocess.run(
            ["unshare", "--user", "--map-root-user", "--net",
             "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command],
            env=environment, check=False,
        ).returncode  # fmt: skip


def _measure(
    sides: list[Side], ours: Ours, array: np.ndarray, repeats: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds by side and by what was asked for."""
    figures: dict[str, dict[str, list[float]]] = {}
    for turn in range(_WARM_UP + repeats):
        for what, every_page in _ASKED.items():
            for side in sides:
                new = side.name.endswith("new pages")
                if new and turn >= _NEW:
                    continue
                stamp(array, turn + 1)
                started = time.perf_counter()
                seen = side.hand_over(array, every_page)
                handed = time.perf_counter()
                side.release()
                released = time.perf_counter()
                _check(side.name, array, every_page, seen)
                if new or turn >= _WARM_UP:
                    found = figures.setdefault(side.name, {})
                    found.setdefault(what, []).append(handed - started)
                    if every_page:
                        found.setdefault("with release", []).append(released - started)
            stamp(array, turn + 1)
            took, seen = ours.hand_over_written(array, every_page)
            ours.release()
            _check("a written batch", array, every_page, seen)
            if turn >= _WARM_UP:
                figures.setdefault("written", {}).setdefault(what, []).append(took)
    return figures


def _check(name: str, array: np.ndarray, every_page: bool, seen: Sequence[int]) -> None:
    if list(seen) != [look(array, every_page)] * CONSUMERS:
        raise SystemExit(f"the consumers of {name} saw other words than were handed over")


def _report(mib: int, repeats: int, figures: dict[str, dict[str, list[float]]]) -> None:
    written = figures.pop("written")
    columns = [*_ASKED, "with release"]
    print(f"{mib} MiB from an array in hand to {CONSUMERS} processes that have it; ms, medians of {repeats}")
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {os.cpu_count()} processors")
    print()
    print(f"{'':36}" + "".join(f"{column:>17}" for column in columns))
    for name, found in figures.items():
        print(f"{name:<36}" + "".join(f"{median(found[column]) * 1e3:17.2f}" for column in columns))
    own = {what: median(seconds) for what, seconds in written.items()}
    print(f"{'art-dataplane, written in place':<36}" + "".join(f"{own[what] * 1e3:17.3f}" for what in _ASKED))
    print()
    for base in ("art-dataplane", "art-dataplane, new pages"):
        print(f"ratios to {base}")
        for name, found in figures.items():
            if not name.startswith("art-dataplane"):
                ratios = (median(found[column]) / median(figures[base][column]) for column in columns)
                print(f"  {name:<34}" + "".join(f"{ratio:17.2f}" for ratio in ratios))
    print(
        "ratios to art-dataplane, written in place: commit, lease, message, both have it; no other side can"
    )
    for name, found in figures.items():
        if not name.startswith("art-dataplane"):
            ratios = (median(found[column]) / own[column] for column in _ASKED)
            print(f"  {name:<34}" + "".join(f"{ratio:17.2f}" for ratio in ratios))
    print("the consumers had the same bytes on every side")


if __name__ == "__main__":
    sys.exit(main())
