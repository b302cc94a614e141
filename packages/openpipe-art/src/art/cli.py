"""The command `art`.

Importing it loads little, and an interrupt while the rest is loaded ends the process without a traceback.
From the demo's first line on SIGINT, SIGTERM and SIGHUP end it within seconds, with 128 and the signal's
number. What always holds: output that cannot be written is one line on standard error, never a traceback.
"""

import sys

TYPE_CHECKING = False  # as in the package: an interrupt before main() shows Python's own traceback
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import NoReturn

    from art.checks.arguments import Parser

_FAILURE = 1
_USAGE_ERROR = 2
_LEAST_FILES = 32
"""Below this not even the checks can be made, which tell of what a run needs."""
_BROKEN_PIPE = 141
"""128 and the number of SIGPIPE, as of a program that it ends."""


def main(arguments: "Sequence[str] | None" = None) -> "NoReturn":
    """The command; leaves with 0, 1 after an error, 2 for wrong arguments, 128 + signal."""
    # What `signal` wraps: importing that loads more, and leaves an interrupt more time to show a traceback.
    import _signal  # type: ignore[import-not-found]  # typeshed has no stub of it

    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    sys.exit(_run_and_flush(arguments))


def _run_and_flush(arguments: "Sequence[str] | None") -> "int | str | None":
    return run_guarded("art", lambda: run(arguments))


def run_guarded(name: str, call: "Callable[[], int]") -> "int | str | None":
    """Runs a command; sees to it that its output is written, or says why it is not.

    Args:
        name: of the command, for messages.
        call: runs it.

    Returns:
        What ``call`` returned or left with; 1 for output that cannot be written or too few open files, 141
        for a pipe that nobody reads.
    """
    if not _streams_are_open():
        sys.stderr.write(f"{name}: standard output is closed, so there is nowhere to write to\n")
        return _FAILURE
    import resource

    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] < _LEAST_FILES:
        sys.stderr.write(f"{name}: {_few_files()}\n")
        return _FAILURE
    failed: OSError | None = None
    code: int | str | None = _FAILURE
    try:
        code = call()
    except SystemExit as leave:
        code = leave.code
    except OSError as error:
        failed = error
    try:
        sys.stdout.flush()
    except OSError as error:
        return _output_lost(name, error)
    if failed is None:
        return code
    if too_many_files(failed):
        sys.stderr.write(f"{name}: {too_many_files(failed)}\n")
        return _FAILURE
    if failed.filename is None:  # those of files say which
        return _output_lost(name, failed)
    raise failed


def too_many_files(error: BaseException) -> "str | None":
    """What to tell when this process, or the machine, has too many files open; None for another error."""
    import errno

    if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    return _few_files()


def _few_files() -> str:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"too few open files are allowed: {limit} for each process; raise it: ulimit -n 1024"


def _streams_are_open() -> bool:
    """Whether standard output is; opens the null device where the others are not.

    A file that is opened later must not become standard input or error. What an encoding lacks is written
    with a backslash.
    """
    import os

    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)
    if sys.stdout is None:
        if sys.stderr is None:
            sys.exit(_FAILURE)
        return False
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    return True


def _output_lost(name: str, error: OSError) -> int:
    """Says that the output cannot be written; nothing where nobody reads a pipe, as is usual."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered must not fail the exit
    if isinstance(error, BrokenPipeError):
        return _BROKEN_PIPE
    sys.stderr.write(f"{name}: the output cannot be written: {error.strerror}\n")
    return _FAILURE


def run(arguments: "Sequence[str] | None" = None) -> int:
    """As :func:`main`, but returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser(given)
    if not given:
        parser.print_help(sys.stderr)
        return _USAGE_ERROR
    options, unknown = parser.parse_known_args(given)
    if unknown:
        options.parser.refuse(unknown)
    from art.checks.places import make_absolute
    from art.errors import ArtError

    problem = make_absolute()
    if problem is None:
        try:
            code: int = options.run(options)
        except ArtError as error:
            problem = str(error)
    if problem is not None:
        sys.stderr.write(f"art {options.command}: {problem}\n")
        return _FAILURE
    return code


def _parser(given: "Sequence[str]") -> "argparse.ArgumentParser":
    """The parser of ``art`` with those of its commands; of the one that is given with its options."""
    import argparse

    import art
    from art.checks.arguments import Parser, folder_argument
    from art.demo import command
    from art.demo.help_text import HelpText

    Parser.given = tuple(given)
    parser = Parser(
        prog="art",
        description="Reinforcement learning for language models.",
        epilog="`art COMMAND --help` says more. To run a program of your own: art-monarch --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"art {art.__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands", parser_class=Parser
    )
    demo = commands.add_parser(
        "demo", help=command.SUMMARY, description=command.DESCRIPTION, epilog=command.EPILOG,
        formatter_class=HelpText,
    )  # fmt: skip
    command.add_arguments(demo)
    demo.set_defaults(run=command.run, parser=demo)
    report = commands.add_parser(
        "report",
        help="write the page of a run again",
        description="Reads the folder of a run, finished or not, and writes its report.html again: one page "
        "that stands alone, with plots and sample trajectories. Says where it is, and how the run stands.",
    )
    report.add_argument(
        "folder", type=folder_argument, metavar="RUN", help="the run's folder, or a file in it"
    )
    report.set_defaults(run=_report, parser=report)
    _add_doctor(commands, named="doctor" in given[:1])
    return parser


def _add_doctor(commands: "argparse._SubParsersAction[Parser]", *, named: bool) -> None:
    """`art doctor`; its options are loaded when it is the command."""
    summary = "say what this machine can run and what is missing"
    if not named:
        commands.add_parser("doctor", help=summary)
        return
    from art.checks import doctor

    parser = commands.add_parser("doctor", help=summary, description=doctor.DESCRIPTION)
    doctor.add_arguments(parser)
    parser.set_defaults(run=doctor.run, parser=parser)


def _report(options: "argparse.Namespace") -> int:
    """`art report`."""
    from art.reporting import read_state, state_lines
    from art.reporting.no_run import is_run
    from art.reporting.page import write_report

    folder: Path = options.folder
    if folder.is_file() and is_run(folder.parent):
        folder = folder.parent  # RUN/report.html, which is named where a run ends
    print(write_report(folder))
    for line in state_lines(read_state(folder)):
        print(line)
    return 0


if __name__ == "__main__":
    main()
