"""What ``diff --json`` prints."""

from __future__ import annotations

from typing import Literal

from art_topology.commands.documents.base import Document


class ChangeRow(Document, frozen=True, kw_only=True):
    """One difference.

    Args:
        paths: Where, in the compiled topology.
        message: What was and what is.
        restarts: What has to start again.
        why: Why.
    """

    paths: tuple[str, ...]
    message: str
    restarts: tuple[str, ...]
    why: str


class DiffDocument(Document, frozen=True, kw_only=True):
    """Of ``diff``.

    Args:
        ok: Always true: the command did its work.
        equal: Whether both mean the same.
        summary: What restarts and what stays warm, one line.
        changes: All differences.
        restarts: What has to start again for all of them.
        warm: What need not.
        old_fingerprint: Of the first.
        new_fingerprint: Of the second.
    """

    ok: Literal[True] = True
    equal: bool
    summary: str
    changes: tuple[ChangeRow, ...]
    restarts: tuple[str, ...]
    warm: tuple[str, ...]
    old_fingerprint: str
    new_fingerprint: str
