"""Writes the reference page of the command ``art-topology`` from the command itself.

python tools/command_page.py            # writes docs/reference/art_topology/command-line.md
python tools/command_page.py --check    # exit status 1 when the page is not current
"""

import sys
from pathlib import Path
from typing import Any

from art_topology.commands.application import application

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "art_topology" / "command-line.md"

_HEAD = """# art_topology: command line

    uv run art-topology --help

in a clone of the repository. For another environment, which is active, run there
`uv pip install './packages/art-topology[cli]'`.

[Plan a cluster](../../plan-a-cluster.md) goes through the commands in ten minutes. This page is made from the
command by `tools/command_page.py`.
"""


def page() -> str:
    """The text of the page."""
    app = application()
    parts = [_HEAD, _flowing(app.help), _flowing(app.epilog)]
    shared = "Completion of commands, options and files: `art-topology --install-completion`."
    parts += [shared, *(_command(name, command) for name, command in app.commands.items())]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def main(arguments: list[str]) -> int:
    """Writes the page, or with ``--check`` says whether it is current."""
    text = page()
    if arguments == ["--check"]:
        current = PAGE.read_text(encoding="utf-8") == text
        print(f"{PAGE.name} is {'current' if current else 'not current: run python tools/command_page.py'}")
        return int(not current)
    PAGE.write_text(text, encoding="utf-8")
    return 0


def _command(name: str, command: Any) -> str:
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    given = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    usage = " ".join([f"art-topology {name}", "[OPTIONS]", *(_metavar(each) for each in given)])
    parts = [f"## {name}", f"    {usage}", _flowing(command.help)]
    panels: dict[str, list[Any]] = {}
    for each in options:
        panels.setdefault(getattr(each, "rich_help_panel", None) or "Options", []).append(each)
    if given:
        parts.append(_table("argument", [(_metavar(each), each) for each in given]))
    for title, members in panels.items():
        parts.append(_table(title.lower(), [(_option(each), each) for each in members]))
    parts.append(_flowing(command.epilog))
    return "\n\n".join(parts)


def _table(title: str, rows: list[tuple[str, Any]]) -> str:
    lines = [f"| {title} | |", "|---|---|"]
    lines += [f"| `{_cell(name)}` | {_cell(_help(each))} |" for name, each in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Without the sign that ends a cell: how to write it in code differs between readers of Markdown."""
    return text.replace("|", "/")


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _option(parameter: Any) -> str:
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return names if parameter.is_flag else f"{names} {_metavar(parameter)}"


def _help(parameter: Any) -> str:
    text = " ".join((parameter.help or "").split())
    told = parameter.default is not None and not getattr(parameter, "is_flag", False)
    return f"{text} Default: {parameter.default}." if told and parameter.show_default is not False else text


def _flowing(text: str | None) -> str:
    """Paragraphs, each on one line, as Markdown that is read both here and by the command."""
    return "\n\n".join(" ".join(part.split()) for part in (text or "").strip().split("\n\n"))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
