"""What is typed on a command line is a folder or a number, or is refused with a sentence."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.checks.arguments import folder_argument, whole_number


@pytest.mark.parametrize("text", ["", " ", "\t", "a\nb", "\x1b[31m", "bad\udcff"])
def test_what_is_no_folders_name_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        folder_argument(text)


@pytest.mark.parametrize("text", [".", "a b", "ünïcödé", "学习", "-odd"])
def test_odd_names_are_taken(text):
    assert str(folder_argument(text)) == text


def test_the_home_folder_is_meant_by_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(folder_argument("~/runs/a")) == "/home/someone/runs/a"
    with pytest.raises(argparse.ArgumentTypeError, match="nobody-of-this-name"):
        folder_argument("~nobody-of-this-name/runs")


@given(st.integers(-50, 50))
def test_a_number_is_taken_within_its_bounds_only(value):
    if -3 <= value <= 10:
        assert whole_number(str(value), -3, 10) == value
    else:
        with pytest.raises(argparse.ArgumentTypeError, match="from -3 to 10"):
            whole_number(str(value), -3, 10)


@pytest.mark.parametrize(
    "text", ["", "many", "1.5", "1e3", "\u00b2", "\u0663", "0x10", "--5", "9" * 5000, " 1"]
)
def test_what_is_no_plain_number_is_refused_in_a_short_line(text):
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        whole_number(text, 1, 100)
    assert len(str(caught.value)) < 90
