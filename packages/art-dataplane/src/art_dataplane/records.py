"""What a trajectory is to a trainer: exchanges of token ids with the versions that computed them.

Invariants, checked by :func:`TokenRecord.validate`: one log-prob per completion token; spans are sorted, adjacent and
complete over the text they describe; token ids are never negative.
"""

import msgspec
import numpy as np


class VersionSpan(msgspec.Struct, frozen=True):
    """Tokens ``[start, end)`` of one text were computed under policy ``version``."""

    start: int
    end: int
    version: int


class RouteBlock(msgspec.Struct, frozen=True):
    """MoE routes of ``prompt + completion``: ``experts`` is uint8 or uint16 ``[tokens, layers, topk]``."""

    experts: np.ndarray


class TokenRecord(msgspec.Struct, frozen=True, eq=False):
    """One exchange with a model.

    Args:
        prompt_ids: int32 ``[P]``.
        completion_ids: int32 ``[C]``.
        logprobs: float32 ``[C]``; natural logarithm, of the distribution sampled from with its temperature applied
            and no truncation.
        prompt_spans: which version computed the keys and values of each prompt token.
        completion_spans: which version sampled each completion token.
        temperature: the sampling temperature; the trainer divides its logits by it.
        truncated_sampling: top-k, top-p, min-p or penalties were used, so a ratio to ``logprobs`` is approximate.
        adapter_generation: name of the durable generation of the adapter, when it came from one.
        finish_reason: as OpenAI's.
        routes: for MoE, when captured.
    """

    prompt_ids: np.ndarray
    completion_ids: np.ndarray
    logprobs: np.ndarray
    prompt_spans: tuple[VersionSpan, ...]
    completion_spans: tuple[VersionSpan, ...]
    temperature: float = 1.0
    truncated_sampling: bool = False
    adapter_generation: str | None = None
    finish_reason: str | None = None
    routes: RouteBlock | None = None


class RolloutError(msgspec.Struct, frozen=True):
    """Why a rollout has no result: the exception's type name, its message and its traceback as text."""

    kind: str
    message: str
    traceback: str = ""


class RolloutTiming(msgspec.Struct, frozen=True):
    """Durations in seconds, measured by the worker's monotonic clock; ``started_unix_s`` is for display only."""

    duration_s: float
    started_unix_s: float = 0.0


class TrajectoryRecord(msgspec.Struct, frozen=True, eq=False):
    """One finished rollout.

    Each next exchange's prompt extends the last prompt + completion, or starts a branch. With ``error`` set the
    rollout failed: it has no reward and is never trained on.
    """

    record_id: str
    group_id: str
    exchanges: tuple[TokenRecord, ...]
    reward: float
    metrics: dict[str, float] = {}
    metadata: dict[str, str | int | float | bool | None] = {}
    timing: RolloutTiming = RolloutTiming(0.0)
    error: RolloutError | None = None


class TrajectoryRef(msgspec.Struct, frozen=True):
    """What the queue holds and the controller selects by: no tokens.

    ``owner`` names the process that holds the record; ``byte_count`` is the size of its MessagePack; ``token_count``
    counts logical tokens (the last prompt + completion of each branch); versions are those of completion tokens.
    """

    record_id: str
    group_id: str
    owner: str
    byte_count: int
    token_count: int
    reward: float
    min_version: int
    max_version: int
    ok: bool
