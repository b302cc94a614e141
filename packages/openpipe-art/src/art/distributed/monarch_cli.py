"""``art-monarch``: runs a controller program on hosts that it attaches.

``local`` owns one worker on loopback. SIGINT, SIGTERM and SIGHUP cancel the program; it has a few seconds to
close, then the process leaves and the run's custodian ends what is left. The exit code is 128 and the
signal's number.
"""

import argparse
import asyncio
import contextlib
import errno
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import NoReturn

import art
from art.checks import require, runtime_checks
from art.checks.arguments import Parser
from art.checks.places import make_absolute
from art.cli import run_guarded, too_many_files
from art.distributed.errors import CloseError, ProgramError, RemoteError
from art.distributed.program_arguments import check_arguments_are_read
from art.distributed.programs import Main, Program, absolute_reference, parse_program
from art.distributed.user_traceback import user_traceback
from art.errors import ArtError
from art_topology import TopologyError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LEAVE_S = 7.0
_STARTUP_TIMEOUT_S = 90.0
_USAGE_ERROR = 2
_WRITE_ERRORS = (errno.ENOSPC, errno.EPIPE, errno.EIO, errno.EFBIG, errno.EDQUOT)
_FAILURE = 1
_BROKEN_PIPE = 128 + signal.SIGPIPE


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command; leaves with the program's result: 0, 1 after an error, 2 for a wrong reference, 128 +
    signal."""
    sys.exit(run_guarded("art-monarch", lambda: run(arguments)))


def run(arguments: Sequence[str] | None = None) -> int:
    """As :func:`main`, but returns the exit code."""
    given, program_arguments = _split(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options, unknown = parser.parse_known_args(given)
    if unknown:
        parser.error(
            f"unrecognized arguments: {' '.join(unknown)} (those of the program stand behind `--`)"
            f"{options.parser.meant(unknown)}"
        )
    options.arguments = program_arguments
    problem = make_absolute()
    if problem is not None:
        sys.stderr.write(f"art-monarch: {problem}\n")
        return _FAILURE
    with Signals() as signals:
        try:
            program = parse_program(options.program)
            function = program.load()
            check_arguments_are_read(function, options.arguments, options.program)
        except ProgramError as error:
            sys.stderr.write(f"art-monarch: {error}\n")
            return _USAGE_ERROR
        code = _run_program(program, function, options, signals)
    return 128 + signals.received if signals.received is not None else code


def _split(given: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The command's own arguments, and the program's, which stand behind the first ``--``."""
    end = given.index("--") if "--" in given else len(given)
    return list(given[:end]), tuple(given[end + 1 :])


def _parser() -> Parser:
    parser = Parser(prog="art-monarch", description="Runs an ART controller program.")
    parser.add_argument("--version", action="version", version=f"art-monarch {art.__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands", parser_class=Parser
    )
    local = commands.add_parser(
        "local",
        help="run on this machine",
        usage="art-monarch local [-h] --program FILE_OR_MODULE:FUNCTION [--port PORT]\n"
        "                         [--startup-timeout SECONDS] [-- ARGUMENT ...]",
        description="Runs the program with one worker on loopback. What stands behind `--` is the program's: "
        "launch.arguments, a tuple of strings.",
        epilog="example: art-monarch local --program train.py:main -- --steps 5",
    )
    local.add_argument(
        "--program",
        required=True,
        metavar="FILE_OR_MODULE:FUNCTION",
        help="top-level `async def FUNCTION(launch: ArtLaunchContext)` of a script or importable module",
    )
    local.add_argument(
        "--port", type=_port, default=0, help="the worker's port; 0 (default) selects a fresh one"
    )
    local.add_argument(
        "--startup-timeout",
        type=_seconds,
        default=_STARTUP_TIMEOUT_S,
        metavar="SECONDS",
        help=f"limit for the worker to come up (default {_STARTUP_TIMEOUT_S:.0f})",
    )
    local.set_defaults(parser=local)
    return parser


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def _started_with(options: argparse.Namespace) -> str:
    """The command without the program's arguments, for a shell in any folder."""
    words = ["art-monarch", "local", "--program", absolute_reference(options.program)]
    if options.port:
        words += ["--port", str(options.port)]
    if options.startup_timeout != _STARTUP_TIMEOUT_S:
        words += ["--startup-timeout", f"{options.startup_timeout:g}"]
    return shlex.join(words)


def _run_program(program: Program, function: Main, options: argparse.Namespace, signals: "Signals") -> int:
    try:
        asyncio.run(
            run_local(
                program,
                function,
                signals,
                port=options.port,
                startup_timeout_s=options.startup_timeout,
                arguments=options.arguments,
                command=_started_with(options),
            )
        )
    except (asyncio.CancelledError, KeyboardInterrupt):
        if signals.received is None:
            sys.stderr.write("art-monarch: the program was cancelled\n")
            return _FAILURE
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else _FAILURE if leave.code else 0
    except Exception as error:  # noqa: BLE001 - told as what it is: one message, or a traceback
        if _is_of(error, "art.reporting.output", "DisplayError") and getattr(error, "closed", False):
            sys.stderr.write("art-monarch: nobody reads the output any more, so the program was stopped\n")
            return _BROKEN_PIPE
        if _is_of(error, "art.reporting.resume", "RunFinishedError"):
            print(error, flush=True)
            return 0
        if isinstance(error, OSError) and error.filename is None and error.errno in _WRITE_ERRORS:
            # Was it the output, or a file or socket of the program's own? The former raises again, and is
            # told as what it is.
            print(flush=True)
        _report(error)
        return _FAILURE
    return 0


def _report(error: BaseException) -> None:
    for text in error_texts(error):
        sys.stderr.write(text if text.startswith("Traceback") else f"art-monarch: {text}\n")


def _is_clear(error: BaseException) -> bool:
    """Whether its text names cause and remedy, so that a traceback would add nothing."""
    return isinstance(error, (ArtError, TopologyError)) or _is_of(error, "art_serving.errors", "ServingError")


def _is_of(error: BaseException, module: str, name: str) -> bool:
    """Whether it is an error of a module that only some programs load: not loaded, it cannot be."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(error, getattr(loaded, name))


_CLEAR_KINDS = ("art.errors.", "art_serving.errors.", "art_trainer.errors.", "art_topology.errors.")


def _remote_text(error: BaseException) -> str | None:
    """Of an error of ART in another process its message alone; None for anything else."""
    if isinstance(error, RemoteError) and error.kind.startswith(_CLEAR_KINDS):
        return error.message
    return None


def error_texts(error: BaseException) -> list[str]:
    """The text of an error of ART, the traceback of another.

    Of an error and what failed while closing after it, the latter is told only when something is left behind.
    """
    texts = []
    if isinstance(error, CloseError) and error.__context__ is not None:
        texts = error_texts(error.__context__)
        if texts and not error.left_behind:
            return texts
    short = _remote_text(error) or too_many_files(error)
    if short is not None:
        texts.append(short)
    elif _is_clear(error):
        texts.append(str(error))
    elif not isinstance(error, asyncio.CancelledError):
        texts.append(user_traceback(error))
    return texts


async def run_local(
    program: Program,
    function: Main,
    signals: "Signals",
    *,
    port: int = 0,
    startup_timeout_s: float = _STARTUP_TIMEOUT_S,
    arguments: tuple[str, ...] = (),
    command: str = "",
) -> None:
    """Starts one loopback worker, runs ``function`` with its launch context and closes the worker.

    Args:
        program: where ``function`` comes from; its folder is importable in the workers.
        function: the program.
        signals: cancel it.
        port: of the worker; 0 for a fresh one.
        startup_timeout_s: limit for the worker to come up, in seconds.
        arguments: of the program itself.
        command: what started it, without them; see :class:`ArtLaunchContext`.

    Raises:
        PreflightError: this machine lacks something; nothing was started.
        StartupError: the worker did not come up.
        CloseError: what failed while closing; whatever ``function`` raised comes as its context.
    """
    from art.distributed.host_meshes import HostMeshes
    from art.distributed.launch import ArtLaunchContext

    signals.cancels(asyncio.current_task())
    require(runtime_checks(port), "the runtime cannot start here")
    hosts = await HostMeshes.start_local(
        port=port,
        python_path=[program.folder] if program.folder is not None else [],
        startup_timeout_s=startup_timeout_s,
    )
    try:
        await function(ArtLaunchContext(hosts, arguments=arguments, command=command))
    finally:
        await hosts.close()


class Signals:
    """Turns the first signal into a cancellation of the program and leaves the process some seconds later.

    A thread waits for signals by the wakeup descriptor, so that it also notices one while the main thread is
    busy in code that does not return to Python.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._target: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> "Signals":
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._old = {number: signal.signal(number, _noted) for number in _SIGNALS}
        self._old_wakeup = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="art-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        with contextlib.suppress(OSError):
            self._write.shutdown(socket.SHUT_WR)

    def cancels(self, task: "asyncio.Task[None] | None") -> None:
        """Names the task that a signal cancels; at once, if one came already."""
        assert task is not None
        with self._lock:
            self._target = (asyncio.get_running_loop(), task)
            if self.received is not None:
                task.cancel()

    def _watch(self) -> None:
        for number in self._numbers():
            if number not in _SIGNALS or self.received is not None:
                continue
            with self._lock:
                self.received = number
                target = self._target
            leave = threading.Timer(_LEAVE_S, os._exit, [128 + number])
            leave.daemon = True
            leave.start()
            if target is not None:
                loop, task = target
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(task.cancel)
            else:
                os._exit(128 + number)

    def _numbers(self) -> Iterator[int]:
        while data := self._read.recv(64):
            yield from data


def _noted(_number: int, _frame: object) -> None:
    """Keeps Python from its default action; the thread acts."""


if __name__ == "__main__":
    main()
