"""The sequences that a record asks to be computed.

A *sequence* is one branch of a trajectory: its tokens up to the last that predicts a target.
"""

from typing import NamedTuple

import numpy as np

from art_dataplane.errors import PackingError
from art_dataplane.records import TokenRecord, TrajectoryRecord, branches
from art_dataplane.routes import SequenceRoutes


class Targets(NamedTuple):
    """One completion: loss entries of record ``record`` at sources from ``first`` of a sequence on."""

    record: int
    first: int
    exchange: TokenRecord


class TokenSequence(NamedTuple):
    """``tokens`` int32 ``[n]`` to compute, what they predict, and their ``routes`` if any."""

    tokens: np.ndarray
    targets: list[Targets]
    routes: SequenceRoutes | None


def sequences_of(record: TrajectoryRecord, index: int) -> list[TokenSequence]:
    """What record number ``index`` asks to be computed: one sequence for each branch that has a target.

    Raises:
        PackingError: only some exchanges of a branch have routes, or they differ in shape.
    """
    sequences: list[TokenSequence] = []
    for chain in branches(record.exchanges):
        exchanges = [record.exchanges[number] for number in chain]
        exchanges = [exchange for exchange in exchanges if len(exchange.completion_ids)]
        if exchanges:
            last = exchanges[-1]
            tokens = np.concatenate((last.prompt_ids, last.completion_ids[:-1]))
            targets = [Targets(index, len(exchange.prompt_ids) - 1, exchange) for exchange in exchanges]
            sequences.append(TokenSequence(tokens, targets, _routes_of(record, exchanges, len(tokens))))
    return sequences


def _routes_of(record: TrajectoryRecord, exchanges: list[TokenRecord], count: int) -> SequenceRoutes | None:
    """Routes of a sequence's tokens, each from the exchange of the chain in which the token came up first."""
    blocks = [exchange.routes.experts for exchange in exchanges if exchange.routes is not None]
    if not blocks:
        return None
    if len(blocks) != len(exchanges):
        raise PackingError(
            f"record {record.record_id} has routes in {len(blocks)} of {len(exchanges)} exchanges of a branch"
        )
    return SequenceRoutes.of_chain(blocks, count, record.record_id)
