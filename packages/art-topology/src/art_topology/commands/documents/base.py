"""What documents of several commands are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from art_topology.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from art_topology.memory import MemoryPart


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all documents."""


class Refusal(Document, frozen=True, kw_only=True):
    """Of every command that could not do its work; the exit code says which kind of reason.

    Args:
        ok: Always false.
        message: What is wrong; where the diagnostics say it, how many there are and in which file.
        diagnostics: What is wrong with a file.
    """

    ok: Literal[False] = False
    message: str
    diagnostics: tuple[Diagnostic, ...]


class PartRow(Document, frozen=True, kw_only=True):
    """A part of a sum of bytes or of times.

    Args:
        name: What for.
        why: The formula with its numbers, one line.
        bytes: Of memory; null for a time.
        exposed_s: What it adds to the step, in seconds; null for memory, as all that follow.
        hidden_s: What runs behind other parts, in seconds.
    """

    name: str
    why: str
    bytes: int | None = None
    exposed_s: float | None = None
    hidden_s: float | None = None


def memory_rows(parts: Iterable[MemoryPart]) -> tuple[PartRow, ...]:
    """The parts of a memory."""
    return tuple(PartRow(name=part.name, why=part.why, bytes=part.bytes) for part in parts)
