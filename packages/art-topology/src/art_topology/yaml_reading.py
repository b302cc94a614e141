"""Reading YAML by PyYAML: values, where their keys stand, and what must not be read at all.

PyYAML keeps the last of equal keys, follows anchors round in circles and multiplies them without limit; so
the events and the node graph are looked at before anything is built from them.
"""

import importlib
from collections.abc import Iterator
from typing import Any

from art_topology.positions import Place, Span

MOST_VALUES = 2_000_000
"""How many values a document may stand for when its anchors are written out."""


class YamlError(ValueError):
    """The text must not be read.

    Args:
        code: Of the rule.
        message: Why.
        start: Where in the text, in characters from 0.
        first: Where the key was given first, if it was given twice.
        key: That key.
        around: The place of the mapping that has it.
    """

    def __init__(
        self,
        code: str,
        message: str,
        start: int,
        *,
        first: int | None = None,
        key: str = "",
        around: Place = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.start = start
        self.first = first
        self.key = key
        self.around = around


class MissingYamlError(ValueError):
    """PyYAML is not installed."""


def read_yaml(text: str, most_levels: int) -> Any:
    """The values of a document.

    Raises:
        MissingYamlError: PyYAML is not installed.
        YamlError: the text is not YAML, a key is given twice, or it is nested too deeply, refers to itself or
            stands for too many values.
    """
    yaml = _yaml()
    try:
        _check_levels(yaml, text, most_levels)
        root = _graph(yaml, text)
        if root is None:
            return None
        return _constructed(yaml, root)
    except yaml.YAMLError as error:
        raise _told(error) from error


def yaml_spans(text: str) -> dict[Place, Span]:
    """The spans of all keys and list items of a text that :func:`read_yaml` accepts. What comes by an anchor
    is where it was written."""
    yaml = _yaml()
    root = _graph(yaml, text)
    if root is None:
        return {}
    _constructed(yaml, root)  # writes merged keys (<<) into the graph
    spans: dict[Place, Span] = {}
    waiting: list[tuple[Place, Any]] = [((), root)]
    while waiting:
        place, node = waiting.pop()
        for step, marked, value in _children(node):
            here = (*place, step)
            spans[here] = (marked.start_mark.index, marked.end_mark.index)
            waiting.append((here, value))
    return spans


def _children(node: Any) -> Iterator[tuple[str | int, Any, Any]]:
    """Key or index, the node to point at, and the node of the value."""
    if node.id == "sequence":
        for index, item in enumerate(node.value):
            yield index, item, item
    elif node.id == "mapping":
        for key, value in node.value:
            if key.id == "scalar":
                yield key.value, key, value


def _yaml() -> Any:
    try:
        return importlib.import_module("yaml")
    except ModuleNotFoundError as error:
        raise MissingYamlError("reading YAML needs PyYAML: pip install 'art-topology[yaml]'") from error


def _constructed(yaml: Any, root: Any) -> Any:
    """PyYAML's safe construction, in which a scalar that it cannot make sense of is an error with a place."""
    loader = yaml.SafeLoader("")
    construct = loader.construct_object

    def with_its_place(node: Any, deep: bool = False) -> Any:
        try:
            return construct(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            shown = str(node.value)[:40] if node.id == "scalar" else node.id
            tag = str(node.tag).rsplit(":", 1)[-1]
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown!r} is no {tag}", node.start_mark
            ) from error

    loader.construct_object = with_its_place
    try:
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _told(error: Any) -> YamlError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        message = getattr(error, "problem", None) or getattr(error, "context", None) or str(error)
        return YamlError("ART-F002", f"not YAML: {message}", mark.index)
    position = getattr(error, "position", 0)
    reason = getattr(error, "reason", None)
    if reason is None:
        return YamlError("ART-F002", f"not YAML: {error}", 0)
    character = getattr(error, "character", 0)
    shown = f"U+{character:04X}" if isinstance(character, int) else repr(character)
    return YamlError("ART-F002", f"not YAML: {reason} ({shown})", position)


def _check_levels(yaml: Any, text: str, most: int) -> None:
    level = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            level += 1
            if level > most:
                raise YamlError(
                    "ART-F008",
                    f"values are nested in more than {most} levels",
                    event.start_mark.index,
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            level -= 1


def _graph(yaml: Any, text: str) -> Any:
    """The node graph, in which every key is given once and no node is part of itself."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return None
    sizes: dict[int, int] = {}
    inside: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(root, False)]
    while waiting:
        node, is_done = waiting.pop()
        if is_done:
            inside.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(part)] for part in _parts(node))
            continue
        if id(node) in sizes:
            continue
        if id(node) in inside:
            raise YamlError("ART-F008", "an anchor refers to itself", node.start_mark.index)
        inside.add(id(node))
        _check_keys(node, root)
        waiting.append((node, True))
        for part in _parts(node):
            if id(part) in inside:
                raise YamlError("ART-F008", "an anchor refers to itself", part.start_mark.index)
            if id(part) not in sizes:
                waiting.append((part, False))
    if sizes[id(root)] > MOST_VALUES:
        message = f"with its anchors written out it has {sizes[id(root)]} values, more than {MOST_VALUES}"
        raise YamlError("ART-F008", message, root.start_mark.index)
    return root


def _place(root: Any, wanted: Any) -> Place:
    """The place of a node that is not part of itself."""
    waiting: list[tuple[Place, Any]] = [((), root)]
    seen: set[int] = set()
    while waiting:
        place, node = waiting.pop()
        if node is wanted:
            return place
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.id == "sequence":
            waiting += [((*place, index), part) for index, part in enumerate(node.value)]
        elif node.id == "mapping":
            waiting += [((*place, str(key.value)), part) for key, part in node.value if key.id == "scalar"]
    return ()


def _parts(node: Any) -> list[Any]:
    if node.id == "sequence":
        return list(node.value)
    if node.id == "mapping":
        return [part for pair in node.value for part in pair]
    return []


def _check_keys(node: Any, root: Any) -> None:
    if node.id != "mapping":
        return
    first: dict[str, int] = {}
    for key, _ in node.value:
        if key.id != "scalar":
            raise YamlError("ART-F002", "a key is no text", key.start_mark.index)
        start = key.start_mark.index
        if first.setdefault(key.value, start) != start:
            message = f"key {key.value!r} is given twice"
            around = _place(root, node)
            raise YamlError("ART-F003", message, start, first=first[key.value], key=key.value, around=around)
