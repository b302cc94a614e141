"""``art-topology check``: everything that is wrong with topologies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from art_topology.commands.options import Format, Hardware, Json, file_completion

if TYPE_CHECKING:
    from art_topology.commands.documents.check import CheckedFile
    from art_topology.diagnostics import Diagnostic
    from art_topology.hardware import HardwareTable

NAME = "check"
EPILOG = """Examples:

`art-topology check cluster.toml`

`art-topology check --strict --json a.toml b.yaml`

`art-topology check --hardware ours.toml cluster.toml`: with GPUs that the table lacks

`generate | art-topology check - --format json`

Exit codes: 0 all pass; 1 errors (with `--strict`, or warnings); 2 wrong use, or a file that cannot be read.
"""


def command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Topologies: .toml, .yaml or .json; - is stdin.", **file_completion()
        ),
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail, too.")] = False,
    hardware: Hardware = None,
    kind: Format = None,
    as_json: Json = False,
) -> None:
    """Check topologies: every mistake that can be known without hardware, at once.

    Each has a stable code, its line, the numbers, and what to do about it.
    """  # fmt: skip
    from art_topology.commands.documents.check import CheckDocument
    from art_topology.commands.output import print_json, say, say_diagnostics
    from art_topology.commands.sources import CommandError, hardware_of, refusals

    with refusals(as_json):
        table = hardware_of(hardware) if hardware is not None else None
        if files.count("-") > 1:
            raise CommandError("standard input can be read once: give - once")
        checked = []
        code = 0
        for file in files:
            found, its_code = _check(file, kind, strict, table)
            code = max(code, its_code)
            checked.append(found)
            if not as_json:
                say_diagnostics(found.diagnostics)
                say(_line(found), "bold green" if found.ok else "bold red")
        if as_json:
            print_json(CheckDocument(ok=code == 0, files=tuple(checked)))
        raise typer.Exit(code)


def _check(
    file: str, kind: str | None, strict: bool, hardware: HardwareTable | None
) -> tuple[CheckedFile, int]:
    from art_topology.commands.documents.check import CheckedFile
    from art_topology.commands.sources import ERRORS, code_of, read
    from art_topology.diagnostics import TopologyError
    from art_topology.spec import SpecError
    from art_topology.summary import gpu_count, summary

    try:
        topology = read(file, kind, hardware).compile()
    except (TopologyError, SpecError) as error:
        if not error.diagnostics:
            raise
        errors, warnings = _counts(error.diagnostics)
        found = CheckedFile(
            file=file, ok=False, errors=errors, warnings=warnings, diagnostics=error.diagnostics
        )
        return found, code_of(error.diagnostics)
    _, warnings = _counts(topology.warnings)
    found = CheckedFile(
        file=file,
        ok=not (strict and warnings),
        errors=0,
        warnings=warnings,
        diagnostics=topology.warnings,
        summary=summary(topology),
        hosts=len(topology.hosts),
        gpus=gpu_count(topology),
        trainer_ranks=topology.trainer.world_size if topology.trainer is not None else 0,
        services=tuple(service.name for service in topology.services),
        fingerprint=topology.fingerprint,
    )
    return found, 0 if found.ok else ERRORS


def _counts(diagnostics: tuple[Diagnostic, ...]) -> tuple[int, int]:
    errors = sum(found.severity == "error" for found in diagnostics)
    return errors, len(diagnostics) - errors


def _line(found: CheckedFile) -> str:
    from art_topology.diagnostics import printable
    from art_topology.summary import counted

    told = [counted(found.errors, "error")] if found.errors else []
    told += [counted(found.warnings, "warning")] if found.warnings else []
    if found.fingerprint is not None:
        told.append(f"{found.summary} ({found.fingerprint[:12]})")
    return f"{printable(found.file)}: {'ok, ' if found.ok else ''}{', '.join(told)}"
