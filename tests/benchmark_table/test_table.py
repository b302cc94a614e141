"""One table is made of what the benchmarks tell, and the page of it."""

import json
import re
import sys
from pathlib import Path

import pytest

SAMPLE = {
    "figures": {"anything": [1.0]},
    "rows": [
        {
            "what": "merge prefixes, shuffled",
            "peer": "AReaL 1.0.4",
            "unit": "ms",
            "ours": 81.25,
            "theirs": 2580.0,
            "ratio": 31.75,
            "aim": ">= 10x",
            "reached": True,
            "note": "tries | masks",
        },
        {
            "what": "128 MiB, written in place",
            "peer": None,
            "unit": "ms",
            "ours": 1.25,
            "theirs": None,
            "ratio": None,
            "aim": "< 1 ms",
            "reached": False,
        },
        {
            "what": "  tokens that are left",
            "peer": "x",
            "unit": "tokens",
            "ours": 1e6,
            "theirs": 5e5,
            "ratio": 0.5,
        },
    ],
}


def test_a_ratio_is_the_median_of_pairs_and_not_the_ratio_of_medians() -> None:
    from benchmarks.table import compare

    ours, theirs = [0.001, 0.004, 0.002], [0.010, 0.012, 0.002]
    row = compare("x", "y 1", ours, theirs, aim=3.0)
    assert (row.ours, row.theirs) == (2.0, 10.0)
    assert row.ratio == pytest.approx(3.0)  # of 10, 3 and 1; that of the medians is 5
    assert (row.aim, row.reached) == (">= 3x", True)
    assert compare("x", "y 1", ours, theirs, aim=3.1).reached is False


def test_sides_that_did_not_take_turns_are_refused() -> None:
    from benchmarks.table import compare

    with pytest.raises(ValueError, match="argument"):
        compare("x", "y 1", [1.0, 2.0], [1.0])


def test_an_aim_without_a_peer_is_in_the_unit() -> None:
    from benchmarks.table import alone

    assert [alone("x", [seconds], most=1.0).reached for seconds in (0.0009, 0.001)] == [True, False]
    assert alone("x", [0.0009], most=1.0).aim == "< 1 ms"


def test_the_table_has_every_figure_in_a_hundred_columns(tmp_path: Path) -> None:
    from benchmarks import table

    (tmp_path / "rows.json").write_text(json.dumps(SAMPLE))
    lines = table.text({"packing": table.read(tmp_path / "rows.json")}).splitlines()
    assert [re.split(r"  +", line.strip()) for line in lines] == [
        ["what", "ART", "peer", "ratio aim"],
        ["-" * 100],
        ["packing"],
        ["merge prefixes, shuffled", "81.2 ms", "2,580 ms AReaL 1.0.4", "31.8x >= 10x yes"],
        ["128 MiB, written in place", "1.25 ms", "< 1 ms no"],
        ["tokens that are left", "1,000,000", "500,000 x", "0.5x"],
    ]
    assert max(map(len, lines)) == 100
    assert len({line.index("yes") for line in lines if "yes" in line}) == 1


def test_a_ratio_just_below_its_aim_does_not_look_like_it() -> None:
    from benchmarks.table import ratio_text

    told = {0.9966: "0.997x", 0.72: "0.72x", 1.0: "1.00x", 3.149: "3.15x", 31.75: "31.8x", 6875.2: "6,875x"}
    assert {ratio: ratio_text(ratio) for ratio in told} == told
    assert ratio_text(None) == ""


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    from benchmarks import table

    (tmp_path / "rows.json").write_text(json.dumps(SAMPLE))
    rows = table.read(tmp_path / "rows.json")
    table.write(tmp_path / "again.json", rows, {"rows": [1.0]})
    assert table.read(tmp_path / "again.json") == rows
    assert json.loads((tmp_path / "again.json").read_text())["figures"] == {"rows": [1.0]}


def test_the_page_has_machine_command_rows_and_notes(tmp_path: Path) -> None:
    from benchmarks import page, table
    from benchmarks.suite import SUITE

    (tmp_path / "rows.json").write_text(json.dumps(SAMPLE))
    rows = table.read(tmp_path / "rows.json")
    where = page.machine()
    assert re.fullmatch(r"\d+\.\d\d, \d+\.\d\d, \d+\.\d\d", where["Load at the start"])
    page.write(tmp_path / "page.md", ["--quick"], where, {"packing": rows, "nixl": rows[:1]}, True)
    text = (tmp_path / "page.md").read_text()
    for value in where.values():
        assert value in text
    assert "`python -m benchmarks.packing --repeats 3`" in text
    assert "    uv run --group integration python -m benchmarks --quick\n" in text
    assert "3 of 4 comparisons have an aim; 2 of them reach it." in text
    assert "| ... tokens that are left | 1,000,000 | 500,000 | x | 0.5x |  |  |" in text
    assert "- packing: 128 MiB, written in place: 1.25 ms, aim < 1 ms\n" in text
    cells = ["merge prefixes, shuffled", "81.2 ms", "2,580 ms", "AReaL 1.0.4", "31.8x", "&gt;= 10x yes"]
    assert f"| {' | '.join(cells)} | tries \\| masks |" in text
    notes = {benchmark.name: benchmark.notes for benchmark in SUITE}
    assert all(f"- {note}" in text for name in ("packing", "nixl") for note in notes[name])
    assert "## stream" not in text


def test_every_benchmark_is_listed_and_says_how_it_is_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.__main__ import main
    from benchmarks.environments import ROOT
    from benchmarks.suite import SUITE

    assert main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert sorted(listed) == sorted(path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py"))
    for benchmark in SUITE:
        assert benchmark.notes
        readme = (benchmark.folder / "README.md").read_text()
        assert f"    uv run --group integration python -m benchmarks {benchmark.name}\n" in readme, (
            benchmark.name
        )
        assert f"# {benchmark.name}:" in readme


def test_requirements_are_pinned_and_lead_to_an_environment_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from benchmarks.environments import environment_folder, interpreter, requirements
    from benchmarks.suite import SUITE

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for benchmark in SUITE:
        lines = [line for file in requirements(benchmark.folder) for line in file.read_text().splitlines()]
        assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines if not line.startswith("#"))
    own = tmp_path / "own"
    own.mkdir()
    assert interpreter(own, print, 1.0) == sys.executable
    (own / "requirements.txt").write_text("one==1\n")
    before = environment_folder(own)
    assert before.is_relative_to(tmp_path / "cache")
    assert environment_folder(own) == before
    (own / "requirements-no-deps.txt").write_text("two==2\n")
    assert environment_folder(own) != before


def test_an_environment_that_cannot_be_built_is_an_error_with_uvs_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from benchmarks.environments import EnvironmentBuildError, environment_folder, interpreter

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    own = tmp_path / "own"
    own.mkdir()
    (own / "requirements.txt").write_text("this is no requirement\n")
    said: list[str] = []
    for _ in range(2):  # what is half built is not taken for an environment
        with pytest.raises(
            EnvironmentBuildError, match=r"(?s)pip install.*status \d+\n.*this is no requirement"
        ):
            interpreter(own, said.append, 60.0)
    assert [str(environment_folder(own)) in text for text in said] == [True, True]
