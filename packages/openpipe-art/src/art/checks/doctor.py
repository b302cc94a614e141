"""The command `art doctor`: what this machine can run, what is missing, and the command that mends it.

Works in the base install, without any extra. It reads and probes; nothing is fetched or started, but uv with
``--network``, and nothing removed, but with ``--prune-cache``.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import TextIO

import msgspec

from art.checks.arguments import folder_argument
from art.checks.cache import Fetched
from art.checks.capabilities import Diagnosis, diagnose
from art.checks.machine import Machine
from art.checks.network import package_index_check
from art.checks.results import Check, State
from art.checks.sizes import disk_size, memory_size
from art.checks.stale import PRUNE_COMMAND, Removal, StaleEntry, prune

DESCRIPTION = (
    "Says what this machine can run and what is missing, with the command that mends it. Fetches and starts "
    "nothing. Memory is told in GiB (powers of two), disk and downloads in GB (powers of ten). Exit status: "
    "0 when `art demo` can run here, 1 when something is missing."
)
_MARKS = {State.OK: "ok", State.WARNING: "warning", State.FAILURE: "FAILED"}
_STYLES = {State.OK: "green", State.WARNING: "yellow", State.FAILURE: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Gives the parser of ``art doctor`` its options."""
    parser.add_argument("--json", action="store_true", help="write everything as one JSON object")
    parser.add_argument(
        "--run-dir",
        type=folder_argument,
        metavar="DIR",
        help="also check DIR as the folder of a run (art demo --run-dir)",
    )
    parser.add_argument(
        "--network",
        action="store_true",
        help="also ask the package index that uv is set to (up to 20 s)",
    )
    parser.add_argument(
        "--prune-cache",
        action="store_true",
        help="only remove from the cache what this version of ART does not use and no process has in use; "
        "what another installed version of ART uses is made again when it runs",
    )


def run(options: argparse.Namespace, stream: TextIO | None = None) -> int:
    """Looks, writes what was found to ``stream`` (standard output), and returns the exit status.

    Args:
        options: with ``json``, ``run_dir``, ``network`` and ``prune_cache`` as :func:`add_arguments` names
            them, and ``parser``, which tells of options that do not go together.
        stream: where to write.
    """
    out = stream or sys.stdout
    if options.prune_cache:
        given = {"--network": options.network, "--run-dir": options.run_dir is not None}
        beside = [name for name, there in given.items() if there]
        if beside:
            options.parser.error(
                f"--prune-cache only removes; not with {' and '.join(beside)}: run art doctor twice"
            )
        return _prune(out, as_json=options.json)
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
        out.write(f"  {item.name}: {_state(item)}\n")
    if diagnosis.stale:
        _write_stale(diagnosis.stale, out)
    mend = [check for check in diagnosis.checks if check.state is not State.OK and check.remedy]
    if mend:  # what was found stands in the table
        out.write("\nTo mend it:\n" if not diagnosis.demo_runs else "\nWorth a look:\n")
        for check in mend:
            warning = "warning: " if check.state is State.WARNING else ""
            out.write(f"  {warning}{check.name}: {check.remedy}\n")
    out.write("\nart demo can run here.\n" if diagnosis.demo_runs else "\nart demo cannot run here.\n")


def _state(item: Fetched) -> str:
    if item.cached:
        return f"there, {item.folder}"
    if item.problem:
        return item.problem
    amount = f"fetches {item.fetched}, " if item.fetched else ""
    return f"not there yet; the first run {amount}writes about {disk_size(item.disk_bytes)}"


def _write_stale(entries: tuple[StaleEntry, ...], out: TextIO) -> None:
    out.write("\nIn the cache, and not used by this version of ART:\n")
    for entry in entries:
        out.write(f"  {entry.folder}: {_freed([entry])}{f', in use by {entry.user}' if entry.user else ''}\n")
    free = [entry for entry in entries if not entry.user]
    if free:
        out.write(f"  `{PRUNE_COMMAND}` removes what is not in use ({_freed(free)}); another version\n")
        out.write("  of ART on this machine makes again what it needs of it.\n")


def _freed(entries: Sequence[StaleEntry]) -> str:
    taken = sum(entry.disk_bytes for entry in entries)
    if all(entry.whole for entry in entries):
        return disk_size(taken)
    return f"at least {disk_size(taken)}" if taken else "not counted, it is large"


def _prune(out: TextIO, *, as_json: bool) -> int:
    """Removes what is stale and tells what; returns the exit status."""
    removals = prune()
    if as_json:
        encoded = msgspec.json.encode({"removals": removals}, enc_hook=str)
        out.write(msgspec.json.format(encoded).decode() + "\n")
    else:
        for removal in removals:
            out.write(f"{_removal(removal)}\n")
        gone = [removal.entry for removal in removals if not removal.problem]
        out.write(f"{_freed(gone)} freed\n" if gone else "nothing to remove\n" if not removals else "")
    return 1 if any(removal.problem and not removal.entry.user for removal in removals) else 0


def _removal(removal: Removal) -> str:
    folder = removal.entry.folder
    return f"kept {folder}: {removal.problem}" if removal.problem else f"removed {folder}"


def machine_line(here: Machine) -> str:
    """The machine in one line."""
    gpus = ", ".join(gpu.name for gpu in here.gpus) or "none"
    return (
        f"{here.system} on {here.architecture}, Python {here.python}, {here.cpu_model}, {here.cpus:g} CPUs, "
        f"{memory_size(here.memory.available)} of {memory_size(here.memory.limit)} memory available, "
        f"GPU: {gpus}"
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
