"""How a run ends: what its folder, its page and the terminal say of it, and how it goes on afterwards."""

import asyncio
import contextlib
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import art
from art.distributed.errors import CloseError
from art.errors import ArtError, ConfigError
from art.reporting import (
    DisplayError,
    JsonDisplay,
    PlainDisplay,
    RunFinishedError,
    RunFolderError,
    RunReport,
    read_resumable,
    read_state,
    state_lines,
)
from art.reporting.output import Output
from art.reporting.page import write_report
from art.reporting.run_folder import read_run, read_steps


class Settings(msgspec.Struct, frozen=True):
    steps: int = 3
    rate: float = 0.5


async def take_steps(report: RunReport, make_group: Callable, count: int, limit: int = 99) -> None:
    """Steps that each move the policy, whose generations are on disk at once."""
    for _ in range(count):
        step = next(report.steps(limit))
        await report.sampled([make_group(0.5, 1.0, version=report.policy_version)])
        version = report.policy_version + 1
        make_group.add_generation(report.folder, version)
        report.trained(art.TrainResult(version))
        assert report.steps_done == step


async def ended(report: RunReport, make_group: Callable, steps: int, error: BaseException | None) -> Path:
    """A run of ``steps`` steps that ends with ``error``."""
    with contextlib.suppress(*([type(error)] if error else [])):
        async with report:
            await take_steps(report, make_group, steps)
            if error is not None:
                next(report.steps(99))
                raise error
    return report.folder


async def test_a_failed_run_says_where_why_and_what_to_do(make_report, make_group, stream) -> None:
    report = make_report(resume_command="my resume")
    folder = await ended(report, make_group, 2, ArtError("member 0 died:\nout of <memory>"))
    assert "\nfailed in step 3, sampling, after 2 steps and 0 s" in stream.getvalue()
    state = read_state(folder)
    assert (state.state, state.steps, state.doing, state.kept_steps) == ("failed", 2, "step 3, sampling", 2)
    assert state_lines(state) == [
        "failed in step 3, sampling, after 2 finished steps",
        "  ArtError: member 0 died:",
        "  out of <memory>",
        f"Mend what failed, then go on after step 2: my resume {folder}",
    ]
    page = write_report(folder).read_text()
    assert "Failed in step 3, sampling, after 2 finished steps" in page
    assert "ArtError: member 0 died:\nout of &lt;memory&gt;" in page
    assert f"<code>my resume {folder}</code>" in page


async def test_an_interrupted_run_is_called_stopped(make_report, make_group, stream) -> None:
    report = make_report(resume_command="my resume")
    folder = await ended(report, make_group, 1, asyncio.CancelledError())
    assert "\nstopped in step 2, sampling, after 1 step and 0 s" in stream.getvalue()
    assert state_lines(read_state(folder)) == [
        "stopped by Ctrl-C or another signal in step 2, sampling, after 1 finished step",
        f"Go on after step 1: my resume {folder}",
    ]


async def test_a_run_without_a_step_says_to_start_again(make_report, make_group) -> None:
    report = make_report(resume_command="my resume")

    async def run() -> None:
        async with report:
            with report.phase("model"):
                raise ConfigError("there is no model")

    with pytest.raises(ConfigError):
        await run()
    assert state_lines(read_state(report.folder)) == [
        "failed in model, after 0 finished steps",
        "  ConfigError: there is no model",
        f"No step is on disk to go on from; mend what failed, then begin again: my resume {report.folder}",
    ]


async def test_what_failed_last_is_named_and_not_what_went_on_after_it(make_report, make_group) -> None:
    report = make_report()

    async def run() -> None:
        async with report:
            with contextlib.suppress(OSError), report.phase("first try"):
                raise OSError("busy")
            with report.phase("outer"), report.phase("inner"):
                pass
            raise ArtError("between two parts")

    with pytest.raises(ArtError):
        await run()
    assert read_state(report.folder).doing == ""


async def test_a_running_run_says_so(make_report, make_group) -> None:
    async with make_report() as report:
        await take_steps(report, make_group, 1)
        state = read_state(report.folder)
        assert state_lines(state) == [f"running in process {os.getpid()}, 1 finished step so far"]
        assert "Running in process" in write_report(report.folder).read_text()
    assert state_lines(read_state(report.folder)) == ["finished after 1 step"]


def test_a_killed_run_says_that_it_ended_without_a_word(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys, time\nfrom pathlib import Path\n"
        "import art\nfrom art.reporting import RunReport\n"
        "def group(*rewards):\n"
        "    said = [{'role': 'user', 'content': '?'}]\n"
        "    return art.TrajectoryGroup(\n"
        "        art.Trajectory(messages_and_choices=said, reward=reward) for reward in rewards)\n"
        "async def main():\n"
        "    async with RunReport('n', Path(sys.argv[1]), resume_command='my resume') as report:\n"
        "        next(report.steps(2))\n"
        "        await report.sampled([group(0.5, 0.5)])\n"
        "        report.trained(art.TrainResult(0))\n"
        "        print('trained', flush=True)\n"
        "        time.sleep(600)\n"
        "asyncio.run(main())"
    )
    folder = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert "trained\n" in process.stdout
        assert read_state(folder).state == "running"
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()
    assert state_lines(read_state(folder)) == [
        "ended without a word after 1 finished step: its process was killed, or the machine went down",
        f"Go on after step 1: my resume {folder}",
    ]


async def test_an_error_that_is_no_art_s_is_told_with_the_user_s_lines(make_report, make_group) -> None:
    folder = await ended(make_report(), make_group, 0, KeyError("answr"))
    message = read_state(folder).message
    assert message.startswith("Traceback")
    assert message.endswith("KeyError: 'answr'")
    assert "test_run_end.py" in message


@pytest.mark.parametrize(
    ("first", "inner", "state", "message"),
    [
        (ArtError("the cause"), ArtError("also"), "failed", "ArtError: the cause"),
        (ArtError("the cause"), OSError("is left"), "failed", "ArtError: the cause\nclosing: is left"),
        (asyncio.CancelledError(), ArtError("also"), "interrupted", ""),
        (asyncio.CancelledError(), OSError("is left"), "interrupted", "closing: is left"),
    ],
)
async def test_what_fails_while_closing_does_not_hide_what_ended_the_run(
    make_report, first: BaseException, inner: Exception, state: str, message: str
) -> None:
    report = make_report()

    async def run() -> None:
        async with report:
            try:
                raise first
            finally:
                raise CloseError("closing", [inner])

    with pytest.raises(CloseError):
        await run()
    found = read_state(report.folder)
    assert (found.state, found.message) == (state, message)


async def test_a_long_message_is_shortened_in_the_middle(make_report, make_group) -> None:
    folder = await ended(make_report(), make_group, 0, ArtError("a" * 50_000 + "the end"))
    stop = read_run(folder).stop
    assert stop is not None
    assert len(stop.message) < 9_000
    assert stop.message.endswith("the end")
    assert "characters left out" in stop.message


async def test_a_finished_run_goes_on_for_more_steps(make_report, make_group, stream, read_json) -> None:
    folder = await ended(make_report(), make_group, 3, None)
    for steps in (None, 2, 3):
        with pytest.raises(RunFinishedError, match=r"finished after 3 steps; .* more than 3 steps"):
            read_resumable(folder, steps)
    with pytest.raises(RunFinishedError):
        async with make_report(resume=True):
            pass
    report = make_report(resume=True, settings=Settings(steps=5))
    async with report:
        assert (report.steps_done, report.policy_version) == (3, 3)
        state = read_state(folder)
        assert state.state == "running"
        await take_steps(report, make_group, 2, limit=5)
        assert list(report.steps(5)) == []
    assert [line["step"] for line in read_json(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert f"resuming after step 3, from policy v3: {folder}" in stream.getvalue()
    description = read_run(folder)
    assert (description.finished, description.settings) == (True, {"steps": 5, "rate": 0.5})
    assert "Finished" not in write_report(folder).read_text().split("</header>")[1]
    assert "finished after 5 steps" in write_report(folder).read_text()


async def test_one_that_goes_on_for_more_steps_and_is_stopped_is_stopped(make_report, make_group) -> None:
    folder = await ended(make_report(), make_group, 3, None)
    more = Settings(steps=6)
    await ended(make_report(resume=True, settings=more), make_group, 1, KeyboardInterrupt())
    assert (read_state(folder).state, len(read_steps(folder))) == ("interrupted", 4)
    with pytest.raises(
        ConfigError, match="3 steps in all are no more than the 4 steps that the run has taken"
    ):
        async with make_report(resume=True):
            pass
    async with make_report(resume=True, settings=more) as report:
        assert report.steps_done == 4


async def test_other_settings_than_the_steps_cannot_change(make_report, make_group) -> None:
    await ended(make_report(), make_group, 1, None)
    with pytest.raises(ConfigError, match=r"rate is 0\.25 now and 0\.5 in the run"):
        async with make_report(resume=True, settings=Settings(steps=9, rate=0.25)):
            pass


async def test_enough_is_judged_anew_when_a_finished_run_goes_on(make_report, make_group) -> None:
    async def steps_until_enough(report: RunReport, limit: int) -> list[int]:
        taken = []
        async with report:
            for step in report.steps(limit, enough=0.9):
                await report.sampled([make_group(1.0, 1.0)])
                report.trained(art.TrainResult(0))
                taken.append(step)
        return taken

    assert await steps_until_enough(make_report(settings=Settings(steps=20)), 20) == [1, 2, 3, 4, 5]
    more = make_report(resume=True, settings=Settings(steps=30))
    assert await steps_until_enough(more, 30) == [6, 7, 8, 9, 10]


async def train_flat(report: RunReport, make_group: Callable, limit: int, enough: float = 2.0) -> list[int]:
    """A whole run, of steps that need no policy; which it took."""
    taken = []
    async with report:
        for step in report.steps(limit, enough=enough):
            await report.sampled([make_group(1.0, 1.0)])
            report.trained(art.TrainResult(0))
            taken.append(step)
    return taken


def without_settings(make_report: Callable, **arguments: object) -> RunReport:
    return make_report(settings=None, **arguments)


async def test_without_settings_the_loop_says_how_far_a_finished_run_goes(
    make_report, make_group, stream
) -> None:
    assert await train_flat(without_settings(make_report), make_group, 2) == [1, 2]
    assert await train_flat(without_settings(make_report, resume=True), make_group, 5) == [3, 4, 5]
    assert "no step is left" not in stream.getvalue()
    for limit in (5, 4):
        stream.truncate(0)
        again = without_settings(make_report, resume=True)
        assert await train_flat(again, make_group, limit) == []
        assert f"the run has taken 5, and {limit} is the most; to go on, let it take more than 5 steps\n" in (
            stream.getvalue()
        )
        state = read_state(again.folder)
        assert (state.state, state.steps) == ("finished", 5)
    assert await train_flat(without_settings(make_report, resume=True), make_group, 6) == [6]


async def test_what_was_enough_is_enough_until_the_loop_may_take_more_steps(
    make_report, make_group, stream
) -> None:
    assert len(await train_flat(without_settings(make_report), make_group, 20, enough=0.9)) == 5
    assert await train_flat(without_settings(make_report, resume=True), make_group, 20, enough=0.9) == []
    assert "the last 5 steps is above 0.9, which is enough" in stream.getvalue()
    assert "let the run take more than 20 steps" in stream.getvalue()
    more = without_settings(make_report, resume=True)
    assert await train_flat(more, make_group, 30, enough=0.9) == [6, 7, 8, 9, 10]


async def test_a_run_that_was_stopped_behind_its_last_step_comes_to_its_end(make_report, make_group) -> None:
    report = without_settings(make_report)

    async def stopped() -> None:
        async with report:
            for _ in report.steps(1):
                await report.sampled([make_group(1.0, 1.0)])
                report.trained(art.TrainResult(0))
            raise KeyError

    with pytest.raises(KeyError):
        await stopped()
    assert await train_flat(without_settings(make_report, resume=True), make_group, 1) == []
    assert read_state(report.folder).state == "finished"


@pytest.mark.parametrize("finished", [False, True])
async def test_a_run_can_be_given_fewer_steps_than_before_and_more_than_it_took(
    make_report, make_group, finished: bool
) -> None:
    await ended(make_report(settings=Settings(steps=25)), make_group, 3, None if finished else KeyError())
    for steps in (2, 3):
        with pytest.raises(ConfigError, match="3 steps"):
            async with make_report(resume=True, settings=Settings(steps=steps)):
                pass
    report = make_report(resume=True, settings=Settings(steps=5))
    async with report:
        await take_steps(report, make_group, 2, limit=5)
        assert list(report.steps(5)) == []
    assert read_run(report.folder).settings["steps"] == 5


class Failing(io.StringIO):
    """A stream with room for some lines."""

    def __init__(self, lines: int, error: OSError | ValueError) -> None:
        super().__init__()
        self.left, self.error = lines, error

    def write(self, text: str) -> int:
        self.left -= text.count("\n")
        if self.left < 0:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("make_display", [PlainDisplay, JsonDisplay])
@pytest.mark.parametrize("room", range(8))
@pytest.mark.parametrize(
    ("error", "closed"),
    [(BrokenPipeError(32, "Broken pipe"), True), (OSError(28, "No space left on device"), False)],
)
async def test_when_the_output_fails_the_run_stops_and_keeps_what_is_finished(
    make_report, make_group, make_display, room: int, error: OSError, closed: bool
) -> None:
    report = make_report(display=make_display(Failing(room, error)), resume_command="my resume")
    trained = 0

    async def run() -> None:
        nonlocal trained
        async with report:
            with report.phase("start"):
                pass
            for _ in report.steps(3):
                await report.sampled([make_group(0.5, 0.5)])
                trained += 1
                report.trained(art.TrainResult(0))

    with pytest.raises(DisplayError) as raised:
        await run()
    assert raised.value.closed is closed
    assert str(raised.value).startswith("the output cannot be written any more")
    assert len(read_steps(report.folder)) == trained
    stop = read_run(report.folder).stop
    if stop is None:
        assert (trained, read_run(report.folder).finished) == (3, True), "the end alone was not shown"
    else:
        assert stop.kind == "DisplayError"
    async with make_report(folder=report.folder, resume=True, settings=Settings(steps=9)) as again:
        assert again.steps_done == trained


def test_the_first_write_that_fails_is_the_last() -> None:
    stream = Failing(1, OSError(28, "No space left on device"))
    output = Output(stream)
    output.line("first")
    for text in ("second", "third"):
        with pytest.raises(DisplayError, match="No space left on device"):
            output.line(text)
        stream.left, stream.error = 1, OSError(5, "a later error")
    assert stream.getvalue() == "first\n"


async def test_an_output_that_fails_after_the_error_does_not_hide_it(make_report, make_group) -> None:
    display = PlainDisplay(Failing(2, BrokenPipeError(32, "Broken pipe")))

    async def run() -> None:
        async with make_report(display=display) as report:
            await take_steps(report, make_group, 1)
            raise ConfigError("the news")

    with pytest.raises(ConfigError, match="the news"):
        await run()


def test_a_run_into_a_full_device_and_a_closed_pipe_says_one_thing(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom art.reporting import DisplayError, RunReport\n"
        "async def main():\n"
        "    async with RunReport('n', Path(sys.argv[1])) as report:\n"
        "        while True:\n            report.line('x' * 5000)\n"
        "try:\n    asyncio.run(main())\n"
        "except DisplayError as error:\n    sys.exit(f'{error.closed} {error}')"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path / "full"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    said = "False the output cannot be written any more: [Errno 28] No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "pipe"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (1, "True the output cannot be written any more: nobody reads it\n")
    assert read_state(tmp_path / "pipe").state == "failed"


async def test_a_full_disk_ends_the_run_with_what_is_whole(make_report, make_group, monkeypatch) -> None:
    real = os.fsync

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    report, before = make_report(resume_command="my resume"), b""

    async def run() -> None:
        nonlocal before
        async with report:
            await take_steps(report, make_group, 1)
            next(report.steps(9))
            await report.sampled([make_group(0.5, 0.5, version=1)])
            before = (report.folder / "metrics.jsonl").read_bytes()
            monkeypatch.setattr(os, "fsync", full)
            report.trained(art.TrainResult(1))

    with pytest.raises(RunFolderError, match=r"No space left on device\. What is in it is whole; make room"):
        await run()
    monkeypatch.setattr(os, "fsync", real)
    assert (report.folder / "metrics.jsonl").read_bytes() == before
    assert list(report.folder.rglob("*.part")) == []
    assert read_state(report.folder).state == "killed", "run.json could not be written either"


class Told(io.StringIO):
    """Output that sets an event when it has a text."""

    def __init__(self, **texts: asyncio.Event) -> None:
        super().__init__()
        self.texts = texts

    def write(self, text: str) -> int:
        for beginning, event in self.texts.items():
            if text.startswith(beginning):
                event.set()
        return super().write(text)


async def test_a_run_that_is_told_to_stop_says_so_at_once(make_report, make_group) -> None:
    started, stopping, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    stream = Told(start=started, stopping=stopping)

    async def run() -> None:
        async with make_report(display=PlainDisplay(stream)) as report:
            try:
                with report.phase("start"):
                    await asyncio.sleep(60)
            finally:
                await closed.wait()  # parts are ended

    task = asyncio.create_task(run())
    async with asyncio.timeout(10):
        await started.wait()
        task.cancel()
        await stopping.wait()
    closed.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    told = re.sub(r"\d+\.\d s", "0.0 s", stream.getvalue()).splitlines()
    assert told[:3] == ["start ...", "start: stopped after 0.0 s", "stopping ..."]
    assert told[3].startswith("stopped in start, after 0 steps")


async def test_a_deadline_that_passes_is_no_stop(make_report, stream) -> None:
    async with make_report():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        await asyncio.sleep(0.5)  # longer than a stop takes to be told
    assert "stopping" not in stream.getvalue()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        ArtError("snapshots could not be kept: durability: [Errno 28] No space left on device"),
    ],
)
async def test_a_full_disk_is_told_with_what_to_do(make_report, make_group, stream, error: Exception) -> None:
    await ended(make_report(resume_command="art demo --resume"), make_group, 1, error)
    said = stream.getvalue()
    assert "the run can be resumed once there is room again" in said
    assert said.index("once there is room") < said.index("go on with: art demo --resume")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache/x"), "no room left where /cache/x is;"),
        (
            ArtError("the trainer: OSError: [Errno 28] No space left on device: '/elsewhere/a.bin'"),
            "no room left where /elsewhere/a.bin is;",
        ),
        (ArtError("No space left on device"), "no room left on a disk that the run writes to (`df -h` shows"),
    ],
)
async def test_a_full_disk_is_the_one_that_is_full(make_report, make_group, stream, error, said) -> None:
    folder = await ended(make_report(), make_group, 1, error)
    told = " ".join(stream.getvalue().split())
    assert said in told
    assert f"no room left where {folder}" not in told


async def test_the_time_of_a_run_is_kept_when_it_ends_and_goes_on_from_there(make_report, make_group) -> None:
    folder = await ended(make_report(), make_group, 1, KeyboardInterrupt())
    took = read_run(folder).elapsed_s
    assert took is not None
    assert took >= read_steps(folder)[-1]["elapsed_s"]
    run = folder / "run.json"
    run.write_text(json.dumps(json.loads(run.read_text()) | {"elapsed_s": took + 100}))
    await ended(make_report(resume=True), make_group, 1, KeyboardInterrupt())
    assert read_steps(folder)[-1]["elapsed_s"] >= took + 100
    assert (read_run(folder).elapsed_s or 0) >= took + 100
