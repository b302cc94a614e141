"""Supervised examples as records, so that they take the same path as rollouts.

An example is a text of token ids of which some are to be learned. As a record it has one exchange for each
run of such tokens, so it is stored, leased, merged by prefix, packed and moved like a trajectory; with the
objective ``"sft"`` (``PackingRequest.objective``) every target has the advantage 1. No policy sampled the
tokens: their log-probs and versions are 0 and mean nothing.
"""

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import numpy as np

from art_dataplane.errors import RecordError
from art_dataplane.records import TokenRecord, TrajectoryRecord, VersionSpan


class Turn(NamedTuple):
    """A part of a conversation.

    Args:
        role: who wrote it; what a chat template puts around a turn belongs to a turn of another role, unless
            the model is to learn it.
        token_ids: integers ``[n]``; may be empty.
    """

    role: str
    token_ids: Sequence[int] | np.ndarray


def example_record(
    record_id: str,
    token_ids: Sequence[int] | np.ndarray,
    mask: Sequence[bool] | np.ndarray,
    *,
    group_id: str = "sft",
) -> TrajectoryRecord:
    """A supervised example from tokens and which of them are learned.

    Args:
        record_id: unique among all records of a run.
        token_ids: integers ``[n]``, not negative.
        mask: bool ``[n]``: True for the tokens that are learned; never for the first, which nothing predicts.
        group_id: examples of one group are merged by prefix and packed together.

    Raises:
        RecordError: lengths differ, a token id is no int32 of at least 0, no token is learned, or the first
            one is.
    """
    tokens, learned = np.asarray(token_ids), np.asarray(mask)
    if tokens.ndim != 1 or tokens.shape != learned.shape or learned.dtype != np.bool_:
        raise RecordError(
            f"record {record_id}: token_ids {list(tokens.shape)} and mask {learned.dtype.name} "
            f"{list(learned.shape)}; both must be of one dimension and length, the mask of bool"
        )
    if not learned.any():
        raise RecordError(
            f"record {record_id}: none of {len(tokens)} tokens is learned; leave the example out"
        )
    if learned[0]:
        raise RecordError(
            f"record {record_id}: the mask begins with the first token, which nothing predicts; put a token "
            "in front of it, or leave it out of the mask"
        )
    if tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() > np.iinfo(np.int32).max:
        raise RecordError(
            f"record {record_id}: token_ids are {tokens.dtype.name} from {tokens.min()} to {tokens.max()}; "
            "they must be integers of 0 to 2147483647"
        )
    tokens = tokens.astype(np.int32)
    edges = np.flatnonzero(np.diff(np.append(learned, False).view(np.int8))) + 1
    exchanges = [_exchange(tokens, begin, end) for begin, end in edges.reshape(-1, 2).tolist()]
    record = TrajectoryRecord(record_id, group_id, tuple(exchanges), 0.0)
    record.validate()
    return record


def conversation_record(
    record_id: str,
    turns: Sequence[Turn],
    *,
    learn: Literal["all", "last"] = "all",
    roles: Collection[str] = ("assistant",),
    group_id: str = "sft",
) -> TrajectoryRecord:
    """A supervised example from the turns of a conversation.

    Args:
        record_id: unique among all records of a run.
        turns: in their order.
        learn: ``"all"`` turns of ``roles``, or the ``"last"`` of them.
        roles: whose turns are learned.
        group_id: see :func:`example_record`.

    Raises:
        RecordError: no turn is of these roles, or as :func:`example_record`.
    """
    indices = [index for index, turn in enumerate(turns) if turn.role in roles]
    if not indices:
        raise RecordError(
            f"record {record_id}: none of {len(turns)} turns is of {', '.join(sorted(roles))}; there are: "
            f"{', '.join(sorted({turn.role for turn in turns})) or 'none'}"
        )
    chosen = set(indices if learn == "all" else indices[-1:])
    parts = [np.asarray(turn.token_ids) for turn in turns]
    mask = np.repeat([index in chosen for index in range(len(turns))], [len(part) for part in parts])
    return example_record(
        record_id, np.concatenate([part for part in parts if len(part)] or parts), mask, group_id=group_id
    )


def _exchange(tokens: np.ndarray, begin: int, end: int) -> TokenRecord:
    return TokenRecord(
        prompt_ids=tokens[:begin],
        completion_ids=tokens[begin:end],
        logprobs=np.zeros(end - begin, np.float32),
        prompt_spans=(VersionSpan(0, begin, 0),),
        completion_spans=(VersionSpan(0, end - begin, 0),),
    )
