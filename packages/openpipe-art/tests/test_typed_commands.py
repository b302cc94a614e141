"""Printed commands are those that the user can type."""

import pytest

from art.typed_commands import typed


@pytest.mark.parametrize("command", ["art demo --resume x", "art-monarch local --program t.py:main", "art"])
def test_under_uv_run_commands_of_art_are_typed_behind_it(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    assert typed(command) == command
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    assert typed(command) == f"uv run {command}"


@pytest.mark.parametrize("command", ["", "artful thing", "python train.py", "mv art x"])
def test_other_commands_stay_as_they_are(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    assert typed(command) == command
