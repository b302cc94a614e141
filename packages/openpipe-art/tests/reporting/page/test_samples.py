"""Which trajectories the page shows, and how small they are written."""

import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art.reporting.page.load import Evaluation, Exchange, Phase, Rollout, TrajectoryFile
from art.reporting.page.samples import LEAST_PER_FILE, choose_samples
from art.reporting.run_folder import EvaluationLine, ExchangeLine, PhaseLine, TrajectoryLine, append_lines


def said(prompt: str, *tokens: str) -> ExchangeLine:
    return ExchangeLine(
        prompt=prompt, tokens=tokens, logprobs=(-0.5,) * len(tokens), versions=(3,) * len(tokens)
    )


def files(folder: Path, *contents: list[TrajectoryLine]) -> list[TrajectoryFile]:
    made = []
    for number, content in enumerate(contents, start=1):
        path = folder / f"step-{number:04}.jsonl"
        append_lines(path, content)
        made.append(TrajectoryFile(path, "step", number))
    return made


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(Rollout, TrajectoryLine), (Exchange, ExchangeLine), (Evaluation, EvaluationLine), (Phase, PhaseLine)],
)
def test_what_is_read_has_the_names_of_what_is_written(
    ours: type[msgspec.Struct], theirs: type[msgspec.Struct]
) -> None:
    assert set(ours.__struct_fields__) <= set(theirs.__struct_fields__)


def test_rollouts_with_tokens_come_first_one_of_each_group_in_turn(tmp_path: Path) -> None:
    content = [
        TrajectoryLine(
            step=1,
            group=group,
            reward=float(index),
            exchanges=(said("p", "x" * 250),) if index % 2 else (),
            metadata={"padding": f"{group} {index} " + "y" * 200},
        )
        for group, index in itertools.product(range(3), range(6))
    ]
    row = len(msgspec.json.encode(content[1]))
    samples = choose_samples(files(tmp_path, content), budget=7 * row)
    shown = [(item["g"], item["r"]) for item in samples.sets[0]["rows"]]
    with_tokens = [(group, index) for index in (1.0, 3.0, 5.0) for group in range(3)]
    assert 3 <= len(shown) < 18
    assert shown == sorted(with_tokens[: len(shown)])
    assert (samples.total, samples.tokens_kept, samples.shown) == (18, 9, len(shown))


def test_a_prompt_that_goes_on_is_written_as_what_it_adds(tmp_path: Path) -> None:
    first, second = "Question?", "Question? call(2)<result>4</result>"
    content = [
        TrajectoryLine(
            step=1, group=0, reward=1.0, exchanges=(said(first, " call", "(2)"), said(second, "4"))
        ),
        TrajectoryLine(step=1, group=0, reward=0.0, exchanges=(said(first, "5"), said("Another?", "6"))),
    ]
    samples = choose_samples(files(tmp_path, content))
    prompts = [[samples.texts[part["p"][0]] for part in row["x"]] for row in samples.sets[0]["rows"]]
    assert prompts == [[first, "<result>4</result>"], [first, "Another?"]]
    assert len(samples.texts) == 3


def test_one_rollout_that_is_too_long_is_cut_and_says_how_much_is_missing(tmp_path: Path) -> None:
    content = [TrajectoryLine(step=1, group=0, reward=1.0, exchanges=(said("p" * 9000, *["token"] * 5000),))]
    samples = choose_samples(files(tmp_path, content), budget=8000)
    (part,) = samples.sets[0]["rows"][0]["x"]
    index, characters_cut = part["p"]
    assert len(samples.texts[index]) + characters_cut == 9000
    assert len(part["t"]) + part["cut"] == 5000
    assert len(part["t"]) == len(part["l"]) == sum(count for _, count in part["v"])
    assert len(msgspec.json.encode([samples.sets, samples.texts])) < 12_000


def test_of_too_many_files_evenly_spaced_ones_are_shown_with_the_first_and_the_last(tmp_path: Path) -> None:
    content = [[TrajectoryLine(step=step, group=0, reward=float(step))] for step in range(1, 101)]
    samples = choose_samples(files(tmp_path, *content), budget=5 * LEAST_PER_FILE)
    assert [found["number"] for found in samples.sets] == [1, 26, 51, 75, 100]
    assert len(samples.summaries) == samples.total == 100


@settings(deadline=None)
@given(
    shape=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 300)), min_size=1, max_size=30
    ),
    budget=st.integers(LEAST_PER_FILE, 40_000),
)
def test_shown_rollouts_are_a_part_of_all_in_their_order_and_keep_to_the_budget(
    tmp_path_factory: pytest.TempPathFactory, shape: list[tuple[int, int, int]], budget: int
) -> None:
    content = [
        TrajectoryLine(
            step=1,
            group=group,
            reward=float(index),
            exchanges=(said("p" * length, *["t"] * tokens),) if tokens else (),
        )
        for index, (group, tokens, length) in enumerate(shape)
    ]
    samples = choose_samples(files(tmp_path_factory.mktemp("run"), content), budget)
    order = [item["r"] for item in samples.sets[0]["rows"]]
    assert order == sorted(order)
    assert 1 <= len(order) == samples.shown <= samples.total == len(shape)
    assert len(msgspec.json.encode([samples.sets[0]["rows"], samples.texts])) <= budget + 100 * len(shape)
    if len(order) < len(shape):
        assert samples.tokens_shown == samples.shown or samples.tokens_shown == samples.tokens_kept
