"""What ``groups --json`` prints."""

from __future__ import annotations

from typing import Literal

from art_topology.commands.documents.base import Document


class GroupRow(Document, frozen=True, kw_only=True):
    """One group.

    Args:
        family: Such as "tp".
        index: Its number within the family, by first rank.
        ranks: All of them.
    """

    family: str
    index: int
    ranks: tuple[int, ...]


class FamilyRow(Document, frozen=True, kw_only=True):
    """A family of groups.

    Args:
        family: Such as "tp".
        groups: How many.
        size: Ranks of each.
        crosses_hosts: Whether any of them has ranks on several hosts.
    """

    family: str
    groups: int
    size: int
    crosses_hosts: bool


class GroupsDocument(Document, frozen=True, kw_only=True):
    """Of ``groups``. It is written as it is made, however many groups there are.

    Args:
        ok: Always true: the command did its work.
        file: As it was given.
        world_size: Ranks of the trainer.
        families: Those that were asked for.
        groups: All groups of these families, or with ``--rank`` those of the rank.
    """

    ok: Literal[True] = True
    file: str
    world_size: int
    families: tuple[FamilyRow, ...]
    groups: tuple[GroupRow, ...]
