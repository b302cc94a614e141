"""A checksum of many bytes at the speed of memory, which can be taken piece by piece in any order.

The bytes are read as little-endian 64-bit words, zeros behind the last. Each block of :data:`BLOCK_BYTES`
gives one value, the sum of its words times fixed odd weights modulo 2**64; the checksum is BLAKE2b over the
byte count and the values in order. One changed word is always seen, as are exchanged blocks; several changed
words are missed with the probability of a chance, not by a plan: who chooses the changes can choose ones
that cancel. So it shows accidents (stale, torn or misplaced bytes), and authenticates nothing.
"""

import functools
import hashlib
from collections.abc import Sequence

import numpy as np

BLOCK_BYTES = 256 * 1024
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
    weights = _weights()
    whole = data.nbytes // 8
    words = np.frombuffer(data, "<u8", whole)
    values = np.zeros(-(-data.nbytes // BLOCK_BYTES), np.uint64)
    for block in range(-(-whole // _WORDS)):
        part = words[block * _WORDS : (block + 1) * _WORDS]
        values[block] = np.dot(part, weights[: part.size])
    rest = bytes(data[whole * 8 :])
    if rest:
        word = np.frombuffer(rest.ljust(8, b"\0"), "<u8")
        at = whole % _WORDS
        values[-1:] += word * weights[at : at + 1]
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


@functools.cache
def _weights() -> np.ndarray:
    stream = hashlib.shake_128(b"art-dataplane checksum").digest(BLOCK_BYTES)
    return np.frombuffer(stream, "<u8") | np.uint64(1)
