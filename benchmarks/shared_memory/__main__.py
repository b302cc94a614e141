"""``python -m benchmarks.shared_memory``; run from the repository's root."""

import argparse
import hashlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from statistics import median
from types import FrameType

import numpy as np
from benchmarks import table
from benchmarks.shared_memory.ours import Ours
from benchmarks.shared_memory.task import CONSUMERS, Side, look, make_array, stamp

_ISOLATED = "ART_BENCHMARK_ISOLATED"
_LIMIT_S = 600
_WARM_UP = 3
_NEW = 5  # turns with new pages: each takes memory for good
_WITH_RELEASE = "with release"
_WRITTEN = "art-dataplane, written in place"
_ASKED = {"mapped": False, "every page read": True}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures all sides in turn; returns an exit status."""
    options = _parser().parse_args(arguments)
    if _ISOLATED not in os.environ:
        return _isolated(sys.argv[1:] if arguments is None else list(arguments))
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_LIMIT_S)
    ours = Ours(options.mib)
    sides: list[Side] = [ours, Ours(options.mib, fresh=True)]
    if "torch" not in options.without:
        from benchmarks.shared_memory.torch_side import Torch

        sides.append(Torch())
    if "ray" not in options.without:
        from benchmarks.shared_memory.ray_side import Ray, RayNew

        ray_side = Ray(options.mib, new=(_WARM_UP + _NEW) * len(_ASKED))
        sides += [ray_side, RayNew(ray_side)]
    array = make_array(options.mib, 0)
    digest = hashlib.blake2b(array).hexdigest()
    for side in sides:
        if list(side.digests(array)) != [digest] * CONSUMERS:
            print(f"the consumers of {side.name} had other bytes", file=sys.stderr)
            return 1
    again = [side for side in sides if not side.name.endswith("new pages")]
    figures: dict[str, dict[str, list[float]]] = {}
    for turn in range(_WARM_UP + options.repeats):
        _take_turns(again, array, turn, figures if turn >= _WARM_UP else {})
        _hand_over_written(ours, array, turn, figures if turn >= _WARM_UP else {})
    for turn in range(_WARM_UP + _NEW):  # the first take what memory is left to be used again
        _take_turns(
            [side for side in sides if side not in again], array, turn, figures if turn >= _WARM_UP else {}
        )
    for side in sides:
        side.close()
    _report(options.mib, options.repeats, figures)
    table.write(options.json, _rows(options.mib, figures), figures)
    return 0


def _too_long(number: int, frame: FrameType | None) -> None:
    raise SystemExit(f"not done within {_LIMIT_S} s: a consumer does not answer")


def _parser() -> argparse.ArgumentParser:
    parser = table.parser(
        "shared_memory",
        "Hands an array to two processes, beside torch.multiprocessing and Ray's object store.",
        repeats=15,
    )
    parser.add_argument("--mib", type=int, default=128, metavar="N", help="size of the array; default 128")
    parser.add_argument(
        "--without", nargs="*", choices=("torch", "ray"), default=[], help="peers to leave out"
    )
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


def _take_turns(
    sides: list[Side], array: np.ndarray, turn: int, figures: dict[str, dict[str, list[float]]]
) -> None:
    """Adds the seconds of one turn by side and by what was asked for."""
    for what, every_page in _ASKED.items():
        for side in sides:
            stamp(array, turn + 1)
            started = time.perf_counter()
            seen = side.hand_over(array, every_page)
            handed = time.perf_counter()
            side.release()
            released = time.perf_counter()
            _check(side.name, array, every_page, seen)
            found = figures.setdefault(side.name, {})
            found.setdefault(what, []).append(handed - started)
            if every_page:
                found.setdefault(_WITH_RELEASE, []).append(released - started)


def _hand_over_written(
    ours: Ours, array: np.ndarray, turn: int, figures: dict[str, dict[str, list[float]]]
) -> None:
    for what, every_page in _ASKED.items():
        stamp(array, turn + 1)
        took, seen = ours.hand_over_written(array, every_page)
        ours.release()
        _check(_WRITTEN, array, every_page, seen)
        figures.setdefault(_WRITTEN, {}).setdefault(what, []).append(took)


def _check(name: str, array: np.ndarray, every_page: bool, seen: Sequence[int]) -> None:
    if list(seen) != [look(array, every_page)] * CONSUMERS:
        raise SystemExit(f"the consumers of {name} saw other words than were handed over")


def _rows(mib: int, figures: dict[str, dict[str, list[float]]]) -> list[table.Row]:
    ours, fresh = "art-dataplane", "art-dataplane, new pages"
    torch, ray, ray_fresh = "torch.multiprocessing", "Ray's object store", "Ray's object store, new pages"
    pairs = (
        (ours, torch, "torch", "used again", "torch has no memory to use again"),
        (ours, ray, "ray", "used again", "both write into memory that held another array before"),
        (fresh, ray_fresh, "ray", "new pages", "both write into pages that nobody had before"),
    )
    rows = []
    for own, peer, package, pages, note in pairs:
        if peer not in figures:
            continue
        rows += [
            table.compare(
                f"{mib} MiB {what} by 2, {pages}",
                f"{package} {version(package)}",
                figures[own][key],
                figures[peer][key],
                aim=3.0 if key == "mapped" else None,
                note=f"from an array in hand until two processes {done}; {note}",
            )
            for key, what, done in (
                ("mapped", "mapped", "have it"),
                ("every page read", "read", "read a word of every page"),
            )
        ]
    if torch in figures:
        rows.append(
            table.compare(
                f"{mib} MiB mapped by 2, new pages",
                f"torch {version('torch')}",
                [median(figures[fresh]["mapped"])],
                [median(figures[torch]["mapped"])],
                aim=3.0,
                note="as torch always does; medians of turns at different times, not pairs",
            )
        )
    rows.append(
        table.alone(
            f"{mib} MiB mapped by 2, in place",
            figures[_WRITTEN]["mapped"],
            most=1.0,
            note="the batch that packing wrote: commit, lease, message, two mappings; peers copy "
            "what they are given",
        )
    )
    return rows


def _report(mib: int, repeats: int, figures: dict[str, dict[str, list[float]]]) -> None:
    columns = [*_ASKED, _WITH_RELEASE]
    print(f"{mib} MiB from an array in hand to {CONSUMERS} processes that have it; ms, medians of {repeats}")
    print(f"({_NEW} with new pages); in brackets the fastest")
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {os.cpu_count()} processors")
    print()
    print(f"{'':34}" + "".join(f"{column:>22}" for column in columns))
    for name, found in figures.items():
        cells = (
            f"{median(found[each]) * 1e3:.2f} ({min(found[each]) * 1e3:.2f})"
            for each in columns
            if each in found
        )
        print(f"{name:<34}" + "".join(f"{cell:>22}" for cell in cells))
    for base in [name for name in figures if name.startswith("art-dataplane")]:
        print()
        print(f"ratios to {base}")
        for name in [name for name in figures if not name.startswith("art-dataplane")]:
            shared = [each for each in columns if each in figures[base]]
            ratios = (median(figures[name][each]) / median(figures[base][each]) for each in shared)
            print(f"  {name:<32}" + "".join(f"{ratio:22.2f}" for ratio in ratios))
    print()
    print("the consumers had the same bytes on every side")


if __name__ == "__main__":
    sys.exit(main())
