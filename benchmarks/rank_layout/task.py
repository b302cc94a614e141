"""What both sides are asked, and how a process says what it took."""

import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DENSE = {
    "tp": "tp",
    "cp": "cp",
    "dp": "dp",
    "pp": "pp",
    "tp-cp": "tp-cp",
    "tp-dp": "tp-dp",
    "tp-pp": "tp-pp",
    "cp-dp": "dp-cp",
    "tp-cp-dp": "tp-dp-cp",
}
EXPERT = {"etp": "tp", "ep": "ep", "expert-dp": "dp", "etp-ep": "tp-ep", "etp-ep-pp": "tp-ep-pp"}
"""The fourteen families that megatron-core's generator makes, by their names here, with its own names."""

GPUS_PER_HOST = 8
ASKED = 5


def sizes(hosts: int) -> dict[str, int]:
    """tp 8, cp 4, pp 16, ep 64 as far as the hosts go; the rest is data parallel."""
    world = hosts * GPUS_PER_HOST
    found = {}
    for name, wanted in (("pp", 16), ("tp", 8), ("cp", 4)):
        rest = world
        for size in found.values():
            rest //= size
        found[name] = max(size for size in range(1, wanted + 1) if rest % size == 0)
    stage = world // found["pp"]
    found["dp"] = stage // found["tp"] // found["cp"]
    found["ep"] = max(size for size in range(1, 65) if stage % size == 0)
    found["expert_dp"] = stage // found["ep"]
    return found


def ranks_asked(world: int) -> list[int]:
    """The ranks whose groups both sides tell, so that they can be compared."""
    return random.Random(0).sample(range(world), min(ASKED, world))


class Stopwatch:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Times what is done within."""
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def peak_bytes() -> int:
    """The most memory that this process ever held (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no line VmHWM")


def say(watch: Stopwatch, groups: list[dict[str, list[int]]], **figures: int) -> None:
    """Writes the process's result: one line of JSON."""
    json.dump({"seconds": watch.seconds, "groups": groups, **figures}, sys.stdout)
