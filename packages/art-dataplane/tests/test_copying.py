"""Copies by one thread and by several."""

import os
import threading

import numpy as np
import pytest

from art_dataplane import copying
from art_dataplane.copying import copy_arrays


def arrays() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [
        generator.integers(0, 255, (3_000_001, 3), np.uint8),
        generator.random((5, 1_000_000)),
        np.array(7, np.int64),
        np.zeros((0, 3), np.float32),
        generator.integers(0, 9, (2, 3_000_000), np.int32).T,
    ]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("parallel_bytes", [0, 1 << 40])
def test_every_byte_arrives_whoever_copies_it(monkeypatch, threads, parallel_bytes):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(threads)))
    monkeypatch.setattr(copying, "_PARALLEL_BYTES", parallel_bytes)
    sources = arrays()
    targets = [np.empty(source.shape, source.dtype) for source in sources]
    before = threading.active_count()
    copy_arrays(zip(targets, sources, strict=True))
    assert threading.active_count() == before
    for target, source in zip(targets, sources, strict=True):
        np.testing.assert_array_equal(target, source)


def test_large_copies_use_several_threads(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    seen: set[str] = set()
    both = threading.Barrier(2, timeout=30)
    real = np.copyto

    def watched(destination: np.ndarray, source: np.ndarray, casting: str) -> None:
        if threading.current_thread().name not in seen:
            seen.add(threading.current_thread().name)
            both.wait()
        real(destination, source, casting=casting)

    monkeypatch.setattr(copying.np, "copyto", watched)
    source = np.arange(8 << 20, dtype=np.int64)
    target = np.zeros_like(source)
    copy_arrays([(target, source)])
    assert len(seen) == 2
    assert (target == source).all()


def test_pairs_that_do_not_match_are_errors_also_from_a_thread(monkeypatch):
    monkeypatch.setattr(copying, "_PARALLEL_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    with pytest.raises(TypeError, match="Cannot cast"):
        copy_arrays([(np.zeros(5_000_000, np.int32), np.zeros(5_000_000, np.float32))])
    with pytest.raises(ValueError, match=r"shape \(3,\) cannot be copied to one of \(4,\)"):
        copy_arrays([(np.zeros(4), np.zeros(3))])
