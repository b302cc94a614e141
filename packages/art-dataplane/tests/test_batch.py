"""A packed batch after its close: an error, never a crash."""

import gc
import subprocess
import sys
import tracemalloc

import msgspec
import numpy as np
import pytest

from art_dataplane import (
    BatchClosedError,
    BatchError,
    InlineLocation,
    Lease,
    Outcome,
    PackedBatchRef,
    PackingRequest,
    Selection,
    ShmBatchMapper,
    ShmSegmentStore,
    TensorSpec,
    TokenRecord,
    VersionSpan,
    decode,
    encode,
    map_location,
    pack,
    trajectory_ref,
)


@pytest.fixture
def ref(record, segments):
    groups = [[record("r0"), record("r1", reward=0.0)]]
    selection = Selection(
        tuple(tuple(trajectory_ref(r, "w") for r in g) for g in groups), Lease("l", 1, "p", 60.0)
    )
    return pack(groups, PackingRequest(selection, 8, 1, 0), segments, owner="p").ref


def test_names_shapes_and_dtypes_are_those_of_the_table(ref):
    with ShmBatchMapper().map(ref) as batch:
        for name in batch.tensors:
            array = getattr(batch, name)
            assert array is batch.tensors[name]
            assert array.dtype == (
                np.float32 if name[5:] in ("old_logprob", "advantage", "weight", "temperature") else np.int32
            )
            assert not array.flags.writeable
        assert batch.routes is None
        assert batch.row_count == 1
        with pytest.raises(IndexError, match="row 1 of a batch with 1 rows"):
            batch.row(1)


def test_every_access_after_the_close_raises(ref):
    batch = ShmBatchMapper().map(ref)
    tensors = batch.tensors
    assert batch.close() is True
    for access in (
        lambda: batch.token_ids,
        lambda: batch.routes,
        lambda: batch.tensors,
        lambda: batch.row(0),
        lambda: tensors["loss_weight"],
        lambda: list(tensors),
        lambda: len(tensors),
    ):
        with pytest.raises(BatchClosedError, match=f"{ref.batch_id} was closed"):
            access()
    assert batch.ref is ref
    assert batch.close() is True


def test_arrays_taken_out_before_the_close_stay_valid_memory(ref, segments):
    batch = ShmBatchMapper().map(ref)
    tokens, part = batch.token_ids, batch.row(0)["loss_weight"][1:]
    assert batch.close() is False
    segments.drop(ref.location)
    gc.collect()
    assert tokens.tolist() == [1, 2, 3, 4]
    assert part.sum() > 0


def test_use_after_close_does_not_kill_the_process(ref):
    code = (
        "import sys\n"
        "from art_dataplane import PackedBatchRef, ShmBatchMapper, BatchClosedError, decode\n"
        "batch = ShmBatchMapper().map(decode(bytes.fromhex(sys.argv[1]), PackedBatchRef))\n"
        "kept = batch.token_ids[1:]\n"
        "batch.close()\n"
        "try: batch.token_ids\n"
        "except BatchClosedError: print(kept.sum())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, encode(ref).hex()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "9\n"), ended.stderr


def test_a_reference_survives_the_wire_and_inline_bytes_map_as_well(ref):
    with map_location(ref.location) as mapped:
        inline = msgspec.structs.replace(ref, location=InlineLocation(bytes(mapped.view)))
    back = decode(encode(inline), PackedBatchRef)
    assert back == inline
    with ShmBatchMapper().map(back) as batch:
        assert batch.token_ids.tolist() == [1, 2, 3, 4]


def spoil(ref, which, **fields):
    specs = tuple(
        msgspec.structs.replace(spec, **fields) if spec.name == which else spec for spec in ref.tensors
    )
    return msgspec.structs.replace(ref, tensors=specs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ref: spoil(ref, "token_ids", offset=1 << 20), "'token_ids'.* needs 16 bytes inside the"),
        (lambda ref: spoil(ref, "token_ids", offset=-4), "needs 16 bytes"),
        (lambda ref: spoil(ref, "token_ids", shape=(5,)), "needs 20 bytes"),
        (lambda ref: spoil(ref, "token_ids", dtype="bfloat16"), "bfloat16"),
        (
            lambda ref: spoil(ref, "token_ids", dtype="float32"),
            "no place for a tensor 'token_ids' of dtype float32",
        ),
        (lambda ref: spoil(ref, "token_ids", name="tokens"), "lacks the tensors token_ids"),
        (
            lambda ref: spoil(ref, "position_ids", shape=(3,), byte_count=12),
            "position_ids has 3 entries; there are 4",
        ),
        (lambda ref: spoil(ref, "loss_row_offsets", offset=0), "loss_row_offsets must ascend from 0 to 4"),
    ],
)
def test_references_that_do_not_describe_their_bytes_are_refused(ref, change, message):
    with pytest.raises(BatchError, match=message):
        ShmBatchMapper().map(change(ref))


def test_offsets_are_multiples_of_a_cache_line(ref):
    assert all(isinstance(spec, TensorSpec) and spec.offset % 64 == 0 for spec in ref.tensors)


@pytest.fixture
def recycling(run_id):
    with ShmSegmentStore(run_id, 64 << 20, recycle_bytes=32 << 20) as store:
        yield store


def pack_one(record, segments, token: int) -> PackedBatchRef:
    exchange = TokenRecord(
        np.full(500, token, np.int32),
        np.full(60_000, token, np.int32),
        np.full(60_000, -1.0, np.float32),
        (VersionSpan(0, 500, 0),),
        (VersionSpan(0, 60_000, 0),),
    )
    groups = [[record("r0", exchanges=[exchange]), record("r1", exchanges=[exchange], reward=0.0)]]
    selection = Selection((tuple(trajectory_ref(r, "w") for r in groups[0]),), Lease("l", 1, "p", 60.0))
    result = pack(groups, PackingRequest(selection, 61_000, 1, 0), segments, owner="p")
    return result.ref


def test_a_batch_goes_into_the_segment_of_the_one_before_once_that_is_closed_and_released(record, recycling):
    mapper = ShmBatchMapper()
    places = set()
    for token in range(1, 4):
        ref = pack_one(record, recycling, token)
        with mapper.map(ref) as batch:
            assert set(batch.token_ids.tolist()) == {token}
            places.add(batch.token_ids.ctypes.data)
        recycling.release(ref.location, ref.lease, Outcome.CONSUMED)
    assert recycling.stats().recycled_count == 2
    assert len(places) == 1
    mapper.close()


def test_a_batch_that_is_not_closed_when_it_is_released_keeps_its_bytes(record, recycling):
    mapper = ShmBatchMapper()
    ref = pack_one(record, recycling, 1)
    batch = mapper.map(ref)
    recycling.release(ref.location, ref.lease, Outcome.CONSUMED)
    second = pack_one(record, recycling, 2)
    assert set(batch.token_ids.tolist()) == {1}
    assert (recycling.stats().recycled_count, recycling.stats().still_mapped_count) == (0, 1)
    batch.close()
    with mapper.map(second) as other:
        assert set(other.token_ids.tolist()) == {2}


def test_packing_makes_no_second_copy_of_a_batch(record, recycling, monkeypatch):
    pack_one(record, recycling, 1)  # what is imported late
    before: list[int] = []
    reserve = ShmSegmentStore.reserve

    def watched(store, byte_count):
        reservation = reserve(store, byte_count)
        tracemalloc.reset_peak()
        before.append(tracemalloc.get_traced_memory()[0])
        return reservation

    monkeypatch.setattr(ShmSegmentStore, "reserve", watched)
    tracemalloc.start()
    try:
        ref = pack_one(record, recycling, 2)
        peak = tracemalloc.get_traced_memory()[1] - before[0]
    finally:
        tracemalloc.stop()
    assert ref.byte_count > 4_000_000
    assert peak < ref.byte_count / 2, f"{peak} bytes beside the {ref.byte_count} of the batch"
