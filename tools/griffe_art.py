"""What Griffe must be told about this code base: what names mean, roles in docstrings, how structs are made.

A docstring names something of ours by a role, ``:class:`~art_dataplane.Lease` ``, in the scope it stands in;
the reference shows it as a link. A struct's fields are documented by the ``Args:`` of its class.
"""

import builtins
import importlib.util
import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import griffe

ROLE = re.compile(r":(class|func|meth|attr|data|mod|exc):`(~?)([A-Za-z_][\w.]*)`")

_FIELD_BASES = frozenset({"msgspec.Struct", "typing.NamedTuple", "pydantic.BaseModel"})


class ArtExtension(griffe.Extension):
    """Used by mkdocstrings: links for roles, constructors for structs."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Works on a package that was loaded whole."""
        for each in own_objects(pkg):
            if isinstance(each, griffe.Class):
                add_constructor(each)
                if made_elsewhere(each):
                    each.members.pop("__init__", None)
            if each.docstring is not None:
                each.docstring.value = ROLE.sub(partial(_link, each), each.docstring.value)


def own_objects(parent: griffe.Object) -> Iterator[griffe.Object]:
    """``parent`` and everything that is defined in it, without what it imports."""
    yield parent
    for member in list(parent.members.values()):
        if not member.is_alias:
            yield from own_objects(member)  # type: ignore[arg-type]  # aliases are left out


def resolve(scope: griffe.Object, name: str) -> str | None:
    """The full path of what ``name`` means in ``scope``; None when nothing has that name.

    What an unknown package holds is believed.
    """
    first, *rest = name.split(".")
    at: griffe.Object | None = scope
    while at is not None:
        members = at.all_members if isinstance(at, griffe.Class) else at.members
        if first in members:
            return _follow(members[first], rest)
        if at.name == first and not at.is_module:
            return _follow(at, rest)
        at = at.parent if not at.is_module else None  # names do not come from enclosing packages
    if first in scope.modules_collection:
        return _follow(scope.modules_collection[first], rest)
    return None


def _follow(found: griffe.Object | griffe.Alias, rest: list[str]) -> str | None:
    for index, name in enumerate([*rest, None]):
        if found.is_alias:
            target = found.target_path  # type: ignore[union-attr]  # an alias
            try:
                found = found.final_target  # type: ignore[union-attr]
            except griffe.AliasResolutionError:
                known = target.partition(".")[0] in found.modules_collection
                return None if known else ".".join([target, *rest[index:]])
        if name is None:
            return found.path
        members = found.all_members if isinstance(found, griffe.Class) else found.members
        if name not in members:
            return None
        found = members[name]
    return None


def lookup(scope: griffe.Object, path: str) -> griffe.Object | None:
    """The object at a full path, behind all its other names; None when there is none."""
    full = resolve(scope, path)
    try:
        found = scope.modules_collection[full] if full is not None else None
    except KeyError:
        return None
    target = found.final_target if found is not None and found.is_alias else found
    return target if isinstance(target, griffe.Object) else None


def ancestors(scope: griffe.Object, name: str) -> set[str]:
    """Short names of the class ``name`` and its bases; empty when it is no class that exists."""
    value = getattr(builtins, name, None)
    path = _resolve_class(scope, name) if value is None else None
    found = lookup(scope, path) if path is not None else None
    if isinstance(found, griffe.Class):
        bases = (base if isinstance(base, str) else base.canonical_path for base in found.bases)
        return {found.name}.union(*(ancestors(found, base) for base in bases))
    module, _, last = (path or name).rpartition(".")
    top = module.partition(".")[0]
    if top and top not in scope.modules_collection and importlib.util.find_spec(top) is not None:
        value = getattr(importlib.import_module(module), last, None)
    return {base.__name__ for base in value.__mro__} if isinstance(value, type) else set()


def _resolve_class(scope: griffe.Object, name: str) -> str | None:
    """In the scope, or else in the packages, the scope's own first: errors come from afar."""
    packages = [scope.package, *scope.modules_collection.members.values()]
    return resolve(scope, name) or next((found.path for found in classes(packages, name)), None)


def classes(packages: Iterable[griffe.Object | griffe.Alias], name: str) -> Iterator[griffe.Class]:
    """All classes of this short name."""
    for package in packages:
        for found in own_objects(package):  # type: ignore[arg-type]  # a package is no alias
            if isinstance(found, griffe.Class) and found.name == name:
                yield found


def made_elsewhere(cls: griffe.Class) -> bool:
    """Whether the docstring says what makes its objects: then the constructor is no part of the interface."""
    return cls.docstring is not None and re.search(r"\bMade by\b", cls.docstring.value) is not None


def field_members(cls: griffe.Class) -> list[griffe.Attribute]:
    """The fields of a struct, named tuple or dataclass that ``cls`` itself adds, in order; else none."""
    kinds = _bases(cls)
    if not kinds & _FIELD_BASES and "dataclass" not in cls.labels:
        return []
    return [
        member
        for member in cls.members.values()
        if isinstance(member, griffe.Attribute)
        and member.annotation is not None
        and not member.name.startswith("_")
        and "property" not in member.labels
        and "ClassVar" not in str(member.annotation)
    ]


def add_constructor(cls: griffe.Class) -> None:
    """Gives a struct, named tuple or model the ``__init__`` that its fields imply."""
    bases = _bases(cls)
    model = "pydantic.BaseModel" in bases
    if not bases & _FIELD_BASES or ("__init__" in cls.members and not model):
        return
    ordered: dict[str, griffe.Parameter] = {}
    for each in [*reversed(_parents(cls)), cls]:
        keyword = model or str(each.keywords.get("kw_only")) == "True"
        kind = griffe.ParameterKind.keyword_only if keyword else griffe.ParameterKind.positional_or_keyword
        for field in field_members(each):
            ordered[field.name] = griffe.Parameter(
                field.name, annotation=field.annotation, kind=kind, default=field.value
            )
    if ordered:
        self = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        parameters = sorted(ordered.values(), key=lambda each: each.kind is griffe.ParameterKind.keyword_only)
        init = griffe.Function("__init__", parameters=griffe.Parameters(self, *parameters), returns="None")
        cls.set_member("__init__", init)


def _parents(cls: griffe.Class) -> list[griffe.Class]:
    try:
        return cls.mro()
    except ValueError:
        return []


def _bases(cls: griffe.Class) -> set[str]:
    """Full paths of all bases, as far as their classes are loaded."""
    return {
        base if isinstance(base, str) else base.canonical_path
        for each in (cls, *_parents(cls))
        for base in each.bases
    }


def _link(scope: griffe.Object, role: re.Match[str]) -> str:
    kind, short, name = role.groups()
    path = resolve(scope, name)
    shown = name.rpartition(".")[2] if short else name
    text = f"<code>{shown}{'()' if kind in ('func', 'meth') else ''}</code>"
    # Optional: what is not public is named by the code base and has no place in the reference.
    return f'<autoref optional identifier="{path}">{text}</autoref>' if path is not None else text
