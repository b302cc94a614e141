"""Arguments of commands that are the same everywhere. Importing it loads the standard library only."""

import argparse
from pathlib import Path


def folder_argument(text: str) -> Path:
    """A folder's name as it was typed: ``~`` is the home folder, which a shell leaves to us after ``=``.

    Raises:
        argparse.ArgumentTypeError: it is empty, or no text.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty name is no folder; write . for the current one")
    if any(not character.isprintable() for character in text):
        raise argparse.ArgumentTypeError(f"{text!a} cannot be the name of a folder here")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def whole_number(text: str, lowest: int, highest: int) -> int:
    """A whole number within bounds, in plain digits.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    digits = text.removeprefix("-")
    wrong = not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(highest)))
    if wrong or not lowest <= int(text) <= highest:
        shown = text if len(text) <= 24 else f"{text[:20]} ..."
        raise argparse.ArgumentTypeError(f"{shown!r} is not a whole number from {lowest} to {highest}")
    return int(text)
