"""What an environment is made of, and the digest that is its address.

What always holds: any edit of the bundle's files, another interpreter or another platform is another digest.
"""

import hashlib
import os
import platform
import sys
import sysconfig
from pathlib import Path

import msgspec

from art_serving.errors import EnvironmentBuildError

_IGNORED = {
    "__pycache__",
    ".venv",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    "tests",
    "dist",
    "build",
    ".git",
}


class EnvironmentBundle(msgspec.Struct, frozen=True):
    """What an environment is made of.

    Args:
        name: short, for people: part of the folder's name.
        root: folder that ``project`` and ``include`` are relative to.
        project: folder with ``pyproject.toml`` and ``uv.lock``.
        include: folders and files that are copied, with their relative places kept, so that path sources of
            the project stay valid. Tests, caches and hidden folders below them are left out.
        disk_bytes: bytes that a build writes at most, uv's cache included when it is on the same disk; 0 when
            nobody knows. For what is said when there is no room.
    """

    name: str
    root: Path
    project: str
    include: tuple[str, ...]
    disk_bytes: int = 0

    @classmethod
    def of_project(cls, folder: Path, name: str | None = None) -> "EnvironmentBundle":
        """A bundle that is one folder with ``pyproject.toml``, ``uv.lock`` and perhaps sources.

        Args:
            folder: the folder.
            name: of the bundle; by default the folder's.
        """
        return cls(name or folder.name, folder.parent, folder.name, (folder.name,))


def bundle_digest(bundle: EnvironmentBundle) -> str:
    """The content address: bundle files (names, modes, bytes), interpreter and platform; 32 hex digits.

    Raises:
        EnvironmentBuildError: the bundle lacks ``pyproject.toml``, ``uv.lock`` or something it includes.
    """
    for needed in ("pyproject.toml", "uv.lock"):
        if not (bundle.root / bundle.project / needed).is_file():
            raise EnvironmentBuildError(
                f"bundle {bundle.name!r}: {bundle.root / bundle.project} has no {needed}"
            )
    digest = hashlib.blake2b(digest_size=16)

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(8, "little") + part)

    for word in (sys.version, sys.base_prefix, sysconfig.get_platform(), *platform.libc_ver(), "layout 1"):
        add(word.encode())
    for relative in bundle_files(bundle):
        source = bundle.root / relative
        add(relative.encode())
        add(b"x" if os.access(source, os.X_OK) else b"-")
        add(source.read_bytes())
    return digest.hexdigest()


def bundle_files(bundle: EnvironmentBundle) -> list[str]:
    """The bundle's files, relative to its root, in order.

    Raises:
        EnvironmentBuildError: the bundle includes something that is not there.
    """
    found: set[str] = set()
    for included in bundle.include:
        top = bundle.root / included
        if top.is_file():
            found.add(included)
            continue
        if not top.is_dir():
            raise EnvironmentBuildError(
                f"bundle {bundle.name!r} includes {included!r}, which {bundle.root} does not have"
            )
        for folder, names, files in os.walk(top):
            names[:] = [name for name in names if name not in _IGNORED and not name.startswith(".")]
            found.update(
                str((Path(folder) / file).relative_to(bundle.root))
                for file in files
                if not file.endswith(".pyc")
            )
    return sorted(found)
