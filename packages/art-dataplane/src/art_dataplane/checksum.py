"""A checksum of many bytes at the speed of memory, which can be taken piece by piece.

The bytes are read as little-endian 64-bit words, zeros behind the last. Each block of :data:`BLOCK_BYTES`
gives one value, the sum of its words modulo 2**64; the checksum is BLAKE2b over the byte count and the
values in order. It shows accidents: a changed word, blocks that are stale, torn or in another place, a wrong
number of bytes. Words that change places inside a block, and changes that add up to zero, do not show: it
authenticates nothing.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

BLOCK_BYTES = 16 * 1024
"""A piece starts at a multiple of this many bytes, and all but the last are multiples of it long."""

CHECKSUM_BYTES = 16
"""How long a checksum is."""

_WORDS = BLOCK_BYTES // 8


def block_values(data: memoryview) -> np.ndarray:
    """The values of the blocks of one piece.

    Args:
        data: the piece, of any length.

    Returns:
        uint64[ceil(bytes / BLOCK_BYTES)].
    """
    full = data.nbytes // BLOCK_BYTES
    words = np.frombuffer(data, "<u8", full * _WORDS).reshape(full, _WORDS)
    rest = bytes(data[full * BLOCK_BYTES :])
    values = np.empty(full + bool(rest), np.uint64)
    np.add.reduce(words, axis=1, out=values[:full])
    if rest:
        values[full] = np.frombuffer(rest + bytes(-len(rest) % 8), "<u8").sum(dtype=np.uint64)
    return values


def combine(pieces: Sequence[np.ndarray], byte_count: int) -> bytes:
    """The checksum of ``byte_count`` bytes whose pieces, in order, have these values."""
    digest = hashlib.blake2b(byte_count.to_bytes(8, "little"), digest_size=CHECKSUM_BYTES)
    for values in pieces:
        digest.update(values.astype("<u8", copy=False).tobytes())
    return digest.digest()


def checksum(data: memoryview) -> bytes:
    """The checksum of ``data``."""
    return combine([block_values(data)], data.nbytes)
