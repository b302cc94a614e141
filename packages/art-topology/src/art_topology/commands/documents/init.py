"""What ``init --json`` prints."""

from __future__ import annotations

from typing import Literal

from art_topology.commands.documents.base import Document


class WrittenDocument(Document, frozen=True, kw_only=True):
    """Of ``init``.

    Args:
        ok: Always true: the command did its work.
        file: What was written.
        hosts: How many it has.
        gpus: How many, of all hosts.
    """

    ok: Literal[True] = True
    file: str
    hosts: int
    gpus: int
