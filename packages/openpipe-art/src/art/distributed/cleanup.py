"""Removes what a run left on this machine: processes, shared-memory segments, its temporary folder.

A run's processes carry ``ART_RUN_ID`` in their environment, its segments are named ``art-RUN_ID-...``.
Nothing else is touched, and one failure does not stop the rest.
"""

import shutil
import signal
import time
from pathlib import Path

from art.distributed.processes import (
    RUN_ID_VARIABLE,
    ProcessId,
    command_line,
    processes_with,
    send_signal,
    wait_ended,
)
from art.distributed.registry import FoundProcess, FoundSegment, Registry, RunEntry, RunReport

CUSTODIAN_LIMIT_S = 15.0
_SHM = Path("/dev/shm")


def segments_of(run_id: str) -> list[FoundSegment]:
    """The shared-memory segments of a run."""
    found = []
    for path in sorted(_SHM.glob(f"art-{run_id}-*")):
        try:
            found.append(FoundSegment(path.name, path.stat().st_size))
        except FileNotFoundError:
            continue
    return found


def processes_of(run_id: str) -> list[ProcessId]:
    """The living processes of a run, without the caller."""
    return processes_with(RUN_ID_VARIABLE, run_id)


def remove_segments(run_id: str) -> list[FoundSegment]:
    """Unlinks the segments of a run and returns them."""
    found = segments_of(run_id)
    for segment in found:
        (_SHM / segment.name).unlink(missing_ok=True)
    return found


def end_processes(
    run_id: str, *, grace_s: float, deadline_s: float
) -> tuple[list[ProcessId], list[ProcessId]]:
    """Waits ``grace_s`` seconds for the run's processes, then kills them until none is left.

    Returns those that were found and those that still ran ``deadline_s`` seconds after the grace.
    """
    found = {process.pid: process for process in processes_of(run_id)}
    wait_ended(list(found.values()), grace_s)
    end = time.monotonic() + deadline_s
    while (living := processes_of(run_id)) and time.monotonic() < end:
        found.update((process.pid, process) for process in living)
        for process in living:
            send_signal(process, signal.SIGKILL)
        wait_ended(living, min(1.0, deadline_s))
    return list(found.values()), living


def clean_up(
    registry: Registry, entry: RunEntry, *, cause: str, swept_by: str, grace_s: float, deadline_s: float
) -> RunReport:
    """Ends and removes all that a run left, writes its report and forgets the run."""
    started = time.monotonic()
    remaining: list[str] = []
    names = {process.pid: command_line(process) for process in processes_of(entry.run_id)}
    found, living = end_processes(entry.run_id, grace_s=grace_s, deadline_s=deadline_s)
    remaining += [f"process {process.pid} ({command_line(process)})" for process in living]
    segments: list[FoundSegment] = []
    try:
        segments = remove_segments(entry.run_id)
    except OSError as error:
        remaining.append(f"shared memory: {error}")
    removed = False
    try:
        if Path(entry.temp_dir).exists():
            shutil.rmtree(entry.temp_dir)
            removed = True
    except OSError as error:
        remaining.append(f"{entry.temp_dir}: {error}")
    report = RunReport(
        run_id=entry.run_id,
        controller_pid=entry.controller.pid,
        started_unix_s=entry.started_unix_s,
        cause=cause,
        swept_by=swept_by,
        processes=tuple(FoundProcess(process.pid, names.get(process.pid, "")) for process in found),
        segments=tuple(segments),
        temp_dir_removed=removed,
        duration_s=time.monotonic() - started,
        remaining=tuple(remaining),
        folders=entry.folders,
        command=entry.command,
    )
    registry.write_report(report)
    registry.remove_run(entry.run_id)
    return report


def sweep_dead_runs(registry: Registry) -> list[RunReport]:
    """Cleans up after runs whose controller and custodian are both gone, and returns all reports not told
    yet.

    A run whose custodian is still at work is waited for, and left to it if it takes longer than its own
    deadline.
    """
    with registry.locked():
        for entry in registry.runs():
            if entry.controller_alive():
                continue
            if entry.custodian is not None and entry.custodian_alive():
                still_at_work = wait_ended([entry.custodian], CUSTODIAN_LIMIT_S)
                if still_at_work or not registry.has_run(entry.run_id):
                    continue
            clean_up(
                registry,
                entry,
                cause="its controller and its custodian are gone",
                swept_by="next start",
                grace_s=0.0,
                deadline_s=5.0,
            )
        return registry.take_reports()
