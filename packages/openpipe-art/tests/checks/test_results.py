"""All that failed comes in one error, one line each with its next step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.checks import Check, PreflightError, State, failures, require, warnings
from art.checks.results import failed, passed, warned
from art.errors import ArtError, ConfigError

WORD = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=12)
CHECK = st.builds(
    lambda name, state, found, remedy: Check(name=name, state=state, found=found, remedy=remedy),
    WORD,
    st.sampled_from(State),
    WORD,
    WORD,
)


@given(st.lists(CHECK, max_size=8))
def test_the_error_names_each_failure_once_and_nothing_else(checks):
    lines = [check.line() for check in dict.fromkeys(checks) if check.state is State.FAILURE]
    if not lines:
        require(checks)
        return
    with pytest.raises(PreflightError) as caught:
        require(checks, "the run cannot start")
    text = str(caught.value)
    if len(lines) == 1:
        assert text == f"the run cannot start: {lines[0]}"
    else:
        assert text.splitlines() == ["the run cannot start:", *(f"- {line}" for line in lines)]


def test_a_line_has_what_was_found_what_is_needed_and_the_next_step():
    check = failed("disk", "1.0 GiB free", "6.0 GiB", "free 5.0 GiB")
    assert check.line() == "disk: 1.0 GiB free, needed: 6.0 GiB. To mend: free 5.0 GiB"
    assert passed("Python", "3.12.1").line() == "Python: 3.12.1"


def test_warnings_do_not_refuse():
    checks = [passed("a", "x"), warned("b", "y"), warned("b", "y")]
    require(checks)
    assert failures(checks) == []
    assert [check.name for check in warnings(checks)] == ["b"]


def test_a_warning_is_called_one_so_that_nobody_takes_it_for_a_refusal():
    check = warned("open files", "256 for each process", "1024", "raise it: ulimit -n 1024")
    assert check.line() == (
        "warning: open files: 256 for each process, needed: 1024. To mend: raise it: ulimit -n 1024"
    )
    assert not failed("b", "y").line().startswith("warning")


def test_the_error_is_one_of_arts():
    assert issubclass(PreflightError, ConfigError)
    assert issubclass(PreflightError, ArtError)
