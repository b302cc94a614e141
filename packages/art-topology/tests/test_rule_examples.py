"""Every rule has an input that breaks it alone and one that keeps it, and the page shows just these."""

from pathlib import Path

import pytest

from art_topology.diagnostics import RULES, WARNINGS
from art_topology.diagnostics_page import diagnose, page
from art_topology.files import read_topology_text
from art_topology.rule_examples import EXAMPLES
from art_topology.suggestions import apply_suggestion

PAGE = Path(__file__).parents[3] / "docs" / "diagnostics.md"


def test_every_rule_has_an_example_and_every_example_a_rule() -> None:
    assert list(EXAMPLES) == sorted(RULES)
    assert set(RULES) >= WARNINGS


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_failing_input_yields_exactly_its_code(code: str) -> None:
    example = EXAMPLES[code]
    [found] = diagnose(example.failing, example.file)
    assert found.code == code
    assert found.severity == ("warning" if code in WARNINGS else "error")
    assert found.location is not None
    assert found.location.file == example.file
    lines = example.failing.split("\n")
    if code != "ART-F001":
        assert found.location.text == lines[found.location.line - 1]


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_passing_input_compiles_and_nothing_is_said(code: str) -> None:
    assert diagnose(EXAMPLES[code].passing) == ()


@pytest.mark.parametrize("code", [code for code in EXAMPLES if code.startswith("ART-T")])
def test_a_value_that_is_suggested_clears_the_diagnostic_and_raises_no_other(code: str) -> None:
    example = EXAMPLES[code]
    [found] = diagnose(example.failing, example.file)
    if found.suggestion is None:
        # Nobody but the user knows another machine's address, or which of two GPUs was meant.
        assert code in {
            "ART-T103", "ART-T106", "ART-T108", "ART-T109", "ART-T110", "ART-T205", "ART-T207", "ART-T402"
        }  # fmt: skip
        return
    source = read_topology_text(example.failing, "toml")
    mended = apply_suggestion(source.spec, found)
    source.spec = mended
    assert source.compile().warnings == ()


def test_the_page_is_current() -> None:
    told = "run `python -m art_topology.diagnostics_page docs/diagnostics.md`"
    assert PAGE.read_text(encoding="utf-8") == page(), told
