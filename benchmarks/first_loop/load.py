"""How busy the processors were, with which part of ART and with what does not belong to the benchmark."""

import contextlib
import time

import msgspec
import psutil

_PARTS = {
    "benchmarks.first_loop.worker": "plain loop",
    "VLLM::EngineCore": "vLLM engine",
    "_supervisor": "others",
    "art-vllm-runtime-server": "vLLM server",
    "actor_process rollout worker": "rollout workers",
    "actor_process packing worker": "packing worker",
    "actor_process trainer": "trainer",
    "actor_process model service": "model service",
}
"""By what their command lines contain."""


class Usage(msgspec.Struct, frozen=True):
    """Seconds of processor time since the machine started: of everything, and of this process and all below
    it."""

    at_s: float
    everything_s: float
    ours_s: float


def usage() -> Usage:
    """What was used until now. Time that the hypervisor took counts as used by others."""
    total = psutil.cpu_times()
    own = sum(used_by_part().values())
    return Usage(time.monotonic(), sum(total) - total.idle - total.iowait - total.guest, own)


def used_by_part() -> dict[str, float]:
    """Seconds of processor time that each part of this program has used: this process and all below it."""
    used: dict[str, float] = {}
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            part = "controller" if process == me else _part(process.cmdline())
            times = process.cpu_times()
            used[part] = used.get(part, 0.0) + times.user + times.system
    return used


def _part(command: list[str]) -> str:
    text = " ".join(command)
    for mark, part in _PARTS.items():
        if mark in text:
            return part
    return "others"


def others_share(before: Usage, after: Usage) -> float:
    """The share of all processors that others used in between, 0 to 1."""
    busy = (after.everything_s - before.everything_s) - (after.ours_s - before.ours_s)
    return max(0.0, busy / ((after.at_s - before.at_s) * (psutil.cpu_count() or 1)))
