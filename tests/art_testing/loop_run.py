"""Starts the loop program as a user would and reads what it says."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from art_testing.leftovers import LeftoverChecker

PROGRAM = Path(__file__).with_name("loop_program.py")
STARTUP_S = 240.0
STEP_S = 60.0


@dataclass
class LoopRun:
    """One run of the program under ``art-monarch local``.

    Args:
        model: folder of the model.
        run_dir: the run's folder.
        checker: says afterwards what was left.
        steps: how many steps to take.
        resume: continue what ``run_dir`` holds.
        sampling_s: seconds that every rollout after the first step takes.
    """

    model: Path
    run_dir: Path
    checker: LeftoverChecker
    steps: int
    resume: bool = False
    sampling_s: float = 0.0
    lines: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        environment = self.checker.environment(
            {
                **os.environ,
                "ART_TEST_MODEL": str(self.model),
                "ART_TEST_RUN": str(self.run_dir),
                "ART_TEST_STEPS": str(self.steps),
                "ART_TEST_RESUME": "1" if self.resume else "0",
                "ART_TEST_SAMPLING_S": str(self.sampling_s),
                "ART_STATE_DIR": str(self.run_dir.parent / "state"),
                "PYTHONPATH": str(PROGRAM.parents[1]),
            }
        )
        self.process = subprocess.Popen(
            [
                Path(sys.executable).with_name("art-monarch"),
                *("local", "--program", f"{PROGRAM}:main", "--port", "0", "--startup-timeout", "90"),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._said: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._said.put(self.lines[-1])
        self._said.put(None)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self.checker.kill_all()

    @property
    def output(self) -> str:
        """All that was printed so far."""
        return "\n".join(self.lines)

    def wait_for(self, word: str, timeout_s: float) -> Any:
        """The JSON behind the next line that starts with ``word``.

        Raises:
            AssertionError: the program ended, or did not say it in time; the message holds its output.
        """
        end = time.monotonic() + timeout_s
        while True:
            try:
                line = self._said.get(timeout=max(end - time.monotonic(), 0.01))
            except queue.Empty:
                raise AssertionError(
                    f"no {word!r} within {timeout_s:.0f} s; it said:\n{self.output}"
                ) from None
            if line is None:
                raise AssertionError(f"it ended before {word!r}; it said:\n{self.output}")
            if line.startswith(f"{word} "):
                return json.loads(line.removeprefix(f"{word} "))

    def ready(self) -> dict[str, int]:
        """Waits until everything is up; process ids by role."""
        pids: dict[str, int] = self.wait_for("READY", STARTUP_S)
        return pids

    def step(self) -> dict[str, float]:
        """Waits for the next step; its metrics."""
        metrics: dict[str, float] = self.wait_for("STEP", STEP_S)
        return metrics

    def failed(self, timeout_s: float) -> str:
        """Waits until the program was told of a failure; its text."""
        text: str = self.wait_for("FAILED", timeout_s)
        return text

    def end(self, timeout_s: float) -> int:
        """Waits for the program's end and returns its exit status."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s:.0f} s; it said:\n{self.output}") from None


def engine_pid(service_pid: int) -> int:
    """The process below the model service that runs vLLM's engine core."""
    found = [
        process.pid
        for process in psutil.Process(service_pid).children(recursive=True)
        if "EngineCore" in " ".join(process.cmdline()) + process.name()
    ]
    assert len(found) == 1, f"expected one engine core below process {service_pid}, found {found}"
    return found[0]


def kill(pid: int) -> None:
    """SIGKILL."""
    os.kill(pid, signal.SIGKILL)
