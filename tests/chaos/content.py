"""Records that follow from their id, so that whoever reads one can tell whether it is right."""

import zlib

import numpy as np

from art_dataplane import PackedBatch, RolloutError, TokenRecord, TrajectoryRecord, VersionSpan

VOCABULARY = 1000
FAILED_SHARE = 0.1
LONG_SHARE = 0.1
CONTEXTS = 3


def group_of(record_id: str) -> str:
    """The group that an id is of: ``GROUP/NUMBER``."""
    return record_id.partition("/")[0]


def make_record(record_id: str) -> TrajectoryRecord:
    """The record with this id; some have failed, but never the first two of a group."""
    prompt = _tokens(np.random.default_rng(_seed(group_of(record_id))), 8, 64)
    rng = np.random.default_rng(_seed(record_id))
    number = int(record_id.partition("/")[2])
    if number > 1 and rng.random() < FAILED_SHARE:
        error = RolloutError("ConnectionError", "the environment went away")
        return TrajectoryRecord(record_id, group_of(record_id), (), None, error=error)
    completion = _tokens(rng, 4, 4000 if rng.random() < LONG_SHARE else 200)
    exchange = TokenRecord(
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=-rng.random(len(completion), np.float32),
        prompt_spans=(VersionSpan(0, len(prompt), 0),),
        completion_spans=(VersionSpan(0, len(completion), 0),),
    )
    return TrajectoryRecord(record_id, group_of(record_id), (exchange,), float(number))


def differences(batch: PackedBatch) -> list[str]:
    """What in a batch is not as the ids of its records say."""
    rows = [batch.row(index) for index in range(batch.row_count)]
    found = []
    for index, record_id in enumerate(batch.ref.record_ids):
        parts = [(row, np.flatnonzero(row["loss_record"] == index)) for row in rows]
        found += [f"record {record_id}: {what}" for what in _record_differences(record_id, parts)]
    return found


def _record_differences(record_id: str, parts: list[tuple[dict[str, np.ndarray], np.ndarray]]) -> list[str]:
    record = make_record(record_id)
    if record.error is not None:
        return ["it failed, and is in a batch"]
    (exchange,) = record.exchanges
    ((row, entries),) = [part for part in parts if len(part[1])]
    if not np.array_equal(row["loss_target"][entries], exchange.completion_ids):
        return ["other targets than were sampled"]
    if not np.array_equal(row["loss_old_logprob"][entries], exchange.logprobs):
        return ["other log-probs than it was sampled with"]
    text = np.concatenate([exchange.prompt_ids, exchange.completion_ids])
    for step in np.linspace(0, len(entries) - 1, CONTEXTS).astype(int):
        query = int(row["loss_source"][entries[step]])
        visible = np.flatnonzero(row["subtree_end"][: query + 1] > query)
        if not np.array_equal(row["token_ids"][visible], text[: len(exchange.prompt_ids) + step]):
            return [f"target {step} is predicted from another context"]
    return []


def _tokens(rng: np.random.Generator, low: int, high: int) -> np.ndarray:
    return rng.integers(0, VOCABULARY, int(rng.integers(low, high + 1)), dtype=np.int32)


def _seed(text: str) -> int:
    return zlib.crc32(text.encode())
