"""``art-topology diff``: what changed between two topologies and what it restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from art_topology.commands.options import Format, Json, file_completion

if TYPE_CHECKING:
    from art_topology.compiled import RuntimeTopology

NAME = "diff"
EPILOG = """Examples:

`art-topology diff running.toml next.toml`

`git show HEAD:cluster.toml | art-topology diff - cluster.toml --format toml`

Either may be a compiled topology, as `topology_to_json` writes it. Exit codes: 0 equal; 1 they differ; 2
wrong use, or one of them has errors or cannot be read.
"""


def command(
    old: Annotated[str, typer.Argument(metavar="A", help="What runs.", **file_completion())],
    new: Annotated[str, typer.Argument(metavar="B", help="What shall run.", **file_completion())],
    kind: Format = None,
    as_json: Json = False,
) -> None:
    """Compare two topologies: what changed, in words, and what has to start again for it."""
    from art_topology.commands.documents.diff import ChangeRow, DiffDocument
    from art_topology.commands.output import print_json, say
    from art_topology.commands.sources import ERRORS, UNUSABLE, CommandError, refusals
    from art_topology.diagnostics import printable
    from art_topology.diff import diff_topologies

    with refusals(as_json, errors=UNUSABLE):
        if old == new == "-":
            raise CommandError("standard input can be read once: give - once")
        found = diff_topologies(_topology(old, kind), _topology(new, kind))
        if as_json:
            print_json(
                DiffDocument(
                    equal=not found,
                    summary=found.summary,
                    changes=tuple(
                        ChangeRow(
                            paths=change.paths,
                            message=change.message,
                            restarts=tuple(map(str, change.restarts)),
                            why=change.why,
                        )
                        for change in found.changes
                    ),
                    restarts=tuple(map(str, found.restarts)),
                    warm=tuple(map(str, found.warm)),
                    old_fingerprint=found.old_fingerprint,
                    new_fingerprint=found.new_fingerprint,
                )
            )
        else:
            first, *rest = found.describe().split("\n")
            say(printable(first), "bold")
            for line in rest:
                say(printable(line))
        raise typer.Exit(ERRORS if found else 0)


def _topology(file: str, kind: str | None) -> RuntimeTopology:
    """A topology, or one that was compiled before."""
    from pathlib import Path

    from art_topology.commands.sources import CommandError, compiled
    from art_topology.fingerprint import FingerprintError, topology_from_json
    from art_topology.readers import FORMATS
    from art_topology.reading import read_regular

    if Path(file).suffix.lower() == ".json":
        try:
            data = read_regular(file)
        except (OSError, ValueError):
            data = b""  # what follows reads it again and says what is wrong
        if b'"fingerprint"' in data:
            try:
                return topology_from_json(data)
            except FingerprintError as error:
                raise CommandError(f"{file}: {error}") from error
    # --format is about standard input; a file's suffix says its own, if it has one.
    told = Path(file).suffix.lower() in FORMATS and kind in FORMATS.values()
    return compiled(file, None if told else kind)[1]
