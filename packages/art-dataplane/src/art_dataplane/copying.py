"""Copies between arrays that are at hand, by several threads where there is enough to copy.

One core does not use all of a machine's memory bandwidth, and NumPy copies without the interpreter's lock.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_PIECE_BYTES = 4 << 20
_PARALLEL_BYTES = 32 << 20
_MOST_THREADS = 8


def copy_arrays(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
    """Copies each source to its destination, ``(destination, source)``.

    Raises:
        TypeError: the dtypes of a pair differ.
        ValueError: the shapes of a pair differ.
    """
    pieces = deque(piece for pair in pairs for piece in _pieces(*pair))
    threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
    if threads == 1 or sum(destination.nbytes for destination, _ in pieces) < _PARALLEL_BYTES:
        _copy_all(pieces)
        return
    with ThreadPoolExecutor(threads - 1, thread_name_prefix="copy") as helpers:
        running = [helpers.submit(_copy_all, pieces) for _ in range(threads - 1)]
        _copy_all(pieces)
        for each in running:
            each.result()


def _copy_all(pieces: deque[tuple[np.ndarray, np.ndarray]]) -> None:
    while True:
        try:
            destination, source = pieces.popleft()
        except IndexError:  # the others took the rest
            return
        np.copyto(destination, source, casting="no")


def _pieces(destination: np.ndarray, source: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    if destination.shape != source.shape:
        raise ValueError(f"an array of shape {source.shape} cannot be copied to one of {destination.shape}")
    if destination.nbytes <= _PIECE_BYTES:
        yield destination, source
        return
    step = max(1, _PIECE_BYTES * len(destination) // destination.nbytes)
    for begin in range(0, len(destination), step):
        yield destination[begin : begin + step], source[begin : begin + step]
