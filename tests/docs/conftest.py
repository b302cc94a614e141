"""The tools of the documentation, and a package that is written for one test."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))


@pytest.fixture
def repository() -> Path:
    return ROOT


@pytest.fixture
def faults(tmp_path: Path) -> Callable[..., list[str]]:
    """Writes a package ``planted`` with the given source (all public) and returns what the check finds."""

    def find(
        source: str, *, public: str = "", pages: dict[str, str] | None = None, shown: str | None = None
    ) -> list[str]:
        from check_docstrings import Use, check, load

        package = tmp_path / "packages" / "planted" / "src" / "planted"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(
            f'"""A package."""\nfrom planted.code import {public or "f"}\n__all__ = {[public or "f"]!r}\n'
        )
        (package / "code.py").write_text(f'"""Code."""\n{source}')
        for name, text in (pages or {}).items():
            (tmp_path / "pages").mkdir(exist_ok=True)
            (tmp_path / "pages" / name).write_text(text)
        uses = [Use("guide.md", shown)] if shown is not None else []
        found = check(load(tmp_path, ("planted",)), tmp_path / "pages" if pages is not None else None, uses)
        return [f"{fault.name}: {fault.text}" for fault in found]

    return find
