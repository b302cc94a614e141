"""Checks a whole batch of records at once, in a tenth of the time that checking one by one takes.

The rules are those of :func:`art_dataplane.scoring.check_records`, which alone says what is wrong with a
record. Here only one thing matters: what passes here passes there. What does not pass is checked there.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import cast

import numpy as np

from art_dataplane.records import (
    LARGEST_FLOAT32,
    LARGEST_VERSION,
    LOGPROB_TOLERANCE,
    SMALLEST_FLOAT32,
    TokenRecord,
    TrajectoryRecord,
    VersionSpan,
)

_TOKENS = np.dtype(np.int32)
_LOGPROBS = np.dtype(np.float32)
_ROUTES = (np.dtype(np.uint8), np.dtype(np.uint16))
_NUMBERS = {int, float}
_PLAIN = {str, int, float, bool, type(None)}
_TEXT = {str}
_ARRAYS_AT_ONCE = 256


def pass_at_once(groups: Sequence[Sequence[TrajectoryRecord]], policy_version: int) -> bool:
    """Whether :func:`~art_dataplane.scoring.check_records` would find nothing; False also when in doubt."""
    ids: list[np.ndarray] = []
    logprobs: list[np.ndarray] = []
    record_ids: list[str] = []
    for group in groups:
        for record in group:
            record_ids.append(record.record_id)
            failed, reward = record.error is not None, record.reward
            if not (record.record_id and record.group_id and record.group_id == group[0].group_id):
                return False
            if (reward is not None) if failed else not _is_reward(reward):
                return False
            if not (
                _NUMBERS.issuperset(map(type, record.metrics.values()))
                and _PLAIN.issuperset(map(type, record.metadata.values()))
                and _TEXT.issuperset(map(type, record.metadata))
            ):
                return False
            newest = LARGEST_VERSION if failed else min(policy_version, LARGEST_VERSION)
            for exchange in record.exchanges:
                if not _is_sound(exchange, newest, ids, logprobs):
                    return False
    return (
        len(set(record_ids)) == len(record_ids)
        and all(part.min() >= 0 for part in _joined(ids))
        and all(part.max() <= LOGPROB_TOLERANCE and part.min() > -inf for part in _joined(logprobs))
    )


def _is_reward(reward: object) -> bool:
    return type(reward) in _NUMBERS and -LARGEST_FLOAT32 <= cast(float, reward) <= LARGEST_FLOAT32


def _is_sound(
    exchange: TokenRecord, newest: float, ids: list[np.ndarray], logprobs: list[np.ndarray]
) -> bool:
    """Whether one exchange is in order but for the values in its arrays, which it adds to the others'."""
    prompt, completion, sampled = exchange.prompt_ids, exchange.completion_ids, exchange.logprobs
    if not (type(prompt) is type(completion) is type(sampled) is np.ndarray):
        return False
    if not (prompt.dtype == completion.dtype == _TOKENS and sampled.dtype == _LOGPROBS):
        return False
    if not (
        prompt.ndim == completion.ndim == sampled.ndim == 1
        and SMALLEST_FLOAT32 <= exchange.temperature <= LARGEST_FLOAT32
    ):
        return False
    prompt_count, count = len(prompt), len(completion)
    if not prompt_count or len(sampled) != count:
        return False
    if not (
        _cover(exchange.prompt_spans, prompt_count, LARGEST_VERSION)
        and _cover(exchange.completion_spans, count, newest)
    ):
        return False
    ids.append(prompt)
    if count:
        ids.append(completion)
        logprobs.append(sampled)
    reference = exchange.reference_logprobs
    if reference is not None:
        if type(reference) is not np.ndarray or reference.dtype != _LOGPROBS or reference.shape != (count,):
            return False
        if count:
            logprobs.append(reference)
    if exchange.routes is None:
        return True
    experts = exchange.routes.experts
    return experts.ndim == 3 and experts.dtype in _ROUTES and len(experts) == prompt_count + count


def _cover(spans: tuple[VersionSpan, ...], count: int, newest: float) -> bool:
    end = 0
    for span in spans:
        if span.start != end or span.end <= end or not 0 <= span.version <= newest:
            return False
        end = span.end
    return end == count


def _joined(arrays: list[np.ndarray]) -> Iterable[np.ndarray]:
    for begin in range(0, len(arrays), _ARRAYS_AT_ONCE):
        yield np.concatenate(arrays[begin : begin + _ARRAYS_AT_ONCE])
