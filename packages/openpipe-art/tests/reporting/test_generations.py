"""Policies that were on disk and are gone or damaged: a resumption is refused and touches nothing."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import art
from art.errors import ConfigError
from art.reporting import RunReport, read_resumable, read_state, state_lines
from art.reporting.page import write_report
from art.reporting.run_folder import read_run, read_steps

STEPS = 6


@pytest.fixture(params=["finished", "interrupted", "killed"])
async def run(
    request: pytest.FixtureRequest, make_report: Callable[..., RunReport], make_group: Callable
) -> Path:
    """A run of six steps, all of whose policies are on disk, that came to its end or did not."""
    report = make_report()

    async def steps() -> None:
        async with report:
            make_group.add_generation(report.folder, 0)
            for _ in report.steps(STEPS):
                version = report.policy_version + 1
                await report.sampled([make_group(0.5, 1.0, version=report.policy_version)])
                make_group.add_generation(report.folder, version)
                report.trained(art.TrainResult(version))
            if request.param != "finished":
                raise KeyboardInterrupt

    if request.param == "finished":
        await steps()
    else:
        with pytest.raises(KeyboardInterrupt):
            await steps()
    if request.param == "killed":  # nothing was written at its end
        path = report.folder / "run.json"
        described = json.loads(path.read_text()) | {"stop": None, "durable_version": None}
        path.write_text(json.dumps(described))
    return report.folder


def policy(run: Path, version: int) -> Path:
    (found,) = (run / "generations").glob(f"step-{version:08d}-*")
    return found


def content(run: Path) -> dict[str, bytes]:
    """All files but the lock, which names the process that looked last."""
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def emptied(run: Path) -> None:
    shutil.rmtree(run / "generations")
    (run / "generations").mkdir()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)


async def refused(make_report: Callable[..., RunReport], run: Path, settings: type, match: str) -> None:
    before = content(run)
    with pytest.raises(ConfigError, match=match):
        read_resumable(run, STEPS + 4)
    with pytest.raises(ConfigError, match=match):
        async with make_report(resume=True, settings=settings(steps=STEPS + 4)):
            raise AssertionError("it went on")
    assert content(run) == before


@pytest.fixture
def more(settings: object) -> type:
    return type(settings)


@pytest.mark.parametrize(
    ("lose", "holds"),
    [
        (lambda run: shutil.rmtree(run / "generations"), "holds none"),
        (emptied, "holds none"),
        (lambda run: shutil.rmtree(policy(run, 6)), r"holds none above v5"),
        (lambda run: [shutil.rmtree(policy(run, version)) for version in range(1, 7)], "none above v0"),
    ],
)
async def test_policies_that_were_on_disk_and_are_gone(
    run: Path, make_report, more: type, lose: Callable[[Path], object], holds: str
) -> None:
    lose(run)
    await refused(make_report, run, more, f"6 steps, and policy v6 was on disk.*{holds}.*bring its")
    said = "\n".join(state_lines(read_state(run)))
    assert holds.replace("\\", "") in said
    assert "Go on after" not in said
    assert "policy v6 was on disk" in write_report(run).read_text()


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "manifest.json"])
@pytest.mark.parametrize("hurt", [cut, flipped, Path.unlink])
async def test_a_damaged_newest_policy_and_how_to_go_on_without_it(
    run: Path, make_report, more: type, stream, name: str, hurt: Callable[[Path], object]
) -> None:
    hurt(policy(run, 6) / name)
    await refused(make_report, run, more, r"is damaged: .*go on from step 5 and policy v5")
    with pytest.raises(ConfigError) as told:
        read_resumable(run, STEPS + 4)
    command, source, target = shlex.split(str(told.value).splitlines()[-1])
    assert command == "mv"
    shutil.move(source, target)
    async with make_report(resume=True, settings=more(steps=STEPS + 4)) as report:
        assert (report.steps_done, report.policy_version) == (5, 5)
    assert "step 6 rolled back: the newest durable policy is v5" in stream.getvalue()
    assert read_run(run).durable_version == 5


async def test_what_is_lost_after_going_on_without_one_is_refused_again(
    run: Path, make_report, more: type
) -> None:
    policy(run, 6).rename(run / "generations" / f"damaged-{policy(run, 6).name}")
    shutil.rmtree(policy(run, 5))
    await refused(make_report, run, more, "none above v4")


async def test_lines_that_say_nothing_of_the_disk_may_be_a_little_ahead(
    run: Path, make_report, more: type
) -> None:
    described = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(described | {"durable_version": None, "finished": False}))
    lines = [{**line, "durable_version": None} for line in read_steps(run)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for version in (6, 5, 4):
        shutil.rmtree(policy(run, version))
        read_resumable(run)
    shutil.rmtree(policy(run, 3))
    await refused(make_report, run, more, "policy v3 was on disk")


async def test_a_step_s_line_says_what_was_on_disk(run: Path) -> None:
    assert [line["durable_version"] for line in read_steps(run)] == [1, 2, 3, 4, 5, 6]


async def test_lost_lines_are_told(run: Path, make_report, more: type) -> None:
    (run / "metrics.jsonl").unlink()
    await refused(make_report, run, more, r"ends with version 0: its lines were lost")
    assert any(line.startswith("metrics.jsonl is missing") for line in state_lines(read_state(run)))
    assert "metrics.jsonl is missing" in write_report(run).read_text()


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl"])
async def test_a_damaged_file_is_told_with_the_next_step(
    run: Path, make_report, more: type, name: str
) -> None:
    (run / name).write_text("{not json}\n")
    await refused(make_report, run, more, rf"{name} cannot be read.*[bB]ring the file back from a copy")
