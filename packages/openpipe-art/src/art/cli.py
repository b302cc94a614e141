"""The command `art`.

Importing it loads little, and an interrupt while the rest is loaded ends the process without a traceback.
From the demo's first line on SIGINT, SIGTERM and SIGHUP end it within seconds, with 128 and the signal's
number.
"""

import sys

TYPE_CHECKING = False  # as in the package: an interrupt before main() shows Python's own traceback
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import NoReturn

    from art.demo.command import Parser

_FAILURE = 1
_USAGE_ERROR = 2


def main(arguments: "Sequence[str] | None" = None) -> "NoReturn":
    """The command; leaves with 0, 1 after an error, 2 for wrong arguments, 128 + signal."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(run(arguments))


def run(arguments: "Sequence[str] | None" = None) -> int:
    """As :func:`main`, but returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser(given)
    if not given:
        parser.print_help(sys.stderr)
        return _USAGE_ERROR
    options = parser.parse_args(given)
    code: int = options.run(options)
    return code


def _parser(given: "Sequence[str]") -> "argparse.ArgumentParser":
    """The parser of ``art`` with those of its commands; of the one that is given with its options."""
    import argparse
    from pathlib import Path

    import art
    from art.demo import command

    parser = command.Parser(
        prog="art",
        description="Reinforcement learning for language models.",
        epilog="`art COMMAND --help` says more. To run a program of your own: art-monarch --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"art {art.__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands", parser_class=command.Parser
    )
    demo = commands.add_parser(
        "demo", help=command.SUMMARY, description=command.DESCRIPTION, epilog=command.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_arguments(demo)
    demo.set_defaults(run=command.run)
    report = commands.add_parser(
        "report",
        help="write the page of a run again",
        description="Reads the folder of a run, finished or not, and writes its report.html again: one page "
        "that stands alone, with plots and sample trajectories.",
    )
    report.add_argument("folder", type=Path, metavar="RUN", help="the run's folder")
    report.set_defaults(run=_report)
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
    parser.set_defaults(run=doctor.run)


def _report(options: "argparse.Namespace") -> int:
    """`art report`."""
    from art.errors import ArtError
    from art.reporting.page import write_report

    try:
        print(write_report(options.folder))
    except ArtError as error:
        sys.stderr.write(f"art report: {error}\n")
        return _FAILURE
    return 0


if __name__ == "__main__":
    main()
