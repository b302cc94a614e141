"""``art-topology render``: a picture of a topology."""

from __future__ import annotations

from typing import Annotated

import typer

from art_topology.commands.options import File, Format, Json

NAME = "render"
EPILOG = """Examples:

`art-topology render cluster.toml -o topology.svg`

`art-topology render cluster.toml --hosts 0-3,12 -o some.svg`: chosen hosts, by node rank

`art-topology render cluster.toml > topology.svg`

The picture follows the viewer's light or dark mode, needs no font of its own and says the same as text. Of
many hosts that are alike the first few are drawn. Exit codes: 0; 1 the topology has errors; 2 wrong use, or a
file that cannot be read or written.
"""


def command(
    file: File,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="SVG", help="Where to; - is standard output.")
    ] = "-",
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts", metavar="RANGE", help="Node ranks to draw, such as 0-3,12.", show_default=False
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=256, help="Most hosts to draw.")] = 8,
    title: Annotated[
        str | None,
        typer.Option("--title", metavar="TEXT", help="By default the file's name.", show_default=False),
    ] = None,
    kind: Format = None,
    as_json: Json = False,
) -> None:
    """Draw hosts, GPUs, process groups and services as an SVG."""
    from pathlib import Path

    from art_topology.commands.documents.render import PictureDocument
    from art_topology.commands.output import print_json, say
    from art_topology.commands.sources import STDIN, CommandError, compiled, refusals, write
    from art_topology.render import draw
    from art_topology.summary import counted

    with refusals(as_json):
        if output == STDIN and as_json:
            raise CommandError("the picture and --json both go to standard output: give -o FILE")
        if output != STDIN and Path(output).suffix.lower() not in (".svg", ""):
            raise CommandError(f"{output}: the picture is an SVG, so its name ends with .svg")
        if output != STDIN and file != STDIN and _same(file, output):
            raise CommandError(f"{output} is the topology itself: give the picture another name")
        source, topology = compiled(file, kind)
        chosen = _chosen(hosts, len(topology.hosts)) if hosts is not None else None
        name = title if title is not None else Path(file).stem if file != STDIN else "Topology"
        picture = draw(topology, title=name, node_ranks=chosen, most_hosts=limit, model=source.model())
        write(output, picture.svg)
        if as_json:
            print_json(
                PictureDocument(
                    file=output,
                    width=picture.width,
                    height=picture.height,
                    hosts_drawn=picture.hosts_drawn,
                    hosts=len(topology.hosts),
                )
            )
        elif output != STDIN:
            drawn = len(picture.hosts_drawn)
            of = f"{drawn:,} of " if drawn < len(topology.hosts) else ""
            say(f"{output}: {of}{counted(len(topology.hosts), 'host')}, {picture.width} x {picture.height}")


def _same(one: str, other: str) -> bool:
    import os

    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False  # one of them is not there, so they are two


def _chosen(text: str, count: int) -> tuple[int, ...]:
    """Node ranks of a range such as "0-3,12".

    Raises:
        CommandError: it is no range, empty, or names hosts that there are not.
    """
    import re

    from art_topology.commands.sources import CommandError

    found: set[int] = set()
    for part in text.split(","):
        matched = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", part, re.ASCII)
        if matched is None:
            raise CommandError(f"--hosts {text!r} is no range of node ranks: write it as in 0-3,12")
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if first > last or last >= count:
            raise CommandError(f"--hosts {text!r}: there are hosts 0 to {count - 1}")
        found.update(range(first, last + 1))
        if len(found) > 256:
            raise CommandError(f"--hosts {text!r} are more than the 256 hosts of a picture")
    return tuple(sorted(found))
