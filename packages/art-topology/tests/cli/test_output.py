"""Tables fit what they are shown on."""

import io
import re

import pytest

from art_topology.commands import output
from art_topology.diagnostics import Diagnostic, SourceLocation

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
HEADER = ("name", "GiB", "why")
ROWS = [
    ["weights", "12.5", "918,761,472 weights of layers * 2 bytes, and much more that is said about them in a long line"],
    ["optimizer", "3.0", "short"],
]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    found = Screen()
    monkeypatch.setattr("sys.stdout", found)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return found


def test_without_a_terminal_nothing_is_cut_or_coloured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    output.table(HEADER, ROWS, right=(1,))
    output.say("bold", "bold")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "name        GiB  why",
        f"weights    12.5  {ROWS[0][2]}",
        "optimizer   3.0  short",
        "bold",
    ]


@pytest.mark.parametrize("columns", [1, 10, 25, 40, 60, 80, 120, 300])
def test_on_a_terminal_every_word_is_shown_at_any_width(
    screen: Screen, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    output.table(HEADER, ROWS, right=(1,))
    plain = ESCAPES.sub("", screen.getvalue())
    letters = re.sub(r"\s|─|━", "", plain)
    for row in ROWS:
        for cell in row[:2]:
            assert cell in plain
        assert re.sub(r"\s", "", row[2]) in letters or columns >= 60
    if columns >= 60:
        assert max(map(len, plain.splitlines())) <= columns


def test_colours_go_with_no_color(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Diagnostic(
        code="ART-T305",
        severity="error",
        path="trainer.parallel.tp",
        message="wrong",
        hint="help",
        location=SourceLocation(file="a.toml", line=2, column=1, width=2, text="tp = 3"),
    )
    output.say_diagnostics([found])
    coloured = screen.getvalue()
    assert "\x1b[" in coloured
    assert ESCAPES.sub("", coloured) == found.render() + "\n\n"
    monkeypatch.setenv("NO_COLOR", "1")
    screen.truncate(0)
    screen.seek(0)
    output.say_diagnostics([found])
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", screen.getvalue())


def test_text_cannot_steer_a_terminal(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    output.table(("a", "b"), [["\x1b[2Jx", "[red]y[/red] :smile:"]])
    output.say("\x1b[2J[bold]", "bold")
    shown = ESCAPES.sub("", screen.getvalue())
    assert "\x1b" not in shown
    assert "[red]y[/red] :smile:" in shown
    assert "[bold]" in shown
