"""Keeps a run's custodian alive: one that ends before the run does is replaced, and that is told.

Invariant: from :meth:`CustodianWatch.start` until :meth:`CustodianWatch.dismiss` a custodian watches the run,
but for the moments in which one takes another's place; when that fails, it is told and tried again.
"""

import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable

from art.distributed import custodian
from art.distributed.errors import StartupError
from art.distributed.processes import exit_clause, spawner

_TRY_AGAIN_S = 5.0
_BETWEEN_S = 1.0  # so that one that always dies at once does not keep the machine busy


class CustodianWatch:
    """Owns the custodian's process and the thread that watches it.

    Args:
        command: starts a custodian.
        environment: of its process.
        title: of the run, for messages.
        started: called with the process id of each custodian that was started.
        tell: called with a line for the user when one had to be replaced.
    """

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        title: str,
        started: Callable[[int], None],
        tell: Callable[[str], None],
    ) -> None:
        self._command = command
        self._environment = environment
        self._title = title
        self._started = started
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="art-custodian-watch", daemon=True)

    def start(self, deadline_s: float) -> None:
        """Starts the first custodian and begins to watch it.

        Raises:
            StartupError: it did not come up.
        """
        try:
            self._process = self._spawn(deadline_s)
        except BaseException:
            self._close_pipe()
            raise
        self._started(self._process.pid)
        self._thread.start()

    def _spawn(self, deadline_s: float) -> subprocess.Popen[bytes]:
        ready, ready_write = os.pipe()
        try:
            process = spawner().spawn(
                self._command, environment=self._environment, stdin=subprocess.PIPE, stdout=ready_write
            )
        except BaseException:
            os.close(ready)
            raise
        finally:
            os.close(ready_write)
        try:
            readable, _, _ = select.select([ready], [], [], deadline_s)
            if not readable or os.read(ready, 1) != custodian.READY:
                process.kill()
                code = process.wait(5.0)
                raise StartupError(
                    f"the custodian of {self._title} did not come up in {deadline_s:g} s (exit code {code}); "
                    f"see its output above, or run `{sys.executable} -m art.distributed.custodian` to see why"
                )
        finally:
            os.close(ready)
        return process

    def _watch(self) -> None:
        while not self._stopped(self._process):
            assert self._process is not None
            ended = self._process
            code = ended.wait()
            assert ended.stdin is not None
            ended.stdin.close()
            how = exit_clause(-code if code < 0 else code << 8)
            gone = f"the custodian of {self._title} (pid {ended.pid}), which cleans up after a kill, {how}"
            if not self._replace(gone):
                return

    def _replace(self, gone: str) -> bool:
        """Starts another custodian, with retries; ``False`` when the run is being closed."""
        told = False
        while True:
            try:
                self._process = self._spawn(20.0)
            except (StartupError, OSError) as error:
                if not told:
                    told = True
                    self._tell(
                        f"{gone}, and another does not start: {error}. It is tried every {_TRY_AGAIN_S:g} s"
                    )
                if self._stopped(None, _TRY_AGAIN_S):
                    return False
                continue
            self._started(self._process.pid)
            self._tell(f"{gone}; another took its place (pid {self._process.pid})")
            return not self._stopped(None, _BETWEEN_S)

    def _stopped(self, process: subprocess.Popen[bytes] | None, timeout_s: float | None = None) -> bool:
        """Waits for the end of ``process``, or of the time; whether the run is being closed."""
        poller = select.poll()
        poller.register(self._stop_read, select.POLLIN)
        fd = os.pidfd_open(process.pid) if process is not None else None
        try:
            if fd is not None:
                poller.register(fd, select.POLLIN)
            ready = poller.poll(None if timeout_s is None else timeout_s * 1000)
            return any(found == self._stop_read for found, _ in ready)
        finally:
            if fd is not None:
                os.close(fd)

    def dismiss(self) -> None:
        """Ends the watch and the custodian, which then leaves the run alone."""
        self._end_watch()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(custodian.CLOSED)
            process.stdin.close()
            process.wait(5.0)
        except (BrokenPipeError, ValueError, subprocess.TimeoutExpired):  # it ended, or does not
            process.kill()
            process.wait(5.0)

    def _end_watch(self) -> None:
        if self._thread.is_alive():
            os.write(self._stop_write, b"s")
            self._thread.join(25.0)
        self._close_pipe()

    def _close_pipe(self) -> None:
        os.close(self._stop_read)
        os.close(self._stop_write)
