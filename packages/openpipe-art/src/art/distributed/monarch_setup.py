"""Monarch's process-wide settings, set once per controller process, and where its fault reports go.

Monarch ends the controller when a fault reaches its root and nobody takes it, also seconds after the fault,
so the hook stays installed once the first runtime has started. Faults of ART's actors go to their handles;
others go to the hook that was installed before, if the user's program had set one.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from art.checks.packages import install_command
from art.distributed.errors import StartupError
from art.distributed.monarch_notice import drop_notice

type FaultListener = Callable[[str], None]

_POLL_VARIABLE = "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY"
_QUIET = {"MONARCH_FILE_LOG": "error"}
_PATIENCE = "1h"
"""How long parts of a run may not hear of each other before Monarch takes one for dead.

A controller that a user stops (Ctrl-Z, a debugger) for longer than that is lost. Deaths do not wait for it:
they are seen by pidfd, and the children of a process that dies are killed by the kernel.
"""
_PATIENT = {
    "HYPERACTOR_MESSAGE_DELIVERY_TIMEOUT": _PATIENCE,
    "HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE": _PATIENCE,
    "HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE": _PATIENCE,
    "HYPERACTOR_MESH_SUPERVISION_WATCHDOG_TIMEOUT": _PATIENCE,
    "HYPERACTOR_MESH_ORPHAN_TIMEOUT": _PATIENCE,
}
WORKER_ENVIRONMENT = {_POLL_VARIABLE: "1s", **_PATIENT, **_QUIET}

_lock = threading.Lock()
_listeners: dict[str, FaultListener] = {}
_transport: str | None = None


def prepare(transport: str, temp_dir: Path) -> None:
    """Imports monarch, sets its limits, listens on ``transport`` (``tcp://ADDRESS:0``) and installs the hook.

    What Monarch puts into a temporary folder, it puts into ``temp_dir``, where the run's end removes it.

    Raises:
        StartupError: Monarch is not installed, or this process uses it already with another transport.
    """
    global _transport
    with _lock:
        if _transport is not None:
            if _transport != transport:
                raise StartupError(
                    f"this process already talks to its hosts through {_transport} and cannot add {transport}"
                )
            return
        for name, value in WORKER_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            import monarch.actor
            from monarch.config import configure
        except ModuleNotFoundError as error:
            raise StartupError(
                f"the runtime needs Monarch ({error}); install it with `{install_command('distributed')}`"
            ) from error

        configure(
            get_proc_state_max_idle=_PATIENCE,
            get_actor_state_max_idle=_PATIENCE,
            message_delivery_timeout=_PATIENCE,
            supervision_watchdog_timeout=_PATIENCE,
            mesh_orphan_timeout=_PATIENCE,
            mesh_attach_config_timeout="60s",
        )
        try:
            monarch.actor.enable_transport(transport)
        except RuntimeError as error:
            raise StartupError(
                f"Monarch cannot listen on {transport}: {error}. Start the runtime before other use of "
                "Monarch"
            ) from error
        _install_hook(monarch.actor)
        give_back = drop_notice()
        with _temporary_folder(temp_dir):
            monarch.actor.context()
        give_back()
        _transport = transport


@contextmanager
def _temporary_folder(path: Path) -> Iterator[None]:
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


def _install_hook(module: Any) -> None:
    previous = module.unhandled_fault_hook
    set_by_user = not str(getattr(previous, "__module__", "")).startswith("monarch.")

    def on_fault(failure: Any) -> None:
        name = str(failure.mesh_name)
        listener = _listeners.get(name.rpartition("-")[0])
        if listener is not None:
            listener(failure.report())
        elif set_by_user and not name.startswith("logger-"):
            previous(failure)

    module.unhandled_fault_hook = on_fault


def listen(actor_name: str, listener: FaultListener) -> None:
    """Has faults of the actor ``actor_name`` reported to ``listener``, on a thread of Monarch's."""
    _listeners[actor_name] = listener


def forget(actor_name: str) -> None:
    """Ends :func:`listen`; later faults of the actor are dropped."""
    _listeners[actor_name] = lambda report: None
