"""What a run prints and leaves in its folder."""

import asyncio
import contextlib
import io
import json
import shlex
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

import art
from art.errors import ConfigError
from art.reporting import ReportError, RunFinishedError, RunReport
from art.reporting.page.load import load_run
from art.reporting.run_folder import RunDescription, read_run

NAMES = {"sampler_difference_mean": 1.5e-6, "sampler_difference_p99": 8e-6}


class OtherSettings(msgspec.Struct):
    steps: int = 3
    rate: float = 0.25


async def run_steps(report: RunReport, make_group, *rewards: tuple[float, ...], limit: int = 9) -> None:
    """Takes a step for each tuple of rewards; equal ones move no policy."""
    for step, given in zip(report.steps(limit), rewards, strict=False):
        await report.sampled([make_group(*given, version=report.policy_version)])
        moved = len(set(given)) > 1
        version = report.policy_version + moved
        report.trained(art.TrainResult(version, NAMES if moved else {"skipped": 1.0}))
        if step == len(rewards):
            break


async def test_a_step_is_one_line_with_what_a_user_wants_to_know(open_report, make_group, stream) -> None:
    report = await open_report(summary=lambda groups: f"{sum(map(len, groups))} answers")
    await run_steps(report, make_group, (1.0, 0.5, 0.0, 1.0))
    header, line = stream.getvalue().splitlines()
    assert header.split()[:3] == ["step", "reward", "tokens/s"]
    words = line.split()
    assert words[:2] == ["1", "0.625"]
    assert words[-8:] == ["v0", "->", "v1", "1.5e-06,", "p99", "8.0e-06", "4", "answers"]


async def test_a_step_without_an_update_says_why(open_report, make_group, stream) -> None:
    await run_steps(await open_report(), make_group, (0.5, 0.5))
    assert stream.getvalue().endswith("v0 kept  no step: equal rewards\n")


async def test_without_summaries_there_is_no_column_for_them(open_report, make_group, stream) -> None:
    await run_steps(await open_report(), make_group, (1.0, 0.5))
    assert stream.getvalue().splitlines()[0].endswith("log-prob difference")


async def test_a_run_that_stands_still_is_told_once_what_can_help(open_report, make_group, stream) -> None:
    flat = (0.3, 0.3)
    await run_steps(await open_report(), make_group, (1.0, 0.3), flat, flat, (0.4, 0.3), *[flat] * 5)
    lines = stream.getvalue().splitlines()
    (at,) = (index for index, line in enumerate(lines) if line.startswith("nothing was learned"))
    assert lines[at - 1].split()[0] == "7", "the third step in a row"
    assert "(mean 0.300; the best of this run is 1.000)" in lines[at]
    assert "a higher temperature" in lines[at]


async def test_a_converged_run_is_not_told_that_it_stands_still(open_report, make_group, stream) -> None:
    done = (1.0, 1.0)
    await run_steps(await open_report(), make_group, (1.0, 0.0), (1.0, 0.5), *[done] * 5)
    assert "nothing was learned" not in stream.getvalue()


async def test_metrics_and_trajectories_of_each_step_are_kept(open_report, make_group, read_json) -> None:
    report = await open_report()
    await run_steps(report, make_group, (0.5, 1.0), (0.75, 0.0, 0.0), (0.5, 0.5))
    first, second, third = read_json(report.folder / "metrics.jsonl")
    assert [line["policy_version"] for line in (first, second, third)] == [1, 2, 2]
    assert (first["step"], first["reward"], first["sampler_difference_mean"]) == (1, 0.75, 1.5e-6)
    assert second["tokens_per_s"] == pytest.approx(6 / second["rollout_s"])
    kept = read_json(report.folder / "trajectories" / "step-0002.jsonl")
    assert [(item["reward"], item["step"], item["group"]) for item in kept] == [(0.75, 2, 0)] + [
        (0, 2, 0)
    ] * 2
    # (r - mean) / std of the population, by hand
    assert [item["advantage"] for item in kept] == pytest.approx([2**0.5, -(0.5**0.5), -(0.5**0.5)], rel=1e-4)
    equal = read_json(report.folder / "trajectories" / "step-0003.jsonl")
    assert [item["advantage"] for item in equal] == [None, None]


async def test_trajectories_are_on_disk_before_the_step_is_trained(open_report, make_group) -> None:
    report = await open_report()
    steps = report.steps(1)
    next(steps)
    await report.sampled([make_group(0.5, 1.0)])
    assert (report.folder / "trajectories" / "step-0001.jsonl").exists()
    assert not (report.folder / "metrics.jsonl").exists()


async def test_the_tokens_of_some_rollouts_are_kept(
    open_report, make_group, read_json, tokenizer_folder: Path
) -> None:
    report = await open_report(token_samples=2)
    report.model(tokenizer_folder)
    await run_steps(report, make_group, (0.5, 0.0, 1.0, 0.7))
    kept = read_json(report.folder / "trajectories" / "step-0001.jsonl")
    assert [len(item["exchanges"]) for item in kept] == [0, 1, 1, 0]  # the worst and the best
    (exchange,) = kept[1]["exchanges"]
    alphabet = json.loads((tokenizer_folder / "tokenizer.json").read_text())["model"]["vocab"]
    texts = {index: character for character, index in alphabet.items()}
    assert exchange == {
        "prompt": texts[1] + texts[2] + texts[3],
        "tokens": [texts[5], texts[6]],
        "logprobs": [-0.5, -0.5],
        "versions": [0, 0],
    }


async def test_the_recent_reward_is_the_mean_of_the_last_five_steps(open_report, make_group) -> None:
    report = await open_report()
    rewards = [(0.0, 0.0), (0.0, 0.0), (0.5, 0.5), (0.5, 0.5), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0)]
    seen = []
    for step in report.steps(7):
        await report.sampled([make_group(*rewards[step - 1])])
        report.trained(art.TrainResult(0))
        seen.append(report.recent_reward())
    assert seen == pytest.approx([0, 0, 0, 0, 0.4, 0.6, 0.8])


async def test_steps_end_when_the_reward_is_enough(open_report, make_group) -> None:
    report = await open_report()
    taken = []
    for step in report.steps(20, enough=0.9):
        await report.sampled([make_group(1.0, 1.0)])
        report.trained(art.TrainResult(0))
        taken.append(step)
    assert taken == [1, 2, 3, 4, 5]


async def test_calls_out_of_order_are_refused(open_report, make_group) -> None:
    report = await open_report()
    with pytest.raises(ReportError, match="no step was begun"):
        report.trained(art.TrainResult(1))
    steps = report.steps(2)
    next(steps)
    with pytest.raises(ReportError, match="not sampled"):
        report.trained(art.TrainResult(1))
    with pytest.raises(ReportError, match="not finished"):
        next(steps)


async def test_a_version_that_does_not_follow_is_refused(open_report, make_group) -> None:
    report = await open_report()
    next(report.steps(1))
    await report.sampled([make_group(0.0, 1.0)])
    with pytest.raises(ReportError, match=r"led to policy v5; the run was at v0\..*for _ in report\.steps"):
        report.trained(art.TrainResult(5))


async def break_in(report: RunReport, make_group, error: BaseException) -> None:
    async with report:
        await run_steps(report, make_group, (0.75, 0.5))
        raise error


async def test_the_folder_is_named_last_also_after_an_error(make_report, make_group, stream) -> None:
    report = make_report()
    with pytest.raises(RuntimeError, match="broken"):
        await break_in(report, make_group, RuntimeError("broken"))
    *_, end, page, folder = stream.getvalue().splitlines()
    assert end.startswith("failed after 1 step and 0 s, mean reward 0.625 over the last 1")
    assert page == f"report: {report.folder / 'report.html'}"
    assert folder == f"run folder: {report.folder}"
    assert not read_run(report.folder).finished


async def test_a_stopped_run_says_how_to_go_on(make_report, make_group, stream, tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    async with interrupted(make_report(folder=folder, resume_command="my resume")) as report:
        await run_steps(report, make_group, (0.5, 1.0))
        make_group.add_generation(report.folder, 1)
    assert f"\ngo on with: my resume '{folder}'\nrun folder: {folder}\n" in stream.getvalue()
    assert "\nstopped after 1 step and 0 s, mean reward 0.750" in stream.getvalue()


async def test_to_go_on_is_offered_wherever_the_run_can_be_resumed(
    make_report, make_group, stream, tmp_path: Path
) -> None:
    async with make_report(folder=tmp_path / "finished", resume_command="my resume") as report:
        await run_steps(report, make_group, (0.5, 0.5))
    async with interrupted(make_report(folder=tmp_path / "lost", resume_command="my resume")) as report:
        await run_steps(report, make_group, (0.5, 1.0), (0.5, 1.0))
        make_group.add_generation(report.folder, 1)
        make_group.add_generation(report.folder, 2)
        await run_steps(report, make_group, (0.5, 0.5))  # sees them on disk
        shutil.rmtree(report.folder / "generations")
    assert "go on with" not in stream.getvalue()
    async with interrupted(make_report(folder=tmp_path / "no step", resume_command="my resume")):
        pass
    async with interrupted(make_report(folder=tmp_path / "no policy", resume_command="my resume")) as report:
        await run_steps(report, make_group, (0.5, 1.0))  # its generation was not committed
    async with interrupted(make_report(folder=tmp_path / "base", resume_command="my resume")) as report:
        await run_steps(report, make_group, (0.5, 0.5))  # its policy is the base model's still
    runs = (("no step", 0), ("no policy", 0), ("base", 1))
    for name, _ in runs:
        assert f"go on with: my resume {shlex.quote(str(tmp_path / name))}\n" in stream.getvalue()
    for name, done in runs:
        stream.truncate(0)
        async with make_report(folder=tmp_path / name, resume=True) as report:
            assert report.steps_done == done
        assert ("it begins again from its start" in stream.getvalue()) == (done == 0)


async def test_a_run_without_a_step_leaves_no_page(make_report, stream: io.StringIO) -> None:
    async with make_report() as report:
        pass
    assert not (report.folder / "report.html").exists()
    assert stream.getvalue() == f"ended after 0 steps and 0 s\nrun folder: {report.folder}\n"
    assert read_run(report.folder).finished


async def test_phases_are_lines_and_progress_is_shown_where_something_is_fetched(
    open_report, stream: io.StringIO, read_json
) -> None:
    report = await open_report()
    with report.phase("model", fetches=True) as phase:
        report.progress("12 MB fetched")
        phase.detail = "kept in ~/.cache/art"
    with report.phase("vLLM"):
        report.progress("starting the engine")
    assert [line.split(": ready")[0] for line in stream.getvalue().splitlines()] == [
        "model ...",
        "  12 MB fetched",
        "model",
        "vLLM ...",
        "vLLM",
    ]
    assert "s (kept in ~/.cache/art)\n" in stream.getvalue()
    assert [line["name"] for line in read_json(report.folder / "phases.jsonl")] == ["model", "vLLM"]


async def test_a_phase_that_fails_is_not_called_ready(open_report, stream: io.StringIO) -> None:
    report = await open_report()
    with pytest.raises(OSError, match="full"), report.phase("vLLM"):
        raise OSError("full")
    assert "ready" not in stream.getvalue()
    assert "vLLM: failed after 0." in stream.getvalue()
    assert not (report.folder / "phases.jsonl").exists()


async def answer(reward: float) -> art.Trajectory:
    return art.Trajectory(messages_and_choices=[{"role": "user", "content": "?"}], reward=reward)


async def test_an_evaluation_is_kept_and_not_repeated_for_the_same_policy(
    open_report, stream: io.StringIO, read_json
) -> None:
    report = await open_report()
    assert await report.evaluate("held-out", (answer(reward) for reward in (0.0, 0.5))) == 0.25

    def fail():
        raise AssertionError("asked for rollouts again")
        yield

    assert await report.evaluate("held-out", fail()) == 0.25
    (line,) = read_json(report.folder / "evaluations.jsonl")
    assert (line["name"], line["step"], line["policy_version"], line["reward"], line["trajectories"]) == (
        ("held-out", 0, 0, 0.25, 2)
    )
    assert len(read_json(report.folder / "trajectories" / "held-out-0000.jsonl")) == 2
    assert "held-out: reward 0.250 over 2 answers of policy v0" in stream.getvalue()


async def test_an_evaluation_that_fails_leaves_nothing(open_report) -> None:
    report = await open_report()
    cancelled = asyncio.Event()

    async def waits() -> art.Trajectory:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        raise AssertionError

    async def breaks() -> art.Trajectory:
        await asyncio.sleep(0)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await report.evaluate("held-out", [waits(), breaks()])
    assert cancelled.is_set()
    assert not (report.folder / "evaluations.jsonl").exists()


async def test_an_evaluation_s_file_has_no_spaces_in_its_name_and_is_its_own(open_report) -> None:
    report = await open_report()
    await report.evaluate("held-out questions", [answer(0.5)])
    assert [path.name for path in (report.folder / "trajectories").iterdir()] == [
        "held-out-questions-0000.jsonl"
    ]
    (file,) = load_run(report.folder).files
    assert (file.name, file.number) == ("held-out questions", 0)
    with pytest.raises(
        ConfigError, match=r"'held-out questions' and 'held-out-questions' would both be kept in"
    ):
        await report.evaluate("held-out-questions", (answer(0.5) for _ in range(1)))


@pytest.mark.parametrize("name", ["../x", "", "step", "step-1", "step 1", "a/b", ".hidden"])
async def test_an_evaluation_s_name_must_do_for_a_file(open_report, name: str) -> None:
    report = await open_report()
    with pytest.raises(ConfigError, match="name"):
        await report.evaluate(name, (answer(0.0) for _ in range(1)))


async def test_the_description_says_what_the_run_is(open_report, tokenizer_folder: Path) -> None:
    report = await open_report()
    report.model(tokenizer_folder, "Tiny")
    description = read_run(report.folder)
    assert isinstance(description, RunDescription)
    assert (description.name, description.model, description.model_folder) == (
        ("name", "Tiny", str(tokenizer_folder))
    )
    assert description.settings == {"steps": 3, "rate": 0.5}  # its folder and resumption are no settings
    assert description.art_version == art.__version__


@contextlib.asynccontextmanager
async def interrupted(report: RunReport) -> AsyncIterator[RunReport]:
    """Lets the run end with an interrupt instead of finishing."""
    with contextlib.suppress(KeyboardInterrupt):
        async with report:
            yield report
            raise KeyboardInterrupt


async def stopped_run(make_report, make_group, tokenizer_folder: Path) -> Path:
    """A run that was interrupted after three steps, all of whose policies are durable."""
    async with interrupted(make_report()) as report:
        report.model(tokenizer_folder)
        await report.evaluate("held-out", [answer(0.0)])
        await run_steps(report, make_group, (0.5, 1.0), (0.5, 0.5), (0.25, 0.75))
    make_group.add_generation(report.folder, 1)
    make_group.add_generation(report.folder, 2)
    return report.folder


async def test_a_stopped_run_goes_on_after_its_last_step(
    make_report, make_group, read_json, stream: io.StringIO, tokenizer_folder: Path
) -> None:
    folder = await stopped_run(make_report, make_group, tokenizer_folder)
    before = [line["elapsed_s"] for line in read_json(folder / "metrics.jsonl")]
    stream.truncate(0)
    async with make_report(resume=True) as report:
        assert (report.steps_done, report.policy_version) == (3, 2)
        report.model(tokenizer_folder)
        taken = []
        for step in report.steps(5):
            await report.sampled([make_group(0.0, 1.0, version=report.policy_version)])
            report.trained(art.TrainResult(report.policy_version + 1))
            taken.append(step)
    assert taken == [4, 5]
    lines = read_json(folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert lines[3]["elapsed_s"] >= before[-1]
    assert stream.getvalue().lstrip("\0").startswith(f"resuming after step 3, from policy v2: {folder}\n")


async def test_steps_whose_policy_was_not_durable_are_rolled_back(
    make_report, open_report, make_group, read_json, stream: io.StringIO, tokenizer_folder: Path
) -> None:
    folder = await stopped_run(make_report, make_group, tokenizer_folder)
    shutil.rmtree(folder / "generations" / f"step-00000002-{2:032x}")
    report = await open_report(resume=True)
    assert (report.steps_done, report.policy_version) == (2, 1)
    assert "step 3 rolled back: the newest durable policy is v1\n" in stream.getvalue()
    assert len(read_json(folder / "metrics.jsonl")) == 2
    assert sorted(path.name for path in (folder / "trajectories").iterdir()) == [
        "held-out-0000.jsonl",
        "step-0001.jsonl",
        "step-0002.jsonl",
    ]


async def test_a_lost_line_is_written_again(
    make_report, open_report, make_group, read_json, stream: io.StringIO, tokenizer_folder: Path
) -> None:
    folder = await stopped_run(make_report, make_group, tokenizer_folder)
    metrics = folder / "metrics.jsonl"
    whole = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join(whole[:2]) + whole[2][:20])  # killed while it was written
    report = await open_report(resume=True)
    assert (report.steps_done, report.policy_version) == (3, 2)
    third = read_json(metrics)[2]
    assert (third["step"], third["policy_version"], third["reward"], third["restored"]) == (3, 2, 0.5, 1)
    assert "step 3 was trained and its line lost" in stream.getvalue()


async def test_an_evaluation_of_a_policy_that_is_gone_is_dropped(
    make_report, make_group, read_json, tokenizer_folder: Path
) -> None:
    folder = await stopped_run(make_report, make_group, tokenizer_folder)
    async with interrupted(make_report(resume=True)) as report:
        await report.evaluate("held-out", [answer(1.0)])
    assert [line["policy_version"] for line in read_json(folder / "evaluations.jsonl")] == [0, 2]
    generation = folder / "generations" / f"step-00000002-{2:032x}"
    generation.rename(generation.with_name(f"damaged-{generation.name}"))
    async with interrupted(make_report(resume=True)):
        assert [line["policy_version"] for line in read_json(folder / "evaluations.jsonl")] == [0]
    assert not (folder / "trajectories" / "held-out-0002.jsonl").exists()


async def test_what_contradicts_the_run_is_refused(
    make_report, open_report, make_group, tokenizer_folder: Path
) -> None:
    await stopped_run(make_report, make_group, tokenizer_folder)
    with pytest.raises(ConfigError, match=r"rate is 0\.25 now and 0\.5 in the run"):
        await open_report(resume=True, settings=OtherSettings())
    report = await open_report(resume=True)
    with (tokenizer_folder / "model.safetensors").open("r+b") as file:
        file.write(b"W")
    with pytest.raises(ConfigError, match="is another or was changed"):
        report.model(tokenizer_folder)


async def test_a_finished_run_is_not_resumed(make_report, open_report, make_group) -> None:
    async with make_report() as report:
        await run_steps(report, make_group, (0.5, 1.0))
    with pytest.raises(
        RunFinishedError,
        match=r"finished after 1 step; there is nothing to resume\. To go on .* take more than 3 steps",
    ):
        await open_report(resume=True)


@pytest.mark.parametrize("content", [None, {"other.txt": "x"}, {"run.json": "{}"}])
async def test_a_folder_that_is_no_run_is_not_resumed(open_report, tmp_path: Path, content) -> None:
    folder = tmp_path / "folder"
    if content is not None:
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text)
    before = sorted(folder.rglob("*"))
    with pytest.raises(ConfigError, match="is no run's folder"):
        await open_report(folder=folder, resume=True)
    assert sorted(folder.rglob("*")) == before
