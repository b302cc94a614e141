"""Where the keys of a JSON document stand: what ``json`` does not tell.

Only for text that ``json`` accepts.
"""

import json
import re

from art_topology.positions import Place, Span

_TOKEN = re.compile(r'[ \t\n\r]*([{}\[\]:,]|"(?:[^"\\]|\\.)*"|[^{}\[\]:,"\s]+)', re.DOTALL)


def json_spans(text: str) -> dict[Place, Span]:
    """The spans of all keys and list items; of a key that is given twice, the last."""
    spans, _ = scan_json(text)
    return spans


def scan_json(text: str) -> tuple[dict[Place, Span], list[tuple[Place, Span, Span]]]:
    """The spans of all keys and list items, and the keys that are given twice with both their spans."""
    spans: dict[Place, Span] = {}
    duplicates: list[tuple[Place, Span, Span]] = []
    stack: list[tuple[Place, bool, int]] = []
    """The containers around the next token: place, whether it is an object, start of the container."""
    counts: list[int] = []
    seen: list[set[str]] = []
    key: str | None = None
    for found in _TOKEN.finditer(text):
        token, (start, end) = found[1], found.span(1)
        inside = stack[-1][1] if stack else None
        if token in "}]":
            here, _, begin = stack.pop()
            if here and isinstance(here[-1], int):
                spans[here] = (begin, end)
            counts.pop()
            seen.pop()
            key = None
        elif token == ",":
            key = None
        elif token == ":":
            pass
        elif inside and key is None:
            key = str(json.loads(token)) if "\\" in token else token[1:-1]
            here = (*stack[-1][0], key)
            if key in seen[-1]:
                duplicates.append((here, spans[here], (start, end)))
            seen[-1].add(key)
            spans[here] = (start, end)
        else:
            here = ()
            if inside:
                assert key is not None
                here = (*stack[-1][0], key)
            elif inside is False:
                here = (*stack[-1][0], counts[-1])
                counts[-1] += 1
                spans[here] = (start, end)
            if token in "{[":
                stack.append((here, token == "{", start))
                counts.append(0)
                seen.append(set())
                key = None
    return spans, duplicates
