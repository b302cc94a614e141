"""Where the keys of a TOML document stand: what ``tomllib`` does not tell.

Only for text that ``tomllib`` accepts; with ``duplicates`` also for text in which a key is given twice.
"""

import re
import tomllib

from art_topology.positions import Place, Span

_BLANK = re.compile(r"(?:[ \t\n\r]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_STRING = re.compile(
    r'''"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}|\'\'\'(?:[^']|'{1,2}(?!'))*'{3,5}'''
    r"""|"(?:[^"\\\n]|\\.)*"|'[^'\n]*\'""",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]+")


class MalformedError(ValueError):
    """The text is not what the scanner was promised."""


def toml_spans(text: str) -> dict[Place, Span]:
    """The spans of all keys and list items.

    Raises:
        MalformedError: ``tomllib`` does not accept the text.
    """
    scanner = _Scanner(text)
    scanner.run()
    return scanner.spans


def toml_duplicate(text: str) -> tuple[Place, Span, Span] | None:
    """The first key that is given twice, with the spans of its first and second appearance; None if there is
    none before something else is wrong."""
    scanner = _Scanner(text)
    try:
        scanner.run()
    except MalformedError:
        return None
    except _DuplicateError as found:
        return found.place, found.first, found.second
    return None


class _DuplicateError(Exception):
    def __init__(self, place: Place, first: Span, second: Span) -> None:
        super().__init__(place, first, second)
        self.place = place
        self.first = first
        self.second = second


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.spans: dict[Place, Span] = {}
        self._array_tables: dict[Place, int] = {}
        self._given: set[Place] = set()

    def run(self) -> None:
        prefix: Place = ()
        self._skip(_BLANK)
        while self.at < len(self.text):
            if self.text.startswith("[[", self.at):
                prefix = self._header(2)
            elif self.text[self.at] == "[":
                prefix = self._header(1)
            else:
                self._pair(prefix)
            self._skip(_BLANK)

    def _header(self, brackets: int) -> Place:
        self.at += brackets
        keys = self._keys()
        if not self.text.startswith("]" * brackets, self.at):
            raise MalformedError(f"no ] at {self.at}")
        self.at += brackets
        place: Place = ()
        for key, span in keys[:-1]:
            place = (*place, key)
            self.spans.setdefault(place, span)
            if place in self._array_tables:
                place = (*place, self._array_tables[place] - 1)
        key, span = keys[-1]
        place = (*place, key)
        if brackets == 1:
            self._give(place, span)
            return place
        index = self._array_tables.get(place, 0)
        self._array_tables[place] = index + 1
        self.spans.setdefault(place, span)
        self.spans[*place, index] = span
        return (*place, index)

    def _give(self, place: Place, span: Span) -> None:
        if place in self._given:
            raise _DuplicateError(place, self.spans[place], span)
        self._given.add(place)
        self.spans[place] = span

    def _keys(self) -> list[tuple[str, Span]]:
        keys = []
        while True:
            self._skip(_SPACE)
            found = _KEY.match(self.text, self.at)
            if found is None:
                raise MalformedError(f"no key at {self.at}")
            keys.append((_unquoted(found[0]), found.span()))
            self.at = found.end()
            self._skip(_SPACE)
            if not self.text.startswith(".", self.at):
                return keys
            self.at += 1

    def _pair(self, prefix: Place) -> None:
        keys = self._keys()
        if not self.text.startswith("=", self.at):
            raise MalformedError(f"no = at {self.at}")
        self.at += 1
        place = prefix
        for key, span in keys[:-1]:
            place = (*place, key)
            self.spans.setdefault(place, span)
        key, span = keys[-1]
        place = (*place, key)
        self._give(place, span)
        self._value(place)

    def _value(self, place: Place) -> None:
        self._skip(_SPACE)
        if self.text.startswith("[", self.at):
            self._array(place)
        elif self.text.startswith("{", self.at):
            self._inline_table(place)
        else:
            found = _STRING.match(self.text, self.at) or _SCALAR.match(self.text, self.at)
            if found is None:
                raise MalformedError(f"no value at {self.at}")
            self.at = found.end()

    def _array(self, place: Place) -> None:
        self.at += 1
        index = 0
        self._skip(_BLANK)
        while not self._take("]"):
            start = self.at
            self._value((*place, index))
            self.spans[*place, index] = (start, start + len(self.text[start : self.at].rstrip()))
            index += 1
            self._skip(_BLANK)
            self._take(",")
            self._skip(_BLANK)

    def _inline_table(self, place: Place) -> None:
        self.at += 1
        self._skip(_BLANK)
        while not self._take("}"):
            self._pair(place)
            self._skip(_BLANK)
            self._take(",")
            self._skip(_BLANK)

    def _take(self, text: str) -> bool:
        if self.at >= len(self.text):
            raise MalformedError("the text ends early")
        taken = self.text.startswith(text, self.at)
        self.at += len(text) if taken else 0
        return taken

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        assert found is not None
        self.at = found.end()


def _unquoted(key: str) -> str:
    if key[0] == "'":
        return key[1:-1]
    if key[0] != '"':
        return key
    if "\\" not in key:
        return key[1:-1]
    try:
        value = tomllib.loads(f"key = {key}")["key"]
    except tomllib.TOMLDecodeError as error:
        raise MalformedError(str(error)) from error
    return str(value)
