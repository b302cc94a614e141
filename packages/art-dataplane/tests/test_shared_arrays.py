"""Named arrays in one segment."""

import subprocess
import sys

import numpy as np
import pytest

from art_dataplane import BatchError, DataPlaneError, ShmError, TensorSpec, decode, encode
from art_dataplane.segments import MappingCache
from art_dataplane.shared_arrays import ArraysRef, read_arrays, write_arrays

ARRAYS = {
    "ids": np.arange(7, dtype=np.int32).reshape(7, 1),
    "weights": np.linspace(0, 1, 6, dtype=np.float64).reshape(2, 3).T,
    "none": np.zeros((0, 4), np.uint8),
    "one": np.array(3, np.int64),
    "swapped": np.arange(4, dtype=np.uint16)[::-1],
}


@pytest.mark.parametrize("cache", [None, MappingCache(1 << 20)])
def test_arrays_come_back_as_they_were_and_read_only(segments, cache):
    ref = decode(encode(write_arrays(ARRAYS, segments)), ArraysRef)
    with read_arrays(ref, cache) as arrays:
        assert list(arrays) == list(ARRAYS)
        assert len(arrays) == 5
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, ARRAYS[name], strict=True)
            assert not array.flags.writeable
            assert array.ctypes.data % 64 == 0
            del array
    assert segments.drop(ref.location)


def test_an_access_after_the_close_raises_and_arrays_taken_before_stay(segments):
    arrays = read_arrays(write_arrays(ARRAYS, segments))
    taken = arrays["ids"]
    assert arrays.close() is False
    for access in (lambda: arrays["ids"], lambda: list(arrays), lambda: len(arrays)):
        with pytest.raises(ShmError, match="were closed; read their reference again"):
            access()
    assert taken[:, 0].tolist() == list(range(7))
    del taken
    assert arrays.close() is True


def test_what_cannot_be_carried_is_refused_and_leaves_nothing(segments):
    with pytest.raises(DataPlaneError, match="dtype 'complex128' is unknown"):
        write_arrays({"x": np.zeros(3, complex)}, segments)
    with pytest.raises(ShmError, match="a segment of 0 bytes"):
        write_arrays({}, segments)
    with pytest.raises(DataPlaneError, match="'x' has the byte order of >i4"):
        write_arrays({"x": np.zeros(3, ">i4")}, segments)
    assert segments.stats().segment_count == 0


def test_a_reference_that_does_not_describe_its_bytes_is_refused(segments):
    ref = write_arrays(ARRAYS, segments)
    wrong = ArraysRef((TensorSpec("x", "int32", (1 << 20,), 0, 4 << 20),), ref.location)
    with pytest.raises(BatchError, match="do not describe a buffer"):
        read_arrays(wrong)


def test_another_process_reads_them(segments):
    ref = write_arrays(ARRAYS, segments)
    code = (
        "import sys\n"
        "from art_dataplane import decode\n"
        "from art_dataplane.shared_arrays import ArraysRef, read_arrays\n"
        "with read_arrays(decode(bytes.fromhex(sys.argv[1]), ArraysRef)) as arrays:\n"
        "    print({name: array.tolist() for name, array in arrays.items()})\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, encode(ref).hex()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout.strip() == str({name: array.tolist() for name, array in ARRAYS.items()}), ended.stderr
