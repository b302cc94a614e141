"""The program printed in the seed document runs unchanged, and so does ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from art_testing.leftovers import LeftoverChecker

ROOT = Path(__file__).parents[2]
SEEDS = ROOT.parent / "shared" / "seeds"


def seed_program() -> str:
    """The program of the seed document: from its first import to the end of its last function."""
    if not SEEDS.is_dir():
        pytest.fail(
            f"{SEEDS} is missing: this test runs the program printed in the seed documents, which lie "
            "beside the checkout in ../shared/seeds"
        )
    documents = sorted(SEEDS.glob("001_*.txt"))
    assert len(documents) == 1, f"expected one document 001_*.txt in {SEEDS}, found {documents}"
    lines = documents[0].read_text().splitlines()
    start = lines.index("import asyncio")
    end = next(
        index
        for index in range(start, len(lines))
        if lines[index].startswith("The controller receives an ArtLaunchContext")
    )
    return "\n".join(lines[start:end]).rstrip() + "\n"


def test_the_program_of_the_seeds_runs_unchanged(
    launch: Callable[..., Any], checker: LeftoverChecker
) -> None:
    launched = launch(seed_program(), "--port", "0", "--startup-timeout", "90")
    assert launched.wait(120) == 0, launched.errors
    assert launched.output == "ART_MULTINODE_SMOKE_PASS hosts=1 answers=['yes', 'no', 'maybe']\n"
    assert launched.errors == ""
    checker.assert_clean(5)


def test_the_example_passes(launch: Callable[..., Any], checker: LeftoverChecker) -> None:
    launched = launch(ROOT / "examples" / "multinode" / "program.py")
    assert launched.wait(120) == 0, launched.errors
    assert launched.output == "ART_MULTINODE_SMOKE_PASS hosts=1 rollouts=3 reward=2.25\n"
    checker.assert_clean(5)
