"""Puts the locked vLLM runtime into wheel and source distribution: its project, and the art-dataplane that it
installs.

In the wheel it lies under ``art_serving/_bundle`` in the relative places of the source checkout, since the
runtime's lock refers to art-dataplane by path. An editable installation uses the checkout itself.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_RUNTIME = ("pyproject.toml", "uv.lock", "src")
_DATAPLANE = ("pyproject.toml", "README.md", "LICENSE", "src")


class BundleHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the files when the distribution is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        if version == "editable":
            return
        root = Path(self.root)
        unpacked = root / "bundled" / "art-dataplane"
        dataplane = unpacked if unpacked.is_dir() else root.parent / "art-dataplane"
        if self.target_name == "wheel":
            places = [(root / "runtime", _RUNTIME, "art_serving/_bundle/art-serving/runtime")]
            places.append((dataplane, _DATAPLANE, "art_serving/_bundle/art-dataplane"))
        else:
            places = [(dataplane, _DATAPLANE, "bundled/art-dataplane")]
        for folder, names, place in places:
            for file in _files(folder, names):
                build_data["force_include"][str(folder / file)] = f"{place}/{file}"


def _files(folder: Path, names: tuple[str, ...]) -> list[Path]:
    found = []
    for name in names:
        top = folder / name
        if not top.exists():
            raise FileNotFoundError(f"{top} is missing; build from a checkout or a source distribution")
        files = [top] if top.is_file() else [path for path in top.rglob("*") if path.is_file()]
        found += [file.relative_to(folder) for file in files if "__pycache__" not in file.parts]
    return sorted(found)
