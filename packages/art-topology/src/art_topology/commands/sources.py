"""What commands read: topologies, models, workloads, tables of hardware.

Whatever cannot be read or has errors becomes a message or diagnostics and an exit code; see
:func:`refusals`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import typer

from art_topology.commands.documents.base import Refusal
from art_topology.commands.output import print_json, say, say_diagnostics
from art_topology.diagnostics import Diagnostic, TopologyError, printable
from art_topology.files import TopologySource, read_topology, read_topology_text
from art_topology.readers import FORMATS, FileFormat, read_file_as, read_values
from art_topology.reading import MOST_BYTES
from art_topology.spec import SpecError
from art_topology.summary import counted

if TYPE_CHECKING:
    from art_topology.compiled import CompiledTrainer, RuntimeTopology
    from art_topology.hardware import HardwareTable
    from art_topology.models import ModelDescription
    from art_topology.positions import SourceText
    from art_topology.workload import WorkloadSpec

ERRORS = 1
"""Exit code: a topology has errors."""
UNUSABLE = 2
"""Exit code: wrong use, or a file that cannot be read or written."""

STDIN = "-"
TAKEN = "exists; choose another name, or replace it with --force"


class CommandError(Exception):
    """Wrong use, or something that cannot be read or written; its text is one line or a few."""


@contextmanager
def refusals(as_json: bool, errors: int = ERRORS) -> Iterator[None]:
    """Shows what keeps a command from its work, and ends it with the exit code.

    Args:
        as_json: Print a :class:`~art_topology.commands.documents.base.Refusal` on standard output.
        errors: The exit code for a topology with errors.
    """
    try:
        yield
    except (TopologyError, SpecError) as error:
        if not error.diagnostics:
            _refuse(as_json, str(error), (), UNUSABLE)
        _refuse(as_json, _counts(error.diagnostics), error.diagnostics, code_of(error.diagnostics, errors))
    except CommandError as error:
        _refuse(as_json, str(error), (), UNUSABLE)


def code_of(diagnostics: tuple[Diagnostic, ...], errors: int = ERRORS) -> int:
    """The exit code for what was found."""
    if any(found.code == "ART-F001" for found in diagnostics):
        return UNUSABLE
    return errors if any(found.severity == "error" for found in diagnostics) else 0


def _counts(diagnostics: tuple[Diagnostic, ...]) -> str:
    """How much is wrong, and in which file."""
    errors = sum(found.severity == "error" for found in diagnostics)
    warnings = len(diagnostics) - errors
    told = [counted(errors, "error")] if errors else []
    told += [counted(warnings, "warning")] if warnings else []
    files = dict.fromkeys(
        printable(found.location.file)
        for found in diagnostics
        if found.location is not None and found.location.file
    )
    return f"{', '.join(files)}: {', '.join(told)}" if files else ", ".join(told)


def _refuse(as_json: bool, message: str, diagnostics: tuple[Diagnostic, ...], code: int) -> None:
    if as_json:
        print_json(Refusal(message=message, diagnostics=diagnostics))
    elif diagnostics:
        say_diagnostics(diagnostics, stream=sys.stderr)
        say(f"art-topology: {message}", stream=sys.stderr)
    else:
        say("art-topology: " + "\n".join(map(printable, message.split("\n"))), stream=sys.stderr)
    raise typer.Exit(code)


def read(file: str, kind: str | None = None, hardware: HardwareTable | None = None) -> TopologySource:
    """A topology, from a file or from standard input.

    Raises:
        SpecError: it does not describe one.
        CommandError: standard input without a format, no such format, or it cannot be read.
    """
    given = _format(kind)
    if file == STDIN:
        if given is None:
            raise CommandError(
                "standard input has no suffix: say what it is with --format toml, yaml or json"
            )
        return read_topology_text(_standard_input(), given, name="<stdin>", folder=Path(), hardware=hardware)
    return read_topology(file, given, hardware=hardware)


def compiled(file: str, kind: str | None = None) -> tuple[TopologySource, RuntimeTopology]:
    """A topology that passed all checks, with what it was read from.

    Raises:
        SpecError: it does not describe one.
        TopologyError: it has errors.
        CommandError: as for :func:`read`.
    """
    source = read(file, kind)
    return source, source.compile()


def _format(kind: str | None) -> FileFormat | None:
    if kind is not None and kind not in get_args(FileFormat):
        raise CommandError(f"no format {kind!r}: use --format {', '.join(get_args(FileFormat))}")
    return cast("FileFormat | None", kind)


def _standard_input() -> str:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise CommandError("standard input is closed")
    try:
        data = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"standard input cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    if len(data) > MOST_BYTES:
        raise CommandError(f"standard input has more than {MOST_BYTES // 2**20} MiB; a topology is smaller")
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise CommandError(
            f"standard input is not UTF-8: byte {data[error.start]:#04x} at offset {error.start}"
        ) from None


def model_of(config: str) -> ModelDescription:
    """A model, from its ``config.json`` or the folder with it.

    Raises:
        CommandError: it cannot be read or planned.
    """
    from art_topology.models import ModelConfigError, load_model_config

    try:
        return load_model_config(config)
    except ModelConfigError as error:
        raise CommandError(f"{config}: {error}") from error
    except (OSError, ValueError, RecursionError) as error:
        told = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CommandError(f"the model {config!r} cannot be read: {told}") from error


def workload_source(file: str, kind: str | None) -> tuple[SourceText, FileFormat]:
    """The text of a workload's file and its format: that of its suffix, else ``kind``.

    Raises:
        SpecError: it cannot be read.
        CommandError: neither its suffix nor ``kind`` says the format.
    """
    told = FORMATS.get(Path(file).suffix.lower()) or _format(kind)
    if told is None:
        raise CommandError(
            f"the workload {file!r} has no suffix of {', '.join(FORMATS)}: say what it is with --format"
        )
    return read_file_as(Path(file), told), told


def workload_of(file: str, kind: str | None = None) -> WorkloadSpec:
    """A workload: the fields of one, or a topology that has one.

    Raises:
        SpecError: its fields are not those of a workload.
        CommandError: it cannot be read, or holds none.
    """
    import msgspec

    from art_topology.files import located
    from art_topology.validation import explain
    from art_topology.workload import WorkloadSpec

    source, told = workload_source(file, kind)
    values = read_values(source, told)
    inside = isinstance(values, dict) and isinstance(values.get("workload"), dict)
    if isinstance(values, dict) and "cluster" in values and not inside:
        raise CommandError(
            f"{file} is a topology without a [workload]: add one, or name a file with its fields"
        )
    if inside:
        values = values["workload"]
    try:
        return msgspec.convert(values, WorkloadSpec)
    except (msgspec.ValidationError, OverflowError) as error:
        found = explain(values, WorkloadSpec)
        if inside:
            found = tuple(
                msgspec.structs.replace(each, path=f"workload.{each.path}".rstrip(".")) for each in found
            )
        raise SpecError(f"{file}: {error}", located(found, source)) from error


def hardware_of(file: str | None) -> HardwareTable:
    """The package's table of hardware, with what a file adds.

    Raises:
        SpecError: the file is no such table.
        CommandError: it cannot be read.
    """
    from art_topology.hardware import default_hardware, load_hardware

    if file is None:
        return default_hardware()
    try:
        return load_hardware(file)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, SpecError):
            raise
        told = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CommandError(f"the table {file!r} cannot be read: {told}") from error


def write(file: str, text: str, *, force: bool = True) -> None:
    """Writes a file whole, or standard output for ``-``.

    Args:
        file: Where to.
        text: What.
        force: Replace a file that is there.

    Raises:
        CommandError: it is there, or cannot be written.
    """
    import os
    import tempfile

    if file == STDIN:
        sys.stdout.write(text)
        return
    try:
        path = Path(file)
        if path.exists() and not force:
            raise CommandError(f"{file} {TAKEN}")
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()
        number, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:64]}.")
        try:
            with open(number, "w", encoding="utf-8") as opened:
                opened.write(text)
            mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
            os.chmod(name, mode)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{file} cannot be written: {getattr(error, 'strerror', None) or error}"
        ) from error


def _umask() -> int:
    import os

    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def check_rank(trainer: CompiledTrainer, rank: int) -> None:
    """Refuses a rank that a trainer does not have.

    Raises:
        CommandError: it does not.
    """
    if not 0 <= rank < trainer.world_size:
        raise CommandError(f"no rank {rank}: the trainer has ranks 0 to {trainer.world_size - 1:,}")
