"""Specs refuse contradictions, survive the wire, and event sequences allow exactly the documented orders."""

import itertools
import math
import subprocess
import sys

import msgspec
import pytest

from art_dataplane import InlineLocation, SnapshotManifest
from art_topology import MegatronTopologyConfig
from art_trainer import (
    Accepted,
    AdamWSpec,
    Cancelled,
    Completed,
    EventOrderError,
    EventSequence,
    Failed,
    LoraSpec,
    Progress,
    RlTrainJob,
    SnapshotReady,
    SpecError,
    TrainerEvent,
    TrainerRuntimeSpec,
    TrainingRunSpec,
)


def runtime(**changes):
    return TrainerRuntimeSpec(**{"model_path": "m", "packed_sequence_length": 1, **changes})


MANIFEST = SnapshotManifest(1, "{}", (), 0, "", InlineLocation(b""))
EVENTS = {
    "accepted": Accepted("j", 0),
    "progress": Progress("j", "map", 1, 1),
    "ready": SnapshotReady("j", MANIFEST),
    "completed": Completed("j", 1, {"loss": 1.0}, {"map_s": 0.1}),
    "failed": Failed("j", 0, "busy", "another one runs"),
    "cancelled": Cancelled("j", 0),
}


def allowed(names):
    """The documented grammar, as a regular expression over the first letters."""
    import re

    letters = "".join(
        {"accepted": "a", "progress": "p", "ready": "r", "completed": "c", "failed": "f", "cancelled": "x"}[n]
        for n in names
    )
    return re.fullmatch(r"f|ap*(f|x|rp*(c|f))", letters) is not None


def test_exactly_the_documented_orders_pass():
    passed = 0
    for length in range(1, 6):
        for names in itertools.product(EVENTS, repeat=length):
            sequence, fine = EventSequence("j"), True
            try:
                for name in names:
                    sequence.check(EVENTS[name])
            except EventOrderError:
                fine = False
            assert (fine and sequence.done) == allowed(names), names
            passed += fine and sequence.done
    assert passed > 10


def test_events_of_another_job_are_refused():
    with pytest.raises(EventOrderError, match="job 'other' came in the stream of 'j'"):
        EventSequence("j").check(Accepted("other", 0))


def test_events_survive_the_wire():
    for event in EVENTS.values():
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=TrainerEvent) == event


def test_specs_survive_the_wire_and_refuse_unknown_fields():
    spec = TrainerRuntimeSpec(model_path="m", packed_sequence_length=128, lora=LoraSpec(rank=2, alpha=3))
    assert msgspec.json.decode(msgspec.json.encode(spec), type=TrainerRuntimeSpec) == spec
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(
            b'{"model_path": "m", "packed_sequence_length": 1, "colour": 1}', type=TrainerRuntimeSpec
        )
    with pytest.raises(msgspec.ValidationError, match="threads is 0"):
        msgspec.json.decode(
            b'{"model_path": "m", "packed_sequence_length": 1, "threads": 0}', type=TrainerRuntimeSpec
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LoraSpec(rank=0), "rank is 0"),
        (lambda: LoraSpec(alpha=0), "alpha is 0"),
        (lambda: LoraSpec(target_modules=()), "target_modules is empty"),
        (lambda: LoraSpec(target_modules=("a", "a")), "repeated names: a, a"),
        (lambda: AdamWSpec(beta1=1.0), "beta1 is 1.0"),
        (lambda: AdamWSpec(epsilon=0.0), "epsilon is 0.0"),
        (lambda: AdamWSpec(weight_decay=-1.0), "weight_decay is -1.0"),
        (lambda: TrainerRuntimeSpec(model_path="", packed_sequence_length=1), "model_path is empty"),
        (lambda: TrainerRuntimeSpec(model_path="m", packed_sequence_length=0), "packed_sequence_length is 0"),
        (
            lambda: TrainerRuntimeSpec(model_path="m", packed_sequence_length=1, snapshot_capacity=0),
            "snapshot_capacity is 0",
        ),
        (lambda: LoraSpec(rank="8"), r"LoraSpec.rank is the str '8'; .* for example rank=8"),
        (lambda: LoraSpec(rank=10**6), "from 1 to 4096"),
        (lambda: LoraSpec(alpha=math.nan), "alpha is nan"),
        (lambda: LoraSpec(alpha=True), "alpha is the bool True"),
        (
            lambda: LoraSpec(target_modules="q_proj"),
            "target_modules is the str 'q_proj'; it must be of tuple",
        ),
        (lambda: AdamWSpec(beta2="0.9"), r"beta2 is the str '0.9'; it must be a number in \[0, 1\)"),
        (lambda: AdamWSpec(epsilon=math.inf), "epsilon is inf"),
        (lambda: runtime(threads=1.0), "threads is the float 1.0"),
        (lambda: runtime(seed=-1), "seed is -1; it must be a whole number from 0"),
        (lambda: runtime(dtype="float16"), "dtype is 'float16'; it must be 'float32' or 'bfloat16'"),
        (lambda: runtime(lora=None), "lora is the NoneType None; it must be of LoraSpec"),
        (lambda: runtime(topology=1), "it must be of MegatronTopologyConfig"),
        (lambda: runtime(model_path=1), "model_path is the int 1; it must be of str"),
        (lambda: runtime(packed_sequence_length=10**9), "packed_sequence_length is 1000000000"),
        (lambda: TrainingRunSpec(run_id=1), "run_id is the int 1"),
        (lambda: TrainingRunSpec(run_id="a b"), "run_id is 'a b'"),
        (lambda: TrainingRunSpec(run_id="a", resume_from="latest"), "generations_dir is None"),
        (lambda: TrainingRunSpec(run_id="a", snapshot_lease_s=0), "snapshot_lease_s is 0"),
    ],
)
def test_contradictions_are_refused_with_their_numbers(make, message):
    with pytest.raises(SpecError, match=message):
        make()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resulting_version": 5}, "from version 3 results in 4"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"clip_low": 1.5}, "clip_low is 1.5"),
        ({"clip_high": 0.0}, "clip_high is 0.0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm is 0.0"),
        ({"snapshot_deadline_s": 0.0}, "snapshot_deadline_s is 0.0"),
        ({"expected_version": -1, "resulting_version": 0}, "expected_version is -1"),
    ],
)
def test_jobs_are_checked(batches, pack_forest, completions, changes, message):
    settings = {
        "job_id": "j",
        "batch": batches(pack_forest(completions())),
        "expected_version": 3,
        "resulting_version": 4,
        "learning_rate": 1e-3,
    }
    job = RlTrainJob(**settings)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=RlTrainJob) == job
    with pytest.raises(SpecError, match=message):
        RlTrainJob(**{**settings, **changes})


def test_a_topology_travels_in_the_spec():
    spec = TrainerRuntimeSpec(model_path="m", packed_sequence_length=1, topology=MegatronTopologyConfig(tp=2))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=TrainerRuntimeSpec).topology.tp == 2


def test_importing_the_package_is_light():
    heavy = ["torch", "megatron", "safetensors", "transformers"]
    code = f"import sys, art_trainer; print([m for m in {heavy} if m in sys.modules])"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert output.stdout.strip() == "[]"
