"""What a model needs follows from its own files; looking makes nothing, and all failures come at once."""

import json
import os
import socket

import pytest

from art.checks import PreflightError, State, TrainingPlan, require, training_checks
from art.checks.model_facts import read_model_facts
from art.checks.training import needs

pytestmark = pytest.mark.usefixtures("everything_installed")


def plan(model, folder, **more) -> TrainingPlan:
    settings = {"base_model": model, "run_dir": folder, "packed_sequence_length": 2048} | more
    return TrainingPlan(**settings)


def by_name(checks):
    return {check.name: check for check in checks}


def test_a_model_that_fits_is_taken_and_nothing_is_made(bare_model, tmp_path, memory, room):
    memory(12)
    before = sorted(path.name for path in tmp_path.iterdir())
    checks = training_checks(plan(bare_model, tmp_path / "runs" / "new"))
    assert [check.line() for check in checks if check.state is not State.OK] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_the_estimate_is_near_what_the_demo_took(bare_model, tmp_path):
    """5.5 GiB were measured with steps of at most 421 physical tokens: the server 3.0 GiB of it, the trainer
    1.9 GiB."""
    facts = read_model_facts(bare_model)
    needed = needs(plan(bare_model, tmp_path), facts)
    gib = 2**30
    activations = needed.activations * 421 / 2048
    assert needed.server / gib == pytest.approx(3.0, rel=0.1)
    assert (needed.trainer + activations) / gib == pytest.approx(1.9, rel=0.1)
    assert (needed.memory + activations) / gib == pytest.approx(5.5 - 0.4, rel=0.1)  # without the program
    assert needed.generation == pytest.approx(29.3e6, rel=0.01)


@pytest.mark.parametrize(("gib", "state"), [(4, State.FAILURE), (5, State.WARNING), (12, State.OK)])
def test_memory_decides(bare_model, tmp_path, memory, room, gib, state):
    memory(gib)
    check = by_name(training_checks(plan(bare_model, tmp_path / "run")))["memory"]
    assert check.state is state
    assert f"{gib:.1f} GiB available of 16.0 GiB" in check.found
    if state is State.FAILURE:
        assert "134.5 M parameters" in check.needed
        assert "dtype='bfloat16'" in check.remedy


def test_bfloat16_in_the_server_takes_half(bare_model, tmp_path):
    facts = read_model_facts(bare_model)
    wide, narrow = (
        needs(plan(bare_model, tmp_path, dtype=dtype), facts).server for dtype in ("float32", "bfloat16")
    )
    assert wide - narrow == 2 * facts.parameters


@pytest.mark.parametrize(("stored", "width"), [("F32", 4), ("BF16", 2)])
def test_auto_is_the_files_width(model_folder, tmp_path, stored, width):
    folder = model_folder(parameters=1_000_000, dtype=stored)
    facts = read_model_facts(folder)
    automatic = needs(plan(folder, tmp_path, dtype="auto"), facts).server
    assert (
        automatic == needs(plan(folder, tmp_path, dtype="bfloat16"), facts).server + (width - 2) * 1_000_000
    )


def test_a_row_longer_than_the_models_positions_is_refused(bare_model, tmp_path, memory, room):
    memory(16)
    check = by_name(training_checks(plan(bare_model, tmp_path / "run", packed_sequence_length=8193)))[
        "packed_sequence_length"
    ]
    assert check.state is State.FAILURE
    assert "at most 8192" in check.needed
    assert "packed_sequence_length=8192" in check.remedy


def test_a_row_that_the_kv_cache_cannot_hold_is_refused(bare_model, tmp_path, memory, room):
    """A token of this model takes 2 x 30 layers x 3 heads x 64 numbers x 4 bytes = 46,080 bytes."""
    memory(16)
    small = plan(bare_model, tmp_path / "run", kv_cache_bytes=100 * 46_080, packed_sequence_length=101)
    check = by_name(training_checks(small))["KV cache"]
    assert check.state is State.FAILURE
    assert "hold 100 tokens" in check.found
    fits = plan(bare_model, tmp_path / "run", kv_cache_bytes=100 * 46_080, packed_sequence_length=100)
    assert "KV cache" not in by_name(training_checks(fits))


def test_snapshots_must_fit_into_shared_memory(bare_model, tmp_path, memory, room):
    from pathlib import Path

    memory(16)
    room(Path("/dev/shm"), 64 << 20)
    few = by_name(training_checks(plan(bare_model, tmp_path / "run", snapshot_capacity=2)))["shared memory"]
    many = by_name(training_checks(plan(bare_model, tmp_path / "run", snapshot_capacity=9)))["shared memory"]
    assert (few.state, many.state) == (State.WARNING, State.FAILURE)
    assert "10 adapters" in many.needed


@pytest.mark.parametrize(
    ("free", "state"), [(40 << 20, State.FAILURE), (200 << 20, State.WARNING), (2 << 30, State.OK)]
)
def test_generations_need_room(bare_model, tmp_path, memory, room, free, state):
    memory(16)
    room(tmp_path / "run", free)
    check = by_name(training_checks(plan(bare_model, tmp_path / "run")))["disk of the run"]
    assert check.state is state
    assert "29 MB for the generation of each step" in check.needed or state is State.FAILURE


def test_a_run_is_not_overwritten_but_resumed(bare_model, tmp_path, memory, room):
    memory(16)
    (tmp_path / "run" / "generations" / "step-00000003-abc").mkdir(parents=True)
    check = by_name(training_checks(plan(bare_model, tmp_path / "run")))["run folder"]
    assert check.state is State.FAILURE
    assert "step-00000003-abc" in check.found
    assert "resume=True" in check.remedy
    resumed = by_name(training_checks(plan(bare_model, tmp_path / "run", resume=True)))["run folder"]
    assert resumed.state is State.OK


def test_everything_that_is_wrong_comes_in_one_error(bare_model, tmp_path, memory, room):
    memory(1)
    (tmp_path / "file").write_text("")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        wrong = plan(
            bare_model,
            tmp_path / "file" / "run",
            packed_sequence_length=10_000,
            endpoints=(("127.0.0.1", port, "the API of 'm'"),),
        )
        with pytest.raises(PreflightError) as caught:
            require(training_checks(wrong), "model 'm' cannot be trained here")
    lines = str(caught.value).splitlines()
    assert lines[0] == "model 'm' cannot be trained here:"
    assert {line.split(":")[0] for line in lines[1:]} == {
        "- run folder",
        "- port",
        "- memory",
        "- packed_sequence_length",
    }


@pytest.mark.parametrize("broken", ["no folder", "no weights", "half a weight file", "config"])
def test_a_model_that_cannot_be_read_is_named_first(bare_model, tmp_path, memory, room, broken):
    memory(16)
    weights = bare_model / "model.safetensors"
    model = bare_model
    if broken == "no folder":
        model = tmp_path / "absent"
    elif broken == "no weights":
        weights.unlink()
    elif broken == "half a weight file":
        os.truncate(weights, 200)
    else:
        (bare_model / "config.json").write_text(json.dumps({"hidden_size": 1}))
    first = training_checks(plan(model, tmp_path / "run"))[0]
    assert (first.name, first.state) == ("base_model", State.FAILURE)
    assert str(model) in first.found
