"""The command ``art-topology``.

What always holds: whatever the arguments, the files and the state of standard output, it ends with one of
its exit codes and never with a traceback. 0: all is well; 1: something is wrong with a topology (for
``diff``: the two differ); 2: wrong use, something that cannot be read or written, or typer and rich are
missing; 130: interrupted; 141: nobody reads the output any more.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "run"]

_USAGE_ERROR = 2
_INTERRUPTED = 130
_BROKEN_PIPE = 141
"""128 and the number of SIGPIPE, as of a program that it ends."""


class OutputLostError(Exception):
    """Standard output takes nothing more."""

    def __init__(self, error: OSError | ValueError) -> None:
        super().__init__(getattr(error, "strerror", None) or str(error))
        self.is_broken_pipe = isinstance(error, BrokenPipeError)


class _Output:
    """Standard output, with failures as :class:`OutputLostError`: libraries turn an ``OSError`` into an exit
    code of their own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except (OSError, ValueError) as error:
            if isinstance(error, UnicodeError):
                raise
            raise OutputLostError(error) from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            raise OutputLostError(error) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command; leaves with its exit code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """As :func:`main`, but returns the exit code.

    Args:
        arguments: Those after the name of the program; by default the process's.
    """
    if sys.stderr is None:
        _open_null_device("stderr")
    if sys.stdout is None:
        return _refused("standard output is closed, so there is nowhere to write to")
    stream = sys.stdout
    for each in (stream, sys.stderr):
        reconfigure = getattr(each, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    sys.stdout = cast("Any", _Output(stream))
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except OutputLostError as error:
        _drop(stream)
        if error.is_broken_pipe:
            return _BROKEN_PIPE
        return _refused(f"the output cannot be written: {error}")
    finally:
        sys.stdout = stream
    return code


def _run(arguments: list[str]) -> int:
    try:
        import typer

        from art_topology.commands.application import application
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in ("typer", "rich", "click"):
            return _refused(
                f"the command needs {error.name.partition('.')[0]}: pip install 'art-topology[cli]'"
            )
        raise
    usage_error: type[Exception] = next(
        kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
    )
    try:
        code = application()(arguments, prog_name="art-topology", standalone_mode=False)
    except usage_error as error:
        return _wrong_use(error, as_json="--json" in arguments)
    except typer.Abort:
        return _INTERRUPTED
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except OSError as error:
        # Of files every command says which itself; what is left is the place that the process runs in.
        return _refused(str(error))
    return code if isinstance(code, int) else 0


def _wrong_use(error: Any, *, as_json: bool) -> int:
    from art_topology.diagnostics import printable

    context = getattr(error, "ctx", None)
    name = context.command_path if context is not None else "art-topology"
    message = printable(" ".join(str(error.format_message()).split()))
    message = re.sub(r"Input should be a valid .*$", lambda found: _number_of(found[0]), message)
    if type(error).__name__ == "NoArgsIsHelpError" or not message:
        message = "what is to be done? A command is missing"
    if as_json:
        from art_topology.commands.documents.base import Refusal
        from art_topology.commands.output import print_json

        print_json(Refusal(message=f"{name}: {message}", diagnostics=()))
        return _USAGE_ERROR
    sys.stderr.write(f"{name}: {message}\nTry '{name} --help'.\n")
    return _USAGE_ERROR


def _number_of(told: str) -> str:
    """What was expected instead of a text that is no number."""
    return "it has to be a whole number" if "integer" in told else "it has to be a number"


def _refused(message: str) -> int:
    from contextlib import suppress

    with suppress(OSError, ValueError):  # standard error is the last place to say anything
        sys.stderr.write(f"art-topology: {message}\n")
        sys.stderr.flush()
    return _USAGE_ERROR


def _drop(stream: Any) -> None:
    """Makes sure that what is still buffered does not fail again while the interpreter ends."""
    import os

    try:
        number = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


def _open_null_device(name: str) -> None:
    import os

    setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the life of the process


if __name__ == "__main__":
    main()
