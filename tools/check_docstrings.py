"""Checks that every public name has a docstring, and that what it says is complete and exists.

    python tools/check_docstrings.py            # the whole repository; exit status 1 when something is found

Public is what ``__all__`` of a package or of one of ``INTERFACES`` lists, what a page of ``docs/reference``
shows, and what users are shown: by the programs of ``examples`` and the blocks of Python in ``docs`` and in
each ``README.md``. If they import from a module, its ``__all__`` is public whole. All with the methods,
properties and fields of classes. For these:

- There is a docstring. Every name of ``__all__`` is on exactly one page of the reference, and every name that
  users are shown has an entry there.
- Each parameter and field is documented: by an entry in ``Args:``, in double backticks in the text, or, where
  there are at most two of them, by its words in the text. ``Args:`` names nothing else. A class whose
  docstring says by what it is made ("Made by ...") is not constructed by users.
- What is raised in the body by ``raise X(...)`` stands under ``Raises:`` (X or a base of it).
- An array (NumPy, torch) states its dtype and its shape in brackets.
- A number with a dimension in its name states the unit: ``_s`` seconds, ``_ms`` milliseconds, ``bytes``,
  ``tokens``; ``NAME_count`` says what is counted.

In all docstrings, public or not: roles resolve, names in double backticks that look like ours resolve, and
``Raises:`` names exceptions that exist.
"""

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from griffe_art import (
    ROLE,
    add_constructor,
    ancestors,
    classes,
    field_members,
    lookup,
    made_elsewhere,
    own_objects,
    resolve,
)

PACKAGES = ("art_topology", "art_dataplane", "art_kernels", "art_trainer", "art_serving", "art")
INTERFACES = (
    "art.checks",
    "art.distributed",
    "art.reporting",
    "art.reporting.page",
    "art_topology.cost",
    "art_topology.diff",
    "art_topology.fingerprint",
    "art_topology.hardware",
    "art_topology.memory",
    "art_topology.models",
    "art_topology.planner",
    "art_topology.render",
    "art_topology.stages",
    "art_topology.workload",
)
"""Modules whose ``__all__`` is public, besides that of each package."""

EXTERNAL = {
    "megatron.core": (
        "ModelParallelConfig.__post_init__",
        "MoELayer.__init__",
        "PipelineParallelLayerLayout",
        "ProcessGroupCollection",
        "TransformerConfig.__post_init__",
    ),
    "vllm": (
        "FusedMoEParallelConfig.make",
        "ModelConfig.verify_with_parallel_config",
    ),
}
"""Names of other projects that docstrings give as the source of a rule or of a layout, as far as they look
like ours: a class, with a method where one is meant. A class without its method may be named, too."""

_EXTERNAL = frozenset(
    name for names in EXTERNAL.values() for full in names for name in (full, full.partition(".")[0])
)

_DTYPE = re.compile(r"\b(u?int(8|16|32|64)|b?float(16|32|64)|bool|integers?|floating|dtypes?)\b")
_SHAPE = re.compile(r"\[[^\[\]]*\]|\bscalar\b|\bshape\b")
_ARRAY = re.compile(r"\b(ndarray|Tensor)\b")
_NUMBER = re.compile(r"^(int|float|int \| float|Count|Seconds|Port)( \| None)?$")
_UNITS = (
    (re.compile(r"(^|_)ms$"), "millisecond"),
    (re.compile(r"_s$"), "second"),
    (re.compile(r"(^|_)bytes?(_|$)"), "byte"),
    (re.compile(r"(^|_)tokens?(_|$)"), "token"),
)
_NAME = re.compile(r"^([A-Za-z_]\w*)(\.[A-Za-z_]\w*)*(\(\))?$")
_DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
_PYTHON = re.compile(r"^```python[^\n`]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Fault(NamedTuple):
    """One fault: where, on which name, and what is wrong."""

    place: str
    name: str
    text: str


def load(root: Path, packages: tuple[str, ...] = PACKAGES) -> list[griffe.Module]:
    """Reads the packages' source under ``root`` without importing it."""
    loader = griffe.GriffeLoader(search_paths=list(root.glob("packages/*/src")), allow_inspection=False)
    loaded = [loader.load(name) for name in packages]
    loader.resolve_aliases(implicit=True, external=False)
    for package in loaded:
        for each in own_objects(package):  # type: ignore[arg-type]  # a package is no alias
            if isinstance(each, griffe.Class):
                add_constructor(each)
    return loaded  # type: ignore[return-value]  # of packages it loads modules


class Use(NamedTuple):
    """A name of ours that users are shown: where, and the full name that is written there."""

    place: str
    name: str


def check(packages: list[griffe.Module], pages: Path | None, uses: Iterable[Use] = ()) -> list[Fault]:
    """Everything that is wrong.

    Args:
        packages: what is looked at.
        pages: the folder of the reference, if its pages are to be checked.
        uses: names that users are shown, see :func:`uses_of`.
    """
    faults: list[Fault] = []
    public = dict(_public(packages, pages, sorted(set(uses)), faults))
    for package in packages:
        for each in own_objects(package):
            faults += _check_names(each)
    for found in public.values():
        for each in (found, *_public_members(found)):
            faults += _check_complete(each)
    return sorted(set(faults))


def main(arguments: list[str]) -> int:
    """Prints the faults found under the given root (by default this repository's)."""
    root = Path(arguments[0]) if arguments else Path(__file__).parents[1]
    faults = check(load(root), root / "docs" / "reference", uses_of(root))
    for fault in faults:
        print(*fault, sep=": ")
    print(f"{len(faults)} faults in docstrings" if faults else "every public name is documented")
    return 1 if faults else 0


# What users are shown.


def uses_of(root: Path) -> Iterator[Use]:
    """The names of ours in the programs that users are shown: those of ``from X import Y``, and ``X.Y`` where
    there is an ``import X``.

    Raises:
        SyntaxError: a program or a block is none.
    """
    for path in sorted(root.glob("examples/**/*.py")):
        yield from _uses(path, ast.parse(path.read_text(encoding="utf-8")))
    for path in sorted({*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("packages/*/README.md")}):
        blocks = [ast.parse(block) for block in _PYTHON.findall(path.read_text(encoding="utf-8"))]
        # A later block of a page has what an earlier one imported.
        yield from _uses(path, ast.Module([each for block in blocks for each in block.body], []))


def _uses(path: Path, program: ast.Module) -> Iterator[Use]:
    packages: set[str] = set()
    for node in ast.walk(program):
        if isinstance(node, ast.Import):
            packages |= {each.name for each in node.names} & set(PACKAGES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES:
            yield from (Use(str(path), f"{node.module}.{each.name}") for each in node.names)
    for node in ast.walk(program):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in packages:
            yield Use(str(path), ast.unparse(node))


# Which names are public.


def _public(
    packages: list[griffe.Module], pages: Path | None, uses: Iterable[Use], faults: list[Fault]
) -> Iterator[tuple[str, griffe.Object]]:
    shown: dict[str, list[str]] = {}
    for page in sorted(pages.rglob("*.md")) if pages is not None else ():
        for name in _DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            found = lookup(packages[0], name)
            if found is None:
                faults.append(Fault(str(page), name, "the page shows it but it does not exist"))
                continue
            shown.setdefault(found.path, []).append(page.name)
            yield found.path, found
    interfaces = {*INTERFACES, *(package.path for package in packages)}
    for use in uses:
        interfaces.add(use.name.rpartition(".")[0])
        yield from _used(packages[0], use, shown if pages is not None else None, faults)
    for package in packages:
        for module in own_objects(package):
            if not isinstance(module, griffe.Module) or module.path not in interfaces:
                continue
            for name in module.exports or ():
                found = lookup(module, f"{module.path}.{name}") or _lazy(module, str(name))
                if found is None:
                    faults.append(_fault(module, f"__all__ lists {name}, which is not defined statically"))
                    continue
                where = shown.get(found.path, [])
                if pages is not None and len(where) != 1:
                    faults.append(_fault(found, f"is on {len(where)} pages of the reference, not on one"))
                yield found.path, found


def _used(
    scope: griffe.Module, use: Use, shown: dict[str, list[str]] | None, faults: list[Fault]
) -> Iterator[tuple[str, griffe.Object]]:
    home, _, name = use.name.rpartition(".")
    module = lookup(scope, home)
    found = lookup(scope, use.name) or (_lazy(module, name) if isinstance(module, griffe.Module) else None)
    if found is None:
        faults.append(Fault(use.place, use.name, "is shown to users but does not exist"))
    elif isinstance(found, griffe.Module):
        for each in found.exports or ():
            yield from _used(scope, Use(use.place, f"{found.path}.{each}"), shown, faults)
    elif shown is not None and found.path not in shown:
        faults.append(Fault(use.place, use.name, "is shown to users but on no page of the reference"))
    else:
        yield found.path, found


def _lazy(module: griffe.Module, name: str) -> griffe.Object | None:
    """What a package loads on first use, from its table of names and modules."""
    table = module.members.get("_HOME")
    homes = ast.literal_eval(str(table.value)) if isinstance(table, griffe.Attribute) else {}
    return lookup(module, f"{homes[name]}.{name}") if name in homes else None


def _public_members(found: griffe.Object) -> Iterator[griffe.Object]:
    if not isinstance(found, griffe.Class | griffe.Module):
        return
    fields = {field.name for field in field_members(found)} if isinstance(found, griffe.Class) else set()
    for name, member in found.members.items():
        if not name.startswith("_") and name not in fields and isinstance(member, griffe.Object):
            plain = isinstance(member, griffe.Attribute) and "property" not in member.labels
            if plain and (isinstance(found, griffe.Module) or "instance-attribute" in member.labels):
                continue  # an attribute of an object is documented by its class
            yield member
            yield from _public_members(member)


# What all docstrings must hold.


def _check_names(each: griffe.Object) -> Iterator[Fault]:
    if each.docstring is None:
        return
    text = each.docstring.value
    for _, _, name in ROLE.findall(text):
        if resolve(each, name) is None and not ancestors(each, name):
            yield _fault(each, f"the role of {name} names nothing")
    for name in re.findall(r"(?<!`)``([^`]+)``(?!`)", text):
        if _NAME.match(name) and _looks_like_ours(each, name) and not _exists(each, name.removesuffix("()")):
            yield _fault(each, f"``{name}`` names nothing here")
    for entry in _raises(each):
        if "BaseException" not in ancestors(each, entry):
            yield _fault(each, f"Raises: {entry} is no exception")


def _looks_like_ours(each: griffe.Object, name: str) -> bool:
    first = name.partition(".")[0]
    is_class = re.match(r"[A-Z][a-z0-9]+[A-Z]\w*$", first) is not None
    return is_class or name.endswith("()") or first in each.modules_collection


def _exists(each: griffe.Object, name: str) -> bool:
    if hasattr(builtins, name) or name in _EXTERNAL or resolve(each, name) is not None:
        return True
    if isinstance(each, griffe.Function) and name.partition(".")[0] in each.parameters:
        return True
    first, _, rest = name.partition(".")
    named = classes(each.modules_collection.members.values(), first)
    return any(not rest or resolve(found, rest) is not None for found in named)


def _raises(each: griffe.Object) -> list[str]:
    sections = each.docstring.parse("google", warnings=False) if each.docstring else []
    items = [
        item for part in sections if part.kind is griffe.DocstringSectionKind.raises for item in part.value
    ]
    return [name.strip() for item in items for name in str(item.annotation).strip("()").split(",")]


# What a public name must say.


def _check_complete(each: griffe.Object) -> Iterator[Fault]:
    if each.docstring is None:
        yield _fault(each, "has no docstring")
        return
    text = each.docstring.value
    sections = each.docstring.parse("google", warnings=False)
    entries = {
        item.name: item.description
        for part in sections
        if part.kind is griffe.DocstringSectionKind.parameters
        for item in part.value
    }
    parameters = _parameters(each)
    for name in entries.keys() - parameters.keys():
        yield _fault(each, f"Args: {name} is no parameter")
    few = len(parameters) <= 2
    for name, annotation in parameters.items():
        entry = entries.get(name)
        if entry is None and not _mentions(text, name, by_words=few and not entries):
            yield _fault(each, f"{name} is not documented")
            continue
        yield from _check_value(each, name, annotation, text if entry is None else entry)
    if isinstance(each, griffe.Attribute):
        yield from _check_value(each, each.name, str(each.annotation), text)
    if isinstance(each, griffe.Function):
        yield from _check_value(each, "its result", str(each.returns), text)
        yield from _check_raised(each)


def _parameters(each: griffe.Object) -> dict[str, str]:
    """What ``Args:`` of this docstring is about, with annotations."""
    if isinstance(each, griffe.Class) and not made_elsewhere(each):
        own = each.members.get("__init__") or each.all_members.get("__init__")
    else:
        own = each if isinstance(each, griffe.Function) else None
    if own is None or not hasattr(own, "parameters"):
        return {}
    found = list(own.parameters)
    bound = bool(found) and found[0].name in ("self", "cls") and found[0].annotation is None
    named = found[1:] if bound else found
    return {each.name: str(each.annotation) for each in named if not each.name.startswith("_")}


def _mentions(text: str, name: str, *, by_words: bool) -> bool:
    if re.search(rf"``[^`]*\b{name}\b[^`]*``", text):
        return True
    words = [word for word in name.split("_") if len(word) > 1 and word != "id"]
    return by_words and all(re.search(rf"\b{word}", text, re.IGNORECASE) for word in words)


def _check_value(each: griffe.Object, name: str, annotation: str, text: str) -> Iterator[Fault]:
    if _ARRAY.search(annotation) and not (_DTYPE.search(text) and _SHAPE.search(text)):
        yield _fault(each, f"{name} is an array without dtype and [shape]")
    if _NUMBER.match(annotation):
        for pattern, unit in _UNITS:
            if pattern.search(name) and not re.search(rf"\b{unit}s?\b", text, re.IGNORECASE):
                yield _fault(each, f"{name} does not say that it is in {unit}s")
        noun = name.removesuffix("_count").rpartition("_")[2].removesuffix("y").removesuffix("d")
        if name.endswith("_count") and not re.search(rf"\b{noun}", text, re.IGNORECASE):
            yield _fault(each, f"{name} does not say what it counts")


def _check_raised(each: griffe.Function) -> Iterator[Fault]:
    stated = {name.rpartition(".")[2] for name in _raises(each)}
    for name in _raised(each):
        covering = ancestors(each, name)
        if "Exception" in covering and not covering & stated:
            yield _fault(each, f"raises {name}, which Raises: does not name")


def _raised(each: griffe.Function) -> set[str]:
    """Classes of the ``raise X(...)`` in its body, nested functions left out."""
    source = ast.parse(Path(str(each.filepath)).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    waiting: list[ast.AST] = [
        node
        for node in ast.walk(source)
        if isinstance(node, kinds) and node.name == each.name and node.end_lineno == each.endlineno
    ]
    waiting = [statement for node in waiting for statement in node.body]  # type: ignore[attr-defined]  # `kinds` have one
    found: set[str] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found.add(ast.unparse(node.exc.func))
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, kinds)]
    return found


def _fault(each: griffe.Object, text: str) -> Fault:
    place = each.filepath if isinstance(each.filepath, Path) else Path(each.path)
    return Fault(f"{place}:{each.lineno or 1}", each.path, text)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
