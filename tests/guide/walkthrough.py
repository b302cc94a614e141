"""A guide in Markdown as what its reader does: files, edits of files, and commands with what they print.

A fenced block is one step, told by its info string:

- ``python title="NAME"``: the file NAME, whole;
- ``python title="in NAME"``: top-level definitions for NAME. Each takes the place of those of the same name;
  new ones are added below the imports, in the order of the block;
- ``console``: commands behind ``$``, each with the lines that it prints. ``...`` stands for any lines, a line
  that ends in ``...`` for any that begins like it, and ``^C`` for Ctrl-C at that point.

Any other block is an error, so nothing in a guide goes untried.
"""

import ast
import re
from pathlib import Path

import msgspec

ANY_LINES = "..."
INTERRUPT = "^C"
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r'python title="(?P<edit>in )?(?P<name>[\w.]+)"')
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")


class WholeFile(msgspec.Struct, frozen=True):
    """Write ``text`` into the file ``name``."""

    name: str
    text: str


class Edit(msgspec.Struct, frozen=True):
    """Put the definitions of ``text`` into the file ``name``."""

    name: str
    text: str


class Command(msgspec.Struct, frozen=True):
    """Run ``text`` in a shell; it prints ``expected``."""

    text: str
    expected: tuple[str, ...]


type Step = WholeFile | Edit | Command


def steps_of(markdown: str) -> list[Step]:
    """The steps of a guide, in order.

    Raises:
        ValueError: a block is none of the kinds.
    """
    steps: list[Step] = []
    for fence in _FENCE.finditer(markdown):
        info, body = fence["info"].strip(), fence["body"]
        title = _TITLE.fullmatch(info)
        if title is not None:
            kind = Edit if title["edit"] else WholeFile
            steps.append(kind(title["name"], body))
        elif info == "console":
            steps += _commands(body)
        else:
            raise ValueError(f"a block {info!r} is neither a file nor commands: {body[:80]!r}")
    return steps


def _commands(body: str) -> list[Command]:
    commands: list[Command] = []
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        text, *expected = part.rstrip("\n").split("\n")
        commands.append(Command(text, tuple(expected)))
    return commands


def edited(source: str, definitions: str) -> str:
    """``source`` with each top-level definition of ``definitions`` in the place of that of the same name."""
    lines, new = source.splitlines(), definitions.splitlines()
    added: set[str] = set()
    for node in ast.parse(definitions).body:
        text = new[_first_line(node) - 1 : node.end_lineno]
        statements = ast.parse("\n".join(lines)).body
        old = next((each for each in statements if _names(each) & _names(node)), None)
        if old is not None:
            lines[_first_line(old) - 1 : old.end_lineno] = text
            continue
        above = [
            each.end_lineno or 0
            for each in statements
            if isinstance(each, ast.Import | ast.ImportFrom) or _names(each) & added
        ]
        lines[max(above) : max(above)] = ["", *text]
        added |= _names(node)
    return "\n".join(lines) + "\n"


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min(node.lineno, *(each.lineno for each in decorators)) if decorators else node.lineno


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()


def apply(step: WholeFile | Edit, folder: Path) -> None:
    """Does to the files of ``folder`` what the reader does."""
    path = folder / step.name
    text = step.text if isinstance(step, WholeFile) else edited(path.read_text(), step.text)
    compile(text, step.name, "exec")
    path.write_text(text)


def first_difference(expected: list[str], printed: list[str]) -> str | None:
    """Where what was printed is not what the guide shows, numbers and spaces aside, or None."""
    at, free = 0, False
    for line in expected:
        if line == ANY_LINES:
            free = True
            continue
        candidates = range(at, len(printed)) if free else range(at, min(at + 1, len(printed)))
        found = next((index for index in candidates if _alike(line, printed[index])), None)
        if found is None:
            return f"the guide shows {line!r}, and then came {printed[at : at + 8]}"
        at, free = found + 1, False
    if not free and at < len(printed):
        return f"the guide ends there, and then came {printed[at : at + 8]}"
    return None


def _alike(expected: str, printed: str) -> bool:
    if expected.endswith(ANY_LINES) and len(expected.split()) > 2:
        return _shape(printed).startswith(_shape(expected.removesuffix(ANY_LINES)))
    return _shape(expected) == _shape(printed)


def _shape(line: str) -> str:
    """A line without its numbers, the folders above its paths and the width of its columns."""
    line = re.sub(r'(?<=[ "(])/\S*/(?=runs/|train\.py)', "/", line)
    return " ".join(_NUMBER.sub("#", line).split()).replace("# steps", "# step")
