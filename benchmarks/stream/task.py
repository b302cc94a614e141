"""What both processes know: the bytes, and how the bare socket is asked for them."""

import numpy as np

PIECE_BYTES = 1 << 20
"""Bytes of one call of the bare socket; one call for everything was slower."""

REQUEST_BYTES = 8


def fill(buffer: memoryview) -> None:
    """Writes the same random bytes in every process."""
    random = np.random.default_rng(0)
    for start in range(0, len(buffer), PIECE_BYTES):
        with buffer[start : start + PIECE_BYTES] as piece:
            piece[:] = random.bytes(len(piece))
