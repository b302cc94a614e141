"""Numbers at the top of the page."""

import pytest

from art.reporting.page.figures import amount, day, duration, score


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "\u2013"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (725.0, "12 min 5 s"),
        (3599.6, "1 h"),
        (12_000.0, "3 h 20 min"),
        (7200.0, "2 h"),
        (3_600_000.0, "1,000 h"),
    ],
)
def test_seconds_are_written_for_people(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\u2013"),
        (0.0, "0"),
        (9999.0, "9,999"),
        (12_345.0, "12.3 k"),
        (999_949.0, "1.00 M"),
        (4_560_000.0, "4.56 M"),
        (3.2e9, "3.20 G"),
        (123e12, "123 T"),
        (-20_000.0, "-20.0 k"),
    ],
)
def test_amounts_have_three_digits_that_matter(value: float | None, text: str) -> None:
    assert amount(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\u2013"),
        (0.0, "0.000"),
        (0.96284, "0.963"),
        (-12.5, "-12.500"),
        (-12_345.6, "-12,346"),
        (2e7, "2e+07"),
        (2e-5, "2e-05"),
    ],
)
def test_rewards_have_three_decimals_or_four_digits_that_matter(value: float | None, text: str) -> None:
    assert score(value) == text


def test_a_moment_is_written_in_utc() -> None:
    assert day(0.0) == "1970-01-01 00:00 UTC"
    assert day(float("nan")) == "\u2013"
