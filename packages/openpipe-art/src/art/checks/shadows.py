"""Files that would be imported in place of the standard library or of a package that ART needs.

Python looks first in the folders before its own on ``sys.path``: the folder of a script, ``PYTHONPATH``, and
for ``python -m``, by which worker processes start, the current folder. A ``random.py`` there is what torch
gets when it asks for ``random``.
"""

import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from art.checks.packages import DISTRIBUTION, own_modules, requirements
from art.checks.results import Check, failed, passed

_SUFFIXES = tuple(importlib.machinery.all_suffixes())


def shadows_check(folders: Iterable[Path] | None = None) -> Check:
    """Whether what stands in these folders is imported in place of something that ART needs.

    Args:
        folders: where a program's modules are; by default those that come before the standard library, here
            and in the worker processes.
    """
    for folder in dict.fromkeys(_first_folders() if folders is None else folders):
        for name, file in _modules(folder):
            owner = _owner(name, folder)
            if owner is not None:
                found = f"{file} would be imported in place of {owner}"
                return failed("module names", found, remedy=f"rename {file.name}, or run in another folder")
    return passed("module names", "none hides a package")


def _first_folders() -> Iterator[Path]:
    """The folders that worker processes look into before the standard library."""
    yield Path.cwd()
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    for entry in sys.path:
        if entry in standard or entry.endswith(".zip"):
            return
        yield Path(entry or ".").absolute()


def _modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """The modules and packages that lie in a folder, by the name that they are imported by."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # not a folder, or not to be read: nothing is imported from there
        return
    for entry in entries:
        name, dot, _ = entry.name.partition(".")
        path = Path(entry.path)
        if not name.isidentifier():
            continue
        if dot and entry.name[len(name) :] in _SUFFIXES:
            yield name, path
        elif not dot and os.path.isfile(path / "__init__.py"):
            yield name, path / "__init__.py"


def _owner(name: str, folder: Path) -> str | None:
    """What a module of this name in ``folder`` would hide; None when nothing that ART needs."""
    if name in sys.builtin_module_names or importlib.machinery.FrozenImporter.find_spec(name) is not None:
        return None  # these are found before any folder is looked into
    if name in sys.stdlib_module_names:
        return f"Python's own module {name}"
    elsewhere = [entry for entry in sys.path if Path(entry or ".").absolute() != folder.absolute()]
    spec = importlib.machinery.PathFinder.find_spec(name, elsewhere)
    if spec is None or spec.loader is None or (spec.origin and Path(spec.origin).is_relative_to(folder)):
        return None
    owner = _needed_modules().get(name)
    return f"the module {name} of {owner}" if owner is not None else None


@functools.cache
def _needed_modules() -> dict[str, str]:
    """Every top-level module of what ART asks for, directly or not, and the distribution that it is of."""
    modules = own_modules()
    waiting = [(DISTRIBUTION, extra) for extra in ("", "distributed", "cpu")]
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            modules |= dict.fromkeys(_top_level(importlib.metadata.distribution(name)), name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for requirement in requirements(name, extra):
            waiting += [(requirement.name, wanted) for wanted in ("", *requirement.extras)]
    return modules


def _top_level(found: importlib.metadata.Distribution) -> set[str]:
    names = {file.parts[0].partition(".")[0] for file in found.files or () if file.suffix in (".py", ".so")}
    return {name for name in names if name.isidentifier()}
