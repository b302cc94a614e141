"""`art demo` ends within ten seconds when it is told to, whatever it does just then, and leaves nothing."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from art_testing.leftovers import LeftoverChecker

from art.demo.model import ensure_smollm2, ensure_vllm, verify

LIMIT_S = 10.0


@pytest.fixture
def checker() -> Iterator[LeftoverChecker]:
    with tempfile.TemporaryDirectory(prefix="art-") as temporary:  # short: sockets have to fit into it
        checker = LeftoverChecker(Path(temporary))
        yield checker
        checker.kill_all()


class Demo:
    """`art demo` with a cache, a state folder and a run folder of its own; its output goes to a file.

    With ``filled`` it has the user's cache, in which all it needs is already.
    """

    def __init__(self, folder: Path, checker: LeftoverChecker, *, filled: bool = False) -> None:
        self.cache, self.run, self.output = folder / "cache", folder / "run", folder / "output"
        environment = checker.environment() | {"ART_STATE_DIR": str(folder / "state")}
        if not filled:
            environment["ART_CACHE_DIR"] = str(self.cache)
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "art.cli", "demo", "--run-dir", str(self.run)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.output.read_text()

    def wait_until(self, condition: "Callable[[Demo], bool]", within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not condition(self):
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.text()}"
            assert time.monotonic() < deadline, f"not there within {within_s} s: {self.text()}"
            time.sleep(0.02)


def has_started(demo: Demo) -> bool:
    return demo.text().startswith("art demo:")


def is_building(demo: Demo) -> bool:
    return any(demo.cache.glob("environments/smollm2-*/.venv"))


def is_converting(demo: Demo) -> bool:
    return any(demo.cache.glob("models/*.staging/model.safetensors"))


def is_building_vllm(demo: Demo) -> bool:
    return any(demo.cache.glob("environments/vllm-cpu-*/.venv"))


def is_starting(demo: Demo) -> bool:
    return "rollout workers, vLLM and trainer ..." in demo.text()


def models(cache: Path) -> list[str]:
    return [path.name for path in cache.glob("models/*") if path.suffix != ".lock"]


@pytest.mark.parametrize("moment", [has_started, is_building, is_converting, is_building_vllm, is_starting])
def test_an_interrupt_ends_it_in_time_without_a_traceback(
    tmp_path: Path, checker: LeftoverChecker, moment: Callable[[Demo], bool]
) -> None:
    filled = moment is is_starting
    if filled:
        asyncio.run(ensure_smollm2(deadline_s=300))
        asyncio.run(ensure_vllm(deadline_s=900))
    demo = Demo(tmp_path, checker, filled=filled)
    demo.wait_until(moment, within_s=120)
    told = time.monotonic()
    os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    assert demo.process.wait(LIMIT_S) == 128 + signal.SIGINT
    assert time.monotonic() - told < LIMIT_S
    assert "Traceback" not in demo.text()
    checker.assert_clean(within_s=2)
    assert len(models(demo.cache)) == (1 if moment is is_building_vllm else 0)


def test_an_interrupt_of_the_command_alone_ends_it_too(tmp_path: Path, checker: LeftoverChecker) -> None:
    demo = Demo(tmp_path, checker)
    demo.wait_until(is_converting, within_s=120)
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(LIMIT_S) == 128 + signal.SIGINT
    assert "Traceback" not in demo.text()
    assert f"run folder: {demo.run}" in demo.text()
    checker.assert_clean(within_s=2)
    assert models(demo.cache) == []


def test_after_a_kill_during_the_conversion_the_model_is_made_anew(
    tmp_path: Path, checker: LeftoverChecker
) -> None:
    demo = Demo(tmp_path, checker)
    demo.wait_until(is_converting, within_s=120)
    demo.process.kill()
    demo.process.wait(LIMIT_S)
    checker.assert_clean(within_s=20)
    assert models(demo.cache) == []
    verify(asyncio.run(ensure_smollm2(demo.cache, deadline_s=120)))


def test_a_damaged_or_half_written_model_is_not_used(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder = asyncio.run(ensure_smollm2(cache, deadline_s=120))
    os.truncate(folder / "model.safetensors", 1000)
    folder.with_name(f"{folder.name}.staging").mkdir()
    said: list[str] = []
    assert asyncio.run(ensure_smollm2(cache, progress=said.append, deadline_s=120)) == folder
    assert any("model.safetensors has 1000 bytes" in line for line in said)
    verify(folder)
    assert models(cache) == [folder.name]


def test_two_callers_at_once_make_one_model(tmp_path: Path) -> None:
    said: list[str] = []

    async def both() -> list[Path]:
        return await asyncio.gather(
            *(ensure_smollm2(tmp_path, progress=said.append, deadline_s=120) for _ in range(2))
        )

    first, second = asyncio.run(both())
    assert first == second
    verify(first)
    assert sum("converting" in line for line in said) == 1
