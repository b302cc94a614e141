"""Tables fit what they are shown on."""

import contextlib
import io
import re
from collections.abc import Iterator

import pytest

from art_topology.commands import output
from art_topology.diagnostics import Diagnostic, SourceLocation

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
HEADER = ("name", "GiB", "why")
ROWS = [
    [
        "weights",
        "12.5",
        "918,761,472 weights of layers * 2 bytes, and much more that is said about them in a long line",
    ],
    ["optimizer", "3.0", "short"],
]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def screen(columns: int, **variables: str) -> Iterator[Screen]:
    """A terminal of that width as standard output."""
    found = Screen()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(found):
        patch.delenv("NO_COLOR", raising=False)
        for name, value in {"COLUMNS": str(columns), "TERM": "xterm-256color", **variables}.items():
            patch.setenv(name, value)
        yield found


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
def test_on_a_terminal_every_word_is_shown_at_any_width(columns: int) -> None:
    with screen(columns) as found:
        output.table(HEADER, ROWS, right=(1,))
    plain = ESCAPES.sub("", found.getvalue())
    letters = re.sub(r"\W", "", plain)
    for row in ROWS:
        for cell in row[:2]:
            assert cell in plain
        for word in row[2].split():
            assert re.sub(r"\W", "", word) in letters
    if columns >= 80:
        assert max(map(len, plain.splitlines())) <= columns


def test_colours_go_with_no_color() -> None:
    found = Diagnostic(
        code="ART-T305",
        severity="error",
        path="trainer.parallel.tp",
        message="wrong",
        hint="help",
        location=SourceLocation(file="a.toml", line=2, column=1, width=2, text="tp = 3"),
    )
    with screen(80) as coloured:
        output.say_diagnostics([found])
    assert "\x1b[" in coloured.getvalue()
    assert ESCAPES.sub("", coloured.getvalue()) == found.render() + "\n\n"
    with screen(80, NO_COLOR="1") as plain:
        output.say_diagnostics([found])
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", plain.getvalue())
    assert ESCAPES.sub("", plain.getvalue()) == found.render() + "\n\n"


def test_text_cannot_steer_a_terminal() -> None:
    for columns in (10, 100):
        with screen(columns) as found:
            output.table(("a", "b"), [["\x1b[2Jx", "[red]y[/red] :smile:"]])
            output.say("\x1b[2J[bold]", "bold")
        shown = ESCAPES.sub("", found.getvalue())
        assert "\x1b" not in shown
        assert "[red]y[/red] :smile:" in shown
        assert "[bold]" in shown
