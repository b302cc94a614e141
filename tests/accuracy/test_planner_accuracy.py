"""The rows that the planner is held against are whole, sourced and frozen, and the page is what they give."""

import tomllib
from pathlib import Path

import msgspec
import pytest
from accuracy import page, parts, predict, rows, seeds

from art_topology.cost import TrainerProgram

ROOT = Path(__file__).parents[2]
SCORED = "8abd64ae0a62d457501a57590035c94f8daf52d94fe3ef39e633da58f3ab14f6"
"""Ids and values of the scored rows, as before the first prediction. A row is never dropped because it
is missed; further rows are a reason to change this."""


@pytest.fixture(scope="module")
def loaded() -> tuple[rows.Row, ...]:
    return rows.load_rows()


def of(loaded: tuple[rows.Row, ...], kind: str, name: str | None = None) -> list[rows.Row]:
    return [row for row in loaded if row.kind == kind and (name is None or row.set == name)]


def test_the_scored_rows_are_those_chosen_before_the_first_prediction(loaded):
    assert rows.scored_digest(loaded) == SCORED


def test_every_row_names_its_source_and_where_in_it(loaded):
    for row in loaded:
        assert row.source is not None
        assert row.source.url.startswith("https://")
        assert row.source.found
        assert row.where


def test_there_are_enough_rows_of_each_set(loaded):
    assert len(of(loaded, "parameters", "score")) >= 12
    assert len(of(loaded, "memory", "score")) >= 12
    assert len(of(loaded, "step_time", "score")) >= 30
    assert len(of(loaded, "step_time", "calibrate")) >= 30


@pytest.mark.parametrize("name", ["calibrate", "score"])
def test_both_sets_have_dense_models_mixtures_and_several_machines(loaded, name):
    chosen = of(loaded, "step_time", name)
    experts = {predict.describe(row.model).experts is not None for row in chosen}
    assert experts == {True, False}
    assert len({row.machine for row in chosen}) >= 3
    assert len({row.model for row in chosen}) >= 5


def test_a_source_belongs_to_one_set(loaded):
    sets = {}
    for row in loaded:
        sets.setdefault(row.source.url, set()).add(row.set)
    assert all(len(found) == 1 for found in sets.values())


@pytest.mark.parametrize("kind", ["memory", "step_time", "rl_step"])
def test_a_row_that_lacks_a_field_is_refused(loaded, kind, tmp_path):
    row = of(loaded, kind)[0]
    given = {key: value for key, value in msgspec.to_builtins(row).items() if value not in (None, {}, "")}
    source = given.pop("source")
    for field in (*rows.NEEDED[kind], "where", "model", "measured", "unit"):
        lacking = {key: value for key, value in given.items() if key != field}
        file = tmp_path / f"{source['id']}.toml"
        file.write_text(written(source, lacking))
        assert tomllib.loads(file.read_text())["rows"]
        with pytest.raises(rows.RowError):
            rows.load_rows(tmp_path)


def written(source: dict, row: dict) -> str:
    def value(found) -> str:
        if isinstance(found, dict):
            return "{ " + ", ".join(f"{key} = {value(item)}" for key, item in found.items()) + " }"
        if isinstance(found, list):
            return "[" + ", ".join(map(value, found)) + "]"
        return msgspec.json.encode(found).decode()

    lines = ["[source]", *(f"{key} = {value(item)}" for key, item in source.items()), "[[rows]]"]
    return "\n".join([*lines, *(f"{key} = {value(item)}" for key, item in row.items())])


def test_a_layout_that_is_not_the_number_of_gpus_is_refused(loaded, tmp_path):
    row = of(loaded, "step_time")[0]
    given = {key: value for key, value in msgspec.to_builtins(row).items() if value not in (None, {}, "")}
    source = given.pop("source")
    (tmp_path / f"{source['id']}.toml").write_text(written(source, {**given, "gpus": row.gpus * 2}))
    with pytest.raises(rows.RowError, match="is not"):
        rows.load_rows(tmp_path)


def test_parameter_counts_are_exact(loaded):
    wrong = {row.id: predict.predict(row).value - row.value for row in of(loaded, "parameters")}
    assert {name: off for name, off in wrong.items() if off} == {}


def test_every_large_miss_of_a_scored_row_has_a_reason(loaded):
    reasons = {name for miss in page.explanations() for name in miss.rows}
    assert reasons <= {row.id for row in loaded}
    missed = {
        row.id for row in loaded if row.set == "score" and abs(predict.predict(row).error) > page.LARGE_MISS
    }
    assert missed <= reasons, f"misses.toml lacks {sorted(missed - reasons)}"


def errors(loaded, kind: str, name: str) -> float:
    found = [abs(predict.predict(row).error) for row in of(loaded, kind, name)]
    return sum(found) / len(found)


def test_memory_of_the_scored_rows_is_within_the_aim(loaded):
    assert errors(loaded, "memory", "score") < page.TARGETS["memory"]


def test_times_of_the_scored_rows_do_not_get_worse(loaded):
    """The aim of 8 % is met by dense models only; the 15.7 % of all that are reached are kept."""
    assert errors(loaded, "step_time", "score") < 0.158
    dense = [row for row in of(loaded, "step_time", "score") if predict.model_of(row).experts is None]
    assert sum(abs(predict.predict(row).error) for row in dense) / len(dense) < page.TARGETS["step_time"]


@pytest.mark.parametrize("what", parts.FACTS)
def test_a_fact_of_a_program_is_a_field_of_a_row_and_of_the_cost_model(what):
    assert what in rows.Row.__struct_fields__
    assert what in TrainerProgram.__struct_fields__


def test_a_part_that_is_left_out_changes_errors(loaded):
    found = parts.parts(
        [row for row in loaded if row.kind == "step_time"],
        lambda row: predict.model_of(row).experts is not None,
    )
    everything, *without = found
    assert all(
        (part.calibration, part.dense, part.experts)
        != (everything.calibration, everything.dense, everything.experts)
        for part in without
    )
    assert all(part.calibration >= everything.calibration for part in without)


def test_the_split_of_gpus_is_predicted_where_neither_side_waits_more():
    split = seeds.balanced_split()
    beside_small = 1 - split.rollout_s / split.small_s
    beside_large = 1 - split.large_s / split.rollout_s
    assert beside_small == pytest.approx(beside_large, abs=0.03)
    assert split.small_s > split.rollout_s > split.large_s


def test_the_page_is_current():
    found = (ROOT / "docs" / "planner-accuracy.md").read_text(encoding="utf-8")
    assert found == page.render(), "run `nox -s accuracy`"
