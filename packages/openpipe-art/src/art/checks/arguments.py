"""Arguments of commands that are the same everywhere. Importing it loads the standard library only."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn


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
    """The whole number that ``text`` is in plain digits, from ``lowest`` to ``highest``.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    digits = text.removeprefix("-")
    wrong = not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(highest)))
    if wrong or not lowest <= int(text) <= highest:
        shown = text if len(text) <= 24 else f"{text[:20]} ..."
        raise argparse.ArgumentTypeError(f"{shown!r} is not a whole number from {lowest} to {highest}")
    return int(text)


class Parser(argparse.ArgumentParser):
    """With ``--json`` among the arguments, what is wrong with them is also told as an event.

    Args:
        arguments: of :class:`argparse.ArgumentParser`.
    """

    given: Sequence[str] = ()
    """The arguments of the command."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Says what is wrong and leaves with 2."""
        if "--json" in self.given:
            print(json.dumps({"event": "error", "kind": "UsageError", "message": message}), flush=True)
        super().error(message)

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse's, which keeps silent when help or version cannot be written; the command tells."""
        (file or sys.stderr).write(message)

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Says that there are no such arguments, and which was meant perhaps; leaves with 2."""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{self.meant(unknown)}")

    def meant(self, unknown: Sequence[str]) -> str:
        """`` (did you mean --steps?)`` where an option's name is close, or nothing."""
        known = [option for action in self._actions for option in action.option_strings]
        return _hint(unknown, known)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse's; says which of the choices was meant perhaps."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += _hint([str(value)], [str(choice) for choice in action.choices or ()])
            raise


def _hint(given: Sequence[str], known: Sequence[str]) -> str:
    import difflib

    close = [match for name in given for match in difflib.get_close_matches(name.partition("=")[0], known, 1)]
    return f" (did you mean {' '.join(dict.fromkeys(close))}?)" if close else ""
