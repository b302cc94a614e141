"""Snapshots are exactly the bytes that were written, for every dtype that a trainer has."""

import hashlib
import os

import msgspec
import numpy as np
import pytest

from art_dataplane import (
    NamedTensor,
    ShmError,
    SnapshotError,
    SnapshotManifest,
    decode,
    encode,
    list_segments,
    read_tensors,
    write_manifest,
)

CONFIG = '{"peft_type": "LORA", "r": 8}'
BFLOAT16 = np.arange(12, dtype=np.uint16).reshape(3, 4)


def tensors() -> list[NamedTensor]:
    return [
        NamedTensor("layers.0.lora_B.weight", "bfloat16", (3, 4), BFLOAT16),
        NamedTensor(
            "layers.0.lora_A.weight", "float32", (2, 3), np.arange(6, dtype=np.float32).reshape(2, 3)
        ),
        NamedTensor("layers.1.empty", "float16", (0, 4), b""),
    ]


@pytest.fixture
def manifest(segments):
    return write_manifest(7, CONFIG, tensors(), segments, generation="step-00000007-x")


def test_a_manifest_travels_and_its_tensors_come_back(manifest):
    back = decode(encode(manifest), SnapshotManifest)
    assert back == manifest
    assert (back.version, back.generation, back.peft_config) == (7, "step-00000007-x", CONFIG)
    assert [spec.name[-13:] for spec in back.tensors] == [
        "lora_A.weight",
        "lora_B.weight",
        "layers.1.empty"[-13:],
    ]
    assert all(spec.offset % 64 == 0 for spec in back.tensors)
    with read_tensors(back) as mapped:
        assert list(mapped) == [spec.name for spec in back.tensors]
        first = mapped["layers.0.lora_A.weight"]
        assert (first.dtype, first.shape, first.data.readonly) == ("float32", (2, 3), True)
        assert np.frombuffer(first.data, np.float32).tolist() == list(range(6))
        second = mapped["layers.0.lora_B.weight"]
        assert np.frombuffer(second.data, np.uint16).tolist() == list(range(12))
        assert len(mapped["layers.1.empty"].data) == 0


def test_the_digest_is_over_the_bytes_in_manifest_order(manifest):
    expected = hashlib.blake2b(np.arange(6, dtype=np.float32).tobytes() + BFLOAT16.tobytes(), digest_size=32)
    assert manifest.digest == expected.hexdigest()


def test_the_order_in_which_tensors_are_given_does_not_matter(manifest, segments):
    assert write_manifest(7, CONFIG, tensors()[::-1], segments).digest == manifest.digest


def test_changed_bytes_are_noticed(manifest):
    path = f"/dev/shm/{manifest.location.name}"
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        file.write(b"\xff")
    with pytest.raises(SnapshotError, match="they were changed or belong to another snapshot"):
        read_tensors(manifest)
    with read_tensors(manifest, verify=False) as mapped:
        assert mapped["layers.0.lora_A.weight"].data[0] == 0xFF


def test_a_closed_snapshot_raises_and_taken_arrays_stay_valid(manifest, segments):
    mapped = read_tensors(manifest)
    taken = np.frombuffer(mapped["layers.0.lora_A.weight"].data, np.float32)
    assert mapped.close() is False
    segments.drop(manifest.location)
    assert taken.tolist() == list(range(6))
    with pytest.raises(SnapshotError, match="version 7 was closed"):
        _ = mapped["layers.0.lora_A.weight"]
    assert mapped.manifest is manifest


def test_a_dropped_snapshot_is_an_error(manifest, segments):
    segments.drop(manifest.location)
    with pytest.raises(ShmError, match="does not exist"):
        read_tensors(manifest)


@pytest.mark.parametrize(
    ("given", "config", "message"),
    [
        ([], CONFIG, "has no tensors"),
        (tensors() + tensors()[:1], CONFIG, "names layers.0.lora_B.weight more than once"),
        ([("a", "float32", (3,), b"1234")], CONFIG, "tensor a has 4 bytes; float32 .* needs 12"),
        ([("a", "float33", (1,), b"1234")], CONFIG, "dtype 'float33' is unknown; one of bool"),
        ([("a", "int8", (-1,), b"")], CONFIG, "negative extent"),
        ([("a", "int8", (2,), np.zeros((2, 4), np.int8)[:, 0])], CONFIG, "does not offer contiguous bytes"),
        ([("a", "int8", (2,), 5)], CONFIG, "does not offer contiguous bytes"),
        (tensors(), "{", "peft_config is not JSON"),
        (tensors(), "[]", "must be a JSON object, not list"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(segments, run_id, given, config, message):
    with pytest.raises(SnapshotError, match=message):
        write_manifest(1, config, given, segments)
    assert list_segments(run_id) == ()


def test_a_manifest_that_does_not_describe_its_bytes_is_refused(manifest):
    spec = msgspec.structs.replace(manifest.tensors[0], shape=(1 << 20,), byte_count=4 << 20)
    with pytest.raises(SnapshotError, match="needs 4194304 bytes inside the"):
        read_tensors(msgspec.structs.replace(manifest, tensors=(spec,)))
