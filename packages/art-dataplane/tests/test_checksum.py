"""The checksum is the sum that its description says, in pieces as at once, and shows a changed word."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_dataplane.checksum import BLOCK_BYTES, block_values, checksum, combine


def by_hand(data: bytes) -> bytes:
    """The description, with Python's integers."""
    digest = hashlib.blake2b(len(data).to_bytes(8, "little"), digest_size=16)
    for start in range(0, len(data), BLOCK_BYTES):
        block = data[start : start + BLOCK_BYTES]
        total = 0
        for index in range(0, len(block), 8):
            total += int.from_bytes(block[index : index + 8], "little")
        digest.update((total % 2**64).to_bytes(8, "little"))
    return digest.digest()


def random_bytes(count: int) -> bytes:
    return np.random.default_rng(count).bytes(count)


@pytest.mark.parametrize(
    "count", [0, 1, 7, 8, 9, 4097, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 3, 600_001]
)
def test_it_is_the_sum_of_each_block(count):
    data = random_bytes(count)
    assert checksum(memoryview(data)) == by_hand(data)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 3), max_size=4), st.integers(0, BLOCK_BYTES))
def test_pieces_give_the_same_as_the_whole(pieces, rest):
    data = memoryview(random_bytes(sum(pieces) * BLOCK_BYTES + rest))
    values, start = [], 0
    for blocks in pieces:
        values.append(block_values(data[start : start + blocks * BLOCK_BYTES]))
        start += blocks * BLOCK_BYTES
    values.append(block_values(data[start:]))
    assert combine(values, data.nbytes) == checksum(data)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3 * BLOCK_BYTES - 1), st.integers(1, 255))
def test_a_changed_byte_shows(at, change):
    data = bytearray(3 * BLOCK_BYTES)
    before = checksum(memoryview(data))
    data[at] ^= change
    assert checksum(memoryview(data)) != before


def test_bytes_in_another_order_and_another_number_show():
    data = bytearray(random_bytes(2 * BLOCK_BYTES))
    before = checksum(memoryview(data))
    swapped = data[BLOCK_BYTES:] + data[:BLOCK_BYTES]
    stale = data[:4096] + bytes(4096) + data[8192:]
    shifted = bytes(1) + data[:-1]
    longer = data + bytes(1)
    assert before not in {checksum(memoryview(one)) for one in (swapped, stale, shifted, longer)}
    assert len({checksum(memoryview(bytes(count))) for count in range(10)}) == 10
