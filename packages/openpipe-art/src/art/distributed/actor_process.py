"""The start of an actor's process: ties it to its host's worker process, then becomes a Monarch process.

Run as ``python -m art.distributed.actor_process NAME -m MODULE``; the name is for ``ps``, the module is
Monarch's. What always holds: when the worker process ends, in whatever way, the kernel ends this one.
"""

import os
import runpy
import sys

from art.distributed.processes import PARENT_VARIABLE, end_with_parent

CPUS_VARIABLE = "ART_ACTOR_CPUS"
ACTOR_TMPDIR_VARIABLE = "ART_ACTOR_TMPDIR"


def main() -> None:
    """Prepares the process and hands it to Monarch."""
    end_with_parent(int(os.environ[PARENT_VARIABLE]))
    _restore_temporary_folder()
    cpus = os.environ.get(CPUS_VARIABLE)
    if cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    runpy.run_module(sys.argv[-1], run_name="__main__", alter_sys=True)


def _restore_temporary_folder() -> None:
    """The worker's folder for temporary files holds Monarch's sockets; actors use the controller's."""
    folder = os.environ.get(ACTOR_TMPDIR_VARIABLE)
    if folder:
        os.environ["TMPDIR"] = folder
    elif folder is not None:
        os.environ.pop("TMPDIR", None)


if __name__ == "__main__":
    main()
