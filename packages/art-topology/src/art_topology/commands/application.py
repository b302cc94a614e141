"""All commands as one application."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from art_topology.commands import check, diff, explain, groups, init, plan, render, schema

_HELP = """Checks and plans the cluster of a reinforcement-learning run before any GPU is allocated.

A topology is a TOML, YAML or JSON file: hosts, trainer ranks, model services. `init` writes one to start
from, `check` finds everything wrong with it, `plan` searches for the fastest.
"""
_EPILOG = """Exit codes: 0 all is well; 1 the topology has errors (`diff`: the two differ); 2 wrong use,
or a file that cannot be read or written; 130 interrupted. Every command takes `--json` and then prints one
JSON document; `art-topology schema --output COMMAND` is its JSON Schema. Where FILE is `-`, standard input is
read, and `--format` says what it is.
"""


def application() -> Any:
    """The command as typer builds it; called with arguments."""
    app = typer.Typer(
        name="art-topology",
        help=_HELP,
        epilog=_EPILOG,
        no_args_is_help=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for command in (init, check, plan, explain, groups, render, diff, schema):
        app.command(command.NAME, epilog=command.EPILOG)(command.command)
    return typer.main.get_command(app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"art-topology {version('art-topology')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version
