"""What both processes know: the bytes, and how the bare socket is asked for them."""

import numpy as np

PIECE_BYTES = 1 << 20
"""Bytes of one call of the bare socket; one call for everything was slower."""

REQUEST_BYTES = 8


def fill(buffer: memoryview) -> None:
    """Writes the same random bytes in every process."""
    array = np.frombuffer(buffer, np.uint8)
    array[:] = np.random.default_rng(0).integers(0, 256, len(buffer), np.uint8)
