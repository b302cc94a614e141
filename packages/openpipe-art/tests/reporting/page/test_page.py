"""The page of a run: it holds everything, loads nothing, and shows what a run said as text."""

import base64
import hashlib
import html.parser
import json
import math
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest

from art.errors import ArtError
from art.reporting.page import PageError, figures, write_report
from art.reporting.run_folder import (
    EVALUATIONS,
    METRICS,
    PHASES,
    REPORT,
    RUN,
    TRAJECTORIES,
    ExchangeLine,
    Stop,
    TrajectoryLine,
    append_lines,
    step_file,
)

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--",
    "<img src=x onerror=alert(1)>",
    "]]>",
    "&lt;b&gt;&amp;",
    "\"'`",
    "{{script}}",
    "\n",
    "\r\n",
    "\t",
    "\x00\x07\x1b[31m\x7f",
    "\u202eevil\u202c\u200b\u2028\ufeff",
    "👩‍👩‍👧",
    "שלום עולם",
    "",
    " ",
)


class Parsed(html.parser.HTMLParser):
    """Every element in order with its attributes, and the text of each kind of element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._owner = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._owner = tag

    def handle_endtag(self, tag: str) -> None:
        self._owner = ""

    def handle_data(self, data: str) -> None:
        self.texts.append((self._owner, data))

    def text(self, tag: str) -> str:
        return "".join(text for owner, text in self.texts if owner == tag)

    def all_text(self) -> str:
        return " ".join(text for owner, text in self.texts if owner not in ("script", "style"))

    def scripts(self) -> list[tuple[dict[str, str | None], str]]:
        """The script elements with their text."""
        attributes = [found for tag, found in self.elements if tag == "script"]
        texts = [text for owner, text in self.texts if owner == "script" and text.strip()]
        return list(zip(attributes, texts, strict=True))

    def data(self) -> dict[str, Any]:
        """What the page's script reads."""
        attributes, text = self.scripts()[0]
        assert attributes == {"type": "application/json", "id": "data"}
        return json.loads(text)


def page_of(folder: Path) -> Parsed:
    return Parsed(write_report(folder).read_text(encoding="utf-8"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for found in data["sets"] for row in found["rows"]]


def test_the_page_loads_nothing_and_forbids_itself_to(run_of: Callable[..., Path]) -> None:
    page = page_of(run_of(3))
    meta = [found for tag, found in page.elements if tag == "meta"]
    assert meta[0] == {"charset": "utf-8"}
    assert meta[1]["http-equiv"] == "Content-Security-Policy"
    policy = dict(part.split(" ", 1) for part in (meta[1]["content"] or "").split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["base-uri"] == policy["form-action"] == "'none'"
    ((_, script),) = page.scripts()[1:]
    for name, text in (("script-src", script), ("style-src", page.text("style"))):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[name] == f"'sha256-{digest}'"
    attributes = {name for _, found in page.elements for name in found}
    assert attributes.isdisjoint({"src", "href", "srcset", "action", "style", "data", "ping"})
    assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"https?:|url\(|@import", page.text("style"))


def test_no_script_writes_html_or_asks_the_network() -> None:
    folder = resources.files("art.reporting.page") / "assets"
    scripts = [item for item in folder.iterdir() if item.name.endswith(".js")]
    assert len(scripts) == 7
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|fetch\(|XMLHttp|import\b"
    )
    for item in scripts:
        text = item.read_text(encoding="utf-8")
        assert forbidden.search(text) is None, item.name
        assert "</script" not in text


def test_every_number_of_the_run_is_in_the_page(run_of: Callable[..., Path]) -> None:
    folder = run_of(6)
    data = page_of(folder).data()
    steps = lines(folder / METRICS)
    for name in {name for step in steps for name in step}:
        assert data["steps"][name] == [step.get(name) for step in steps], name
    assert data["evaluations"] == lines(folder / EVALUATIONS)
    assert data["phases"] == lines(folder / PHASES)
    written = [line for path in sorted((folder / TRAJECTORIES).glob("step-*")) for line in lines(path)]
    shown = [row for found in data["sets"] if found["training"] for row in found["rows"]]
    assert [(row["g"], row["r"], row["a"]) for row in shown] == [
        (line["group"], line["reward"], line["advantage"]) for line in written
    ]
    for row, line in zip(shown, written, strict=True):
        assert {name: data["texts"][value[0]] for name, value in row["d"].items()} == line["metadata"]
        assert row["m"] == line["metrics"]
        for part, exchange in zip(row.get("x", []), line["exchanges"], strict=True):
            assert data["texts"][part["p"][0]] == exchange["prompt"]
            assert part["t"] == exchange["tokens"]
            assert part["l"] == pytest.approx(exchange["logprobs"], rel=1e-4)
            versions = [version for version, count in part["v"] for _ in range(count)]
            assert versions == exchange["versions"]


def test_the_header_holds_the_key_figures(run_of: Callable[..., Path]) -> None:
    folder = run_of(12)
    steps, (before, after) = lines(folder / METRICS), lines(folder / EVALUATIONS)
    text = page_of(folder).all_text()
    logical = sum(step["logical_tokens"] for step in steps)
    for expected in (
        "yes-no-maybe",
        "SmolLM2-135M-Instruct",
        "openpipe-art 0.1.0",
        "2026-11-30 00:53 UTC",
        f"{steps[0]['reward']:.3f} → {steps[-1]['reward']:.3f}",
        f"{before['reward']:.3f} → {after['reward']:.3f}",
        f"{sum(bool(step['skipped']) for step in steps)} had nothing to learn from",
        f"{logical / 1e3:.1f} k",
        "0.0005",
    ):
        assert expected in text
    assert "not finished" not in text


def test_what_a_run_said_is_never_markup(maker: Any, tmp_path: Path) -> None:
    def run_with(folder: Path, texts: tuple[str, ...]) -> Path:
        own = type(maker)(folder)
        name = "".join(texts)
        own.describe(name=name, model=name, art_version=name, settings={name: name})
        append_lines(folder / METRICS, [{"step": 1.0, "reward": 1.0, name: 3.0}])
        exchange = ExchangeLine(
            prompt=name, tokens=texts, logprobs=(-1.0,) * len(texts), versions=(0,) * len(texts)
        )
        line = TrajectoryLine(
            step=1, group=0, reward=1.0, metadata={name: name}, metrics={name: 1.0}, exchanges=(exchange,)
        )
        append_lines(step_file(folder, 1), [line])
        return folder

    plain = page_of(run_with(tmp_path / "plain", ("word",) * len(HOSTILE)))
    hostile = page_of(run_with(tmp_path / "hostile", HOSTILE))
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert hostile.scripts()[1] == plain.scripts()[1]
    data = hostile.data()
    (row,) = rows(data)
    whole = "".join(HOSTILE)
    assert tuple(row["x"][0]["t"]) == HOSTILE
    assert data["texts"] == [whole]
    assert (row["m"], row["d"]) == ({whole: 1.0}, {whole: [0]})
    assert data["steps"][whole] == [3.0]
    heading = hostile.text("bdi")
    assert "</script><script>alert(1)</script><!--<img src=x" in heading
    assert "[U+202E]evil[U+202C]" in heading
    assert "[U+0000][U+0007][U+001B][31m[U+007F]" in heading


def test_a_run_without_a_finished_step_has_a_page(run_of: Callable[..., Path]) -> None:
    page = page_of(run_of(0))
    assert "no step is finished" in page.all_text()
    assert page.data()["steps"] == {}
    assert [found["name"] for found in page.data()["sets"]] == ["held-out"]


def test_a_folder_with_nothing_but_its_description_has_a_page(maker: Any) -> None:
    maker.describe(model="", model_folder="", finished=False)
    (maker.folder / TRAJECTORIES).rmdir()
    page = page_of(maker.folder)
    assert "its process was killed" in page.all_text()
    assert page.data()["counts"]["total"] == 0


def test_one_step_is_shown_as_one(run_of: Callable[..., Path]) -> None:
    folder = run_of(1)
    page = page_of(folder)
    (step,) = lines(folder / METRICS)
    assert page.data()["steps"]["reward"] == [step["reward"]]
    assert "mean of the one step" in page.all_text()


def test_numbers_that_are_not_finite_are_left_blank(maker: Any) -> None:
    maker.describe()
    append_lines(maker.folder / METRICS, [{"step": 1.0, "reward": math.nan, "loss": math.inf}])
    exchange = ExchangeLine(prompt="p", tokens=("a", "b"), logprobs=(-math.inf, -0.5), versions=(0, 0))
    append_lines(
        step_file(maker.folder, 1),
        [TrajectoryLine(step=1, group=0, reward=math.nan, advantage=math.nan, exchanges=(exchange,))],
    )
    page = page_of(maker.folder)
    assert page.data()["steps"]["reward"] == page.data()["steps"]["loss"] == [None]
    (row,) = rows(page.data())
    assert (row["r"], row["a"], row["x"][0]["l"]) == (None, None, [None, -0.5])


def test_an_unfinished_last_line_is_left_out(run_of: Callable[..., Path]) -> None:
    folder = run_of(2)
    with (folder / METRICS).open("ab") as file:
        file.write(b'{"step":3.0,"rew')
    with step_file(folder, 2).open("ab") as file:
        file.write(b'{"step":2,"group"')
    data = page_of(folder).data()
    assert data["steps"]["step"] == [1.0, 2.0]
    assert data["summaries"][1]["count"] == len(lines_of(step_file(folder, 2)))


def lines_of(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def test_trajectories_of_a_step_that_was_not_finished_are_not_shown(run_of: Callable[..., Path]) -> None:
    folder = run_of(2)
    append_lines(step_file(folder, 3), [TrajectoryLine(step=3, group=0, reward=1.0)])
    assert [found["number"] for found in page_of(folder).data()["sets"] if found["training"]] == [1, 2]


def test_a_restored_step_has_the_numbers_that_it_kept(run_of: Callable[..., Path]) -> None:
    folder = run_of(2)
    restored = {"step": 3.0, "policy_version": 3.0, "reward": 0.5, "elapsed_s": 30.0, "restored": 1.0}
    append_lines(folder / METRICS, [restored])
    page = page_of(folder)
    assert page.data()["steps"]["reward"][2] == 0.5
    assert page.data()["steps"]["rollout_s"][2] is None
    assert "1 restored after a kill" in page.all_text()


def test_equal_rewards_and_no_kept_tokens_and_no_evaluation_are_shown(maker: Any) -> None:
    maker.describe()
    append_lines(maker.folder / METRICS, [{"step": float(step), "reward": 0.5} for step in (1, 2, 3)])
    append_lines(
        step_file(maker.folder, 1),
        [TrajectoryLine(step=1, group=0, reward=0.5, metadata={"answer": "no"})] * 4,
    )
    page = page_of(maker.folder)
    assert "0.500 → 0.500" in page.all_text()
    assert (page.data()["counts"]["tokens_kept"], page.data()["evaluations"]) == (0, [])
    summary = page.data()["summaries"][0]
    assert (summary["reward_low"], summary["reward_high"]) == (0.5, 0.5)
    assert page.data()["summaries"][1:] == [None, None]


def test_the_middle_half_of_the_rewards_is_of_all_rollouts(maker: Any) -> None:
    maker.describe()
    append_lines(maker.folder / METRICS, [{"step": 1.0, "reward": 2.0}])
    rewards = (0.0, 1.0, 2.0, 3.0, 4.0)
    append_lines(
        step_file(maker.folder, 1), [TrajectoryLine(step=1, group=0, reward=reward) for reward in rewards]
    )
    summary = page_of(maker.folder).data()["summaries"][0]
    assert (summary["reward_low"], summary["reward_high"]) == (1.0, 3.0)


def test_a_report_is_replaced_whole_and_leaves_nothing_beside_it(run_of: Callable[..., Path]) -> None:
    folder = run_of(1)
    before = {path.name for path in folder.iterdir()}
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first
    assert {path.name for path in folder.iterdir()} - before == {REPORT}


def test_what_is_missing_or_broken_is_named(run_of: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"there is no run folder .*nowhere"):
        write_report(tmp_path / "nowhere")
    folder = run_of(2)
    with (folder / METRICS).open("ab") as file:
        file.write(b'{"step":"three"}\n')
    with pytest.raises(PageError, match=r"metrics\.jsonl, line 3: .*float"):
        write_report(folder)
    (folder / RUN).write_bytes(b"{}")
    with pytest.raises(PageError, match=r"run\.json cannot be read: .*name"):
        write_report(folder)
    (folder / RUN).unlink()
    with pytest.raises(PageError, match=r"it has no run\.json"):
        write_report(folder)
    assert issubclass(PageError, ArtError)


def test_a_page_that_cannot_be_written_is_an_error_and_leaves_nothing(run_of: Callable[..., Path]) -> None:
    folder = run_of(1)
    (folder / REPORT).mkdir()
    names = {path.name for path in folder.iterdir()}
    with pytest.raises(PageError, match=r"report\.html cannot be written"):
        write_report(folder)
    assert {path.name for path in folder.iterdir()} == names


def test_a_demo_run_stays_below_a_megabyte(run_of: Callable[..., Path]) -> None:
    assert write_report(run_of(25)).stat().st_size < 1_000_000


def test_a_thousand_steps_and_ten_thousand_long_rollouts_stay_below_five_megabytes(maker: Any) -> None:
    maker.describe()
    words = tuple(f" word{index}" for index in range(300))
    exchange = ExchangeLine(prompt="p" * 900, tokens=words, logprobs=(-1.23456,) * 300, versions=(0,) * 300)
    rollouts = [
        TrajectoryLine(step=1, group=index // 5, reward=index / 10, advantage=0.1, exchanges=(exchange,))
        for index in range(10)
    ]
    written = msgspec.json.Encoder().encode_lines(rollouts)
    for step in range(1, 1001):
        metrics = maker.metrics(step, step, [maker.rollouts(1, 0, 0.5, 1, 1, 0)[0]], skipped=False)
        append_lines(maker.folder / METRICS, [metrics])
        step_file(maker.folder, step).write_bytes(written)
    page = write_report(maker.folder)
    assert page.stat().st_size < 5_000_000
    data = Parsed(page.read_text(encoding="utf-8")).data()
    assert len(data["steps"]["reward"]) == len(data["summaries"]) == 1000
    assert data["counts"]["total"] == data["counts"]["tokens_kept"] == 10_000
    assert data["counts"]["shown"] == len(rows(data)) >= 1000


def test_three_hundred_steps_of_64_rollouts_stay_below_five_megabytes(maker: Any) -> None:
    folder = maker.run(300, groups=8, samples=8, with_tokens=8)
    page = write_report(folder)
    assert page.stat().st_size < 5_000_000
    counts = Parsed(page.read_text(encoding="utf-8")).data()["counts"]
    assert counts["total"] == 300 * 64 + 2 * 32
    assert 10_000 < counts["shown"] < counts["total"], "what is left out is told by the page's script"


@pytest.mark.parametrize("hostile", HOSTILE)
def test_how_a_run_ended_is_text(maker: Any, hostile: str) -> None:
    maker.describe(
        finished=False,
        stop=Stop(reason="failed", doing=f"step 1, {hostile}", kind="Error", message=f"a {hostile} z"),
        resume_command=f"my {hostile}",
    )
    page = page_of(maker.folder)
    assert [tag for tag, _ in page.elements if tag in ("img", "b")] == []
    assert len(page.scripts()) == 2
    assert "Failed in step 1" in page.all_text()
    assert "No step is on disk to go on from" in page.all_text()


def test_the_models_name_is_short_and_its_folder_is_there_to_be_seen(maker: Any) -> None:
    key = "34e7a542fe420fa0223e339525e6a030"
    maker.describe(model=f"smollm2-135m-instruct-{key}", model_folder=f"/cache/smollm2-135m-instruct-{key}")
    page = page_of(maker.folder)
    assert "smollm2-135m-instruct \u00b7 started" in " ".join(page.all_text().split())
    titles = [
        attributes["title"] for tag, attributes in page.elements if tag == "bdi" and "title" in attributes
    ]
    assert titles == [f"/cache/smollm2-135m-instruct-{key}"]
    maker.describe(model="Llama-3.2-1B-Instruct")
    assert "Llama-3.2-1B-Instruct" in page_of(maker.folder).all_text()


def test_the_time_of_the_parts_is_never_more_than_that_of_the_run(maker: Any) -> None:
    folder = maker.run(6)
    steps = lines(folder / METRICS)
    parts = sum(line["duration_s"] for name in (PHASES, EVALUATIONS) for line in lines(folder / name))
    parts += sum(step["rollout_s"] + step["train_s"] for step in steps)
    data = page_of(folder).data()
    assert data["whole_s"] == pytest.approx(max(parts, steps[-1]["elapsed_s"]))
    maker.describe(elapsed_s=parts + 12.5)  # as a run says at its end
    page = page_of(folder)
    assert page.data()["whole_s"] == pytest.approx(parts + 12.5)
    assert figures.duration(parts + 12.5) in page.all_text()


def test_sampled_tokens_and_those_with_prompts_are_told_apart(run_of: Callable[..., Path]) -> None:
    folder = run_of(12)
    steps = lines(folder / METRICS)
    sampled = sum(step["loss_entries"] for step in steps)
    text = page_of(folder).all_text()
    assert f"Sampled tokens trained on {sampled:,.0f}" in " ".join(text.split())
    assert "with their prompts" in text


def test_few_rewards_are_counted_and_many_are_not(maker: Any, tmp_path: Path) -> None:
    folder = maker.run(4)
    shares = page_of(folder).data()["shares"]
    written = [lines(step_file(folder, step)) for step in range(1, 5)]
    assert shares["rewards"] == sorted({line["reward"] for step in written for line in step})
    for reward, found in zip(shares["rewards"], shares["shares"], strict=True):
        assert found == [sum(line["reward"] == reward for line in step) / len(step) for step in written]
    path = step_file(folder, 2)
    changed = [line | {"reward": 0.01 * index} for index, line in enumerate(lines(path))]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in changed))
    assert page_of(folder).data()["shares"] is None
