"""What is installed, against what ART's own distributions ask for.

The list is the one that the installed metadata declares, extras included; there is no second one here.
Requirements of ART's own distributions are followed into those, requirements of others are theirs to check.
"""

import functools
import importlib.metadata
import importlib.util
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from art.checks.machine import python_version
from art.checks.results import Check, failed, passed
from art.errors import ConfigError
from art.user_code import with_place

if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION = "openpipe-art"
PYTHON_REMEDY = "make an environment with `uv venv --python 3.12` and install ART there"
_EXTRA_OF = {
    "monarch": "distributed",
    "psutil": "distributed",
    "art_trainer": "cpu",
    "art_serving": "cpu",
    "jinja2": "cpu",
    "rich": "cpu",
    "tokenizers": "cpu",
}
"""Packages that ART imports from its extras."""
_OURS = ("openpipe-art", "art-topology", "art-dataplane", "art-kernels", "art-trainer", "art-serving")


def own_modules() -> dict[str, str]:
    """ART's own importable packages, each with the distribution that it is of."""
    return {name.removeprefix("openpipe-").replace("-", "_"): name for name in _OURS}


class PackageProblem(msgspec.Struct, frozen=True):
    """One requirement that is not met.

    Args:
        requirement: as it was declared, for example ``torchmonarch==0.7.0``.
        installed: the version that is there, None when the package is absent.
        asked_by: the distribution that declares it.
    """

    requirement: str
    installed: str | None
    asked_by: str

    def __str__(self) -> str:
        if self.installed is None:
            return f"{self.requirement} is not installed"
        return f"{self.requirement} is needed, {self.installed} is installed"


def install_command(extra: str) -> str:
    """What installs an extra of this very version into the environment that runs: from the clone that it came
    from, else by name."""
    wanted = f"[{extra}]" if extra else ""
    clone = _clone()
    if clone is None:
        try:
            version = f"=={importlib.metadata.version(DISTRIBUTION)}"
        except importlib.metadata.PackageNotFoundError:
            version = ""
        return f"pip install '{DISTRIBUTION}{wanted}{version}'"
    goto = f"cd {shlex.quote(str(clone))}"
    if Path(sys.prefix).resolve() == (clone / ".venv").resolve():
        return f"{goto} && uv sync"
    editable = "-e " if _direct_url().get("dir_info", {}).get("editable") else ""
    source = shlex.quote(f"./packages/{DISTRIBUTION}{wanted}")
    return f"{goto} && uv pip install --python {shlex.quote(sys.executable)} {editable}{source}"


def missing_extra(name: str, error: ModuleNotFoundError) -> Exception:
    """What to raise where the public name ``name`` cannot be imported: a package is missing that an extra
    brings, and that is told; anything else is ``error`` itself."""
    package = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(package)
    if extra is None or importlib.util.find_spec(package) is not None:
        return error
    return ConfigError(
        with_place(
            f"{name} needs the package {package}, which comes with the extra {extra!r}: "
            f"`{install_command(extra)}`"
        )
    )


def _clone() -> Path | None:
    """The root of the source tree that ART was installed from, or None."""
    url = urlsplit(_direct_url().get("url", ""))
    if url.scheme != "file":
        return None
    root = Path(unquote(url.path)).parents[1]
    return root if (root / "uv.lock").is_file() else None


def _direct_url() -> dict[str, Any]:
    """Where ART was installed from, as installers write it down; empty when that was an index."""
    try:
        text = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        text = None
    found: dict[str, Any] = json.loads(text or "{}")
    return found


@functools.cache
def package_problems(extra: str = "") -> tuple[PackageProblem, ...]:
    """Requirements of ``openpipe-art[extra]`` that this Python's packages do not meet."""
    if importlib.util.find_spec("packaging") is None:
        return (PackageProblem("packaging", None, DISTRIBUTION),)
    return tuple(_problems(DISTRIBUTION, extra, set()))


def _problems(name: str, extra: str, seen: set[tuple[str, str]]) -> Iterator[PackageProblem]:
    if (name, extra) in seen:
        return
    seen.add((name, extra))
    for requirement in requirements(name, extra):
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield PackageProblem(_declared(requirement), None, name)
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            yield PackageProblem(_declared(requirement), version, name)
        if requirement.name in _OURS:
            for wanted in ("", *requirement.extras):
                yield from _problems(requirement.name, wanted, seen)


def requirements(name: str, extra: str) -> "Iterator[Requirement]":
    """Those of one distribution that hold here: the base ones for no extra, else the extra's own."""
    from packaging.requirements import Requirement

    try:
        declared = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for text in declared:
        requirement = Requirement(text)
        if requirement.marker is None:
            if not extra:
                yield requirement
        elif requirement.marker.evaluate({"extra": extra}) and bool(extra) != requirement.marker.evaluate(
            {"extra": ""}
        ):
            yield requirement


def _declared(requirement: "Requirement") -> str:
    return f"{requirement.name}{requirement.specifier}"


def installed_check(extra: str = "") -> Check:
    """Whether what the extra declares is installed, in versions that it allows."""
    name = f"packages [{extra}]" if extra else "packages"
    problems = [*package_problems(), *(package_problems(extra) if extra else ())]
    if not problems:
        return passed(name, "all installed")
    shown = "; ".join(dict.fromkeys(str(problem) for problem in problems))
    return failed(name, shown, remedy=install_command(extra))


def python_check() -> Check:
    """Whether this Python is one that ART's installed distributions run on."""
    from packaging.specifiers import SpecifierSet

    needed = SpecifierSet(",".join(sorted(_required_pythons())))
    version = python_version()
    text = ", ".join(str(needed).split(",")) or "any"
    if needed.contains(version, prereleases=True):
        return passed("Python", version, text)
    return failed("Python", version, text, PYTHON_REMEDY)


def _required_pythons() -> set[str]:
    found = set()
    for name in _OURS:
        try:
            required = importlib.metadata.metadata(name)["Requires-Python"]
        except (importlib.metadata.PackageNotFoundError, KeyError):
            continue
        if required:
            found.add(required)
    return found
