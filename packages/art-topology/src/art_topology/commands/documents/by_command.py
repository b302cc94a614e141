"""Which documents each command may print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from art_topology.commands.documents.base import Document, Refusal
from art_topology.commands.documents.check import CheckDocument
from art_topology.commands.documents.diff import DiffDocument
from art_topology.commands.documents.explain import RankDocument, TopologyDocument
from art_topology.commands.documents.groups import GroupsDocument
from art_topology.commands.documents.init import WrittenDocument
from art_topology.commands.documents.plan import PlanDocument
from art_topology.commands.documents.render import PictureDocument

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCUMENTS: Mapping[str, tuple[type[Document], ...]] = {
    "check": (CheckDocument,),
    "plan": (PlanDocument, Refusal),
    "explain": (RankDocument, TopologyDocument, Refusal),
    "groups": (GroupsDocument, Refusal),
    "render": (PictureDocument, Refusal),
    "diff": (DiffDocument, Refusal),
    "init": (WrittenDocument, Refusal),
}
"""What each command may print."""
