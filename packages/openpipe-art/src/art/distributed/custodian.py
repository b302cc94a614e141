"""The process that cleans up when a run's controller ends without closing.

It is started first, in a session of its own, and watches the controller by pidfd. The controller writes one
byte to its standard input when it has closed in order; then nothing is left to do. Run as
``python -m art.distributed.custodian STATE_DIR RUN_ID``.
"""

import os
import select
import signal
import sys
from pathlib import Path

from art.distributed.cleanup import clean_up
from art.distributed.processes import ProcessId, exit_clause, exit_status, open_process, zombie_status
from art.distributed.registry import Registry, RunEntry

READY = b"r"
CLOSED = b"c"
GRACE_S = 0.5
DEADLINE_S = 10.0


def watch(controller_fd: int, commands_fd: int) -> bool:
    """Waits for the controller's end; ``True`` if it said before that it has closed in order."""
    poller = select.poll()
    poller.register(controller_fd, select.POLLIN)
    poller.register(commands_fd, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd == commands_fd:
                data = os.read(commands_fd, 16)
                if CLOSED in data:
                    return True
                if not data:
                    poller.unregister(commands_fd)
            elif not select.select([commands_fd], [], [], 0)[0]:
                return False
            else:
                return CLOSED in os.read(commands_fd, 16)


def _cause(controller: ProcessId, controller_fd: int | None) -> str:
    """How the controller ended. Its parent may not have waited for it yet, or the kernel may not tell."""
    if controller_fd is None:
        return "its controller was gone before it was watched"
    status = zombie_status(controller)
    if status is None:
        status = exit_status(controller_fd)
    return "its controller is gone" if status is None else f"its controller {exit_clause(status)}"


def main(state_dir: str, run_id: str) -> int:
    """Watches one run to its end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    registry = Registry(Path(state_dir))
    entry = _entry(registry, run_id)
    controller_fd = open_process(entry.controller)
    os.write(sys.stdout.fileno(), READY)
    os.close(sys.stdout.fileno())
    if controller_fd is not None and watch(controller_fd, sys.stdin.fileno()):
        return 0
    clean_up(
        registry,
        _known(registry, run_id) or entry,  # the run may have told more since
        cause=_cause(entry.controller, controller_fd),
        swept_by="custodian",
        grace_s=GRACE_S,
        deadline_s=DEADLINE_S,
    )
    return 0


def _known(registry: Registry, run_id: str) -> RunEntry | None:
    return next((entry for entry in registry.runs() if entry.run_id == run_id), None)


def _entry(registry: Registry, run_id: str) -> RunEntry:
    entry = _known(registry, run_id)
    if entry is not None:
        return entry
    raise SystemExit(f"art custodian: no run {run_id} in {registry.folder}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
