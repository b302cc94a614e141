"""The command `art doctor`: what this machine can run, what is missing, and the command that mends it.

Works in the base install, without any extra. It reads and probes; nothing is fetched or started, but uv with
``--network``.
"""

import argparse
import sys
from pathlib import Path
from typing import TextIO

import msgspec

from art.checks.capabilities import Diagnosis, diagnose
from art.checks.machine import Machine
from art.checks.network import package_index_check
from art.checks.results import Check, State, size

DESCRIPTION = (
    "Says what this machine can run and what is missing, with the command that mends it. Fetches and starts "
    "nothing. Exit status: 0 when `art demo` can run here, 1 when something is missing."
)
_MARKS = {State.OK: "ok", State.WARNING: "warning", State.FAILURE: "FAILED"}
_STYLES = {State.OK: "green", State.WARNING: "yellow", State.FAILURE: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Gives the parser of ``art doctor`` its options."""
    parser.add_argument("--json", action="store_true", help="write everything as one JSON object")
    parser.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="also check DIR as the folder of a run (art demo --run-dir)",
    )
    parser.add_argument(
        "--network",
        action="store_true",
        help="also ask the package index that uv is set to (up to 20 s)",
    )


def run(options: argparse.Namespace, stream: TextIO | None = None) -> int:
    """Looks, writes what was found to ``stream`` (standard output), and returns the exit status.

    Args:
        options: with ``json``, ``run_dir`` and ``network`` as :func:`add_arguments` names them.
        stream: where to write.
    """
    out = stream or sys.stdout
    diagnosis = diagnose(options.run_dir, [package_index_check()] if options.network else [])
    if options.json:
        encoded = msgspec.json.format(msgspec.json.encode(diagnosis, enc_hook=str))
        out.write(encoded.decode() + "\n")
    else:
        _write(diagnosis, out)
    return 0 if diagnosis.demo_runs else 1


def _write(diagnosis: Diagnosis, out: TextIO) -> None:
    out.write(f"{machine_line(diagnosis.machine)}\n\n")
    if not (out.isatty() and _rich_table(diagnosis.checks, out)):
        _plain_table(diagnosis.checks, out)
    out.write("\nWhat runs here:\n")
    for capability in diagnosis.capabilities:
        out.write(f"  {'yes' if capability.runs else 'no ':3}  {capability.name:<12} {capability.what}\n")
        if not capability.runs and capability.name == "GPU":
            out.write(f"{'':19}{capability.missing[0]}\n")
    out.write("\nFetched or built once, then kept:\n")
    for item in diagnosis.fetched:
        if item.cached:
            state = f"there, {item.folder}"
        else:
            state = item.problem or f"not there yet; the first run writes about {size(item.disk_bytes)}"
        out.write(f"  {item.name}: {state}\n")
    mend = [check for check in diagnosis.checks if check.state is not State.OK]
    if mend:
        out.write("\nWhat stands in the way:\n" if not diagnosis.demo_runs else "\nWorth a look:\n")
        for check in mend:
            out.write(f"  {check.line()}\n")
    out.write("\nart demo can run here.\n" if diagnosis.demo_runs else "\nart demo cannot run here.\n")


def machine_line(here: Machine) -> str:
    """The machine in one line."""
    gpus = ", ".join(gpu.name for gpu in here.gpus) or "none"
    return (
        f"{here.system} on {here.architecture}, Python {here.python}, {here.cpu_model}, {here.cpus:g} CPUs, "
        f"{size(here.memory.available)} of {size(here.memory.limit)} memory available, GPU: {gpus}"
    )


def _plain_table(checks: tuple[Check, ...], out: TextIO) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        needed = f"  (needed: {check.needed})" if check.needed else ""
        out.write(f"{_MARKS[check.state]:<8} {check.name:<{width}}  {check.found}{needed}\n")


def _rich_table(checks: tuple[Check, ...], out: TextIO) -> bool:
    """Writes the checks as a table; False where rich is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        return False
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("", "check", "found", "needed"):
        table.add_column(title, overflow="fold", no_wrap=title in ("", "check"))
    for check in checks:
        mark = Text(_MARKS[check.state], style=_STYLES[check.state])
        table.add_row(mark, Text(check.name), Text(check.found), Text(check.needed))
    Console(file=out, highlight=False).print(table)
    return True
