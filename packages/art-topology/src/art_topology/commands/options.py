"""Arguments and options that several commands have, and how a shell completes them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_SUFFIXES = (".toml", ".yaml", ".yml", ".json")
_FORMATS = ("toml", "yaml", "json")


def _files(incomplete: str) -> list[str]:
    """Folders and files that may hold a topology."""
    folder, _, start = incomplete.rpartition("/")
    where = Path(folder or "/") if "/" in incomplete else Path()
    try:
        entries = sorted(where.iterdir())
        return [
            f"{folder}/{entry.name}" if "/" in incomplete else entry.name
            for entry in entries
            if entry.name.startswith(start) and (entry.suffix.lower() in _SUFFIXES or entry.is_dir())
        ]
    except OSError:
        return []  # a shell that completes has no place for a message


def _formats(incomplete: str) -> list[str]:
    return [name for name in _FORMATS if name.startswith(incomplete)]


def _families(incomplete: str) -> list[str]:
    from art_topology.ranks import GROUP_FAMILIES

    return [name for name in GROUP_FAMILIES if name.startswith(incomplete)]


def _gpus(incomplete: str) -> list[str]:
    from art_topology.hardware import default_hardware

    table = default_hardware()
    names = [*table.gpus, *table.nodes, *(alias for gpu in table.gpus.values() for alias in gpu.aliases)]
    return sorted({name for name in names if name.startswith(incomplete)})


def _links(incomplete: str) -> list[str]:
    from art_topology.hardware import default_hardware

    links = default_hardware().links.values()
    return [link.name for link in links if link.kind == "network" and link.name.startswith(incomplete)]


def file_completion() -> dict[str, Any]:
    """For parameters that name a file."""
    return {"autocompletion": _files}


File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="The topology: .toml, .yaml or .json; - is stdin.", **file_completion()
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="toml|yaml|json",
        help="What FILE is, whatever its name; needed for -.",
        autocompletion=_formats,
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
Family = Annotated[
    str | None,
    typer.Option(
        "--family",
        "-f",
        metavar="NAME",
        help="Only groups of this family: tp, cp, ep ...",
        show_default=False,
        autocompletion=_families,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="CONFIG",
        help="Hugging Face config.json of the model, or its folder.",
        show_default=False,
        **file_completion(),
    ),
]
WorkloadFile = Annotated[
    str | None,
    typer.Option(
        "--workload",
        "-w",
        metavar="FILE",
        help="The workload, as a file: its fields, or a topology with a workload.",
        show_default=False,
        **file_completion(),
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="GPU or machine in the table of hardware, such as H200 or DGX-B300.",
        show_default=False,
        autocompletion=_gpus,
    ),
]
Network = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="LINK",
        help="Link between hosts, such as RoCE-400; by default the machine's.",
        show_default=False,
        autocompletion=_links,
    ),
]
Hardware = Annotated[
    str | None,
    typer.Option(
        "--hardware",
        metavar="FILE",
        help="TOML file with further GPUs, links and machines.",
        show_default=False,
        **file_completion(),
    ),
]
