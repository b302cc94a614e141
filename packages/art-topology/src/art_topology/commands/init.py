"""``art-topology init``: a commented file to start from."""

from __future__ import annotations

from typing import Annotated

import typer

from art_topology.commands.options import Gpu, Json

NAME = "init"
EPILOG = """Examples:

`art-topology init`: topology.toml for one host with 8 GPUs

`art-topology init --hosts 3 --gpus 8 --gpu H200 cluster.toml`

`art-topology init --cpu laptop.toml`

What it writes passes `check`. Put in the addresses of your hosts. Exit codes: 0; 2 wrong use, or the file is
there already (`--force` replaces it) or cannot be written.
"""


def command(
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="What to write; - is standard output.")
    ] = "topology.toml",
    hosts: Annotated[int, typer.Option("--hosts", min=1, max=16_384, metavar="N", help="Hosts.")] = 1,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus", min=0, max=64, metavar="N", help="GPUs of each host; by default 8.", show_default=False
        ),
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="No GPUs at all.")] = False,
    gpu: Gpu = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented TOML topology to start from."""
    from pathlib import Path

    from art_topology.commands.documents.init import WrittenDocument
    from art_topology.commands.output import print_json, say
    from art_topology.commands.sources import STDIN, CommandError, refusals, write
    from art_topology.commands.template import topology_text
    from art_topology.summary import counted

    with refusals(as_json):
        if file == STDIN and as_json:
            raise CommandError("- and --json both print to standard output: give a file")
        if file != STDIN and Path(file).suffix.lower() != ".toml":
            raise CommandError(f"{file}: the file is TOML, so its name ends with .toml")
        if cpu and (gpus is not None or gpu is not None):
            raise CommandError("--cpu is without GPUs: leave --gpus and --gpu out, or --cpu")
        if gpu is not None:
            _check_gpu(gpu)
        each = 0 if cpu else 8 if gpus is None else gpus
        shown = "FILE" if file == STDIN else file
        write(file, topology_text(hosts, each, gpu_model=gpu, file=shown), force=force)
        if as_json:
            print_json(WrittenDocument(file=file, hosts=hosts, gpus=hosts * each))
        elif file != STDIN:
            held = f" with {counted(each, 'GPU')}{' each' if hosts > 1 else ''}" if each else " without GPUs"
            say(f"{file}: {counted(hosts, 'host')}{held}; next: art-topology check {file}")


def _check_gpu(name: str) -> None:
    """Refuses a name that the table of hardware does not have.

    Raises:
        CommandError: it does not.
    """
    from art_topology.commands.sources import CommandError
    from art_topology.passes.gpu_models import gpu_names_like, known_gpu

    if known_gpu(name) is None:
        near = ", ".join(gpu_names_like(name))
        raise CommandError(f"the table of hardware has no GPU {name!r}: use one of {near}")
