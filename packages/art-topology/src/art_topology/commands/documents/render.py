"""What ``render --json`` prints."""

from __future__ import annotations

from typing import Literal

from art_topology.commands.documents.base import Document


class PictureDocument(Document, frozen=True, kw_only=True):
    """Of ``render``.

    Args:
        ok: Always true: the command did its work.
        file: What was written.
        width: In pixels.
        height: In pixels.
        hosts_drawn: Their names.
        hosts: How many there are.
    """

    ok: Literal[True] = True
    file: str
    width: int
    height: int
    hosts_drawn: tuple[str, ...]
    hosts: int
