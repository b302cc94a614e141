"""``art-topology schema``: JSON Schemas of topologies, for editors, and of the commands' documents."""

from __future__ import annotations

from typing import Annotated

import typer

from art_topology.commands.options import Json

NAME = "schema"
EPILOG = """Examples:

`art-topology schema > topology.schema.json`

Then begin a TOML file with `#:schema ./topology.schema.json` and editors complete and check its fields.

`art-topology schema --output plan` is what `plan --json` prints.
"""


def _commands(incomplete: str) -> list[str]:
    from art_topology.commands.documents.by_command import DOCUMENTS

    return [name for name in DOCUMENTS if name.startswith(incomplete)]


def command(
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="COMMAND",
            help="Of what this command prints with --json, instead.",
            show_default=False,
            autocompletion=_commands,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the JSON Schema (draft 2020-12) of a topology file.

    It is JSON with and without --json.
    """  # fmt: skip
    import msgspec

    from art_topology.commands.documents.by_command import DOCUMENTS
    from art_topology.commands.output import print_json
    from art_topology.commands.sources import CommandError, refusals
    from art_topology.files import topology_schema

    with refusals(as_json):
        if output is None:
            print_json(topology_schema())
            return
        if output not in DOCUMENTS:
            raise CommandError(
                f"no command {output!r} that prints a document; there are {', '.join(DOCUMENTS)}"
            )
        schemas, components = msgspec.json.schema_components(DOCUMENTS[output], ref_template="#/$defs/{name}")
        dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        print_json(dialect | {"anyOf": schemas, "$defs": components})
