"""A part that fails is named to everyone who depends on it, as soon as it can be seen."""

import asyncio

import pytest

from art.distributed.errors import RuntimeFailure
from art.distributed.failures import FailureWatch

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
