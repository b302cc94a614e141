"""The benchmarks are a folder of the repository, not an installed package."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


@pytest.fixture(autouse=True)
def interrupts_are_heard() -> Iterator[None]:
    """Jobs in the background of a shell ignore SIGINT, and so would the processes that tests start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], None]]:
    """Takes programs by name and lets them be all the benchmarks that there are."""

    def plant(programs: dict[str, str]) -> None:
        from benchmarks import __main__, page, running, suite

        (tmp_path / "planted").mkdir()
        for name, program in programs.items():
            (tmp_path / "planted" / f"{name}.py").write_text(program)

        class Planted(suite.Benchmark, frozen=True, kw_only=True):
            @property
            def module(self) -> str:
                return f"planted.{self.name}"

            @property
            def folder(self) -> Path:
                return tmp_path / "planted" / self.name

        found = tuple(
            Planted(name=name, about=f"what {name} is", quick=("--few",), notes=("A note.",), deadline_s=20.0)
            for name in programs
        )
        monkeypatch.setattr(__main__, "SUITE", found)
        monkeypatch.setattr(page, "SUITE", found)
        monkeypatch.setattr(running, "ROOT", tmp_path)
        monkeypatch.setattr(running, "_GRACE_S", 1.0)

    handler = signal.getsignal(signal.SIGTERM)  # the program sets its own
    yield plant
    signal.signal(signal.SIGTERM, handler)
