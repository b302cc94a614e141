"""``python -m accuracy [--check]``: writes the page, or says whether it is current."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from accuracy.page import render

PAGE = Path(__file__).parents[3] / "docs" / "planner-accuracy.md"


def main() -> int:
    """Returns 0; with ``--check`` 1 where the page is not what would be written."""
    parser = argparse.ArgumentParser(prog="python -m accuracy", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the page and change nothing")
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="the page; by default docs/planner-accuracy.md"
    )
    options = parser.parse_args()
    text = render()
    if options.check:
        if options.page.read_text(encoding="utf-8") == text:
            return 0
        print(f"{options.page} is not current: run `nox -s accuracy`", file=sys.stderr)
        return 1
    options.page.write_text(text, encoding="utf-8")
    print(f"wrote {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
