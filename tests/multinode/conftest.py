"""Fixtures of the runtime's tests: a program in a process of its own, and what must be gone afterwards."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from art_testing.leftovers import LeftoverChecker

ROOT = Path(__file__).parents[2]


@dataclass
class Launched:
    """A running ``art-monarch local``; its output goes to files, so that no child can hold a pipe open."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def output(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    def wait(self, within_s: float) -> int:
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {within_s} s\n{self.output}\n{self.errors}") from None

    def wait_for(self, text: str, within_s: float = 60.0) -> str:
        """Waits until a line of the output starts with ``text`` and returns the rest of that line."""
        deadline = time.monotonic() + within_s
        while True:
            for line in self.output.splitlines(keepends=True):
                if line.startswith(text) and line.endswith("\n"):
                    return line.removeprefix(text).strip()
            assert self.process.poll() is None, f"ended early\n{self.output}\n{self.errors}"
            assert time.monotonic() < deadline, f"no {text!r} in {within_s} s\n{self.output}\n{self.errors}"
            time.sleep(0.02)


@pytest.fixture
def checker(tmp_path: Path) -> Iterator[LeftoverChecker]:
    temporary = tmp_path / "t"  # sockets are put there, whose paths must be short
    temporary.mkdir()
    checker = LeftoverChecker(temporary)
    yield checker
    checker.kill_all()


@pytest.fixture
def launch(tmp_path: Path, checker: LeftoverChecker) -> Iterator[Callable[..., Launched]]:
    """Starts ``art-monarch local`` on a program, given as a path or as text that becomes ``program.py``."""
    launched: list[Launched] = []

    def start(program: str | Path, *options: str, function: str = "main") -> Launched:
        if isinstance(program, str):
            path = tmp_path / "program.py"
            path.write_text(program)
        else:
            path = program
        folder = tmp_path / f"launch{len(launched)}"
        folder.mkdir()
        environment = {**checker.environment(), "ART_STATE_DIR": str(tmp_path / "state")}
        with (folder / "stdout").open("wb") as output, (folder / "stderr").open("wb") as errors:
            process = subprocess.Popen(
                [
                    str(Path(sys.executable).parent / "art-monarch"),
                    "local",
                    "--program",
                    f"{path}:{function}",
                    *options,
                ],
                env=environment,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                cwd=ROOT,
            )
        launched.append(Launched(process, folder))
        return launched[-1]

    yield start
    for one in launched:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder for runtimes that a test starts in its own process."""
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert os.environ["ART_STATE_DIR"]
    return tmp_path / "state"
