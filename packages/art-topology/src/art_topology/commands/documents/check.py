"""What ``check --json`` prints."""

from __future__ import annotations

from art_topology.commands.documents.base import Document
from art_topology.diagnostics import Diagnostic


class CheckedFile(Document, frozen=True, kw_only=True):
    """One file of ``check``.

    Args:
        file: Its name as it was given.
        ok: Whether it passes: no errors and, with ``--strict``, no warnings.
        errors: How many.
        warnings: How many.
        diagnostics: All of them, with line and column.
        summary: What it describes, in words; empty if it has errors.
        hosts: How many; null if it has errors, as all that follow.
        gpus: How many all hosts have.
        trainer_ranks: How many; 0 without a trainer.
        services: Their names.
        fingerprint: SHA-256 of the compiled topology, in hex.
    """

    file: str
    ok: bool
    errors: int
    warnings: int
    diagnostics: tuple[Diagnostic, ...]
    summary: str = ""
    hosts: int | None = None
    gpus: int | None = None
    trainer_ranks: int | None = None
    services: tuple[str, ...] | None = None
    fingerprint: str | None = None


class CheckDocument(Document, frozen=True, kw_only=True):
    """Of ``check``.

    Args:
        ok: Whether all files pass.
        files: As they were given.
    """

    ok: bool
    files: tuple[CheckedFile, ...]
