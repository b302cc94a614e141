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


def _option(*names: str, metavar: str, help_: str, completed: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=help_, show_default=False, autocompletion=completed)


File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="The topology: .toml, .yaml or .json; - is stdin.", **file_completion()
    ),
]
Format = Annotated[
    str | None,
    _option(
        "--format",
        metavar="toml|yaml|json",
        help_="What FILE is, whatever its name; needed for -.",
        completed=_formats,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
Family = Annotated[
    str | None,
    _option(
        "--family",
        "-f",
        metavar="NAME",
        help_="Only groups of this family: tp, cp, ep ...",
        completed=_families,
    ),
]
Model = Annotated[
    str | None,
    _option(
        "--model",
        "-m",
        metavar="CONFIG",
        help_="Hugging Face config.json of the model, or its folder.",
        completed=_files,
    ),
]
WorkloadFile = Annotated[
    str | None,
    _option(
        "--workload",
        "-w",
        metavar="FILE",
        help_="The workload, as a file: its fields, or a topology with a workload.",
        completed=_files,
    ),
]
Gpu = Annotated[
    str | None,
    _option(
        "--gpu",
        metavar="NAME",
        help_="GPU or machine in the table of hardware, such as H200 or DGX-B300.",
        completed=_gpus,
    ),
]
Network = Annotated[
    str | None,
    _option(
        "--network",
        metavar="LINK",
        help_="Link between hosts, such as RoCE-400; by default the machine's.",
        completed=_links,
    ),
]
Hardware = Annotated[
    str | None,
    _option(
        "--hardware",
        metavar="FILE",
        help_="TOML file with further GPUs, links and machines.",
        completed=_files,
    ),
]
