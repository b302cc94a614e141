"""A part that fails is named to everyone who depends on it, as soon as it can be seen."""

import asyncio

import pytest

from art.distributed.errors import ActorDied, CloseError, PartFailed, RuntimeFailure
from art.distributed.failures import FailureWatch
from art.distributed.monarch_cli import error_texts
from art.distributed.next_step import next_step

LONG_S = 60.0


class Part:
    """Something that is watched."""

    def __init__(self) -> None:
        self.wrong: str | None = None
        self.asked = 0

    async def check(self) -> str | None:
        self.asked += 1
        await asyncio.sleep(0)
        return self.wrong


@pytest.fixture
async def watch():
    watch = FailureWatch()
    yield watch
    watch.close()


async def answer(value):
    await asyncio.sleep(0)
    return value


async def refuse():
    raise ConnectionRefusedError("nobody listens")


async def test_work_gives_its_value_while_nothing_is_wrong(watch):
    watch.add("service", Part().check)
    assert await watch.guard(answer(3)) == 3


async def test_an_error_of_healthy_parts_stays_what_it_is(watch):
    watch.add("service", Part().check)
    with pytest.raises(ConnectionRefusedError):
        await watch.guard(refuse())


async def test_an_error_is_explained_by_the_part_that_failed(watch):
    part = Part()
    watch.add("service", part.check)
    part.wrong = "service 'policy': engine core (pid 7) was killed by SIGKILL"
    with pytest.raises(RuntimeFailure, match="engine core") as caught:
        await watch.guard(refuse())
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


async def test_hanging_work_ends_when_a_part_fails(watch):
    part, cancelled = Part(), asyncio.Event()
    watch.add("service", part.check)

    async def hang():
        try:
            await asyncio.sleep(LONG_S)
        finally:
            cancelled.set()

    work = asyncio.ensure_future(watch.guard(hang()))
    await asyncio.sleep(0)
    part.wrong = "stalled"
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeFailure, match="stalled"):
            await work
    assert cancelled.is_set()


async def test_the_first_failure_stays_and_later_work_ends_at_once(watch):
    part = Part()
    watch.add("service", part.check)
    part.wrong = "first"
    assert await watch.diagnose() == "first"
    part.wrong = "second"
    assert await watch.diagnose() == "first"
    with pytest.raises(RuntimeFailure, match="first"):
        await watch.guard(asyncio.sleep(LONG_S))


async def test_a_part_that_cannot_be_asked_has_failed(watch):
    async def broken():
        raise OSError("no route")

    watch.add("service", broken)
    assert await watch.diagnose() == "service cannot be asked: no route"


async def test_a_part_that_is_no_longer_watched_does_not_count(watch):
    part = Part()
    part.wrong = "stopped on purpose"
    watch.add("service", part.check)
    watch.remove("service")
    assert await watch.diagnose() is None


async def test_many_who_ask_share_one_round(watch):
    part = Part()
    watch._checks["service"] = part.check  # without the poll, which asks as well
    await asyncio.gather(*(watch.diagnose() for _ in range(50)))
    assert part.asked == 1


class Process:
    """Stands for the handle of an actor."""

    name = "trainer rank 0"

    def __init__(self) -> None:
        self.death: asyncio.Future[ActorDied] = asyncio.get_running_loop().create_future()

    async def wait_died(self) -> ActorDied:
        return await asyncio.shield(self.death)


async def test_a_process_that_dies_ends_what_waits_at_once_and_says_what_to_do(watch):
    process = Process()
    watch.add_process(process)
    watch.advise(lambda: "Start it again")
    work = asyncio.ensure_future(watch.guard(asyncio.sleep(LONG_S)))
    await asyncio.sleep(0)
    process.death.set_result(ActorDied("trainer rank 0 (pid 7)", "killed by SIGKILL"))
    async with asyncio.timeout(1):
        with pytest.raises(PartFailed) as caught:
            await work
    text = str(caught.value)
    assert text.startswith("trainer rank 0 (pid 7) died: killed by SIGKILL (")
    assert "`dmesg`" in text
    assert text.endswith(". Start it again")


async def test_a_part_that_was_asked_is_told_with_what_to_do_at_that_time(watch, tmp_path):
    part = Part()
    watch.add("service", part.check)
    watch.advise(lambda: next_step(tmp_path))
    (tmp_path / "generations" / f"step-00000000-{0:032x}").mkdir(parents=True)
    assert next_step(tmp_path).startswith("No step of the run was on disk yet: start it again")
    (tmp_path / "generations" / f"step-00000010-{0:032x}").mkdir()
    part.wrong = "service 'policy' is stalled."
    with pytest.raises(PartFailed) as caught:
        await watch.guard(refuse())
    go_on = "The run can go on from its last step on disk: start it again with resume"
    assert str(caught.value) == f"service 'policy' is stalled. {go_on}"


async def test_the_end_of_a_host_is_a_failure(watch):
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    watch.add_end("host 0", lambda: ended)
    work = asyncio.ensure_future(watch.guard(asyncio.sleep(LONG_S)))
    await asyncio.sleep(0)
    ended.set_result("the worker process of host 0 (pid 7) was killed by SIGKILL")
    with pytest.raises(PartFailed, match=r"^the worker process of host 0 \(pid 7\) was killed by SIGKILL$"):
        await work


async def test_a_process_that_is_stopped_on_purpose_is_no_failure(watch):
    process = Process()
    watch.add_process(process)
    watch.remove(process.name)
    process.death.set_result(ActorDied("trainer rank 0 (pid 7)", "stopped"))
    await asyncio.sleep(0.05)
    assert watch.failure is None
    assert await watch.guard(answer(3)) == 3


def closing_after(error: BaseException | None, *failures: Exception) -> CloseError:
    """As it is raised by a ``finally`` that closes."""
    closed = CloseError("the backend closed with failures", list(failures))
    closed.__context__ = error
    return closed


def test_only_what_ended_the_run_is_told_unless_something_is_left_behind():
    primary, late = RuntimeFailure("the packing worker died"), RuntimeFailure("durability was not done")
    assert error_texts(closing_after(primary, late, TimeoutError())) == ["the packing worker died"]
    left = closing_after(primary, OSError("process 7 could not be ended"))
    assert error_texts(left)[0] == "the packing worker died"
    assert "process 7 could not be ended" in error_texts(left)[1]
    assert error_texts(closing_after(None, late)) == [
        "the backend closed with failures: durability was not done"
    ]
    assert "durability was not done" in error_texts(closing_after(asyncio.CancelledError(), late))[0]


def test_what_fails_while_closing_is_noted_on_the_error_that_ended_the_run():
    error = ValueError("mine")
    assert CloseError("closed", [RuntimeFailure("late")]).follows(error)
    assert error.__notes__ == ["closed: late"]
    assert not CloseError("closed", [OSError("left")]).follows(error)
