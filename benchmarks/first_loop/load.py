"""How busy the processors were with what does not belong to the benchmark."""

import time

import msgspec
import psutil


class Usage(msgspec.Struct, frozen=True):
    """Seconds of processor time since the machine started: of everything, and of this process and all below
    it."""

    at_s: float
    everything_s: float
    ours_s: float


def usage() -> Usage:
    """What was used until now. Time that the hypervisor took counts as used by others."""
    total = psutil.cpu_times()
    own = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        times = process.cpu_times()
        own += times.user + times.system
    return Usage(time.monotonic(), sum(total) - total.idle - total.iowait - total.guest, own)


def others_share(before: Usage, after: Usage) -> float:
    """The share of all processors that others used in between, 0 to 1."""
    busy = (after.everything_s - before.everything_s) - (after.ours_s - before.ours_s)
    return max(0.0, busy / ((after.at_s - before.at_s) * (psutil.cpu_count() or 1)))
