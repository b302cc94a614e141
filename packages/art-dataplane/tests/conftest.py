"""Builders of records, and the check that no test leaves a segment behind."""

import os
import uuid
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from art_dataplane import (
    RolloutError,
    ShmSegmentStore,
    TokenRecord,
    TrajectoryRecord,
    VersionSpan,
    list_segments,
)


def build_exchange(
    prompt: Sequence[int],
    completion: Sequence[int],
    *,
    logprobs: Sequence[float] | None = None,
    versions: Sequence[int] | None = None,
    **fields: object,
) -> TokenRecord:
    """An exchange; ``versions`` has one entry per completion token."""
    versions = [0] * len(completion) if versions is None else versions
    return TokenRecord(
        prompt_ids=np.array(prompt, np.int32),
        completion_ids=np.array(completion, np.int32),
        logprobs=np.array([-0.5] * len(completion) if logprobs is None else logprobs, np.float32),
        prompt_spans=(VersionSpan(0, len(prompt), min(versions, default=0)),) if len(prompt) else (),
        completion_spans=spans_of(versions),
        **fields,
    )


def spans_of(versions: Sequence[int]) -> tuple[VersionSpan, ...]:
    spans: list[VersionSpan] = []
    start = 0
    for index in range(1, len(versions) + 1):
        if index == len(versions) or versions[index] != versions[start]:
            spans.append(VersionSpan(start, index, versions[start]))
            start = index
    return tuple(spans)


def build_record(
    record_id: str = "r0",
    group_id: str = "g0",
    exchanges: Sequence[TokenRecord] | None = None,
    reward: float = 1.0,
    *,
    failed: bool = False,
) -> TrajectoryRecord:
    if exchanges is None:
        exchanges = [build_exchange([1, 2, 3], [4, 5])]
    error = RolloutError("ValueError", "the environment broke") if failed else None
    return TrajectoryRecord(record_id, group_id, tuple(exchanges), None if failed else reward, error=error)


@pytest.fixture(scope="session")
def exchange() -> Callable[..., TokenRecord]:
    return build_exchange


@pytest.fixture(scope="session")
def record() -> Callable[..., TrajectoryRecord]:
    return build_record


@pytest.fixture
def run_id() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def segments(run_id: str) -> Iterator[ShmSegmentStore]:
    with ShmSegmentStore(run_id, 64 << 20) as store:
        yield store


@pytest.fixture(autouse=True)
def _leave_no_segment_behind() -> Iterator[None]:
    yield
    left = [info.name for info in list_segments() if info.owner.pid == os.getpid()]
    assert left == []
